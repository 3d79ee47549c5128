"""The runner of executors that cannot be stopped within a call: a few transitions of all chains in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from batchnuts.autobatch import BatchedFunction
from batchnuts.autobatch.machine import Tally
from batchnuts.mcmc.execution.lane_program import lane_program
from batchnuts.mcmc.execution.runner import (
    Counts,
    Interrupted,
    Report,
    Runner,
    RunningStretch,
    SavedState,
    UnboundedDensity,
)
from batchnuts.mcmc.execution.window_reduction import Reduction
from batchnuts.mcmc.kernel.chain_program import CARRIED, ChainInputs, ChainResult, counted
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.storage.contract import LaneRows, MakeStorage, Storage
from batchnuts.mcmc.storage.draws import Arrangement
from batchnuts.mcmc.storage.memory import MemoryStorage

TRANSITIONS_PER_CALL = 5
"""Transitions per call."""


class CallRunner(Runner):
    """Runs chains by calls of TRANSITIONS_PER_CALL transitions each, joined on the host."""

    def __init__(self, program: BatchedFunction, example: ChainInputs, execution: ExecutionSettings) -> None:
        self.program = program
        self.options = execution.run_options
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
        wanted: int = 0,
    ) -> CalledStretch:
        return CalledStretch(self, inputs, transitions, make_storage, resumed)


@dataclass(frozen=True, eq=False)
class SavedCalls:
    """A stretch of such an executor between two calls."""

    ends: ChainResult
    """The result of the last call."""
    recorded: int
    """Transitions of each chain so far."""
    gradients: int
    tally: dict[str, tuple[int, int]]


class CalledStretch(RunningStretch):
    """A stretch between two calls, each of which continues where the last one stopped."""

    def __init__(
        self,
        runner: CallRunner,
        inputs: ChainInputs,
        transitions: int,
        make_storage: MakeStorage,
        resumed: SavedCalls | None,
    ) -> None:
        self.runner = runner
        self.inputs = inputs
        self.transitions = transitions
        self.make_storage = make_storage
        self.resumed = resumed
        self.tally: Tally = {}
        """The counts of block executions."""
        self.storage: Storage | None = None
        """The storage of its records; None before the first call has returned."""
        self.ends: ChainResult | None = None
        """The result of the last call, with its records alone."""
        self.recorded = int(inputs.done[0])
        """Transitions of each chain."""
        self.gradients = 0
        """Gradients that these transitions took."""

    @override
    def __iter__(self) -> Iterator[Report]:
        if self.resumed is not None:
            yield from self._go_on(self.resumed)
        while self.recorded < self.transitions:
            length = min(TRANSITIONS_PER_CALL, self.transitions - self.recorded)
            first_row = np.full_like(self.inputs.first, self.recorded)
            call = self.inputs._replace(first_row=first_row, until=first_row + length)
            self._take(self.runner.program.run(*call, tally=self.tally, **self.runner.options), length)
            yield self._report()

    def _go_on(self, saved: SavedCalls) -> Iterator[Report]:
        """Go on from what was saved; a report where nothing was missing."""
        self.resumed = None
        chains = len(self.inputs.key)
        self.storage = self.make_storage(saved.ends.records, chains, self.transitions)
        self.storage.resume(np.full(chains, saved.recorded))
        self.recorded, self.gradients = saved.recorded, saved.gradients
        self.tally.update(saved.tally)
        self._end_at(saved.ends)
        if self.recorded == self.transitions:
            yield self._report()

    def _take(self, result: ChainResult, length: int) -> None:
        """Record what a call has made: that many transitions."""
        chains = len(result.done)
        if self.storage is None:
            self.storage = self.make_storage(result.records, chains, self.transitions)
        first = np.full(chains, self.recorded)
        self.storage.record(LaneRows.of_all(first, first + length, result.records))
        self.recorded += length
        self.gradients += int(result.records.n_steps[:, :length].sum())
        self._end_at(result)
        unbounded = ~(result.log_density < np.inf)
        if unbounded.any():
            chain = int(np.argmax(unbounded))
            raise UnboundedDensity(chain, result.position[chain])

    def _end_at(self, ends: ChainResult) -> None:
        self.ends = ends
        self.inputs = self.inputs._replace(**{name: getattr(ends, name) for name in CARRIED})

    def _report(self) -> Report:
        """Gradients as the executor counted them; plain Python evaluates each for one chain, all of them useful."""
        assert self.ends is not None
        assert self.storage is not None
        useful = executed = self.gradients
        if self.runner.counted is not None:
            runs = self.runner.counted.costly_runs(self.tally, len(self.inputs.key))
            useful, executed = runs.useful, runs.executed
        counts = Counts.of_transitions(**counted(self.ends))
        over = self.recorded == self.transitions
        result = self.ends._replace(records=self.storage.finalize()) if over else None
        return replace(counts, useful_gradients=useful, executed_gradients=executed), result

    @override
    def pause(self) -> None:
        """Do nothing: nothing runs between two calls."""

    @override
    def save(self) -> SavedState | None:
        if self.ends is None or self.storage is None:
            return None
        self.storage.flush()
        return SavedState(SavedCalls(self.ends, self.recorded, self.gradients, dict(self.tally)), self.storage)

    @override
    def records(self, transitions: int) -> Record | None:
        """All records are on the host after each call."""
        return None if self.storage is None or self.recorded < transitions else self.storage.first(transitions)

    @override
    def close(self) -> Interrupted | None:
        if self.ends is None or self.storage is None:
            return None
        begun = np.ones(len(self.ends.done), bool)  # a call runs all chains
        return Interrupted(self.ends, begun, self.storage)
