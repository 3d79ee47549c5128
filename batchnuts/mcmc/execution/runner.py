"""How a chain program is driven: the interface of runners, what they count, and the runner of the other executors.

A runner yields counts of what all chains have done so far a few times a second, so that progress can be shown and a run
can be interrupted; the last thing it yields is the finished stretch. (The virtual machine's is in chunk_runner.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch import BatchedFunction
from batchnuts.autobatch.machine import Tally
from batchnuts.mcmc.execution.lane_program import lane_program
from batchnuts.mcmc.execution.window_reduction import ReducedWindow, Reduction
from batchnuts.mcmc.kernel.chain_program import CARRIED, ChainInputs, ChainResult, Record, counted
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.storage.contract import MakeStorage, Storage
from batchnuts.mcmc.storage.draws import Arrangement
from batchnuts.mcmc.storage.memory import MemoryStorage

STRETCH = 5
"""Transitions per call."""


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
    """The results of an interrupted stretch."""

    result: ChainResult
    """The state of each chain; rows of `records` after its `done` are undefined."""
    begun: NDArray[np.bool_]
    """[chains]: which had started in it; whether a chain had does not depend on its draws."""


class Runner(Protocol):
    """Runs `run_chain` for all chains."""

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
    ) -> Iterator[tuple[Counts, ChainResult | None]]:
        """Run a stretch: gives counts so far, and with the last item the result of the finished stretch.

        inputs: those of chains that have made no transition of it yet, `until` the same for all: `transitions`.
        leave: the share of each chunk's chains, from 0 to below 1, that need not finish: a chunk ends as soon as no
        more are on the way. Which ones these are depends on the chunk alone, not on the speed of threads. Of the
        result of such a stretch `records`, `adaptation`, `done` and `divergences` are valid. Runners that call the
        program for some transitions at a time finish all chains. make_storage: where its records go. resumed: what
        `saved` gave of this stretch, perhaps in another process, to go on from. reduction: see `reduced`. Raises
        UnboundedDensity, and CheckpointError where what was saved does not fit.
        """

    def reduced(self) -> ReducedWindow | None:
        """What the `reduction` of the stretch that has ended asks for, where its records are not in the result because
        they are in other processes; else None."""

    def pause(self) -> None:
        """Stop the threads; wait until none is working on the stretch."""

    def proceed(self) -> None:
        """Let the threads that `pause` has stopped go on."""

    def saved(self) -> Any:
        """The stretch under way as a tree (checkpoint/trees.py), while it is paused; its storage has made records
        durable. None where none has begun, or it has failed. Raises OSError."""

    @property
    def storage(self) -> Storage | None:
        """The storage of the stretch that was run last; None where none has begun."""

    def watch(self, transitions: int) -> None:
        """Bring the first `transitions` of every chain to the host as soon as all have made them; 0: nothing before the
        end.

        It holds for later stretches too, until it is called again. Called before a stretch begins, it also makes
        reports more frequent in the stretch's first seconds.
        """

    def recorded(self, transitions: int) -> Record | None:
        """The first `transitions` of every chain in this stretch, arrays [chains, transitions, ...]; None if they are
        not on the host yet."""

    def interrupted(self) -> Interrupted | None:
        """The results so far of the stretch that was run last; None where none has begun, or none that got anywhere."""

    def forget(self) -> None:
        """Drop the results of runs; keep compiled programs."""


class StretchRunner(Runner):
    """Runs chains on executors that cannot be stopped within a call: STRETCH transitions each, joined on the host."""

    def __init__(self, program: BatchedFunction, example: ChainInputs, execution: ExecutionSettings) -> None:
        self.program = program
        self.options = execution.run_options
        self.state: StretchState | None = None
        """The state of the last stretch; None where none got anywhere."""
        self.tally: Tally = {}
        """The counts of block executions of the last stretch."""
        self._arrangement = Arrangement(len(example.key))
        self.counted = lane_program(program, example, execution) if execution.expert.executor == "stackless" else None
        """The counts of an executor that counts; None for plain Python, which does not."""

    @property
    @override
    def arrangement(self) -> Arrangement:
        return self._arrangement

    @override
    def wait_until_compiled(self) -> None:
        """Do nothing: it compiles as it runs."""

    @override
    def run(
        self,
        inputs: ChainInputs,
        transitions: int,
        leave: float = 0.0,
        make_storage: MakeStorage = MemoryStorage,
        resumed: SavedCalls | None = None,
        reduction: Reduction | None = None,
    ) -> Iterator[tuple[Counts, ChainResult | None]]:
        self.state = None
        return self.stretches(inputs, transitions, make_storage, resumed)

    @override
    def reduced(self) -> ReducedWindow | None:
        return None

    def stretches(
        self, inputs: ChainInputs, transitions: int, make_storage: MakeStorage, resumed: SavedCalls | None
    ) -> Iterator[tuple[Counts, ChainResult | None]]:
        """Calls of STRETCH transitions each; each continues where the last one stopped."""
        tally: Tally = {}
        state: StretchState | None = None
        if resumed is not None:
            storage = make_storage(resumed.ends.records, len(inputs.key), transitions)
            storage.resume(np.full(len(inputs.key), resumed.recorded))
            state = self.state = StretchState(storage, resumed.ends, resumed.recorded, resumed.gradients)
            tally.update({label: (active, runs) for label, (active, runs) in resumed.tally.items()})
            inputs = inputs._replace(**{name: getattr(resumed.ends, name) for name in CARRIED})
            if state.recorded == transitions:
                yield self.counts(state, tally, len(inputs.key)), state.result
        self.tally = tally
        for start in range(state.recorded if state is not None else int(inputs.done[0]), transitions, STRETCH):
            length = min(STRETCH, transitions - start)
            first_row = np.full_like(inputs.first, start)
            inputs = inputs._replace(first_row=first_row, until=first_row + length)
            result = self.program.run(*inputs, tally=tally, **self.options)
            if state is None:
                state = self.state = StretchState(make_storage(result.records, len(inputs.key), transitions), result)
            state.take(result, start, length)
            unbounded = ~(result.log_density < np.inf)
            if unbounded.any():
                first = int(np.argmax(unbounded))
                raise UnboundedDensity(first, result.position[first])
            inputs = inputs._replace(**{name: getattr(result, name) for name in CARRIED})
            over = start + length == transitions
            yield self.counts(state, tally, len(inputs.key)), state.result if over else None

    def counts(self, state: StretchState, tally: Tally, lanes: int) -> Counts:
        """Gradients as the executor counted them; plain Python evaluates each for one chain, all of them useful."""
        if self.counted is not None:
            runs = self.counted.costly_runs(tally, lanes)
            useful, executed = runs.useful, runs.executed
        else:
            useful = executed = state.gradients
        counts = Counts.of_transitions(**counted(state.ends))
        return replace(counts, useful_gradients=useful, executed_gradients=executed)

    @override
    def pause(self) -> None:
        """Do nothing: nothing runs between two calls."""

    @override
    def proceed(self) -> None:
        """Do nothing, like `pause`."""

    @override
    def saved(self) -> SavedCalls | None:
        if self.state is None:
            return None
        self.state.storage.flush()
        return SavedCalls(self.state.ends, self.state.recorded, self.state.gradients, dict(self.tally))

    @property
    @override
    def storage(self) -> Storage | None:
        return None if self.state is None else self.state.storage

    @override
    def watch(self, transitions: int) -> None:
        """Do nothing: all records are on the host after each call."""

    @override
    def recorded(self, transitions: int) -> Record | None:
        if self.state is None or self.state.recorded < transitions:
            return None
        return self.state.storage.first(transitions)

    @override
    def interrupted(self) -> Interrupted | None:
        if self.state is None:
            return None
        begun = np.ones(self.arrangement.chunk_lanes, bool)  # a call runs all chains
        return Interrupted(self.state.result, begun)

    @override
    def forget(self) -> None:
        self.state = None


@dataclass(frozen=True, eq=False)
class SavedCalls:
    """A stretch of such an executor between two calls."""

    ends: ChainResult
    """The result of the last call."""
    recorded: int
    """Transitions of each chain so far."""
    gradients: int
    tally: dict[str, tuple[int, int]]


class StretchState:
    """The state of all chains after the last call, and where their records are. ends: the result of a call."""

    def __init__(self, storage: Storage, ends: ChainResult, recorded: int = 0, gradients: int = 0) -> None:
        self.storage = storage
        self.ends = ends
        """Its records are those of the last call alone."""
        self.recorded = recorded
        """Transitions of each chain."""
        self.gradients = gradients
        """Gradients that the transitions recorded so far took."""

    def take(self, result: ChainResult, start: int, length: int) -> None:
        """Record what a call has made: the transitions [start, start + length)."""
        chains = np.arange(len(result.done))
        first, last = np.full(len(chains), start), np.full(len(chains), start + length)
        self.storage.record(chains, chains, first, last, result.records)
        self.ends, self.recorded = result, start + length
        self.gradients += int(result.records.n_steps[:, :length].sum())

    @property
    def result(self) -> ChainResult:
        """The result with the records of all calls."""
        return self.ends._replace(records=self.storage.finalize())
