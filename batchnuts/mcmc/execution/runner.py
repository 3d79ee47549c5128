"""How a chain program is driven: the contract of runners and of the stretches that they run, and what they count.

A stretch yields counts of what all chains have done so far a few times a second, so that progress can be shown and a
run can be interrupted; the last thing it yields is the result. chunk_runner.py has the virtual machine's runner,
call_runner.py that of the other executors, cluster/runner.py that of chains on other machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.execution.window_reduction import ReducedWindow, Reduction
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.contract import MakeStorage, Storage
from batchnuts.mcmc.storage.draws import Arrangement
from batchnuts.mcmc.storage.memory import MemoryStorage


class UnboundedDensity(Exception):
    """A chain has encountered a log-density of +inf at a position [dimension], and ended there.

    Or one of NaN, where the position has overflowed: it is rounded in two ways then, and one of them was accepted.
    """

    def __init__(self, chain: int, position: np.ndarray) -> None:
        super().__init__(f"chain {chain} at {position}")
        self.chain = chain
        self.position = position


@dataclass(frozen=True)
class Counts:
    """The counts of a stretch so far, over all chains."""

    transitions: int = 0
    useful_gradients: int = 0
    executed_gradients: int = 0
    """Gradient evaluations times lanes, active or not."""
    divergences: int = 0
    complete: int = 0
    """Transitions that every chain has made."""
    median: int = 0
    """Transitions that at least half of the chains have made."""

    @classmethod
    def of_transitions(cls, done: NDArray[np.int64], divergences: NDArray[np.int64]) -> Counts:
        """The counts of chains that have made so many transitions [chains], of which so many diverged [chains]: of what
        `chain_program.COUNTED` names."""
        middle = len(done) // 2
        return cls(
            transitions=int(done.sum()),
            divergences=int(divergences.sum()),
            complete=int(done.min()),
            median=int(np.partition(done, middle)[middle]),
        )

    @property
    def utilization(self) -> float:
        """Useful share of the gradient lanes executed."""
        return self.useful_gradients / self.executed_gradients if self.executed_gradients else 0.0

    def __add__(self, other: Counts) -> Counts:
        """The counts of two stretches together, or of parts of one that do not count transitions."""
        return Counts(
            self.transitions + other.transitions,
            self.useful_gradients + other.useful_gradients,
            self.executed_gradients + other.executed_gradients,
            self.divergences + other.divergences,
            self.complete + other.complete,
            self.median + other.median,
        )


@dataclass(frozen=True)
class Interrupted:
    """The results of a stretch that was closed."""

    ends: ChainResult
    """The state of each chain, without records."""
    begun: NDArray[np.bool_]
    """[chains]: which had started in it; whether a chain had does not depend on its draws."""
    storage: Storage
    """The storage of its records."""

    @property
    def result(self) -> ChainResult:
        """The state of each chain with the records, whose rows after its `done` are undefined."""
        return self.ends._replace(records=self.storage.finalize())


@dataclass(frozen=True)
class SavedState:
    """A stretch that is halted, for a checkpoint."""

    state: Any
    """A tree (checkpoint/trees.py)."""
    storage: Storage | None
    """The storage that has made its records durable; None where no records are kept."""


Report = tuple[Counts, ChainResult | ReducedWindow | None]
"""Counts so far, and in the last report of a stretch its result: reduced, where its records are in other processes."""


class RunningStretch(Protocol):
    """A stretch of all chains under way: an iterable of reports, which are what moves it forward."""

    def __iter__(self) -> Iterator[Report]:
        """Run it to its end, from where it is: counts so far, and with the last item the result.

        Raises UnboundedDensity, and CheckpointError where what was saved does not fit.
        """

    def pause(self) -> None:
        """Let nothing work on it until the next report is asked for."""

    def save(self) -> SavedState | None:
        """Its state, while it is paused or closed, with its records made durable. None where it has not begun, or has
        failed. Raises OSError."""

    def records(self, transitions: int) -> Record | None:
        """The first `transitions` of every chain, arrays [chains, transitions, ...].

        None if they are not on the host yet: then they are brought there as soon as all chains have made them.
        """

    def close(self) -> Interrupted | None:
        """End it where it is. Returns its results so far; None where it has not begun, or got nowhere."""


class Runner(Protocol):
    """Runs `run_chain` for all chains, one stretch after another."""

    @property
    def arrangement(self) -> Arrangement:
        """How the chains are served."""

    def wait_until_compiled(self) -> None:
        """Wait until it can run: it may still be compiled when it is made."""

    def run(
        self,
        inputs: ChainInputs,
        transitions: int,
        leave: float = 0.0,
        make_storage: MakeStorage = MemoryStorage,
        resumed: Any = None,
        reduction: Reduction | None = None,
        wanted: int = 0,
    ) -> RunningStretch:
        """Begin a stretch; a stretch of this runner that is still under way is paused for good.

        inputs: those of chains that have made no transition of it yet, `until` the same for all: `transitions`.
        leave: the share of each chunk's chains, from 0 to below 1, that need not finish: a chunk ends as soon as no
        more are on the way. Which ones these are depends on the chunk alone, not on the speed of threads. Of the
        result of such a stretch `records`, `adaptation`, `done` and `divergences` are valid. Runners that call the
        program for some transitions at a time finish all chains. make_storage: where its records go. resumed: what
        `save` gave of this stretch, perhaps in another process, to go on from. reduction: what its result is reduced
        to where its records are in other processes. wanted: the first `records` that will be asked for; 0 for none.
        Where some are wanted, reports are more frequent in the first seconds.
        """
