"""The code of a virtual machine: its first state, and each block as a function from State to State."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from batchnuts.autobatch.backends.backend import Array, Backend, RowFunction, State, StateArrays
from batchnuts.autobatch.backends.numpy import NumpyBackend
from batchnuts.autobatch.ir.dataflow import liveness
from batchnuts.autobatch.ir.program import (
    STORED,
    AssertOp,
    Block,
    BranchOp,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Primitive,
    Program,
    PushGotoOp,
    PushOp,
    TensorType,
    VariableAllocation,
    WriteRowOp,
)
from batchnuts.autobatch.runtime.compaction import serve_some
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.autobatch.runtime.regions import Compute, Step, plan_block
from batchnuts.autobatch.runtime.return_addresses import return_addresses
from batchnuts.autobatch.runtime.storage import RETURN_ADDRESS, LaneValues, Storage


class MachineCode:
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
        self.storage = Storage(backend, lanes, stack_depth)
        # a profile reads how high the stack of addresses is
        self.addresses = return_addresses(program, self.index, stack_depth, packed=not timeline_rows)
        # of a stack only the top frame is a value of the state, so one that is popped before it is read is not kept
        self.live = liveness(program.graph, frozenset(program.vars_out), through_calls=True, pop_exposes=False)
        kinds = program.var_alloc
        self.stacked = tuple(v for v in kinds if kinds[v] is VariableAllocation.FULL)
        self.stacks = (*self.stacked, RETURN_ADDRESS)
        self.leader = _leaders(program, self.stacked)
        self.stored = tuple(v for v in kinds if kinds[v] in STORED)
        self.blocks = {label: self._block(program.graph.block(label)) for label in labels}

    def start(self, inputs: dict[str, Array]) -> State:
        """The state before the first block; `inputs` maps the program's input variables to arrays [lanes, ...]."""
        arrays, lanes = StateArrays(self.backend), self.lanes
        entry = self.index[self.program.graph.entry]
        state: State = {
            "pc": arrays.asarray(np.full(lanes, entry), "int32"),
            "fault": arrays.full((lanes,), 0, "int32"),
            "sweeps": arrays.asarray(0, "int64"),
            "executions": arrays.full((self.halted,), 0, "int64"),
            "active": arrays.full((self.halted,), 0, "int64"),
            "computed": arrays.full((self.halted,), 0, "int64"),
            "turn": arrays.full((self.halted,), lanes - 1, "int32"),
        }
        for variable in self.stored:
            type_ = self.program.var_defs[variable]
            given = inputs.get(variable)
            shape = (lanes, *type_.shape)
            state[f"value:{variable}"] = (
                arrays.full(shape, 0, type_.dtype) if given is None else arrays.asarray(given, type_.dtype)
            )
        slots = lanes * (self.stack_depth + 1)
        for variable in self.stacked:
            type_ = self.program.var_defs[variable]
            state[f"frames:{variable}"] = arrays.full((slots, *type_.shape), 0, type_.dtype)
            if self.leader[variable] == variable:
                state[f"height:{variable}"] = arrays.full((lanes,), 0, "int32")
        state |= self.addresses.start(arrays, lanes)
        if rows := self.timeline_rows:
            for variable in self.stacks:
                state[f"peak:{variable}"] = arrays.full((lanes,), 0, "int32")
            for name, size in (("block", rows), ("active", rows), ("length", 1)):
                state[f"timeline:{name}"] = arrays.full((size,), 0, "int32")
        return state

    def _fault(self, fault: Fault) -> int:
        self.faults.append(fault)
        return len(self.faults)

    def _fault_codes(self, steps: tuple[Step, ...]) -> dict[int, int]:
        """By the step's identity, what is recorded on lanes where it goes wrong."""
        codes: dict[int, int] = {}
        for step in steps:
            match step:
                case PushOp(var):
                    codes[id(step)] = self._fault(Fault(FaultKind.STACK_OVERFLOW, var))
                case WriteRowOp():
                    codes[id(step)] = self._fault(Fault(FaultKind.OUTSIDE_BUFFER, step.buffer, step.source))
                case AssertOp():
                    codes[id(step)] = self._fault(Fault(FaultKind.ASSERTION, step.message, step.source))
        return codes

    def run(self, label: str, width: int | None = None) -> Callable[[State], State]:
        """What runs a block on the lanes whose counter is at it, or on `width` of them at most."""
        run, here = self.blocks[label], self.index[label]
        if width is not None:
            return serve_some(run, self.program.graph.block(label), here, self.storage, width)
        return lambda state: run(state, self.storage)

    def _block(self, block: Block) -> Callable[[State, Storage], State]:
        """What runs a block on a state of the lanes that a storage is of."""
        backend, types = self.backend, self.program.var_defs
        live_at_end = self.live.at_end[block.label]
        if block.owner == "main" and isinstance(block.terminator, IndirectGotoOp):
            live_at_end |= set(self.program.vars_out)
        steps = plan_block(block, live_at_end, types, backend)
        here = self.index[block.label]
        codes = self._fault_codes(steps)
        followers = {op.var: self.leader[op.var] for op in block.ops if isinstance(op, (PushOp, PopOp))}
        followers = {variable: leader for variable, leader in followers.items() if variable != leader}
        call_code = 0
        if isinstance(block.terminator, PushGotoOp):
            callee = self.program.graph.block(block.terminator.target_label).owner
            call_code = self._fault(Fault(FaultKind.STACK_OVERFLOW, f"{callee}.{RETURN_ADDRESS}"))

        def run(state: State, storage: Storage) -> State:
            state = state.copy()
            for variable, leader in followers.items():  # equal at the start, and again at the end
                state[f"height:{variable}"] = state[f"height:{leader}"]
            mask = state["pc"] == here
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
            self._jump(state, storage, mask, block, values, call_code)
            for variable in values.changed():
                if f"value:{variable}" in state and variable in live_at_end:
                    state[f"value:{variable}"] = values.for_all_lanes(variable)
            for variable in followers:
                del state[f"height:{variable}"]
            self._note_dispatch(state, here, mask)
            if codes or call_code:  # a lane with a fault has no meaningful next step
                halted = backend.full((storage.lanes,), self.halted, "int32")
                state["pc"] = backend.where(state["fault"] > 0, halted, state["pc"])
            return state

        return run

    def _jump(self, state: State, storage: Storage, mask: Array, block: Block, values: LaneValues, code: int) -> None:
        """Move the counters of the block's active lanes."""
        backend, index = self.backend, self.index

        def to(label: str) -> Array:
            return backend.full((storage.lanes,), index[label], "int32")

        match block.terminator:
            case GotoOp(label):
                target = to(label)
            case BranchOp(condition, yes, no):
                target = backend.where(values[condition], to(yes), to(no))
            case PushGotoOp(resume, entry):
                self.addresses.push(state, storage, mask, index[resume], code)
                self._note_height(state, RETURN_ADDRESS)
                target = to(entry)
            case IndirectGotoOp():
                at_bottom, address = self.addresses.pop(state, storage, mask)
                target = backend.where(at_bottom, backend.full((storage.lanes,), self.halted, "int32"), address)
        state["pc"] = backend.where(mask, target, state["pc"])

    def _note_height(self, state: State, variable: str) -> None:
        if self.timeline_rows:
            height, peak = state[f"height:{variable}"], state[f"peak:{variable}"]
            state[f"peak:{variable}"] = self.backend.where(height > peak, height, peak)

    def _note_dispatch(self, state: State, here: int, mask: Array) -> None:
        if self.timeline_rows:
            backend, row = self.backend, state["timeline:length"]
            count = backend.full((1,), 0, "int32") + backend.cast(backend.count(mask), "int32")
            for name, value in (("block", backend.full((1,), here, "int32")), ("active", count)):
                state[f"timeline:{name}"] = backend.put_rows(state[f"timeline:{name}"], row, value)
            state["timeline:length"] = row + 1


