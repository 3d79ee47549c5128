"""What a run takes at least, against what the machine has: a run that cannot end is refused before it begins."""

from __future__ import annotations

from pathlib import Path

import psutil

from batchnuts.mcmc.draws import draw_bytes
from batchnuts.mcmc.settings import SamplerSettings

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of containers and jobs, under Linux."""


def memory_problem(sampler: SamplerSettings, dimension: int, dtype: str) -> str | None:
    """Why the draws cannot be held, in words that name the settings; None if they can.

    Counted are the records of all draws, once. Memory is reserved when it is written to, so that a run that asks for
    too much would be ended by the system in its middle, with all that it has drawn.
    """
    needed = sampler.chains * sampler.draws * draw_bytes(dimension, dtype)
    there = machine_memory()
    if needed <= there:
        return None
    return (
        f"chains x draws: {sampler.chains} x {sampler.draws} draws of {dimension} numbers or more take "
        f"{needed / 1e9:.3g} GB, and this machine has {there / 1e9:.3g} GB; lower sampler.chains or sampler.draws"
    )


def machine_memory() -> int:
    """Bytes: the machine's, or what its container may use."""
    smallest = int(psutil.virtual_memory().total)
    for name in _LIMITS:
        try:
            smallest = min(smallest, int(Path(name).read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return smallest
