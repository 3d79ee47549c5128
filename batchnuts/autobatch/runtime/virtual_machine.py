"""The virtual machine: program-counter autobatching ([R] Algorithm 2).

Every lane has a program counter and, for each FULL variable and for return addresses, a stack. The machine picks a
block, runs it on all lanes at once, and keeps the results on the lanes whose counter is at that block. Lanes in
different calls of a recursion so share every evaluation of a block.

    state   pc            int32 [lanes]           index of the lane's next block in the schedule's order; n = halted
            value:v       [lanes, ...]            REGISTER or top frame of FULL variable v
            frames:v      [lanes * (depth+1), ...] frames beneath the top; the last slot of each lane is scratch
            height:v      int32 [lanes]           frames beneath the top
            frames:@, height:@                    return addresses, the same way
            fault         int32 [lanes]           0, or 1 + index of the first thing that went wrong on the lane
            executions, active   int64 [blocks]   how often each block ran, and on how many lanes in all

The whole machine is this dictionary of arrays: a run can stop after any block and go on later, bit for bit.
"""

from __future__ import annotations

import math

import numpy as np

from batchnuts.autobatch.compiler.dataflow import liveness
from batchnuts.autobatch.compiler.ir import (
    AssertOp,
    Block,
    BranchOp,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Program,
    PushGotoOp,
    PushOp,
    VariableAllocation,
    WriteRowOp,
    writes,
)
from batchnuts.autobatch.compiler.schedule import Schedule, make_schedule
from batchnuts.autobatch.errors import StackOverflowError
from batchnuts.autobatch.runtime.backend import Array, Backend, BlockStep, State
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.autobatch.runtime.regions import Compute, plan_block
from batchnuts.autobatch.runtime.storage import RETURN_ADDRESS, LaneValues, Storage

FIRST_STACK_DEPTH = 16
LARGEST_STACK_DEPTH = 1 << 16
"""Bounds between which an automatic stack depth grows by doubling."""

FIRST_STACK_BYTES = 1 << 28
"""Memory that stacks may take on a guess: an input may only look like a depth."""


