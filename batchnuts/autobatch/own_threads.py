"""Threads that drive machines, each of which runs programs of its own."""

from __future__ import annotations

from batchnuts.autobatch.engines.registry import engine_of
from batchnuts.autobatch.environment import processors


def use_own_threads(shards: int | None = None, backend: str = "tensorflow") -> bool:
    """Let `shards` threads that drive machines run at once (default: one for each core that may be used).

    Call it before the backend's library makes its first array. JAX then runs programs in the threads that call them.
    TensorFlow does so by itself; what XLA compiles lies in a temporary directory from then on, from which
    `execution.cache` keeps it for later processes. Returns whether there are at least two shards. NumPy: False.

    Raises ValueError for an unknown backend, and for shards that are no integer of at least 1.
    """
    threads = engine_of(backend).threads()
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards must be an integer of at least 1, or None; found {shards!r}")
    return threads is not None and threads.use_own_threads(processors() if shards is None else shards)


def prepare_disk_cache(backend: str) -> None:
    """Have what XLA compiles kept on disk where a run asks for that (batchnuts/disk_cache).

    For a process that samples and does little else with the backend's library, before that makes its first array. Only
    TensorFlow needs it: where programs are stored is set once in a process.
    """
    threads = engine_of(backend).threads()
    if threads is not None:
        threads.prepare_disk_cache()
