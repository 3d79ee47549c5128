"""Threads that each drive a machine whose programs call no array library: there is nothing to prepare."""

from __future__ import annotations

import os
import sys

from batchnuts.autobatch.backends.registry import has_jax, missing


def use_own_threads(shards: int) -> bool:
    """Whether there are at least two."""
    return shards >= 2


_DEVICES = ("/dev/nvidiactl", "/dev/kfd")
"""What is there where TensorFlow may find a graphics card."""


def has_accelerator() -> bool:
    """Whether there is one that JAX would compute on, or TensorFlow where JAX is not installed."""
    if has_jax():
        from batchnuts.autobatch.backends.jax import threads

        return threads.has_accelerator()
    if missing("tensorflow") or not ("tensorflow" in sys.modules or any(map(os.path.exists, _DEVICES))):
        return False
    from batchnuts.autobatch.backends.tensorflow import devices

    return devices.has_accelerator()


def prepare_disk_cache() -> None:
    """Do nothing: machine code needs no preparation."""
