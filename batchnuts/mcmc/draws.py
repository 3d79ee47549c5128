"""What a run hands out: `Progress` while it goes, `Draws` when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings

Phase = Literal["compile", "warmup", "sampling"]

STATISTICS = (
    "lp",
    "acceptance_rate",
    "step_size",
    "tree_depth",
    "n_steps",
    "diverging",
    "energy",
    "reached_max_treedepth",
)
"""Keys of `Draws.stats`: the names of ArviZ's schema for sample statistics."""


@dataclass(frozen=True)
class Progress:
    """How far one phase of a run has come.

    `done` of `total` transitions over all chains together; `elapsed` seconds, `useful_gradients` and `divergences`
    since this phase began; `utilization` is the useful share (0 to 1) of the gradient lanes executed in this phase so
    far.
    """

    phase: Phase
    done: int
    total: int
    elapsed: float
    useful_gradients: int = 0
    utilization: float = 0.0
    divergences: int = 0


@dataclass(frozen=True)
class Arrangement:
    """How chains were served: `chunks` of `chunk_lanes` each, on `shards` threads, by a schedule's policy if any."""

    chunk_lanes: int
    schedule: str | None = None
    chunks: int = 1
    shards: int = 1

    def __str__(self) -> str:
        """As a run's summary has it."""
        lanes = f"{self.chunk_lanes} chain{'s' * (self.chunk_lanes > 1)}"
        many = f"{self.chunks} chunks of {lanes} on {self.shards} thread{'s' * (self.shards > 1)}"
        parts = [many if self.chunks > 1 else f"one chunk of {lanes}"]
        return ", ".join(parts + ([f"schedule {self.schedule}"] if self.schedule else []))


@dataclass(frozen=True, eq=False)
class Draws:
    """All that a run recorded, as NumPy arrays.

    `position` [chains, draws, dimension]; `stats` one array [chains, draws] for each name in STATISTICS (`diverging`
    and `reached_max_treedepth` are bool); `done` int [chains]: how many of each chain's draws are valid, always `draws`
    unless `interrupted` (entries past it are undefined); `inverse_mass` [dimension], the diagonal metric used for the
    draws; `timings` seconds of the phases `compile`, `warmup`, `sampling`; `useful_gradients` and `utilization` of the
    whole run after compilation; `arrangement` how chains were served, None if the run did not come so far.
    """

    position: NDArray[Any]
    stats: Mapping[str, NDArray[Any]]
    done: NDArray[Any]
    interrupted: bool
    inverse_mass: NDArray[Any]
    timings: Mapping[str, float]
    useful_gradients: int
    utilization: float
    settings: SamplerSettings
    execution: ExecutionSettings
    arrangement: Arrangement | None = None

    @property
    def complete(self) -> int:
        """Number of draws that every chain has."""
        return int(self.done.min())
