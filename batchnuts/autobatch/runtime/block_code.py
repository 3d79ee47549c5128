"""The code of a virtual machine: its first state, and each block as a function from State to State."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchnuts.autobatch.backends.backend import Array, Backend, State
from batchnuts.autobatch.ir.dataflow import liveness
from batchnuts.autobatch.ir.program import (
    RETURN_ADDRESS,
    STORED,
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
    shared_arrays,
    writes,
)
from batchnuts.autobatch.language.shared import entry_of
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.autobatch.runtime.lane_storage import LaneStorage, LaneValues
from batchnuts.autobatch.runtime.regions import Compute, Step, plan_block


class MachineBlocks:
    """A lowered, allocated program for one backend, number of lanes and stack depth.

    `labels` numbers the blocks: pc i is the i-th label, pc n has halted. For a profile, with `timeline_rows`, the state
    also holds

        peak:v            int32 [lanes]   the most frames there were beneath the top of v (v a stack, or @)
        timeline:block    int32 [rows]    for each dispatch, the block's number
        timeline:active   int32 [rows]    for each dispatch, how many lanes it served
        timeline:length   int32 [1]       rows in use; whoever advances the machine empties them before they are full
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        lanes: int,
        stack_depth: int,
        labels: tuple[str, ...],
        timeline_rows: int = 0,
    ) -> None:
        self.program = program
        self.backend = backend
        self.lanes = lanes
        self.stack_depth = stack_depth
        self.index = {label: i for i, label in enumerate(labels)}
        self.halted = len(labels)
        self.timeline_rows = timeline_rows
        self.faults: list[Fault] = []
        self.storage = LaneStorage(backend, lanes, stack_depth)
        # of a stack only the top frame is a value of the state, so one that is popped before it is read is not kept
        self.live = liveness(program.graph, frozenset(program.vars_out), through_calls=True, pop_exposes=False)
        kinds = program.var_alloc
        self.stacked = tuple(v for v in kinds if kinds[v] is VariableAllocation.FULL)
        self.stacks = (*self.stacked, RETURN_ADDRESS)
        self.leader = stack_leaders(program, self.stacked)
        self.stored = tuple(v for v in kinds if kinds[v] in STORED)
        self.shared = shared_arrays(program)
        self.blocks = {label: self._block(program.graph.block(label)) for label in labels}

    def start(self, inputs: dict[str, Array]) -> State:
        """The state before the first block; `inputs` maps the program's input variables to arrays [lanes, ...]."""
        arrays, lanes = self.backend, self.lanes
        entry = self.index[self.program.graph.entry]
        state: State = {
            "pc": arrays.asarray(np.full(lanes, entry), "int32"),
            "fault": arrays.full((lanes,), 0, "int32"),
            "sweeps": arrays.asarray(0, "int64"),
            "executions": arrays.full((self.halted,), 0, "int64"),
            "active": arrays.full((self.halted,), 0, "int64"),
        }
        for variable in self.stored:
            type_ = self.program.var_defs[variable]
            value = inputs.get(variable)
            shape = (lanes, *type_.shape)
            state[f"value:{variable}"] = (
                arrays.full(shape, 0, type_.dtype) if value is None else arrays.asarray(value, type_.dtype)
            )
        slots = lanes * (self.stack_depth + 1)
        for variable in self.stacked:
            type_ = self.program.var_defs[variable]
            state[f"frames:{variable}"] = arrays.full((slots, *type_.shape), 0, type_.dtype)
            if self.leader[variable] == variable:
                state[f"height:{variable}"] = arrays.full((lanes,), 0, "int32")
        for array in self.shared:
            state[entry_of(array.name)] = arrays.asarray(array.value, array.value.dtype.name)
        state[f"frames:{RETURN_ADDRESS}"] = arrays.full((slots,), 0, "int32")
        state[f"height:{RETURN_ADDRESS}"] = arrays.full((lanes,), 0, "int32")
        if rows := self.timeline_rows:
            for variable in self.stacks:
                state[f"peak:{variable}"] = arrays.full((lanes,), 0, "int32")
            for name, size in (("block", rows), ("active", rows), ("length", 1)):
                state[f"timeline:{name}"] = arrays.full((size,), 0, "int32")
        return state

    def add_fault(self, fault: Fault) -> int:
        """The code under which lanes record it."""
        self.faults.append(fault)
        return len(self.faults)

    def _fault_codes(self, steps: tuple[Step, ...]) -> dict[int, int]:
        """The code of the fault that is recorded on lanes where a step fails, by the step's identity."""
        codes: dict[int, int] = {}
        for step in steps:
            match step:
                case PushOp(var, source):
                    codes[id(step)] = self.add_fault(Fault(FaultKind.STACK_OVERFLOW, var, source))
                case WriteRowOp() | AssertOp():
                    codes[id(step)] = self.add_fault(Fault(FaultKind.ASSERTION, step.message, step.source))
        return codes

    def entries_changed(self, label: str) -> tuple[str, ...]:
        """The entries of the state that running a block may change, as `_block` changes them."""
        block = self.program.graph.block(label)
        pushed = {op.var for op in block.ops if isinstance(op, PushOp)}
        popped = {op.var for op in block.ops if isinstance(op, PopOp)}
        written = popped | {v for op in block.ops for v in writes(op)}  # a pop uncovers another value
        changed = {"pc", *(f"value:{v}" for v in written & self._live_at_end(block) & set(self.stored))}
        match block.terminator:
            case PushGotoOp():
                pushed.add(RETURN_ADDRESS)
            case IndirectGotoOp():
                popped.add(RETURN_ADDRESS)
        changed |= {f"frames:{v}" for v in pushed}
        changed |= {f"height:{self.leader.get(v, v)}" for v in pushed | popped}
        if pushed or any(isinstance(op, (WriteRowOp, AssertOp)) for op in block.ops):
            changed.add("fault")
        if self.timeline_rows:
            changed |= {"timeline:block", "timeline:active", "timeline:length", *(f"peak:{v}" for v in pushed)}
        return tuple(sorted(changed))

    def _live_at_end(self, block: Block) -> frozenset[str]:
        """The variables whose values the block must leave in the state."""
        live = self.live.at_end[block.label]
        if block.owner == "main" and isinstance(block.terminator, IndirectGotoOp):
            return live | set(self.program.vars_out)
        return live

    def _block(self, block: Block) -> Callable[[State], State]:
        """The function that runs a block on the lanes whose counter is at it."""
        backend, types, storage = self.backend, self.program.var_defs, self.storage
        live_at_end = self._live_at_end(block)
        steps = plan_block(block, live_at_end, types, backend)
        index = self.index[block.label]
        codes = self._fault_codes(steps)
        followers = {op.var: self.leader[op.var] for op in block.ops if isinstance(op, (PushOp, PopOp))}
        followers = {variable: leader for variable, leader in followers.items() if variable != leader}
        call_code = 0
        if isinstance(block.terminator, PushGotoOp):
            callee = self.program.graph.block(block.terminator.target_label).owner
            addresses = f"{callee}.{RETURN_ADDRESS}"
            call_code = self.add_fault(Fault(FaultKind.STACK_OVERFLOW, addresses, block.terminator.source))

        def run(state: State) -> State:
            state = state.copy()
            for variable, leader in followers.items():  # equal at the start, and again at the end
                state[f"height:{variable}"] = state[f"height:{leader}"]
            mask = state["pc"] == index
            values = LaneValues(state, mask, backend)
            sound = mask  # without the lanes that have failed an assertion of the block
            for step in steps:
                match step:
                    case Compute():
                        for variable, value in step(sound, values).items():
                            values.set_active(variable, value)
                    case AssertOp(condition):
                        storage.record_fault(state, mask & ~values[condition], codes[id(step)])
                        sound = sound & values[condition]
                    case PushOp(var):
                        storage.push(state, mask, var, values[var], codes[id(step)])
                        self._note_height(state, var)
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
            for variable in followers:
                del state[f"height:{variable}"]
            self._note_dispatch(state, index, mask)
            if codes or call_code:  # a lane with a fault has no meaningful next step
                halted = backend.full((self.lanes,), self.halted, "int32")
                state["pc"] = backend.where(state["fault"] > 0, halted, state["pc"])
            return state

        return run

    def _jump(self, state: State, mask: Array, block: Block, values: LaneValues, code: int) -> None:
        """Move the counters of the block's active lanes."""
        backend, storage = self.backend, self.storage

        def to_index(index: int) -> Array:
            return backend.full((self.lanes,), index, "int32")

        def to(label: str) -> Array:
            return to_index(self.index[label])

        match block.terminator:
            case GotoOp(label):
                target = to(label)
            case BranchOp(condition, yes, no):
                target = backend.where(values[condition], to(yes), to(no))
            case PushGotoOp(resume, entry):
                storage.push(state, mask, RETURN_ADDRESS, to(resume), code)
                self._note_height(state, RETURN_ADDRESS)
                target = to(entry)
            case IndirectGotoOp():
                at_bottom = state[f"height:{RETURN_ADDRESS}"] == 0
                address = storage.pop(state, mask, RETURN_ADDRESS)
                target = backend.where(at_bottom, to_index(self.halted), address)
        state["pc"] = backend.where(mask, target, state["pc"])

    def _note_height(self, state: State, variable: str) -> None:
        if self.timeline_rows:
            height, peak = state[f"height:{variable}"], state[f"peak:{variable}"]
            state[f"peak:{variable}"] = self.backend.where(height > peak, height, peak)

    def _note_dispatch(self, state: State, index: int, mask: Array) -> None:
        if self.timeline_rows:
            backend, row = self.backend, state["timeline:length"]
            count = backend.full((1,), 0, "int32") + backend.cast(backend.count(mask), "int32")
            for name, value in (("block", backend.full((1,), index, "int32")), ("active", count)):
                state[f"timeline:{name}"] = backend.put_rows(state[f"timeline:{name}"], row, value)
            state["timeline:length"] = row + 1


def stack_leaders(program: Program, stacked: tuple[str, ...]) -> dict[str, str]:
    """For each variable with a stack, the first of those whose stacks are always of the same height as its own.

    These are variables that every block pushes and pops equally often, in the same order. They share one height.
    """
    first: dict[tuple[tuple[bool, ...], ...], str] = {}
    leaders = {}
    for variable in stacked:
        moves = tuple(
            tuple(isinstance(op, PushOp) for op in b.ops if isinstance(op, (PushOp, PopOp)) and op.var == variable)
            for b in program.graph.blocks
        )
        leaders[variable] = first.setdefault(moves, variable)
    return leaders
