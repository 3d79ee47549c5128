"""Threads of TensorFlow: a pool for each of the threads that drive machines, in place of one for all.

XLA for processors hands parts of a program to the threads of its device's pool, though with many small kernels that
gains little. So two machines that run at once on the one device of the processor compete for its threads; on a device
of its own, whose pool is a single thread, each runs as if it were alone (decisions/0015). TensorFlow would compile a
program for each device; it loads it for the others from a file, which takes a third of the time.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
from batchnuts.autobatch.environment import OWN_POOLS, variable_set, with_flag
from batchnuts.process.quiet import import_tensorflow

_KEEP = "--tf_xla_persistent_cache_directory"
"""A flag of the variable TF_XLA_FLAGS: where TensorFlow keeps the programs that XLA has compiled. Read when it first
looks for devices."""

MIN_FREE_BYTES = 1 << 30
"""What must be free where temporary files are. A program takes some 5 MB."""


def use_own_threads(shards: int) -> bool:
    """Divide the processor into devices of one thread each; returns whether it is so divided now."""
    import_tensorflow()
    import tensorflow as tf

    if PROCESS.devices:
        return len(PROCESS.devices) >= shards
    if shards < 2:
        return False
    prepare_disk_cache()
    processors = tf.config.list_physical_devices("CPU")
    if len(processors) != 1 or has_accelerator():
        return False
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:  # the devices are there
        _keep_no_programs()
        return False
    with variable_set(OWN_POOLS, "1"):
        tf.config.set_logical_device_configuration(processors[0], [tf.config.LogicalDeviceConfiguration()] * shards)
        PROCESS.devices = tuple(device.name for device in tf.config.list_logical_devices("CPU"))  # makes them
    return True


def has_accelerator() -> bool:
    """Whether there is a graphics card, on which TensorFlow computes what it can."""
    import_tensorflow()
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def prepare_disk_cache() -> None:
    """Have TensorFlow search for devices for the first time, with a flag for where to keep programs.

    The flag is not set where there is little room, since TensorFlow fails if it cannot store a program, or where the
    user's own flags set it. If TensorFlow has looked before, it keeps none.
    """
    import_tensorflow()
    import tensorflow as tf

    flags = None
    try:
        if PROCESS.programs is None and shutil.disk_usage(tempfile.gettempdir()).free >= MIN_FREE_BYTES:
            directory = tempfile.TemporaryDirectory(prefix="batchnuts-")
            flags = with_flag("TF_XLA_FLAGS", _KEEP, directory.name)
            if flags is not None:
                PROCESS.programs = directory
            else:
                directory.cleanup()
    except OSError:  # no such folder: then programs are compiled for each device
        pass
    if flags is not None:
        with variable_set("TF_XLA_FLAGS", flags):
            tf.config.list_physical_devices("CPU")


def _keep_no_programs() -> None:
    """TensorFlow had looked before, and does not know of the directory."""
    if PROCESS.programs is not None:
        PROCESS.programs.cleanup()
        PROCESS.programs = None


_of_thread = threading.local()
"""The shard of each thread that has one."""


@contextmanager
def on_shard(number: int) -> Iterator[None]:
    """Within, this thread runs on the device of the shard, if shards have devices."""
    if not PROCESS.devices:
        yield
        return
    import tensorflow as tf

    _of_thread.shard, previous = number % len(PROCESS.devices), present_shard()
    try:
        with tf.device(PROCESS.devices[_of_thread.shard]):
            yield
    finally:
        _of_thread.shard = previous


def present_shard() -> int:
    """The shard of this thread; the first one if it has none, or if shards have no devices."""
    return getattr(_of_thread, "shard", 0)


@contextmanager
def own_pool() -> Iterator[int | None]:
    """A session that is made inside has a pool of this many threads of its own, if shards have devices."""
    if not PROCESS.devices:
        yield None
        return
    with variable_set(OWN_POOLS, "1"):
        yield 1
