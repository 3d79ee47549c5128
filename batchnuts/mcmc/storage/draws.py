"""The results of a run: its draws, and what is known of its warmup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.sample_statistics import STATISTIC_NAMES
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.storage.history import History
from batchnuts.settings.schema import in_words


def statistics(records: Mapping[str, Any], max_tree_depth: int) -> dict[str, NDArray[Any]]:
    """The sample statistics [chains, draws] of records of draws, by name; max_tree_depth: the limit of these draws."""
    stats = {name: array for name, array in records.items() if name in STATISTIC_NAMES}
    stats["reached_max_treedepth"] = (stats["tree_depth"] >= max_tree_depth) & ~stats["diverging"]
    return stats


class RunFailed(Exception):
    """An error ended a run after its first draw. `cause` is that error, `draws` what was drawn before."""

    def __init__(self, cause: Exception, draws: Draws) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause
        self.draws = draws


@dataclass(frozen=True)
class Arrangement:
    """How chains were executed: `chunks` of `chunk_lanes` each, on `shards` threads, by a schedule's policy if any."""

    chunk_lanes: int
    schedule: str | None = None
    chunks: int = 1
    shards: int = 1

    def __str__(self) -> str:
        """The text in a run's summary."""
        lanes = in_words(self.chunk_lanes, "chain")
        many = f"{self.chunks} chunks of {lanes} on {in_words(self.shards, 'thread')}"
        parts = [many if self.chunks > 1 else f"one chunk of {lanes}"]
        return ", ".join(parts + ([f"schedule {self.schedule}"] if self.schedule else []))


@dataclass(frozen=True, eq=False)
class WindowTuning:
    """What a window of warmup came to, which the next one started with, or the draws."""

    transitions: int
    """Transitions that each chain had made by then."""
    step_size: NDArray[np.float64]
    """[3]: the lowest, the median and the highest of all chains, which are one where step sizes are pooled."""
    variance: NDArray[np.float64]
    """[dimension]: of coordinates under the metric; the geometric mean where chains have their own."""


@dataclass(frozen=True, eq=False)
class WindowRecords:
    """The records of a window of warmup, which are kept on request."""

    records: Mapping[str, NDArray[Any]]
    """By name [chains, transitions, ...]: `position` and the statistics that a chain records."""
    done: NDArray[np.int64]
    """[chains]: how many of the window's transitions each chain made; those behind are undefined."""


@dataclass(frozen=True)
class WarmupReport:
    """How warmup went.

    `transitions` that each chain made (where windows may leave slow chains behind, most of them); why it ended there;
    `agreed`, for a warmup that ends by itself, whether it had settled (None: its length was given); `outliers`, the
    chains that were far from all others at its end and left out when step size and metric were pooled; `windows`, one
    after the other (none where the run ended in warmup); `restarted`, the chains that started again near others;
    `late`, those that had not arrived where the others are when it ended; `not_numbers`, of the starts that were
    proposed first, those at which the log-density is not a number; `burn_in`, the steps of an ensemble's start, each of
    which took a gradient of every chain, before these transitions; `records` of each window, where they are kept.
    """

    transitions: int
    reason: str
    agreed: bool | None = None
    outliers: tuple[int, ...] = ()
    windows: tuple[WindowTuning, ...] = field(default=(), compare=False)
    restarted: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    not_numbers: int = 0
    burn_in: int = 0
    records: tuple[WindowRecords, ...] = field(default=(), compare=False)


def warmup_in_words(transitions: int, burn_in: int) -> str:
    """How long a warmup was."""
    length = in_words(transitions, "transition")
    return f"{in_words(burn_in, 'step')} of an ensemble, then {length}" if burn_in else length


@dataclass(frozen=True, eq=False)
class Draws:
    """All that a run recorded, as NumPy arrays.

    `position` [chains, draws, dimension]; `stats` one array [chains, draws] for each of SAMPLE_STATISTICS (`diverging`
    and `reached_max_treedepth` are bool); `done` int [chains]: how many of each chain's draws are valid, always `draws`
    (with `settings.until` the same for all, up to `draws`) unless `interrupted` (entries past it are undefined);
    `metric` the parameters of the metric used for the draws; `warmup` how the warmup before them went; `timings`
    seconds of the phases `compile`, `warmup`, `sampling`;
    `useful_gradients` and `utilization` of the whole run after compilation; `arrangement` how chains were executed,
    None if the run ended before that; `begun` bool [chains]: which had started (None: all). Where
    asked for: `last_position` [chains, draws, dimension], the last state made in each draw's trajectory, and `start`
    [chains, dimension], where the first one began.
    """

    position: NDArray[Any]
    stats: Mapping[str, NDArray[Any]]
    done: NDArray[Any]
    interrupted: bool
    metric: MetricParameters
    warmup: WarmupReport
    timings: Mapping[str, float]
    useful_gradients: int
    utilization: float
    settings: SamplerSettings
    execution: ExecutionSettings
    backend_reason: str = ""
    """Why `execution.backend` was taken: the `reason` of a DensityLibrary."""
    chains_reason: str = ""
    """Why there are so many chains, where `sampler.chains` is auto; `settings` have the number."""
    arrangement: Arrangement | None = None
    begun: NDArray[Any] | None = None
    ended: str = ""
    """Why sampling ended, where `settings.until` is set and the run was not interrupted."""
    last_position: NDArray[Any] | None = None
    start: NDArray[Any] | None = None
    first: int = 0
    """The number of the first of these draws: those before are in the file of a run that is made longer."""
    step_size: NDArray[Any] | None = None
    """[chains], float64: as it was tuned, of which `stats` have what it is in the model's dtype."""
    last_gradient: NDArray[Any] | None = None
    """[chains, dimension]: of the log-density at the last draw; None where it is not known."""
    history: History | None = None
    """What the run had done at which time."""

    @property
    def chains(self) -> NDArray[Any]:
        """[chains that had begun]: their numbers. A run that ends early may not have started all chunks."""
        return np.arange(len(self.done)) if self.begun is None else np.flatnonzero(self.begun)

    @property
    def complete(self) -> int:
        """Number of draws that each of `chains` has."""
        return int(self.done[self.chains].min()) if len(self.chains) else 0

    def rectangle(self, array: NDArray[Any]) -> NDArray[Any]:
        """What each of `chains` has of an array [chains, draws, ...]: [chains that had begun, complete, ...]."""
        of_all_chains = len(self.chains) == len(array)
        return array[:, : self.complete] if of_all_chains else array[self.chains, : self.complete]

    def what_there_is(self, kept: bool = True) -> str:
        """The draws of a run that ended early, in words, by group of the output. kept: False: there is a summary."""
        chains, asked = len(self.chains), len(self.done)
        if not kept:
            if not self.complete:
                return "not every chain has a draw yet, so there is no summary"
            first_draws = f"the first {self.complete} of {self.settings.draws} draws"
            return f"a summary of {first_draws} of each of {in_words(chains, 'chain')}"
        further = int(self.done.sum()) - self.complete * chains
        if not self.first + self.complete:
            some = int((self.done > 0).sum())
            return (
                f"not every chain has a draw yet: the {further} draws of {some} of {asked} chains are in the group "
                "'unfinished'"
            )
        whose = in_words(chains, "chain")
        if chains < asked:
            whose = f"{whose} (the other {asked - chains} had not started)"
        rest = f"; the faster chains' further draws ({further} in all) are in the group 'unfinished'" if further else ""
        return f"{self.first + self.complete} of {self.settings.draws} draws of each of {whose}{rest}"
