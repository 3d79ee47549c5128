"""The minimum memory of a run, compared with the machine's: a run that cannot finish is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import psutil

from batchnuts.mcmc.draws import draw_bytes
from batchnuts.mcmc.settings import SamplerSettings

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of containers and jobs, under Linux."""

_MATRICES = 8
"""In float64, that an estimate of a dense metric makes."""


def memory_problem(sampler: SamplerSettings, dimension: int, dtype: str, divergences: bool = False) -> str | None:
    """Why the draws, or a dense metric, do not fit into memory, naming the settings; None if they do.

    The records of all draws are counted, once, with the ends of trajectories where `divergences` are asked for, and the
    matrices that a dense metric is estimated with. Where the number of chains is chosen, the smallest one counts.
    Memory is reserved only when it is written to, so the system would kill a run that needs too much midway, with all
    its draws.
    """
    needed = sampler.fewest_chains * sampler.draws * draw_bytes(dimension, dtype, divergences)
    there = machine_memory()
    matrices = _MATRICES * 8 * dimension**2 if sampler.metric == "dense" else 0
    if matrices > there:
        return (
            f"metric: a dense metric of {dimension} coordinates takes {matrices / 1e9:.3g} GB to estimate, and this "
            f"machine has {there / 1e9:.3g} GB; write sampler.metric: low_rank"
        )
    if needed <= there:
        return None
    return (
        f"chains x draws: {sampler.fewest_chains} x {sampler.draws} draws of {dimension} numbers or more take "
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
