"""How a chain program is driven: in slices of the virtual machine, or in short stretches of the other executors.

A runner yields counts of what all chains have done so far a few times a second, so that progress can be shown and a run
can be interrupted; the last thing it yields is the finished stretch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from batchnuts.autobatch import BatchedFunction, StackOverflowError
from batchnuts.autobatch.api import get_backend
from batchnuts.autobatch.compiler.schedule import costly_blocks
from batchnuts.autobatch.compiler.tree import flatten, map_leaves, unflatten
from batchnuts.autobatch.runtime.backend import State
from batchnuts.autobatch.runtime.stackless import Tally
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.mcmc.chain_program import ChainResult, Record
from batchnuts.mcmc.draws import Arrangement
from batchnuts.mcmc.settings import ExecutionSettings

SLICE_SECONDS = 0.5
"""How long the machine runs between two looks at it; leaving it twice a second costs nothing measurable."""

STRETCH = 5
"""Transitions per call for executors that cannot be stopped within one."""


@dataclass(frozen=True)
class Counts:
    """What a stretch has done so far, over all chains."""

    transitions: int = 0
    useful_gradients: int = 0
    executed_gradients: int = 0
    """Gradient evaluations times lanes, active or not."""
    divergences: int = 0

    @property
    def utilization(self) -> float:
        """Useful share of the gradient lanes executed."""
        return self.useful_gradients / self.executed_gradients if self.executed_gradients else 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.transitions + other.transitions,
            self.useful_gradients + other.useful_gradients,
            self.executed_gradients + other.executed_gradients,
            self.divergences + other.divergences,
        )


class Runner(Protocol):
    """Runs `run_chain` for all chains."""

    @property
    def arrangement(self) -> Arrangement:
        """How the chains are served."""

    def run(self, inputs: tuple[Any, ...], transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """Counts so far, and the result where there is one already; the last one is that of the finished stretch."""

    def interrupted(self) -> ChainResult | None:
        """The result of a stretch that was broken off, as far as it had come."""


class MachineRunner:
    """The virtual machine, left and entered again about twice a second."""

    def __init__(
        self, program: BatchedFunction, example: tuple[Any, ...], execution: ExecutionSettings, first_depth: int
    ) -> None:
        leaves, _ = flatten(example)
        backend = get_backend(execution.backend, execution.mode)
        types = program.lane_types(example)
        self.result_tree = flatten(program.compiled(types, backend).result_type)[1]
        self.may_grow = execution.max_stack_depth is None
        depth = execution.max_stack_depth or first_depth
        lowered = program.compiled(types, backend).lowered
        # ends_early: so that chunks in which few chains are left can be merged
        self.machine = VirtualMachine(lowered, backend, len(leaves[0]), depth, execution.schedule, ends_early=True)
        self.costly = [self.machine.index[label] for label in costly_blocks(self.machine.program)]
        self.state: State | None = None
        self.sweeps_per_second = 40.0
        self.machine.advance(self.start(example), 0)  # compiles

    @property
    def arrangement(self) -> Arrangement:
        """See Runner."""
        return Arrangement(self.machine.lanes, self.machine.schedule.policy)

    def start(self, inputs: tuple[Any, ...]) -> State:
        """The machine's state before the first block."""
        return self.machine.start(dict(zip(self.machine.program.vars_in, flatten(inputs)[0])))

    def run(self, inputs: tuple[Any, ...], transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """See Runner."""
        self.state = None  # what an earlier stretch recorded is no part of this one
        return self.slices(inputs)

    def slices(self, inputs: tuple[Any, ...]) -> Iterator[tuple[Counts, ChainResult | None]]:
        """One slice after another, until every chain is done."""
        self.state = self.start(inputs)
        while True:
            try:
                self.state, finished = self.slice(self.state)
            except StackOverflowError as error:
                self.grow(error)
                self.state = self.start(inputs)
                continue
            yield self.counts(self.state), self.result(self.state) if finished else None
            if finished:
                return

    def slice(self, state: State, leave_at: int = 0) -> tuple[State, bool]:
        """Sweeps for about SLICE_SECONDS, and whether at most `leave_at` lanes are left that have not halted.

        Raises StackOverflowError, and whatever else went wrong on a lane.
        """
        sweeps = max(5, int(self.sweeps_per_second * SLICE_SECONDS))
        began = time.perf_counter()
        state = self.machine.advance(state, sweeps, leave_at)
        finished = self.machine.count_live(state) <= leave_at
        if not finished:  # else it made fewer sweeps than allowed, and the next slice would be far too long
            self.sweeps_per_second = sweeps / max(time.perf_counter() - began, 1e-6)
        self.machine.check_faults(state)
        return state, finished

    def grow(self, error: StackOverflowError) -> None:
        """Make the stacks twice as deep; raises the error again where their depth was given."""
        if not self.may_grow:
            raise error
        self.machine = self.machine.with_stack_depth(2 * self.machine.stack_depth)

    def interrupted(self) -> ChainResult | None:
        """See Runner: the machine's state is whole between any two slices."""
        if self.state is None:
            return None
        return self.so_far(self.state)

    def so_far(self, state: State) -> ChainResult:
        """What chains have done up to now; position, log-density, gradient, adaptation of those that are finished."""
        # a chain's outputs are set when it returns; until then its records stand in the program's own variables
        records = Record(*(self.working(state, f"records.{name}") for name in Record._fields))
        done, divergences = (self.working(state, name) for name in ("done", "divergences"))
        return self.result(state)._replace(records=records, done=done, divergences=divergences)

    def working(self, state: State, name: str) -> np.ndarray:
        """A variable of `run_chain` as it stands now, [chains, ...]."""
        return self.machine.read(state, self.machine.live_name(f"run_chain.{name}"))

    def result(self, state: State) -> ChainResult:
        """The output variables of a finished state."""
        result: ChainResult = unflatten(self.result_tree, [np.asarray(r) for r in self.machine.results(state)])
        return result

    def counts(self, state: State) -> Counts:
        """Of all lanes."""
        done, divergences = (int(self.working(state, name).sum()) for name in ("done", "divergences"))
        return replace(self.gradients(state), transitions=done, divergences=divergences)

    def gradients(self, state: State) -> Counts:
        """Gradients alone, read off the machine's own counters."""
        machine = self.machine
        executions, active = (machine.backend.to_numpy(state[name])[self.costly] for name in ("executions", "active"))
        return Counts(useful_gradients=int(active.sum()), executed_gradients=int(executions.sum()) * machine.lanes)


class StretchRunner:
    """Other executors: a few transitions a call, joined on the host."""

    def __init__(self, program: BatchedFunction, example: tuple[Any, ...], execution: ExecutionSettings) -> None:
        self.program = program
        self.options = execution.model_dump(include={"executor", "backend", "mode", "schedule", "max_stack_depth"})
        self.parts: list[ChainResult] = []
        self.arrangement = Arrangement(len(example[0]))
        self.costly: tuple[str, ...] = ()
        if execution.executor == "stackless":
            backend = get_backend(execution.backend, execution.mode)
            self.costly = costly_blocks(program.compiled(program.lane_types(example), backend).with_calls)

    def run(self, inputs: tuple[Any, ...], transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """See Runner."""
        self.parts = []
        return self.stretches(inputs, transitions)

    def stretches(self, inputs: tuple[Any, ...], transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """Calls of STRETCH transitions each, every one going on from the state the last one left."""
        tally: Tally = {}
        key, position, log_density, gradient, inverse_mass, adaptation, adapting, first, _ = inputs
        for start in range(0, transitions, STRETCH):
            length = min(STRETCH, transitions - start)
            result = self.program.run(
                key, position, log_density, gradient, inverse_mass, adaptation, adapting,
                first + start, np.full_like(first, length), tally=tally, **self.options,
            )  # fmt: skip
            self.parts.append(result._replace(records=map_leaves(lambda a, n=length: a[:, :n], result.records)))
            position, log_density, gradient = result.position, result.log_density, result.gradient
            adaptation = result.adaptation
            joined = self.joined()
            yield self.counts(joined, tally, len(key)), joined

    def counts(self, joined: ChainResult, tally: Tally, lanes: int) -> Counts:
        """Gradients as the executor counted them; plain Python evaluates each for one chain, all of them useful."""
        if self.options["executor"] == "stackless":
            useful = sum(tally[label][1] for label in self.costly if label in tally)
            executed = sum(tally[label][0] for label in self.costly if label in tally) * lanes
        else:
            useful = executed = int(joined.records.n_steps.sum())
        return Counts(int(joined.done.sum()), useful, executed, int(joined.divergences.sum()))

    def joined(self) -> ChainResult:
        """All parts as one result."""
        last = self.parts[-1]
        records = map_leaves(lambda *arrays: np.concatenate(arrays, axis=1), *(p.records for p in self.parts))
        done = np.sum([p.done for p in self.parts], axis=0)
        divergences = np.sum([p.divergences for p in self.parts], axis=0)
        return last._replace(records=Record(*records), done=done, divergences=divergences)

    def interrupted(self) -> ChainResult | None:
        """See Runner."""
        return self.joined() if self.parts else None
