"""The virtual machine: program-counter autobatching ([R] Algorithm 2).

Every lane has a program counter and, for each FULL variable and for return addresses, a stack. The machine picks a
block, runs it on all lanes at once, and keeps the results on the lanes whose counter is at that block. Lanes in
different calls of a recursion so share every evaluation of a block.

    state   pc            int32 [lanes]           index of the lane's next block in the schedule's order; n = halted
            shared:a      [...]                   shared array a, the same for all lanes; nothing in the machine sets it
            value:v       [lanes, ...]            REGISTER or top frame of FULL variable v
            frames:v      [lanes * (depth+1), ...] frames beneath the top; the last slot of each lane is scratch
            height:v      int32 [lanes]           frames beneath the top; variables that always move together share one
            frames:@, height:@                    the same for return addresses: each the pc that a call comes back to
            fault         int32 [lanes]           0, or 1 + index of the first thing that went wrong on the lane
            executions    int64 [blocks]          how often each block ran
            active        int64 [blocks]          on how many lanes in all
            sweeps        int64                   sweeps made so far

The whole machine is this dictionary of arrays: a run can stop after any block and go on later, bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.backends.backend import (
    Array,
    Backend,
    BlockStep,
    Identity,
    MachineFunction,
    State,
    SweepPlan,
)
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import Program, VariableAllocation, WriteRowOp
from batchnuts.autobatch.ir.verify import check_lowered, require_inputs
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.language.shared import PREFIX
from batchnuts.autobatch.runtime.block_code import MachineBlocks
from batchnuts.autobatch.runtime.costly_work import costly_work
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.autobatch.runtime.machine import CostlyRuns, MachineCounts, ResumableMachine, run_to_end
from batchnuts.autobatch.scheduling.dispatch import Rule
from batchnuts.autobatch.scheduling.policies import costly_blocks, ending_early, make_schedule
from batchnuts.autobatch.scheduling.schedule import Schedule

FIRST_STACK_DEPTH = 16
"""The first automatic stack depth; it grows up to LARGEST_STACK_DEPTH."""

LARGEST_PREDICTED_DEPTH = 1 << 20
"""The maximum automatic stack depth where an input gives the depth of the recursion."""

FIRST_STACK_BYTES = 1 << 28
"""Memory that stacks may take when their depth is guessed from an input."""


_COUNTERS = ("sweeps", "executions", "active")
"""Entries of the state without a lane axis."""

TIMELINE_ROWS = 4096
"""Dispatches that a profiled machine notes in its state before they must be taken out."""


def buffers_of(program: Program) -> frozenset[str]:
    """The variables that `write` writes rows to."""
    ops = (op for block in program.graph.blocks for op in block.ops if isinstance(op, WriteRowOp))
    return frozenset(v for op in ops for v in (op.buffer, op.var_out))


def affordable_depth(program: Program, lanes: int) -> int:
    """The depth at which the stacks of a lowered program fill FIRST_STACK_BYTES."""
    types = [program.var_defs[v] for v, a in program.var_alloc.items() if a is VariableAllocation.FULL]
    frame: int = 4 + sum(np.dtype(t.dtype).itemsize * math.prod(t.shape) for t in types)
    return min(FIRST_STACK_BYTES // (frame * max(lanes, 1)), LARGEST_PREDICTED_DEPTH)


class VirtualMachine(ResumableMachine):
    """A lowered, allocated program made ready for one lane count, stack depth and schedule.

    `advance` makes sweeps over the schedule. The compiled code is reused for every run of the same machine.

    schedule: a policy's name, or a Schedule made by hand; ValueError if it does not fit the program.
    profiled: whether the state also records what a profile needs (see `MachineBlocks`).
    ends_early: see `scheduling.policies.ending_early`.
    identity: what the program depends on beside its text, its inputs' types and the files of this package, if that is
        known.
    work: of its costly primitives (`costly_work`), where it is known.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        lanes: int,
        stack_depth: int,
        schedule: str | Schedule = "auto",
        profiled: bool = False,
        ends_early: bool = False,
        identity: Identity | None = None,
        work: float | None = None,
    ) -> None:
        self.program = program
        self.backend = backend
        self.lanes = lanes
        self.stack_depth = stack_depth
        self._work = work
        self.schedule = make_schedule(program, schedule, self._costly_work)
        if ends_early:
            self.schedule = ending_early(program, self.schedule)
        self.policy = self.schedule.policy
        self.profiled = profiled
        labels = self.schedule.order
        one_choice = self.schedule.choose == "most_active"
        self.steps_per_sweep = 1 if one_choice else len(self.schedule.slots)
        timeline_rows = max(TIMELINE_ROWS, self.steps_per_sweep) if profiled else 0
        self.code = MachineBlocks(program, backend, lanes, stack_depth, labels, timeline_rows)
        self.index = self.code.index
        self.halted = self.code.halted
        starts = self.schedule.group_starts
        gates = self.schedule.gates

        @functools.cache
        def step(label: str) -> BlockStep:
            return BlockStep(
                label,
                self.index[label],
                starts[label],
                self.code.entries_changed(label),
                self.code.blocks[label],
                free=not one_choice and starts[label] == 0 and label not in gates,
            )

        slots = tuple(step(slot.label) for slot in self.schedule.slots)
        plan = SweepPlan(slots, self.halted, Rule(self.schedule, lanes), one_choice, self.schedule.patience)

        def advance(state: State, budget: Array, leave_at: Array) -> tuple[State, Array]:
            after, sweeps_made = backend.sweep(plan, state, budget, leave_at)
            return {name: after[name] for name in plan.touches}, sweeps_made

        self._sweeps = advance
        self._identity = identity

        machine_function = MachineFunction(advance, plan.touches, self.text, lanes, identity)
        self._advance = backend.compile_machine(machine_function)

    @functools.cached_property
    def buffers(self) -> frozenset[str]:
        """The variables that `write` writes rows to."""
        return buffers_of(self.program)

    @functools.cached_property
    def _costly(self) -> list[int]:
        """Indices of the blocks with a costly primitive."""
        return [self.index[label] for label in costly_blocks(self.program)]

    @override
    def text(self) -> str:
        return f"{show_program(self.program)}\n{(self.lanes, self.stack_depth, self.schedule, self.profiled)}"

    @override
    def with_stack_depth(self, stack_depth: int) -> VirtualMachine:
        return VirtualMachine(
            self.program,
            self.backend,
            self.lanes,
            stack_depth,
            self.schedule,
            self.profiled,
            identity=self._identity,
            work=self._work,
        )

    def _costly_work(self) -> float | None:
        return costly_work(self.program, self.backend) if self._work is None else self._work

    def _named(self, arguments: Any) -> dict[str, Array]:
        """The arguments by the program's input variables."""
        return dict(zip(self.program.vars_in, flatten(arguments)[0], strict=True))

    @override
    def start(self, arguments: Any) -> State:
        return self.code.start(self._named(arguments))

    @override
    def advance(self, state: State, budget: int, leave_at: int = 0) -> State:
        return self.counted_advance(state, budget, leave_at)[0]

    def counted_advance(self, state: State, sweeps: int, leave_at: int = 0) -> tuple[State, Array]:
        """The state after up to `sweeps` sweeps, and how many were made."""
        changed, sweeps_made = self._advance(state, *self._scalars(sweeps, leave_at))
        return {**state, **changed}, sweeps_made

    @override
    def trace(self, state: State) -> None:
        self._advance.trace(state, *self._scalars(0, 0))

    def compiled_text(self, state: State) -> str:
        """The instructions that the backend's compiler made of `advance`, as text. ValueError where none did."""
        compiled_text = getattr(self._advance, "compiled_text", None)
        if compiled_text is None or self.backend.mode != "xla":
            raise ValueError(
                f"no compiler's text: the backend {self.backend.name!r} runs in mode {self.backend.mode!r}"
            )
        text: str = compiled_text(state, *self._scalars(0, 0))
        return text

    def _scalars(self, *numbers: int) -> tuple[Array, ...]:
        return tuple(self.backend.asarray(number, "int64") for number in numbers)

    @override
    def live(self, state: State) -> np.ndarray:
        return np.asarray(self.backend.to_numpy(state["pc"]) != self.halted)

    @override
    def move(self, state: State, to: np.ndarray, source: State, lanes: np.ndarray) -> State:
        moved = dict(state)
        for name, array in state.items():
            has_no_lanes = name in _COUNTERS or name.startswith(("timeline:", PREFIX))
            if has_no_lanes or name.removeprefix("value:") in self.buffers:
                continue
            own = self.backend.to_numpy(array)
            rows = np.array(own).reshape(self.lanes, -1)
            rows[to] = self.backend.to_numpy(source[name]).reshape(self.lanes, -1)[lanes]
            moved[name] = self.backend.asarray(rows.reshape(own.shape), own.dtype.name)
        return moved

    @override
    def restart(self, state: State, lanes: np.ndarray, arguments: Any) -> State:
        entry = self.index[self.program.graph.entry]
        values: dict[str, Any] = {name: 0 for name in state if name.startswith("height:")} | {"pc": entry, "fault": 0}
        for variable, array in self._named(arguments).items():
            if f"value:{variable}" in state:
                values[f"value:{variable}"] = np.asarray(array)[lanes]
        restarted = dict(state)
        for name, rows in values.items():
            array = np.array(self.backend.to_numpy(state[name]))
            array[lanes] = rows
            restarted[name] = self.backend.asarray(array, array.dtype.name)
        return restarted

    @override
    def save(self, state: State) -> dict[str, np.ndarray]:
        return {name: np.array(self.backend.to_numpy(array)) for name, array in state.items() if self._is_saved(name)}

    def _is_saved(self, name: str) -> bool:
        """Whether this entry of a state is: neither a shared array nor a buffer."""
        return not name.startswith(PREFIX) and name.removeprefix("value:") not in self.buffers

    @override
    def restore(self, saved: Mapping[str, np.ndarray], arguments: Any) -> State:
        state = dict(self.start(arguments))  # in this order of names, which the compiled program goes by
        if unknown := saved.keys() - state.keys():
            raise ValueError(f"this machine's state has no {', '.join(sorted(unknown))}")
        if missing := {name for name in state if self._is_saved(name)} - saved.keys():
            raise ValueError(f"what was saved has no {', '.join(sorted(missing))}, which this machine's state has")
        for name, array in saved.items():
            own = self.backend.to_numpy(state[name])
            if own.shape != array.shape or own.dtype != array.dtype:
                raise ValueError(
                    f"{name} is {array.dtype.name}{list(array.shape)} there, and {own.dtype.name}{list(own.shape)} "
                    "in this machine's state"
                )
            state[name] = self.backend.asarray(array, array.dtype.name)
        return state

    @override
    def write(self, state: State, values: Mapping[str, Any]) -> State:
        entries = {}
        for name, array in values.items():
            if (entry := self._entry(name)) not in state:
                raise KeyError(f"the state has no {entry}")
            entries[entry] = self.backend.asarray(array, self.program.var_defs[entry.removeprefix("value:")].dtype)
        return {**state, **entries}

    def _entry(self, variable: str) -> str:
        """The entry of the state that has the top frame of a variable of the program before coalescing."""
        return f"value:{self.program.renamed.get(variable, variable)}"

    def run_inside(self, inputs: dict[str, Array], max_sweeps: int | None = None) -> State:
        """Run until every lane has halted, as a part of a program that is being traced: nothing is compiled by it.

        max_sweeps: after these, lanes that have not halted get a fault.
        """
        state = self.code.start(inputs)
        limits = (self.backend.asarray(n, "int64") for n in (max_sweeps or np.iinfo(np.int64).max, 0))
        state |= self._sweeps(state, *limits)[0]
        if max_sweeps is not None:
            code = self.code.add_fault(Fault(FaultKind.TOO_MANY_SWEEPS, str(max_sweeps)))
            self.code.storage.record_fault(state, state["pc"] != self.halted, code)
        return state

    def outputs(self, state: State) -> tuple[Array, ...]:
        """The program's output variables, each [lanes, ...], as arrays of the backend."""
        return tuple(state[f"value:{v}"] for v in self.program.vars_out)

    @override
    def results(self, state: State) -> tuple[np.ndarray, ...]:
        return tuple(map(self.backend.to_numpy, self.outputs(state)))

    @override
    def read(self, state: State, variable: str) -> np.ndarray:
        return self.backend.to_numpy(state[self._entry(variable)])

    @override
    def counts(self, state: State) -> MachineCounts:
        executions, active, sweeps = (self.backend.to_numpy(state[name]) for name in ("executions", "active", "sweeps"))
        costly = CostlyRuns(int(active[self._costly].sum()), int(executions[self._costly].sum()) * self.lanes)
        return MachineCounts(int(sweeps), costly)

    @override
    def check_faults(self, state: State, depth_is_given: bool = True) -> None:
        faults = self.backend.to_numpy(state["fault"])
        if faults.any():
            first = self.code.faults[int(faults[np.flatnonzero(faults)[0]]) - 1]
            raise first.error(faults > 0, self.stack_depth, depth_is_given)


def execute(
    program: Program,
    backend: Backend,
    *inputs: Array,
    max_stack_depth: int | None = None,
    schedule: str | Schedule = "auto",
) -> tuple[np.ndarray, ...]:
    """Run a lowered, allocated program on inputs [lanes, ...] and give its outputs [lanes, ...] on the host.

    max_stack_depth: frames each stack may hold beneath its top; None starts small and grows, running again from
        the start, until no lane overflows.
    Raises StackOverflowError when a lane recurses deeper than allowed (or than 65,536 frames), MalformedProgramError
    for a program that breaks the rules of the IR, or is not lowered, typed and allocated.
    """
    check_lowered(program)
    require_inputs(program, inputs)
    machine = VirtualMachine(program, backend, len(inputs[0]), max_stack_depth or FIRST_STACK_DEPTH, schedule)
    return run_to_end(machine, inputs, grow=max_stack_depth is None)[1]
