"""What an executor needs of an array library. A new backend is one file that provides this Protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.passes.infer_types import Evaluator
from batchnuts.autobatch.scheduling.dispatch import OnHost, Reductions, Rule

Array = Any
"""An array of the backend's library; [lanes, ...] unless said otherwise."""

State = dict[str, Array]
"""All arrays of a machine, by name."""

RowFunction = Callable[..., tuple[Array, ...]]
"""(*inputs [rows, ...]) -> outputs [rows, ...], row by row; for any number of rows of at least one."""


class CompiledMachine(Protocol):
    """A function (State, *scalars) -> (State, scalar), compiled when it is first called."""

    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        """Run it."""

    def trace(self, state: State, *scalars: Array) -> None:
        """Do the Python part of compiling for such arguments, so that other threads can run Python during the rest."""


class Identity:
    """What a program depends on beside its text, its arguments' types and the files of this package.

    current: says it as it is when called, as far as code for so many lanes depends on it; None: not known for certain.
    first: the same for the first call, where less has to be found out; None: `current`.
    key_of: makes a key of texts and of all else that compiled code depends on; None: not known either. by_lanes:
    whether it is another for another number of lanes. record: of the program's costly primitive, if the program
    is the same whatever that computes: what gives its expression (`Primitive.record`).
    """

    def __init__(
        self,
        current: Callable[[int], str | None],
        key_of: Callable[..., str | None],
        first: Callable[[int], str | None] | None = None,
        *,
        by_lanes: bool = True,
        record: Callable[..., Any] | None = None,
    ) -> None:
        self.record = record
        self._current = current
        self._at_first = first or current
        self._key_of = key_of
        self._by_lanes = by_lanes
        self._besides: tuple[str, ...] = ()
        self._first: dict[int, str | None] = {}
        """The identity by the number of lanes, where that matters, as it was when it was first asked for."""

    def with_text(self, *texts: str) -> Identity:
        """The identity of a program which depends on these texts besides."""
        extended = Identity(self._current, self._key_of, self._at_first, by_lanes=self._by_lanes, record=self.record)
        extended._besides, extended._first = (*self._besides, *texts), self._first
        return extended

    def alone(self) -> Identity:
        """The identity without the texts that were added."""
        bare = Identity(self._current, self._key_of, self._at_first, by_lanes=self._by_lanes)
        bare._first = self._first
        return bare

    def key(self, *texts: str, lanes: int) -> str | None:
        """A key of this identity and of further texts, to find something on disk by; None where it might not cover
        everything."""
        place = lanes if self._by_lanes else 0
        if place not in self._first:
            self._first[place] = self._at_first(lanes)
        first = self._first[place]
        return None if first is None else self._key_of(first, *self._besides, *texts)

    def is_unchanged(self) -> bool:
        """Whether it still is as it was."""
        return all(self._current(lanes) == first for lanes, first in list(self._first.items()))


@dataclass(frozen=True)
class MachineFunction:
    """A whole machine as a function of a state and scalars, and what is known of it without a trace."""

    advance: Callable[..., tuple[State, Array]]
    gives: tuple[str, ...]
    """The names of the state that it gives."""
    text: Callable[[], str]
    """A text of the program, its lanes and its schedule."""
    lanes: int
    identity: Identity | None = None

    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        """The changed entries of the state, and how many sweeps were made."""
        return self.advance(state, *scalars)


@dataclass(frozen=True)
class PartFunction:
    """Ops between two calls as a function of a mask and arrays by name, and what is known of it without a trace."""

    run: Callable[[Array, dict[str, Array]], tuple[dict[str, Array], Array | None]]
    gives: tuple[str, ...]
    """The names of the arrays that it gives."""
    may_fail: bool
    """Whether it gives an array of faults, too."""
    text: Callable[[], str]
    """A text of the program, and which of its parts this is."""
    lanes: int
    identity: Identity

    def __call__(self, mask: Array, arrays: dict[str, Array]) -> tuple[dict[str, Array], Array | None]:
        """What the ops compute."""
        return self.run(mask, arrays)


