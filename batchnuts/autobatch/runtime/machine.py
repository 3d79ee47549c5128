"""What a machine is: a program made ready for a number of lanes, and driven step by step.

    state = machine.start(arguments)
    while machine.count_live(state):
        state = machine.advance(state, 100)
        machine.check_faults(state)
    results = machine.results(state)

A state holds everything of a run and is opaque: it can be kept and resumed later, bit for bit. Methods that return a
state leave the given one unchanged. Threads may share a machine; states belong to the caller.

Arguments are those of a call, in order: structures of arrays [lanes, ...], or all leaves of these. A variable's name is
that in the program before variables share registers: `function.variable`, with a dot before each field of a structure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import StackOverflowError
from batchnuts.autobatch.runtime.faults import LARGEST_STACK_DEPTH

State = dict[str, Any]
"""All that a run consists of, by name."""

GROWTH = 4
"""The factor by which stacks grow: each time the program runs again from the start."""


@dataclass(frozen=True)
class CostlyRuns:
    """Executions of blocks with a primitive that is declared costly, counted in lanes."""

    useful: int
    """On lanes that were active."""
    executed: int
    """On all lanes, active or not."""


@dataclass(frozen=True)
class MachineCounts:
    """What a machine has done since `start`."""

    sweeps: int
    """Units of the budget of `advance`."""
    costly: CostlyRuns


class Machine(ABC):
    """A program, a number of lanes and a depth of stacks."""

    lanes: int
    stack_depth: int | None
    """Frames that each stack holds beneath its top; None: as many as it takes."""
    grows: bool = False
    """Whether it makes stacks deeper while it runs, as far as they may be: then `stack_depth` is where they begin."""

    @abstractmethod
    def start(self, arguments: Any) -> State:
        """The state before the first block of every lane, with the shared arrays as they are now."""

    @abstractmethod
    def advance(self, state: State, budget: int, leave_at: int = 0) -> State:
        """Spend `budget` sweeps, but none once at most `leave_at` lanes have not halted.

        What a sweep is, is the engine's to say. Callers take all of the budget as spent where more lanes are left.
        """

    @abstractmethod
    def live(self, state: State) -> np.ndarray:
        """Which lanes have not halted yet: bool [lanes], on the host."""

    def count_live(self, state: State) -> int:
        """How many lanes have not halted yet."""
        return int(np.count_nonzero(self.live(state)))

    def is_finished(self, state: State) -> bool:
        """Whether every lane has halted."""
        return self.count_live(state) == 0

    @abstractmethod
    def check_faults(self, state: State, depth_is_given: bool = True) -> None:
        """Raise for the first lane on which something went wrong; the depth of stacks is the user's, or our own.

        Raises StackOverflowError naming function, variable, lane and limit, LaneAssertionError for an assertion that
        does not hold, or BatchnutsError for a write outside its buffer.
        """

    @abstractmethod
    def results(self, state: State) -> tuple[np.ndarray, ...]:
        """The program's output variables [lanes, ...], on the host; they mean something on lanes that have halted."""

    @abstractmethod
    def with_stack_depth(self, stack_depth: int) -> Machine:
        """The same machine with stacks of another depth. States of one do not fit the other."""

    def run(self, arguments: Any) -> State:
        """Run from `start` until every lane has halted."""
        state = self.start(arguments)
        while not self.is_finished(state):
            state = self.advance(state, np.iinfo(np.int64).max)
        return state


class ResumableMachine(Machine):
    """A machine whose states can be read, changed, divided, saved, and restored in another process."""

    stack_depth: int
    policy: str | None
    """The name of the order in which it serves its blocks."""

    @abstractmethod
    def with_stack_depth(self, stack_depth: int) -> ResumableMachine:
        """The same machine with stacks of another depth. States of one do not fit the other."""

    @abstractmethod
    def text(self) -> str:
        """What its states depend on: the program with its registers, lanes, stacks, and the schedule."""

    def trace(self, state: State) -> None:
        """Do now the Python part of the first `advance`; the compiler's own part is left to that call."""

    @abstractmethod
    def read(self, state: State, variable: str) -> np.ndarray:
        """A variable's value as it stands, on the host: [lanes, ...]. KeyError for one that is not stored."""

    def results_now(self, state: State) -> tuple[np.ndarray, ...]:
        """The same as `results`, to be read before the state goes on: they need not be copies."""
        return self.results(state)

    @abstractmethod
    def write(self, state: State, values: Mapping[str, Any]) -> State:
        """The state in which variables have other values [lanes, ...], by name. KeyError for one that is not stored."""

    @abstractmethod
    def restart(self, state: State, lanes: np.ndarray, arguments: Any) -> State:
        """The state with the lanes `lanes` [k], which have halted, before their first block.

        arguments: [lanes, ...] for all lanes of the machine; the other lanes' rows are not read.
        """

    @abstractmethod
    def move(self, state: State, to: np.ndarray, source: State, lanes: np.ndarray) -> State:
        """The state whose lanes `to` [k] go on as the lanes `lanes` [k] of another state of this machine would.

        The contents of buffers (`write` in a program) do not move with them: take them out first. The counters remain
        those of this state.
        """

    @abstractmethod
    def save(self, state: State) -> dict[str, np.ndarray]:
        """A state as arrays of the host by name, without shared arrays and the contents of buffers."""

    @abstractmethod
    def restore(self, saved: Mapping[str, np.ndarray], arguments: Any) -> State:
        """The state that was saved by a machine with the same `text`, with empty buffers.

        It goes on as the saved one would, bit for bit. arguments: of any values, for shapes. Raises ValueError for
        arrays that do not fit.
        """

    @abstractmethod
    def counts(self, state: State) -> MachineCounts:
        """What was done since `start`, by the machine's own counters."""


def run_to_end(
    machine: Machine, arguments: Any, *, grow: bool, run: Callable[[Any, Any], State] | None = None
) -> tuple[Machine, tuple[np.ndarray, ...]]:
    """The results, and the machine that had stacks deep enough to compute them (the same one unless `grow`).

    `run` makes one attempt: the finished state of a machine started with the arguments.
    """
    while True:
        state = machine.run(arguments) if run is None else run(machine, arguments)
        try:
            machine.check_faults(state, depth_is_given=not grow)
        except StackOverflowError:
            depth = machine.stack_depth
            if not grow or machine.grows or depth is None or depth >= LARGEST_STACK_DEPTH:
                raise
            machine = machine.with_stack_depth(min(GROWTH * depth, LARGEST_STACK_DEPTH))
            continue
        return machine, machine.results(state)
