"""Threads of TensorFlow: a pool for each of the threads that drive machines, in place of one for all.

XLA for processors hands parts of a program to the threads of its device's pool, though with many small kernels there is
little to gain. Two machines at once, on the one device of the processor, so take each other's threads; on a device of
its own, whose pool is a single thread, each runs as if it were alone (decisions/0015).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_OWN_POOLS = "TF_OVERRIDE_GLOBAL_THREADPOOL"
"""Environment variable: whether every device has a pool of its own. Read when TensorFlow makes the first device."""

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
    whole = tf.config.list_physical_devices("CPU")
    if shards < 2 or len(whole) != 1 or tf.config.list_physical_devices("GPU"):
        return False
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:  # the devices are there
        return False
    given = os.environ.get(_OWN_POOLS)
    os.environ[_OWN_POOLS] = "1"
    try:
        tf.config.set_logical_device_configuration(whole[0], [tf.config.LogicalDeviceConfiguration()] * shards)
        _devices.extend(device.name for device in tf.config.list_logical_devices("CPU"))  # makes them
    finally:
        if given is None:
            del os.environ[_OWN_POOLS]
        else:
            os.environ[_OWN_POOLS] = given
    return True


@contextmanager
def on_shard(number: int) -> Iterator[None]:
    """What this thread runs inside runs on the device of the shard, if there are such devices."""
    if not _devices:
        yield
        return
    import tensorflow as tf

    with tf.device(_devices[number % len(_devices)]):
        yield