MODES = ("xla", "graph", "eager")
"""The modes of TensorFlow; JAX has the first and the last, and NumPy none."""

STYLES = ("masking", "gather")
"""How a primitive runs on the active lanes only: masking computes all rows and selects, so that shapes stay static;
gather computes the active lanes' rows and scatters the results back, so that no work is wasted."""


@dataclass(frozen=True)
class BlockStep:
    """One block ready to run: on the lanes whose pc is `index`."""

    label: str
    index: int
    group_start: int
    """Index of the first block of its group."""
    touches: tuple[str, ...]
    """The entries of the state that it may change."""
    run: Callable[[State], State]
    free: bool = False
    """Whether it is due wherever some lane's pc is at it (no gate, no earlier group); a backend may skip the rule."""


class LaneCounts(Reductions, Protocol):
    """What a compiled sweep needs to find out which steps are due."""

    def waiting(self, pc: Array, halted: int) -> Array:
        """int64 [halted + 1]: how many lanes of the counters pc [lanes] are at each index."""


@dataclass(frozen=True)
class SweepPlan:
    """One sweep: the steps in order, each if it is due by the rule when the sweep comes to it.

    In a sweep for all, a step is due also if some lane is at its index. Every `patience`-th sweep is one, by the
    state's entry `sweeps`, which counts from the machine's start.
    """

    steps: tuple[BlockStep, ...]
    halted: int
    """The pc of lanes that have halted; more than any step's index."""
    rule: Rule
    one_choice: bool = False
    """Whether only the block that is most active at the start of a sweep runs."""
    patience: int | None = None

    @property
    def touches(self) -> tuple[str, ...]:
        """The entries of the state that a sweep may change: its own, and those of any step."""
        of_steps = {name for step in self.steps for name in step.touches}
        return tuple(sorted(of_steps | {"sweeps", "executions", "active"}))

    def is_for_all(self, sweeps: Array) -> Array:
        """Whether the next sweep, after `sweeps` earlier ones, is one for all."""
        return sweeps % self.patience == self.patience - 1 if self.patience is not None else False

    def dues(self, state: State, lanes: LaneCounts) -> Callable[[BlockStep, Array], tuple[Array, Array]]:
        """Make the function (step, pc) -> (due, waiting), at the start of a sweep that a compiler traces.

        It is called when the sweep comes to the step, with the counters pc [lanes] as they are then; `waiting` is how
        many lanes are at the step's index, an int64 scalar.
        """
        for_all = self.is_for_all(state["sweeps"])
        chosen = self.rule.most_active(lanes.waiting(state["pc"], self.halted), lanes) if self.one_choice else None

        def due(step: BlockStep, pc: Array) -> tuple[Array, Array]:
            block = step.index
            if step.free or chosen is not None:
                waiting = lanes.count(pc == block)
                return (waiting > 0 if chosen is None else chosen == block), waiting
            by_block = lanes.waiting(pc, self.halted)
            waiting = by_block[block]
            return self.rule.is_due(block, step.group_start, by_block, lanes) | (for_all & (waiting > 0)), waiting

        return due


