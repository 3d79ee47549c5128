"""A lowered program as one function of LLVM's, `run_lane`, and the loops over lanes that a machine calls.

    run_lane(row, frames, buffers, depth, active, shared, scratch, budget)
        runs one lane from its counter on until it halts, waits, or has run `budget` blocks
    run_lanes(context)
        runs those lanes of a machine (context.Context) one after another that have neither halted nor wait

A segment's variables are read from the lane's row where they are used first, and those that another segment may read
are written back at its end. Jumps whose target is known are jumps; a return goes by the counter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.program import (
    COPY,
    RETURN_ADDRESS,
    AssertOp,
    BranchOp,
    GotoOp,
    IndirectGotoOp,
    Op,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    WriteRowOp,
    shared_arrays,
)
from batchnuts.autobatch.language.shared import Shared
from batchnuts.autobatch.native import expressions, function_table
from batchnuts.autobatch.native.arrays import Array, Emitter, zeros
from batchnuts.autobatch.native.context import Loaded
from batchnuts.autobatch.native.layout import FAULT, PC, WAITING, Layout
from batchnuts.autobatch.native.outlined import emit_call
from batchnuts.autobatch.native.regions import Regions
from batchnuts.autobatch.native.rounds import emit_serve
from batchnuts.autobatch.native.segments import Segment, Segments, Wait, body_of
from batchnuts.autobatch.native.sizes import Extents, complete_sizes
from batchnuts.autobatch.native.types import DTYPES, I8, I32, I64, POINTER, element_type, integer
from batchnuts.autobatch.runtime.faults import Fault, FaultKind

RUN_LANE, RUN_LANES = "run_lane", "run_lanes"

MOST_REGISTERS = 16
"""Scalars of a lane that are kept in registers while it runs; of more, LLVM would keep most in memory too."""


@dataclass(frozen=True)
class CodeNotes:
    """What drives a program's code needs to know of it."""

    scratch_bytes: int
    faults: tuple[Fault, ...]
    """Lanes record number + 1."""
    sizes: tuple[int, ...]
    """What the code reads in its table of sizes."""
    c_functions: tuple[str, ...] = ()
    """Keys of the functions of C that it calls."""


def is_outlined(op: Op) -> bool:
    """Whether the machine code of an op that is emitted is a function of its own."""
    return isinstance(op, PrimOp) and op.function.body is None and op.function.emitted is not None


def outlined_expressions(segments: Segments) -> tuple[Expression, ...]:
    """What outlined functions compute, of costly primitives: they count lanes after the segments."""
    ops = (op for segment in segments.segments for op in segment.ops if isinstance(op, PrimOp) and is_outlined(op))
    return tuple(op.function.emitted for op in ops if op.function.emitted is not None)


def emit_program(
    program: Program, segments: Segments, layout: Layout, leaders: Mapping[str, str], extents: Extents
) -> tuple[ir.Module, CodeNotes]:
    """The module of a lowered program, and what is to be known of it.

    leaders: for each stack the one whose height is always its own. extents: that are read when it runs.
    """
    module = ir.Module("batchnuts")
    lane = _Lane(module, program, segments, layout, leaders, extents)
    run_lanes = _emit_lanes(module, lane.function, segments.halted, layout)
    for number, segment in enumerate(segments.segments):
        if isinstance(segment.end, Wait):
            emit_serve(module, number, segment.end.op, program.var_defs, layout, run_lanes, segments.halted)
    assert lane.outlined == len(outlined_expressions(segments))
    c_functions = tuple(dict.fromkeys(lane.c_functions))
    return module, CodeNotes(lane.scratch_bytes, tuple(lane.faults), complete_sizes(module), c_functions)


