"""How chains are divided among machines: chunks whose width does not depend on their number, and groups of chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from batchnuts.cluster.messages import SavedGroup
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.kernel.chain_program import ChainInputs
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

CHUNKS = 16
"""Into how many chunks chains are divided at least, where each has MIN_LANES chains or more: so many threads can work
on them."""

MIN_LANES = 16
"""Chains of a chunk at least, where their number is chosen and there are so many: fewer cost as much."""

GROUPS_PER_THREAD = 2
"""Groups for each thread, where there are enough chunks: what is slow can then be moved."""


def lanes_of(chains: int, execution: ExecutionSettings, max_width: int) -> int:
    """The chains of a chunk. The number of workers does not matter: so neither do draws depend on it."""
    if execution.chunk_lanes is not None:
        return min(execution.chunk_lanes, chains)
    return min(max_width, max(math.ceil(chains / CHUNKS), min(MIN_LANES, chains)))


def sizes_of(chains: int, lanes: int, threads: int) -> tuple[int, ...]:
    """Chains of each group: chunks one after another, as many in each but for the last one."""
    chunks = math.ceil(chains / lanes)
    size = lanes * max(1, chunks // (GROUPS_PER_THREAD * threads))
    return tuple(min(size, chains - first) for first in range(0, chains, size))


@dataclass(eq=False)
class ChainGroup:
    """What is known of some chains that run together, as one task after another."""

    number: int
    first: int
    """The number of its first chain."""
    chains: int
    start: SavedGroup | ChainInputs
    """The state from which another worker can go on."""
    segment: int = 0
    """The number of its next segment."""
    worker: str | None = None
    """The worker that can go on without `start`; None: none can."""
    saved_at: float = 0.0
    """The time at which `start` was saved, by time.monotonic()."""
    began: float | None = None
    """The time at which its task under way was given out; None: there is none."""
    leaves: bool = False
    """Whether it will go on elsewhere, once its state is here."""
    deaths: int = 0
    """Workers that have died with a task of it, and tasks that the scheduler has lost, since it last made progress."""
    stalls: int = 0
    """Tasks that took far too long, since one did not."""
    depth: int | None = None
    ended: bool = False
    counts: Counts = field(default_factory=Counts)