class Backend(Evaluator, Protocol):
    """Arrays, rows of stacks, vectorization and control flow of one array library.

    Arrays support `+`, `-`, `*`, `//`, comparisons, `&` and `~` elementwise, and have `shape`. `docs/add_a_backend.md`
    writes one.
    """

    name: str
    mode: str
    """How programs run: "eager", and where the library has them "graph" and "xla"."""
    style: str
    """One of STYLES: how primitives run."""

    def asarray(self, value: Any, dtype: str) -> Array:
        """A value of the host as an array."""

    def to_numpy(self, array: Array) -> np.ndarray:
        """An array on the host."""

    def full(self, shape: Sequence[int], value: Any, dtype: str) -> Array:
        """An array with the same value everywhere."""

    def cast(self, array: Array, dtype: str) -> Array:
        """The array in another dtype."""

    def where(self, mask: Array, new: Array, old: Array) -> Array:
        """Per lane: the row of `new` where mask [lanes] holds, else of `old`."""

    def count(self, mask: Array) -> Array:
        """How many lanes of the mask hold: an int64 scalar."""

    def take_rows(self, memory: Array, rows: Array) -> Array:
        """memory[rows] for memory [n, ...] and valid row numbers [lanes]."""

    def put_rows(self, memory: Array, rows: Array, values: Array) -> Array:
        """memory [n, ...] with values [k, ...] in rows [k], valid and all different; `memory` itself may be changed."""

    def write_rows(self, buffers: Array, mask: Array, rows: Array, values: Array) -> Array:
        """buffers [lanes, m, ...] where row rows[i] of buffers[i] is values[i], for the lanes i with mask[i].

        `buffers` itself is left alone, and where the mask does not hold `rows` may be anything.
        """

    def work(self, function: Primitive, inputs: tuple[TensorType, ...]) -> float | None:
        """Multiplications within products of matrices, and elements that anything else computes, for one lane.

        None where that is not known, or does not determine the cost of a dispatch.
        """

    def rows_to_compute(self, mask: Array) -> Array | None:
        """Which lanes' inputs a primitive gets when it runs for the active lanes.

        gather: the active lanes' numbers, in order. masking: for each lane its own number if it is active, else that of
        an active lane, so that nothing is computed from an inactive lane's values; or None where these are harmless:
        then all lanes are computed as they are.
        """

    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> RowFunction:
        """A function of one lane's arrays (one or more) as a function of rows, whose results have these types."""

    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> RowFunction:
        """A primitive already written over lanes as a function of rows, whose results have these types."""

    def as_one_op(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of arrays of fixed shapes as a single operation, where each operation has a high fixed cost.

        Otherwise the function itself.
        """

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of States and scalars as the mode runs it; it may be a PartFunction."""

    def compile_machine(self, function: MachineFunction) -> CompiledMachine:
        """A whole machine as the mode runs it; arrays of its result may be on the host."""

    def sweep(self, plan: SweepPlan, state: State, budget: Array, leave_at: Array) -> tuple[State, Array]:
        """Sweep until at most `leave_at` lanes live on (their pc is not `plan.halted`) or `budget` sweeps were made.

        Both are int64 scalars. Called inside `compile_machine`.

        The sweep counts for itself: `sweeps`, and for each block `executions` and the lanes served, `active`. Gives
        the state, in which at most the entries `plan.touches` differ, and how many sweeps were made.
        """


@dataclass(frozen=True)
class Interpreted:
    """A machine that Python runs: nothing is compiled."""

    function: Callable[..., tuple[State, Array]]

    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        """Run it."""
        return self.function(state, *scalars)

    def trace(self, state: State, *scalars: Array) -> None:
        """Do nothing: there is nothing to compile."""


def sweep_on_host(backend: Backend, plan: SweepPlan, state: State, budget: Any, leave_at: Any) -> tuple[State, int]:
    """`Backend.sweep` where Python drives every step."""
    names = ("sweeps", "executions", "active")
    sweeps, executions, active = (backend.to_numpy(state[name]).copy() for name in names)
    reductions = OnHost()

    def count_waiting() -> np.ndarray:
        return np.bincount(backend.to_numpy(state["pc"]), minlength=plan.halted + 1)

    sweeps_made = 0
    waiting = count_waiting()
    while sweeps_made < int(budget) and waiting[:-1].sum() > int(leave_at):
        for_all = plan.is_for_all(sweeps)
        chosen = plan.rule.most_active(waiting, reductions) if plan.one_choice else None
        for step in plan.steps:
            served = waiting[step.index]
            if served == 0:
                continue
            if chosen is not None:
                due = chosen == step.index
            else:
                due = for_all or plan.rule.is_due(step.index, step.group_start, waiting, reductions)
            if due:
                state = step.run(state)
                executions[step.index] += 1
                active[step.index] += served
                waiting = count_waiting()
                if chosen is not None:
                    break
        sweeps += 1
        sweeps_made += 1
    counters = zip(names, (sweeps, executions, active))
    return {**state, **{name: backend.asarray(value, "int64") for name, value in counters}}, sweeps_made
