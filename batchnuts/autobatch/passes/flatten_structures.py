"""Structures to leaves: after this pass every variable is one array.

        point = {move(point, h)} point, h                    with point: Point(q, p), of which move changes q
    -->
        point.q = {move(point, h)} point.q, point.p, h

A leaf that an op passes on unchanged becomes a copy, and an op reads only the leaves that its computed leaves depend
on, so liveness sees fields, not whole structures.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import unexpected_result
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    Function,
    FunctionCallOp,
    Op,
    Primitive,
    PrimOp,
    Program,
    TensorType,
    WriteRowOp,
    fresh_name,
)
from batchnuts.autobatch.language.pytree import TreeDef, flatten, leaf_names, unflatten
from batchnuts.autobatch.passes.infer_types import Evaluator

Names = tuple[str, ...]


def flatten_structures(program: Program, evaluator: Evaluator) -> Program:
    """The program over leaf variables. `evaluator` finds, as in type inference, which leaves each op really uses."""
    leaves: dict[str, Names] = {}
    types: dict[str, TensorType] = {}
    used_names = set(program.var_defs)
    for variable, type_ in program.var_defs.items():
        members, tree = flatten(type_)
        used_names.discard(variable)
        leaves[variable] = tuple(fresh_name(name, used_names) for name in leaf_names(variable, tree))
        used_names.update(leaves[variable])
        types.update(zip(leaves[variable], members))

    def expand(variables: Names) -> Names:
        return tuple(leaf for v in variables for leaf in leaves.get(v, (v,)))

    def convert(op: Op) -> tuple[Op, ...]:
        match op:
            case PrimOp():
                return _flatten_primitive(op, program.var_defs, expand, evaluator)
            case WriteRowOp():
                index = expand((op.index,))[0]
                rows = zip(expand((op.var_out,)), expand((op.buffer,)), expand((op.value,)))
                return tuple(WriteRowOp(out, buffer, index, value, op.source) for out, buffer, value in rows)
            case FunctionCallOp():
                return (replace(op, vars_out=expand(op.vars_out), vars_in=expand(op.vars_in)),)
            case _:
                return (op,)

    def block(old: Block) -> Block:
        return replace(old, ops=tuple(new for op in old.ops for new in convert(op)))

    functions = {
        f.name: Function(
            f.name,
            expand(f.vars_in),
            expand(f.vars_out),
            replace(f.graph, blocks=tuple(map(block, f.graph.blocks))),
            f.source,
        )
        for f in program.all_functions()
    }
    return program.with_functions(functions).replace(var_defs=types)


def _flatten_primitive(
    op: PrimOp, var_defs: Mapping[str, Any], expand: Callable[[Names], Names], evaluator: Evaluator
) -> tuple[Op, ...]:
    inputs, outputs = expand(op.vars_in), expand(op.vars_out)
    arguments = tuple(var_defs[v] for v in op.vars_in)
    if op.function is COPY:
        sources: tuple[int | None, ...] = tuple(range(len(outputs)))
        used: frozenset[int] = frozenset()
        are_leaves = False
    else:
        results = evaluator.evaluate(op.function, arguments)
        sources = tuple(s for result in results for s in result.sources)
        used = frozenset().union(*(result.used for result in results))
        are_leaves = all(isinstance(result.type, TensorType) for result in results)
    copies = [(out, inputs[s]) for out, s in zip(outputs, sources) if s is not None and out != inputs[s]]
    wanted = [k for k, s in enumerate(sources) if s is None]
    expected = tuple(var_defs[v] for v in op.vars_out)
    computed_from = tuple(inputs[i] for i in sorted(used))
    computed_to = tuple(outputs[k] for k in wanted)
    copy = [PrimOp(tuple(o for o, _ in copies), COPY, tuple(i for _, i in copies), op.source)] if copies else []
    if not wanted:
        return tuple(copy)
    compute = PrimOp(
        computed_to,
        _on_leaves(op, arguments, expected, sorted(used), wanted, are_leaves and len(wanted) == len(outputs)),
        computed_from,
        op.source,
    )
    if not {o for o, _ in copies} & set(computed_from):
        return (*copy, compute)
    if not {i for _, i in copies} & set(computed_to):
        return (compute, *copy)
    everything = _on_leaves(op, arguments, expected, range(len(inputs)), range(len(outputs)), are_leaves)
    return (PrimOp(outputs, everything, inputs, op.source),)


def _on_leaves(
    op: PrimOp, types: tuple[Any, ...], expected: tuple[Any, ...], used: Any, wanted: Any, gives_them: bool
) -> Primitive:
    """The op's primitive from its used input leaves to its wanted output leaves; other inputs get zeros, unread.

    types, expected: of its arguments and results. gives_them: its results are the wanted leaves. The parts of its
    expression, which name variables before this pass, are left out: types are settled.
    """
    primitive, used, wanted = op.function, tuple(used), tuple(wanted)
    if any(_runs_users_code(flatten(type_)[1]) for type_ in (*types, *expected)):
        primitive = replace(primitive, of_language=False, by_helpers=False)
    inferred = [flatten(type_)[1] for type_ in expected]
    trees = [flatten(t) for t in types]
    if all(tree.kind is None for _, tree in trees) and len(used) == len(trees):
        flat_call = primitive.call
    else:
        flat_call = _from_leaves(primitive, trees, used)

    if gives_them:
        return replace(primitive.with_call(flat_call), parts=())

    def call(*values: Any) -> tuple[Any, ...]:
        flat = [flatten(value) for value in flat_call(*values)]
        returned = [tree for _, tree in flat]
        if returned != inferred and not primitive.of_language:  # on NumPy, by the values
            raise unexpected_result(", ".join(map(str, returned)), ", ".join(map(str, inferred)), op.source)
        results = [leaf for leaves, _ in flat for leaf in leaves]
        return tuple(results[i] for i in wanted)

    return replace(primitive.with_call(call), parts=())


def _runs_users_code(tree: TreeDef) -> bool:
    """Whether reading or combining structures may call code of their classes: properties, operators."""
    if tree.kind is not None and tree.kind not in (tuple, list, dict) and _has_users_code(tree.kind):
        return True
    return any(map(_runs_users_code, tree.children))


@functools.lru_cache(maxsize=256)
def _has_users_code(kind: type) -> bool:
    for owner in kind.__mro__:
        file = getattr(sys.modules.get(owner.__module__), "__file__", None)
        for name, value in vars(owner).items():
            code = getattr(value, "__code__", None)
            if isinstance(value, (property, functools.cached_property)) or (
                name.startswith("__") and code is not None and code.co_filename == file
            ):
                return owner.__module__ != "builtins"
    return False


def _from_leaves(primitive: Primitive, trees: list[Any], used: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
    types = [leaf for leaves, _ in trees for leaf in leaves]
    place = {leaf: k for k, leaf in enumerate(used)}

    def unread(type_: TensorType, values: tuple[Any, ...]) -> Any:
        lanes = (int(values[0].shape[0]),) if primitive.batched and values else ()
        return np.zeros(lanes + type_.shape, type_.dtype)

    def call(*values: Any) -> tuple[Any, ...]:
        leaves = [values[place[i]] if i in place else unread(t, values) for i, t in enumerate(types)]
        arguments = []
        for members, tree in trees:
            arguments.append(unflatten(tree, leaves[: len(members)]))
            leaves = leaves[len(members) :]
        return primitive.call(*arguments)

    return call
