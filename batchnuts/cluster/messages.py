"""What goes to workers and what comes back: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.cluster.errors import Failure
from batchnuts.files.trees import Arrays, pack
from batchnuts.files.url import OutputLocation
from batchnuts.mcmc.execution.chunk import NOTHING
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.execution.saved_stretch import SavedStretch
from batchnuts.mcmc.execution.window_reduction import ReducedWindow, Reduction
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.storage.place import STATE


@dataclass(frozen=True, eq=False)
class Plan:
    """All that is the same for a whole run; each worker gets it once."""

    run: str
    """A name that no other run has."""
    model: bytes
    """The pickled model, by cloudpickle."""
    described: dict[str, str]
    """The model in this process, as `described` (mcmc/execution/model_description.py) gives it."""
    versions: dict[str, str]
    """The versions in this process, as `own_versions` (versions.py) gives them."""
    sampler: SamplerSettings
    execution: ExecutionSettings
    """The settings with the backend and the chains of a chunk decided."""
    position: NDArray[Any]
    """[dimension]: where the density can be evaluated."""
    density: tuple[NDArray[Any], NDArray[Any]]
    """The log-density at that position, with its gradient."""
    in_machine_code: bool
    """Whether chains compute gradients in machine code (`DensityLibrary.in_machine_code`)."""


@dataclass(frozen=True, eq=False)
class ProgramSpec:
    """What the chains' program is compiled for, besides the plan."""

    example: ChainInputs
    """[lanes of a chunk, ...]."""
    rows: int
    divergences: bool


@dataclass(frozen=True, eq=False)
class Stretch:
    """What is the same for all groups of a stretch."""

    number: int
    """The number of this one among the run's stretches."""
    transitions: int
    leave: float
    phase: str
    reduction: Reduction | None
    """The reduction of a window; None: records are kept."""
    sends: bool
    """Whether records go to the process that gives orders, where they are kept."""


@dataclass(frozen=True, eq=False)
class StorePlan:
    """The Zarr store of a run, to which workers write chunks; only one process writes its metadata."""

    location: OutputLocation
    token: str
    """What TOKEN has in it: that is how a worker knows that it is the same store."""
    folder: Path
    """The folder for what the process of the run needs until the end."""
    metadata: dict[str, bytes]
    """Metadata by key, of arrays of full length."""
    content: Content
    max_tree_depth: int
    rows: int
    """Draws of a block: of each chain of a group those that are written together."""
    transitions: int
    """Transitions that each chain makes at most, without the earlier ones."""
    earlier: int
    """Draws of each chain that are elsewhere."""


TOKEN = f"{STATE}/token"


@dataclass(frozen=True, eq=False)
class SegmentTask:
    """The next segment of a group of chains."""

    run: str
    stretch: Stretch
    group: int
    first: int
    """The number of its first chain."""
    chains: int
    segment: int
    """The number of segments that were made before."""
    seconds: float
    """About how long to run."""
    keep: bool
    """Whether the state is asked for."""
    start: ChainInputs | SavedGroup | None
    """Where the group is; None: the worker that made the last segment knows."""
    metric: MetricParameters | None
    """The metric of all chains; given with `start`."""
    depth: int | None
    """The depth of the stacks, where it had to grow."""
    store: StorePlan | None
    """With `start`: where its draws go; None: to the process that gives the order."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Transitions of some chains, which follow those that came before."""

    chains: NDArray[np.int64]
    """[n]."""
    first: NDArray[np.int64]
    """[n]: the transition of row 0."""
    last: NDArray[np.int64]
    """[n]: rows from `last - first` on are undefined."""
    records: Record
    """Arrays [n, rows, ...]."""


@dataclass(frozen=True, eq=False)
class SavedRegion:
    """What of a group's draws is not in the store yet, and what is known of those that are."""

    written: int
    """Draws of each chain that are there."""
    rows: tuple[Rows, ...]
    """The rows that follow, in the order in which they came."""
    means: dict[str, NDArray[Any]]
    """Means of all draws, as `ChainMeans.saved` gives them."""
    previous: NDArray[Any] | None
    """[chains, dimension]: the last positions that are there; None where none is."""


@dataclass(frozen=True, eq=False)
class SavedGroup:
    """A group of chains at the end of a segment: all that another worker needs to go on."""

    first: int
    chains: int
    stretch: SavedStretch
    records: Record | None
    """Arrays [chains, rows, ...] of a window that will be reduced."""
    before: NDArray[Any]
    """[chains, dimension]: where its chains were when the stretch began."""
    region: SavedRegion | None
    """The state of its draws, where they go to a store from there."""


@dataclass(frozen=True, eq=False)
class SegmentReport:
    """What a segment gave."""

    order: tuple[int, int, int]
    """The stretch, group and number of the segment."""
    worker: str
    lost: bool = False
    """Whether the worker did not know where the group is; then nothing was done."""
    failure: Failure | None = None
    seconds: float = 0.0
    counted: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """[chains of the group], by name: see `chain_program.counted`."""
    counts: Counts = NOTHING
    rows: tuple[Rows, ...] = ()
    written: int = 0
    """Draws of each chain that are in the store."""
    lost_groups: tuple[str, ...] = ()
    """Groups and variables (`group/variable`) that are not computed any longer."""
    means: dict[str, NDArray[Any]] | None = None
    """The means of all its draws, where some of these went to the store: see ChainMeans.saved."""
    saved: SavedGroup | None = None
    ended: ChainResult | None = None
    """The states of its chains without records, once the group has ended."""
    reduced: ReducedWindow | None = None
    """The reduced window of a group that has ended, where asked for."""


def bytes_of(tree: Any) -> int:
    """The bytes of all arrays in what is sent."""
    arrays: Arrays = {}
    pack(tree, arrays)
    return sum(array.nbytes for array in arrays.values())


@dataclass(frozen=True, eq=False)
class SavedChains:
    """A stretch under way on a cluster, for a checkpoint."""

    lanes: int
    """The lanes of a chunk."""
    rows: int
    """The rows of a machine's buffers."""
    groups: tuple[SavedGroup, ...]
    """The states of groups that have not ended."""
    sizes: tuple[int, ...]
    """Chains of each group."""
    recorded: NDArray[np.int64]
    """[chains]: transitions of each that the storage has."""
    ends: ChainResult
    """[chains, ...] without records: of groups that have ended; what is counted of all."""
    ended: tuple[int, ...]
    """The numbers of groups that have ended."""
    reduced: tuple[ReducedWindow | None, ...]
    """The ReducedWindow of each group that has ended; None for others."""
    counts: tuple[Counts, ...]
    """The Counts of each group."""