class _Lane:
    """Emits `run_lane`."""

    def __init__(
        self,
        module: ir.Module,
        program: Program,
        segments: Segments,
        layout: Layout,
        leaders: Mapping[str, str],
        extents: Extents,
    ) -> None:
        self.program = program
        self.extents = extents
        frames = [f"frames:{stack}" for stack in layout.frames]
        self.regions = Regions(module, [*layout.fields, *layout.buffers, *frames]) if extents else None
        self.segments = segments
        self.layout = layout
        self.leaders = leaders
        self.is_profiled = f"peak:{RETURN_ADDRESS}" in layout.fields
        self.faults: list[Fault] = []
        self.scratch_bytes = 0
        self.c_functions: list[str] = []
        self.outlined = 0
        """Costly primitives that were emitted, each as a call of a function of its own."""
        arguments = [POINTER, POINTER, POINTER, I64, POINTER, POINTER, POINTER, I64]
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), RUN_LANE)
        self.function.linkage = "internal"
        self.function.attributes.add("nounwind")
        self.function.attributes.add("noinline")  # or addresses of fields would be variables of the loop over lanes
        names = ("row", "frames", "buffers", "depth", "active", "shared", "scratch", "budget")
        for argument, name in zip(self.function.args, names):
            argument.name = name
            if argument.type == POINTER:
                argument.attributes.add("noalias")
        self.row, self.frames, self.buffers, self.depth, *others = self.function.args
        self.active, self.shared_pointers, self.scratch, budget = others
        self.shared = shared_arrays(program)
        entry = self.function.append_basic_block("entry")
        self.dispatch = self.function.append_basic_block("dispatch")
        self.leave = self.function.append_basic_block("leave")
        b = ir.IRBuilder(entry)
        self.counter = b.alloca(I32, name="counter")
        self.left = b.alloca(I64, name="left")
        b.store(b.load(self._in_row(b, PC), typ=I32), self.counter)
        b.store(budget, self.left)
        self.registers = self._registers(b)
        b.branch(self.dispatch)
        self.blocks = [
            self.function.append_basic_block(f"{segment.label}.{number}" if not segment.first else segment.label)
            for number, segment in enumerate(segments.segments)
        ]
        for number, segment in enumerate(segments.segments):
            _Code(self, number, segment).emit()
        b = ir.IRBuilder(self.dispatch)
        table = b.switch(b.load(self.counter, typ=I32), self.leave)
        for number, block in enumerate(self.blocks):
            table.add_case(number, block)
        b = ir.IRBuilder(self.leave)
        for name, (register, type_) in self.registers.items():
            b.store(b.load(register, typ=type_), self._in_row(b, name))
        b.store(b.load(self.counter, typ=I32), self.field(b, PC))
        b.ret_void()

    def _registers(self, b: ir.IRBuilder) -> dict[str, tuple[Any, ir.Type]]:
        """Where rows have few scalars: copies of them that LLVM keeps in registers, by name, with their types.

        Between blocks that store to memory and load from there, each would wait for the last.
        """
        scalars = {
            name: I8 if type_.dtype == "bool" else element_type(np.dtype(type_.dtype))
            for name, (_, type_) in self.layout.fields.items()
            if name.partition(":")[0] in ("value", "height") and type_.size == 1 and type_.dtype in DTYPES
        }
        if len(scalars) > MOST_REGISTERS:
            return {}
        registers = {name: (b.alloca(type_), type_) for name, type_ in scalars.items()}
        for name, (register, type_) in registers.items():
            register.type = POINTER
            b.store(b.load(self._in_row(b, name), typ=type_), register)
        return registers

    def field(self, b: ir.IRBuilder, name: str, size: Callable[[int], Any] = integer) -> Any:
        """A pointer to an entry of the lane. size: reads the place of one whose place varies."""
        return self.registers[name][0] if name in self.registers else self._in_row(b, name, size)

    def _in_row(self, b: ir.IRBuilder, name: str, size: Callable[[int], Any] = integer) -> Any:
        block, entries = (self.row, self.layout.fields)
        if name not in entries:
            block, entries = self.buffers, self.layout.buffers
        pointer = b.gep(block, [size(entries[name][0])], inbounds=True, source_etype=I8)
        return pointer if self.regions is None else self.regions.mark(pointer, name)

    def fault(self, fault: Fault) -> int:
        """The code under which lanes record it."""
        self.faults.append(fault)
        return len(self.faults)