def affordable_depth(program: Program, lanes: int) -> int:
    """The depth at which the stacks of a lowered program fill FIRST_STACK_BYTES."""
    types = [program.var_defs[v] for v, a in program.var_alloc.items() if a is VariableAllocation.FULL]
    frame: int = 4 + sum(np.dtype(t.dtype).itemsize * math.prod(t.shape) for t in types)
    return min(FIRST_STACK_BYTES // (frame * max(lanes, 1)), LARGEST_STACK_DEPTH)


class VirtualMachine:
    """A lowered, allocated program made ready for one lane count, stack depth and schedule.

    `start` makes the initial state from inputs [lanes, ...], `advance` makes up to a number of sweeps, `results` reads
    the outputs of a finished state. The compiled code is reused for every run of the same machine.
    """

    def __init__(
        self, program: Program, backend: Backend, lanes: int, stack_depth: int, schedule: Schedule | None = None
    ) -> None:
        self.program = program
        self.backend = backend
        self.lanes = lanes
        self.stack_depth = stack_depth
        self.schedule = schedule or make_schedule(program)
        self.index = {label: i for i, label in enumerate(self.schedule.order)}
        self.halted = len(self.index)
        self.faults: list[Fault] = []
        self.storage = Storage(backend, lanes, stack_depth)
        self.live = liveness(program.graph, frozenset(program.vars_out), through_calls=True)
        self.stored = tuple(
            v for v, a in program.var_alloc.items() if a in (VariableAllocation.REGISTER, VariableAllocation.FULL)
        )
        self.stacked = tuple(v for v, a in program.var_alloc.items() if a is VariableAllocation.FULL)
        starts = self.schedule.group_starts
        steps = [
            self._block_step(program.graph.block(label), start) for label, start in zip(self.schedule.order, starts)
        ]
        self._advance = backend.compile(lambda state, budget: backend.sweep(steps, state, self.halted, budget))

    def with_stack_depth(self, stack_depth: int) -> VirtualMachine:
        """The same machine with stacks of another depth."""
        return VirtualMachine(self.program, self.backend, self.lanes, stack_depth, self.schedule)

    # ---- running ----------------------------------------------------------------------------------------------

    def start(self, inputs: dict[str, Array]) -> State:
        """The state before the first block; `inputs` maps the program's input variables to arrays [lanes, ...]."""
        backend, lanes = self.backend, self.lanes
        entry = self.index[self.program.graph.entry]
        state: State = {
            "pc": backend.asarray(np.full(lanes, entry), "int32"),
            "fault": backend.full((lanes,), 0, "int32"),
            "executions": backend.full((self.halted,), 0, "int64"),
            "active": backend.full((self.halted,), 0, "int64"),
        }
        for variable in self.stored:
            type_ = self.program.var_defs[variable]
            given = inputs.get(variable)
            shape = (lanes, *type_.shape)
            state[f"value:{variable}"] = (
                backend.full(shape, 0, type_.dtype) if given is None else backend.asarray(given, type_.dtype)
            )
        slots = lanes * (self.stack_depth + 1)
        for variable in self.stacked:
            type_ = self.program.var_defs[variable]
            state[f"frames:{variable}"] = backend.full((slots, *type_.shape), 0, type_.dtype)
            state[f"height:{variable}"] = backend.full((lanes,), 0, "int32")
        state[f"frames:{RETURN_ADDRESS}"] = backend.full((slots,), 0, "int32")
        state[f"height:{RETURN_ADDRESS}"] = backend.full((lanes,), 0, "int32")
        return state

    def advance(self, state: State, sweeps: int) -> State:
        """Make up to `sweeps` sweeps over the schedule; the state given in stays valid."""
        after: State = self._advance(state, self.backend.asarray(sweeps, "int64"))
        return after

    def run(self, inputs: dict[str, Array]) -> State:
        """From `start` until every lane has halted."""
        return self.advance(self.start(inputs), np.iinfo(np.int64).max)

    def is_finished(self, state: State) -> bool:
        """Whether every lane has halted."""
        return bool((self.backend.to_numpy(state["pc"]) == self.halted).all())

    def results(self, state: State) -> tuple[Array, ...]:
        """The program's output variables, each [lanes, ...]."""
        return tuple(state[f"value:{v}"] for v in self.program.vars_out)

    def read(self, state: State, variable: str) -> np.ndarray:
        """The top frame of any stored variable, on the host: [lanes, ...]."""
        return self.backend.to_numpy(state[f"value:{variable}"])

    def live_name(self, variable: str) -> str:
        """Under which name a variable of the program before coalescing is stored."""
        return self.program.renamed.get(variable, variable)

    def check_faults(self, state: State) -> None:
        """Raise for the first lane on which something went wrong.

        Raises StackOverflowError naming function, variable, lane and limit, LaneAssertionError for an assertion that
        does not hold, or BatchnutsError for a write outside its buffer.
        """
        fault = self.backend.to_numpy(state["fault"])
        if fault.any():
            first = self.faults[int(fault[np.flatnonzero(fault)[0]]) - 1]
            raise first.error(fault > 0, self.stack_depth)

    # ---- one block --------------------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> int:
        self.faults.append(fault)
        return len(self.faults)

    def _touches(self, block: Block, live_at_end: frozenset[str]) -> tuple[str, ...]:
        """The entries of the state that running the block may change."""
        names = {"pc", "fault", "executions", "active"}
        for op in block.ops:
            if isinstance(op, (PushOp, PopOp)):
                names |= {f"frames:{op.var}", f"height:{op.var}"}
            changed = (op.var,) if isinstance(op, PopOp) else () if isinstance(op, PushOp) else writes(op)
            names |= {f"value:{v}" for v in changed if v in self.stored and v in live_at_end}
        if isinstance(block.terminator, (PushGotoOp, IndirectGotoOp)):
            names |= {f"frames:{RETURN_ADDRESS}", f"height:{RETURN_ADDRESS}"}
        return tuple(sorted(names))

    def _block_step(self, block: Block, group_start: int) -> BlockStep:
        """What runs one block on the lanes whose counter is at it."""
        backend, types = self.backend, self.program.var_defs
        live_at_end = self.live.at_end[block.label]
        if block.owner == "main" and isinstance(block.terminator, IndirectGotoOp):
            live_at_end |= set(self.program.vars_out)
        steps = plan_block(block, live_at_end, types, backend)
        here = self.index[block.label]
        codes: dict[int, int] = {}
        for step in steps:
            if isinstance(step, PushOp):
                codes[id(step)] = self._fault(Fault(FaultKind.STACK_OVERFLOW, step.var))
            elif isinstance(step, WriteRowOp):
                codes[id(step)] = self._fault(Fault(FaultKind.OUTSIDE_BUFFER, step.buffer, step.source))
            elif isinstance(step, AssertOp):
                codes[id(step)] = self._fault(Fault(FaultKind.ASSERTION, step.message, step.source))
        call_code = 0
        if isinstance(block.terminator, PushGotoOp):
            callee = self.program.graph.block(block.terminator.target_label).owner
            call_code = self._fault(Fault(FaultKind.STACK_OVERFLOW, f"{callee}.{RETURN_ADDRESS}"))
        storage = self.storage

        def run(state: State) -> State:
            state = dict(state)
            mask = state["pc"] == here
            values = LaneValues(state, mask, backend)
            for step in steps:
                match step:
                    case Compute():
                        for variable, value in step(mask, values).items():
                            values.set_active(variable, value)
                    case AssertOp(condition):
                        storage.record_fault(state, mask & ~values[condition], codes[id(step)])
                    case PushOp(var):
                        storage.push(state, mask, var, values[var], codes[id(step)])
                    case PopOp(var):
                        beneath = storage.pop(state, mask, var)
                        values.set_active(var, beneath)
                    case WriteRowOp():
                        written = storage.write_row(state, mask, step, values, types, codes[id(step)])
                        values.set_all(step.var_out, written)
            self._jump(state, mask, block, values, call_code)
            for variable in values.changed():
                if f"value:{variable}" in state and variable in live_at_end:
                    state[f"value:{variable}"] = values.for_all_lanes(variable)
            state["executions"] = backend.add_at(state["executions"], here, 1)
            state["active"] = backend.add_at(state["active"], here, backend.count(mask))
            # a lane with a fault has no meaningful next step
            halted = backend.full((self.lanes,), self.halted, "int32")
            state["pc"] = backend.where(state["fault"] > 0, halted, state["pc"])
            return state

        return BlockStep(here, group_start, self._touches(block, live_at_end), run)

    def _jump(self, state: State, mask: Array, block: Block, values: LaneValues, code: int) -> None:
        """Move the counters of the block's active lanes."""
        backend, index = self.backend, self.index

        def to(label: str) -> Array:
            return backend.full((self.lanes,), index[label], "int32")

        match block.terminator:
            case GotoOp(label):
                target = to(label)
            case BranchOp(condition, yes, no):
                target = backend.where(values[condition], to(yes), to(no))
            case PushGotoOp(resume, entry):
                self.storage.push(state, mask, RETURN_ADDRESS, to(resume), code)
                target = to(entry)
            case IndirectGotoOp():
                at_bottom = state[f"height:{RETURN_ADDRESS}"] == 0
                address = self.storage.pop(state, mask, RETURN_ADDRESS)
                target = backend.where(at_bottom, backend.full((self.lanes,), self.halted, "int32"), address)
        state["pc"] = backend.where(mask, target, state["pc"])


def execute(
    program: Program,
    backend: Backend,
    *inputs: Array,
    max_stack_depth: int | None = None,
    schedule: Schedule | None = None,
) -> tuple[np.ndarray, ...]:
    """Run a lowered, allocated program on inputs [lanes, ...] and give its outputs [lanes, ...] on the host.

    max_stack_depth: frames each stack may hold beneath its top; None starts small and doubles, running again from
        the start, until no lane overflows.
    Raises StackOverflowError when a lane recurses deeper than allowed (or than 65,536 frames).
    """
    machine = VirtualMachine(program, backend, len(inputs[0]), max_stack_depth or FIRST_STACK_DEPTH, schedule)
    return run_to_end(machine, inputs, grow=max_stack_depth is None)[1]


def run_to_end(
    machine: VirtualMachine, inputs: tuple[Array, ...], *, grow: bool
) -> tuple[VirtualMachine, tuple[np.ndarray, ...]]:
    """The outputs, and the machine that had stacks deep enough to compute them (the same one unless `grow`)."""
    named = dict(zip(machine.program.vars_in, inputs))
    while True:
        state = machine.run(named)
        try:
            machine.check_faults(state)
        except StackOverflowError as error:
            if not grow:
                raise
            if machine.stack_depth >= LARGEST_STACK_DEPTH:
                raise StackOverflowError(
                    f"{error} Stacks grow by themselves up to {LARGEST_STACK_DEPTH} frames: on this lane the recursion "
                    "probably never reaches its base case."
                ) from None
            machine = machine.with_stack_depth(2 * machine.stack_depth)
            continue
        return machine, tuple(machine.backend.to_numpy(r) for r in machine.results(state))
