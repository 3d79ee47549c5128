"""Threads that each drive a machine whose programs call no array library: there is nothing to prepare."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from batchnuts.autobatch.backends.registry import has_jax


def use_own_threads(shards: int) -> bool:
    """Whether there are at least two."""
    return shards >= 2


def on_shard(number: int) -> AbstractContextManager[None]:
    """Nothing to do: each thread computes what it starts."""
    return nullcontext()


def has_accelerator() -> bool:
    """Whether there is one that JAX would compute on."""
    from batchnuts.autobatch.backends.jax.threads import has_accelerator as jax_has_one

    return has_jax() and jax_has_one()


def prepare_disk_cache() -> None:
    """Do nothing: machine code needs no preparation."""
