"""Elimination of copies and dead code, which structures, temporaries and calling conventions leave behind.

        f._1 = {x + 1} f.x
        f.y = copy f._1                -->    f.y = {x + 1} f.x
        f.z = copy f.y                        f.return = {2 * z} f.y
        f.unused = {x * 2} f.x
        f.return = {2 * z} f.z

Within each block a read of a copy becomes a read of its original, a value computed only to be copied is computed in
place, and ops whose results are not read are removed. Of a write that nobody reads it remains that its index must lie
within the buffer:

        f.x = write f.x, f.i, f.v      -->    f.x.inside = {0 <= i < 3} f.i
                                              assert f.x.inside 'wrote outside its buffer ...'
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from batchnuts.autobatch.ir.dataflow import Variables, function_liveness, live_after_ops, live_before_op, liveness
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    Block,
    ControlFlowGraph,
    FunctionCallOp,
    IndirectGotoOp,
    Op,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushOp,
    TensorType,
    WriteRowOp,
    fresh_name,
    reads,
    terminator_reads,
    writes,
)
from batchnuts.autobatch.language import operators, ops

Types = Mapping[str, Any]


def eliminate(program: Program) -> Program:
    """Both eliminations on every block, to the fixpoint. Works before and after lowering."""
    while True:
        changed = _once(program)
        if changed == program:
            return program
        program = changed


def _once(program: Program) -> Program:
    types = dict(program.var_defs)
    if not program.functions:
        live = liveness(program.graph, frozenset(program.vars_out), through_calls=True)
        blocks = tuple(
            _block(b, _live_at_end(b, live.at_end[b.label], program.vars_out), types) for b in program.graph.blocks
        )
        return program.replace(graph=ControlFlowGraph(blocks), var_defs=types)
    functions = {}
    for function in program.all_functions():
        live = function_liveness(function)
        blocks = tuple(
            _block(b, live.at_end[b.label] | (set(function.vars_out) if _returns(b) else frozenset()), types)
            for b in function.graph.blocks
        )
        functions[function.name] = replace(function, graph=ControlFlowGraph(blocks))
    return program.with_functions(functions).replace(var_defs=types)


def _returns(block: Block) -> bool:
    return isinstance(block.terminator, IndirectGotoOp)


def _live_at_end(block: Block, live: Variables, vars_out: tuple[str, ...]) -> Variables:
    return live | set(vars_out) if _returns(block) and block.owner == "main" else live


def _block(block: Block, live_at_end: Variables, types: MutableMapping[str, Any]) -> Block:
    """The block with less to do; types of variables that it gets are added."""
    live_at_end |= set(terminator_reads(block.terminator))
    code = _read_originals(block.ops, types)
    code = _compute_in_place(code, live_at_end, types)
    return replace(block, ops=_drop_dead(code, live_at_end, types))


def _read_originals(ops: tuple[Op, ...], types: Types) -> tuple[Op, ...]:
    """Forward: after `a = copy b`, read b for a until either changes. A copy to another type is a cast and stays."""
    original: dict[str, str] = {}
    result: list[Op] = []
    for op in ops:
        match op:
            case PrimOp():
                op = replace(op, vars_in=tuple(original.get(v, v) for v in op.vars_in))
                if op.function is COPY:
                    op = _without_self_copies(op)
            case FunctionCallOp():
                op = replace(op, vars_in=tuple(original.get(v, v) for v in op.vars_in))
            case AssertOp():
                op = replace(op, cond_var=original.get(op.cond_var, op.cond_var))
            case WriteRowOp():
                op = replace(op, index=original.get(op.index, op.index), value=original.get(op.value, op.value))
        changed = {op.var} if isinstance(op, PopOp) else set(writes(op))
        original = {a: b for a, b in original.items() if a not in changed and b not in changed}
        if isinstance(op, PrimOp) and op.function is COPY:
            pairs = zip(op.vars_out, op.vars_in)
            original |= {a: b for a, b in pairs if b not in op.vars_out and types.get(a) == types.get(b)}
        result.append(op)
    return tuple(result)


def _without_self_copies(op: PrimOp) -> PrimOp:
    pairs = [(o, i) for o, i in zip(op.vars_out, op.vars_in) if o != i]
    return replace(op, vars_out=tuple(o for o, _ in pairs), vars_in=tuple(i for _, i in pairs))


def _compute_in_place(ops: tuple[Op, ...], live_at_end: Variables, types: Types) -> tuple[Op, ...]:
    """Backward: `t = f(x); ...; a = copy t` with t dead afterwards becomes `a = f(x)`.

    Where a and t differ in type, only for a literal, which takes the type of whatever it is assigned to.
    """
    result = list(ops)
    live_after = live_after_ops(ops, live_at_end)
    for k in range(len(result)):
        op = result[k]
        if not (isinstance(op, PrimOp) and op.function is COPY):
            continue
        for out, source in zip(op.vars_out, op.vars_in):
            maker = _maker(result, k, out, source)
            if maker is None or source in live_after[k] or op.vars_in.count(source) > 1 or out in op.vars_in:
                continue
            producer = result[maker]
            assert isinstance(producer, PrimOp)
            if producer.vars_in and types.get(out) != types.get(source):
                continue
            result[maker] = replace(producer, vars_out=tuple(out if v == source else v for v in producer.vars_out))
            rest = [(o, i) for o, i in zip(op.vars_out, op.vars_in) if o != out]
            result[k] = replace(op, vars_out=tuple(o for o, _ in rest), vars_in=tuple(i for _, i in rest))
            return _compute_in_place(tuple(result), live_at_end, types)
    return tuple(result)


def _maker(ops: list[Op], k: int, out: str, source: str) -> int | None:
    """The PrimOp before op k that computes `source`, if nothing between them touches `out` or else reads `source`."""
    for j in range(k - 1, -1, -1):
        op = ops[j]
        if source in writes(op):
            computed = isinstance(op, PrimOp) and op.function is not COPY and out not in op.vars_out
            return j if computed else None
        touched = set(reads(op)) | set(writes(op))
        if isinstance(op, (PushOp, PopOp)):
            touched = {op.var}
        if out in touched or source in touched:
            return None
    return None


def _drop_dead(code: tuple[Op, ...], live: Variables, types: MutableMapping[str, Any]) -> tuple[Op, ...]:
    result: list[Op] = []
    for op in reversed(code):
        if isinstance(op, PrimOp):
            if op.function is COPY:
                pairs = [(o, i) for o, i in zip(op.vars_out, op.vars_in) if o in live]
                op = replace(op, vars_out=tuple(o for o, _ in pairs), vars_in=tuple(i for _, i in pairs))
            if not live & set(op.vars_out):
                continue
        elif isinstance(op, WriteRowOp) and op.var_out not in live:
            inside, must_hold = _bounds_of(op, types)
            live = live_before_op(inside, live)
            result += [must_hold, inside]
            continue
        live = live_before_op(op, live)
        result.append(op)
    return tuple(result[::-1])


def _bounds_of(op: WriteRowOp, types: MutableMapping[str, Any]) -> tuple[PrimOp, AssertOp]:
    """What a write does that nobody reads: it stops the lanes whose index lies outside."""
    rows = types[op.buffer].shape[0]

    def call(index: Any) -> tuple[Any, ...]:
        index = ops.cast(index, "int64")
        return (ops.logical_and(operators.greater_equal(index, 0), operators.less(index, rows)),)

    inside = fresh_name(f"{op.buffer}.inside", types)
    types[inside] = TensorType("bool")
    function = Primitive(f"0 <= {op.index.rpartition('.')[2]} < {rows}", call, speculable=True, of_language=True)
    return PrimOp((inside,), function, (op.index,), op.source), AssertOp(inside, op.message, op.source)
