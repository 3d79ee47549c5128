"""Threads of TensorFlow: a pool for each of the threads that drive machines, in place of one for all.

XLA for processors hands parts of a program to the threads of its device's pool, though with many small kernels there is
little to gain. Two machines at once, on the one device of the processor, so take each other's threads; on a device of
its own, whose pool is a single thread, each runs as if it were alone (decisions/0015). TensorFlow would compile a
program for each device; it loads it for the others from a file, which takes a third of the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from batchnuts.autobatch.runtime.environment import variable_set, with_flag

_OWN_POOLS = "TF_OVERRIDE_GLOBAL_THREADPOOL"
"""Environment variable: whether every device has a pool of its own. Read when TensorFlow makes the first device."""

_KEEP = "--tf_xla_persistent_cache_directory"
"""A flag of the variable TF_XLA_FLAGS: where TensorFlow keeps the programs that XLA has compiled. Read when it first
looks for devices."""

_programs: list[TemporaryDirectory[str]] = []
"""That directory; deleted when the process ends."""

_devices: list[str] = []
"""Those made by `use_own_threads`."""


def processors() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_own_threads(shards: int | None = None) -> bool:
    """Divide the processor into `shards` devices of one thread each (default: one for each core that may be used).

    For a process that samples and does little else with TensorFlow: whatever runs outside of the sampler has one thread
    afterwards. To be called before TensorFlow makes its devices, which it does at the first tensor. False, and nothing
    has changed, where that was before, where there is a graphics card, or for fewer than two shards.
    """
    import tensorflow as tf

    if shards is None:
        shards = processors()
    if _devices:
        return len(_devices) >= shards
    if shards < 2:
        return False
    with _programs_kept():
        whole = tf.config.list_physical_devices("CPU")
    if len(whole) != 1 or tf.config.list_physical_devices("GPU"):
        return False
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:  # the devices are there
        return False
    with variable_set(_OWN_POOLS, "1"):
        tf.config.set_logical_device_configuration(whole[0], [tf.config.LogicalDeviceConfiguration()] * shards)
        _devices.extend(device.name for device in tf.config.list_logical_devices("CPU"))  # makes them
    return True


@contextmanager
def _programs_kept() -> Iterator[None]:
    """TensorFlow's first look for devices, unless the user's flags say where programs are kept."""
    if _KEEP in os.environ.get("TF_XLA_FLAGS", ""):
        yield
        return
    _programs.append(TemporaryDirectory(prefix="batchnuts-"))
    with variable_set("TF_XLA_FLAGS", with_flag("TF_XLA_FLAGS", f"{_KEEP}={_programs[-1].name}")):
        yield


@contextmanager
def on_shard(number: int) -> Iterator[None]:
    """What this thread runs inside runs on the device of the shard, if there are such devices."""
    if not _devices:
        yield
        return
    import tensorflow as tf

    with tf.device(_devices[number % len(_devices)]):
        yield