def entries_touched(
    program: Program, labels: tuple[str, ...], stack_depth: int, timeline_rows: int = 0
) -> dict[str, tuple[str, ...]]:
    """For each block, the entries of the state that running it may change.

    Found by running it, on NumPy, on one lane that is at no block and without calling a primitive.
    """
    code = MachineCode(program, _NoPrimitives(), 1, stack_depth, labels, timeline_rows)
    state = code.start({})
    state["pc"] = np.full(1, code.halted, "int32")
    result = {}
    for label in labels:
        noting = _NotingState(state)
        code.run(label)(noting)
        result[label] = tuple(sorted(noting.assigned & state.keys()))
    return result


def _leaders(program: Program, stacked: tuple[str, ...]) -> dict[str, str]:
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


class _NotingState(dict[str, Array]):
    """A state whose copies note in one place which entries are assigned."""

    def __init__(self, state: State, assigned: set[str] | None = None) -> None:
        super().__init__(state)
        self.assigned: set[str] = set() if assigned is None else assigned

    def copy(self) -> _NotingState:
        """A state of its own that notes in the same place."""
        return _NotingState(self, self.assigned)

    def __setitem__(self, name: str, value: Array) -> None:
        self.assigned.add(name)
        super().__setitem__(name, value)


class _NoPrimitives(NumpyBackend):
    """Gives zeros for what primitives would compute."""

    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> RowFunction:
        """See Backend."""
        return lambda *values: tuple(np.zeros((len(values[0]), *t.shape), t.dtype) for t in outputs)

    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> RowFunction:
        """See Backend."""
        return lambda *values: tuple(np.zeros((len(values[0]), *t.shape), t.dtype) for t in outputs)