class _Code:
    """Emits one segment."""

    def __init__(self, lane: _Lane, number: int, segment: Segment) -> None:
        self.lane = lane
        self.number = number
        self.segment = segment
        self.types = lane.program.var_defs
        self.b = ir.IRBuilder(lane.blocks[number])
        self.em = Emitter(self.b, lane.scratch, lane.extents)
        self.values: dict[str, Array] = {}
        """Variables that were read or set."""
        self.rows: dict[str, Any] = {}
        """Pointers to the places of variables in the row."""
        self.set: set[str] = set()
        self.heights: dict[str, Any] = {}
        self.moved: set[str] = set()
        """Stacks that were pushed or popped."""

    def emit(self) -> None:
        lane, segment = self.lane, self.segment
        if segment.first:
            self._spend()
        self._require_room()
        costly = isinstance(segment.end, Wait) and segment.end.op.function.costly
        if costly or lane.is_profiled:
            self._count(self.number)
        for op in segment.ops:
            match op:
                case PrimOp():
                    self._primitive(op)
                case AssertOp(condition):
                    self._stop_unless(
                        self.value(condition).element(()), Fault(FaultKind.ASSERTION, op.message, op.source)
                    )
                case PushOp(var):
                    self.em.write(self.value(var), self._frame(var, self.height(var)))
                    self._move(var, 1)
                case PopOp(var):
                    self._move(var, -1)
                    self.set_value(var, self._popped(var))
                case WriteRowOp():
                    self._write_row(op)
                case _:
                    raise AssertionError(f"{op} is not in a lowered program")
        self._end()
        lane.scratch_bytes = max(lane.scratch_bytes, self.em.most_scratch)
        lane.c_functions += self.em.c_functions

    def _count(self, number: int) -> None:
        """Count a lane in that entry of `active`."""
        b = self.b
        place = b.gep(self.lane.active, [integer(number)], inbounds=True, source_etype=I64)
        b.store(b.add(b.load(place, typ=I64), integer(1)), place)

    def _spend(self) -> None:
        """Leave before the block if the budget is spent."""
        b, lane = self.b, self.lane
        left = b.load(lane.left, typ=I64)
        go, stop = (lane.function.append_basic_block(name) for name in ("go", "stop"))
        b.cbranch(b.icmp_signed(">", left, integer(0)), go, stop)
        b.position_at_end(stop)
        b.store(ir.Constant(I32, self.number), lane.counter)
        b.branch(lane.leave)
        b.position_at_end(go)
        b.store(b.sub(left, integer(1)), lane.left)

    # ---- variables -------------------------------------------------------------------------------------------------

    def value(self, variable: str) -> Array:
        """A variable's top frame as it stands."""
        if variable not in self.values:
            type_ = self.types[variable]
            pointer = self.rows[variable] = self.lane.field(self.b, f"value:{variable}", self.em.size)
            self.values[variable] = self.em.loaded(np.dtype(type_.dtype), type_.shape, pointer)
        return self.values[variable]

    def set_value(self, variable: str, array: Array) -> None:
        self.values[variable] = array
        self.set.add(variable)

    def _store(self, needed: frozenset[str]) -> None:
        """Write the variables that the segment has set, of those that are needed, to the row."""
        chosen = sorted(v for v in self.set & needed if v in self.lane.segments.stored)
        overwritten = {id(self.rows[v]): v for v in chosen if v in self.rows}
        arrays = {}
        for variable in chosen:
            array = self.values[variable]
            owner = overwritten.get(id(array.pointer)) if array.pointer is not None else None
            if owner == variable:
                continue
            arrays[variable] = array if owner is None else self._copied(array)
        for variable, array in arrays.items():
            self.em.write(array, self.lane.field(self.b, f"value:{variable}", self.em.size))

    def _copied(self, array: Array) -> Array:
        pointer = self.em.allocate(array.bytes)
        self.em.copy(pointer, array.pointer, array.bytes)
        return self.em.memory(array.dtype, array.shape, pointer)

    # ---- stacks ----------------------------------------------------------------------------------------------------

    def _leader(self, stack: str) -> str:
        return self.lane.leaders.get(stack, stack)

    def height(self, stack: str) -> Any:
        """Frames beneath the top, i32."""
        if stack not in self.heights:
            self.heights[stack] = self.b.load(self.lane.field(self.b, f"height:{self._leader(stack)}"), typ=I32)
        return self.heights[stack]

    def _move(self, stack: str, frames: int) -> None:
        b = self.b
        self.heights[stack] = height = b.add(self.height(stack), ir.Constant(I32, frames))
        self.moved.add(stack)
        peak = f"peak:{stack}"
        if frames > 0 and peak in self.lane.layout.fields:
            place = self.lane.field(b, peak)
            highest = b.load(place, typ=I32)
            b.store(b.select(b.icmp_signed(">", height, highest), height, highest), place)

    def _frame(self, stack: str, height: Any) -> Any:
        b, (before, type_) = self.b, self.lane.layout.frames[stack]
        frame_bytes = type_.size * np.dtype(type_.dtype).itemsize
        depth = self.lane.depth
        self.em.require(
            lambda: b.icmp_unsigned("<=", b.sext(height, I64), depth), f"a frame outside of the stack of {stack}"
        )
        first = b.mul(self.em.size(before), b.add(self.lane.depth, integer(1)))
        offset = b.add(first, b.mul(b.sext(height, I64), self.em.size(frame_bytes)))
        pointer = b.gep(self.lane.frames, [offset], inbounds=True, source_etype=I8)
        return pointer if self.lane.regions is None else self.lane.regions.mark(pointer, f"frames:{stack}")

    def _popped(self, variable: str) -> Array:
        type_ = self.types[variable]
        array = self.em.loaded(np.dtype(type_.dtype), type_.shape, self._frame(variable, self.height(variable)))
        later = any(isinstance(op, PushOp) and op.var == variable for op in self.segment.ops)
        return self._copied(array) if array.pointer is not None and later else array

    def _require_room(self) -> None:
        """Stop before anything is changed, where a stack has no room for what the segment pushes."""
        pushed: dict[str, int] = {}
        most: dict[str, int] = {}
        faults: dict[str, Fault] = {}
        for op in self.segment.ops:
            if isinstance(op, (PushOp, PopOp)):
                pushed[op.var] = pushed.get(op.var, 0) + (1 if isinstance(op, PushOp) else -1)
                most[op.var] = max(most.get(op.var, 0), pushed[op.var])
            if isinstance(op, PushOp) and pushed[op.var] > 0:
                faults.setdefault(op.var, Fault(FaultKind.STACK_OVERFLOW, op.var, op.source))
        if isinstance(self.segment.end, PushGotoOp):
            callee = self.lane.program.graph.block(self.segment.end.target_label).owner
            addresses = f"{callee}.{RETURN_ADDRESS}"
            faults[RETURN_ADDRESS] = Fault(FaultKind.STACK_OVERFLOW, addresses, self.segment.end.source)
        checked = set()
        for stack, fault in faults.items():
            code = self.lane.fault(fault)
            if self._leader(stack) in checked:
                continue
            checked.add(self._leader(stack))
            highest = self.b.add(self.b.sext(self.height(stack), I64), integer(max(most.get(stack, 1), 1)))
            fits = self.b.icmp_signed("<=", highest, self.lane.depth)
            self._leave_unless(fits, WAITING, -code, self.number)

    # ---- ops -------------------------------------------------------------------------------------------------------

    def _primitive(self, op: PrimOp) -> None:
        inputs = [self.value(v) for v in op.vars_in]
        if op.function is COPY:
            results = [self._as_dtype(array, np.dtype(self.types[v].dtype)) for array, v in zip(inputs, op.vars_out)]
        else:
            results = self._computed(op, inputs)
        for variable, array in zip(op.vars_out, results, strict=True):
            self.set_value(variable, array)

    def _computed(self, op: PrimOp, inputs: list[Array]) -> list[Array]:
        """The results of a primitive's expression."""
        body = body_of(op, self.lane.program)
        assert body is not None
        if is_outlined(op):
            return self._call_outlined(op, inputs)
        if not op.function.batched:
            return expressions.emit(self.em, body, inputs)
        of_one = [self._shaped(array, (1, *array.shape)) for array in inputs]
        results = expressions.emit(self.em, body, [*of_one, *map(self._shared, op.function.shared)])
        return [self._shaped(array, array.shape[1:]) for array in results]

    def _call_outlined(self, op: PrimOp, inputs: list[Array]) -> list[Array]:
        """The results of a costly primitive, whose machine code is a function of its own."""
        lane, b = self.lane, self.b
        number = lane.outlined
        lane.outlined += 1
        self._count(lane.segments.halted + number)
        place = b.gep(lane.shared_pointers, [integer(len(lane.shared) + number)], inbounds=True, source_etype=POINTER)
        types = [self.types[v] for v in op.vars_out]
        return emit_call(self.em, b.load(place, typ=POINTER), inputs, types, lane.scratch)

    def _shaped(self, array: Array, shape: tuple[int, ...]) -> Array:
        """A scalar, or an array in memory, in another shape."""
        if array.pointer is not None:
            return self.em.memory(array.dtype, shape, array.pointer)
        return self.em.scalar(array.dtype, array.element(zeros(array.shape)), shape)

    def _shared(self, shared: Shared) -> Array:
        """A shared array, which lies outside of all lanes."""
        number = self.lane.shared.index(shared)
        place = self.b.gep(self.lane.shared_pointers, [integer(number)], inbounds=True, source_etype=POINTER)
        return self.em.loaded(shared.value.dtype, self.em.sized(shared.value.shape), self.b.load(place, typ=POINTER))

    def _as_dtype(self, array: Array, dtype: np.dtype[Any]) -> Array:
        if array.dtype == dtype:
            return array
        cast = Array(
            dtype, array.shape, lambda index: function_table.cast(self.b, array.element(index), array.dtype, dtype)
        )
        if array.size == 1:
            return self.em.scalar(dtype, cast.element(zeros(array.shape)), array.shape)
        return self.em.in_memory(cast)[0]

    def _write_row(self, op: WriteRowOp) -> None:
        b, em = self.b, self.em
        buffer, value, index = self.value(op.buffer), self.value(op.value), self.value(op.index)
        i = function_table.cast(b, index.element(()), index.dtype, np.dtype("int64"))
        self._stop_unless(
            b.icmp_unsigned("<", i, self.em.size(buffer.shape[0])), Fault(FaultKind.ASSERTION, op.message, op.source)
        )
        value = self._as_dtype(value, buffer.dtype)
        if value.pointer is not None and value.pointer is buffer.pointer:
            value = self._copied(value)
        target = buffer
        if buffer.pointer is None:
            pointer = em.allocate(max(buffer.bytes, 1))
            em.write(buffer, pointer)
            target = em.memory(buffer.dtype, buffer.shape, pointer)
        elif op.buffer != op.var_out or not (buffer.pointer is self.rows.get(op.buffer) or em.owns(buffer.pointer)):
            target = self._copied(buffer)  # what lies there is another variable, or a constant
        else:
            for variable, array in self.values.items():
                if array.pointer is buffer.pointer and variable != op.buffer:
                    self.values[variable] = self._copied(array)
        row_bytes = buffer.bytes // buffer.shape[0] if buffer.shape[0] else 0
        place = b.gep(target.pointer, [b.mul(i, self.em.size(row_bytes))], inbounds=True, source_etype=I8)
        em.write(value, place)
        # another array: what was loaded before is no longer there
        self.set_value(op.var_out, em.memory(buffer.dtype, buffer.shape, target.pointer))

    # ---- where it leads --------------------------------------------------------------------------------------------

    def _stop_unless(self, condition: Any, fault: Fault) -> None:
        """Halt the lane with a fault where the condition does not hold."""
        self._leave_unless(condition, FAULT, self.lane.fault(fault), self.lane.segments.halted)

    def _leave_unless(self, condition: Any, field: str, code: int, counter: int) -> None:
        b, lane = self.b, self.lane
        go, stop = (lane.function.append_basic_block(name) for name in ("go", "stop"))
        b.cbranch(condition, go, stop)
        b.position_at_end(stop)
        b.store(ir.Constant(I32, code), lane.field(b, field))
        b.store(ir.Constant(I32, counter), lane.counter)
        b.branch(lane.leave)
        b.position_at_end(go)

    def _end(self) -> None:
        b, lane, segments = self.b, self.lane, self.lane.segments
        end = self.segment.end
        condition = self.value(end.cond_var).element(()) if isinstance(end, BranchOp) else None
        self._store(self.segment.needed)
        address: Any = None
        match end:
            case PushGotoOp(resume, _):
                place = self._frame(RETURN_ADDRESS, self.height(RETURN_ADDRESS))
                b.store(ir.Constant(I32, segments.first[resume]), place)
                self._move(RETURN_ADDRESS, 1)
            case IndirectGotoOp():
                height = self.height(RETURN_ADDRESS)
                at_bottom = b.icmp_signed("==", height, ir.Constant(I32, 0))
                beneath = b.select(at_bottom, height, b.sub(height, ir.Constant(I32, 1)))
                address = b.load(self._frame(RETURN_ADDRESS, beneath), typ=I32)
                address = b.select(at_bottom, ir.Constant(I32, segments.halted), address)
                self.heights[RETURN_ADDRESS] = beneath
                self.moved.add(RETURN_ADDRESS)
        for stack in sorted(self.moved):
            if self._leader(stack) == stack:
                b.store(self.heights[stack], lane.field(b, f"height:{stack}"))
        match end:
            case GotoOp(label):
                b.branch(lane.blocks[segments.first[label]])
            case BranchOp():
                yes, no = (lane.blocks[segments.first[label]] for label in (end.true_label, end.false_label))
                b.cbranch(condition, yes, no)
            case PushGotoOp(_, entry):
                b.branch(lane.blocks[segments.first[entry]])
            case IndirectGotoOp():
                b.store(address, lane.counter)
                b.branch(lane.dispatch)
            case Wait():
                b.store(ir.Constant(I32, self.number + 1), lane.field(b, WAITING))
                b.store(ir.Constant(I32, self.number + 1), lane.counter)
                b.branch(lane.leave)


def _emit_lanes(module: ir.Module, run_lane: ir.Function, halted: int, layout: Layout) -> ir.Function:
    """`run_lanes`: a loop over lanes."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), RUN_LANES)
    b = ir.IRBuilder(function.append_basic_block("entry"))
    context = Loaded(b, function.args[0])
    common = (context.depth, context.active, context.shared, context.scratch, context.blocks)

    def run(lane: Any) -> None:
        row = context.row(lane)

        def field(name: str) -> Any:
            return b.load(b.gep(row, [integer(layout.fields[name][0])], inbounds=True, source_etype=I8), typ=I32)

        runs = b.icmp_signed("!=", field(PC), ir.Constant(I32, halted))
        with b.if_then(b.and_(runs, b.icmp_signed("==", field(WAITING), ir.Constant(I32, 0)))):
            b.call(run_lane, [row, context.frames_of(lane), context.buffers_of(lane), *common])

    context.each_lane(run)
    b.ret_void()
    return function
