"""Closures to data: each primitive that consists of the language's own functions gets its expression.

        x = {a + 2 * b} a, b
    -->
        x = {a + 2 * b} a, b            %2 = multiply(%1, float64 2.0), %3 = add(%0, %2) => %3

The primitive's function is called once, with arrays that write down what is computed with them. What the expression
gives has the types of the op's variables. A primitive keeps its function alone if it is costly, is written over lanes,
calls functions that neither are the language's own nor consist of these (they may ask what kind of array they have been
given), needs a function that has no rule for types, or holds an array of more than LARGEST_CONSTANT bytes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.expression import Argument, Constant, Expression, Node, Ref, Slice, operands
from batchnuts.autobatch.ir.program import COPY, Block, Function, Op, Primitive, PrimOp, Program, TensorType
from batchnuts.autobatch.language.arrays import is_python_scalar
from batchnuts.autobatch.language.libraries.recording import LIBRARY, Recorded, Recording
from batchnuts.autobatch.language.pytree import TreeDef, flatten
from batchnuts.autobatch.language.shared import bound
from batchnuts.autobatch.passes.fold_expressions import folded

LARGEST_CONSTANT = 2**20

Types = tuple[TensorType, ...]


def record_expressions(program: Program) -> Program:
    """The flattened program whose primitives have a body where they can."""
    known: dict[tuple[int, Types, Types], Primitive] = {}  # by the primitive's identity

    def recorded(op: Op) -> Op:
        if not isinstance(op, PrimOp) or op.function is COPY:
            return op
        types, body = program.var_defs, op.function.body
        inputs, outputs = tuple(types[v] for v in op.vars_in), tuple(types[v] for v in op.vars_out)
        if body is not None and (body.inputs, tuple(map(body.type_of, body.outputs))) == (inputs, outputs):
            return op  # and a copy that a pass took out may have changed a dtype
        key = (id(op.function), inputs, outputs)
        if key not in known:
            body = expression_of(op.function, inputs, outputs)
            known[key] = replace(op.function, body=body, emitted=emitted_of(op.function, inputs, outputs), record=None)
        return replace(op, function=known[key])

    def block(old: Block) -> Block:
        return replace(old, ops=tuple(map(recorded, old.ops)))

    def body(function: Function) -> Function:
        return replace(function, graph=replace(function.graph, blocks=tuple(map(block, function.graph.blocks))))

    return program.with_functions({function.name: body(function) for function in program.all_functions()})


def expression_of(primitive: Primitive, inputs: Types, outputs: Types) -> Expression | None:
    """What a primitive computes of arrays of these types, its results in those; None where only its function says."""
    constant = not inputs  # and the frontend refuses hidden state (`refuse_hidden_state`)
    if not (primitive.recordable or constant) or primitive.batched or primitive.costly or primitive.shared:
        return None
    recording = Recording()
    arrays = [recording.input(type_.dtype, type_.shape) for type_ in inputs]
    try:
        with np.errstate(all="ignore"):
            results = primitive.call(*arrays)
    except Exception:  # no rule, or a library function's own error: tracing has passed, or will say it better
        return None
    try:
        recording.outputs = [_in_type(result, type_) for result, type_ in zip(results, outputs, strict=True)]
        expression = as_expression(recording)
    except NotRecorded:
        return None
    unchecked = not primitive.of_language and any(map(_indexes_by_values, expression.nodes))
    return None if unchecked else folded(expression)


def _indexes_by_values(node: Node) -> bool:
    """Whether it takes elements at computed places: in a helper's text nothing has checked that they are inside."""
    return node.function == "item" and any(isinstance(part, Ref) for part in operands(node.arguments[1:]))


def emitted_of(primitive: Primitive, inputs: Types, outputs: Types) -> Expression | None:
    """What `record` gives, if it is of these types; without it, what is known already."""
    if primitive.record is None:
        return primitive.emitted
    expression = primitive.record(*inputs)
    if expression is None or tuple(map(expression.type_of, expression.outputs)) != outputs:
        return None
    return expression


def expression_over_lanes(primitive: Primitive, inputs: Types, outputs: Types) -> Expression | None:
    """What a batched primitive computes for one lane: of arrays [1, ...], and of its shared arrays after them.

    None where it does not consist of the language's functions; they are called with arrays that have types only.
    """
    recording = Recording()
    arrays = [recording.input(type_.dtype, (1, *type_.shape)) for type_ in inputs]
    shared = [recording.input(array.value.dtype.name, array.value.shape) for array in primitive.shared]
    try:
        with np.errstate(all="ignore"), bound([array.name for array in primitive.shared], shared):
            results = primitive.call(*arrays)
        of_one = (TensorType(type_.dtype, (1, *type_.shape)) for type_ in outputs)
        recording.outputs = [_in_type(result, type_) for result, type_ in zip(results, of_one, strict=True)]
        return folded(as_expression(recording))
    except Exception:  # of a user's own functions too
        return None


Refused = Callable[[Exception], None]
"""Told why a function is not recorded: NotRecorded or NotTyped, whose texts say of what, or what it raises itself."""


def recorded(
    function: Callable[..., Any], *types: TensorType, refused: Refused | None = None
) -> tuple[Expression, TreeDef] | None:
    """What a function of arrays of these types computes, and the structure of its result; None where it calls functions
    other than the language's, asks for values, or gives what is no array."""
    recording = Recording()
    arrays = [recording.input(type_.dtype, type_.shape) for type_ in types]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            leaves, tree = flatten(function(*arrays))
        recording.outputs = [_as_array(leaf) for leaf in leaves]
        return folded(as_expression(recording)), tree
    except Exception as error:  # of functions that take no such arrays, a user's too
        if refused is not None:
            refused(error)
        return None


class NotRecorded(Exception):
    """A value that no expression holds: an array that is too large or of another library, an object."""


def _in_type(value: Any, type_: TensorType) -> Any:
    """A result in its variable's type, which can have another dtype where it came from a literal."""
    if isinstance(value, Recorded):
        if value.static_shape != type_.shape:
            raise NotRecorded(value.static_shape)
        return LIBRARY.cast(value, type_.dtype)
    array = _as_array(value)
    if array.shape != type_.shape or array.dtype.kind not in "biufc":
        raise NotRecorded(value)
    return array.astype(type_.dtype)


def _as_array(value: Any) -> Any:
    """A result as an array: a recorded one, or NumPy's."""
    if isinstance(value, Recorded):
        return value
    if not isinstance(value, (np.ndarray, np.generic)) and not is_python_scalar(value):
        raise NotRecorded("an array of another library")  # whose functions are called again for each trace
    return np.asarray(value)


def as_expression(recording: Recording) -> Expression:
    """What was recorded, as an expression."""
    numbers = {id(array): number for number, array in enumerate(recording.inputs)}
    nodes = []
    for call in recording.calls:
        arguments = tuple(_argument(argument, numbers) for argument in call.arguments)
        nodes.append(Node(call.function, arguments, tuple(map(_type, call.results))))
        for result in call.results:
            numbers[id(result)] = len(numbers)
    outputs = tuple(_argument(output, numbers) for output in recording.outputs)
    return Expression(tuple(map(_type, recording.inputs)), tuple(nodes), outputs)


_of_kernel = functools.lru_cache(maxsize=64)(as_expression)
"""The expression of a kernel, whose recording many primitives have."""


def _type(array: Recorded) -> TensorType:
    return TensorType(array.static_dtype.name, array.static_shape)


def _argument(value: Any, numbers: Mapping[int, int]) -> Argument:
    if isinstance(value, Recorded):
        return Ref(numbers[id(value)])
    if isinstance(value, (np.ndarray, np.generic)):
        if value.nbytes > LARGEST_CONSTANT:
            raise NotRecorded(f"an array of {value.nbytes / 2**20:.1f} MiB")
        if value.dtype.kind not in "biufc":
            raise NotRecorded("an array of objects")
        return Constant.of(value)
    match value:
        case tuple() | list():
            return tuple(_argument(part, numbers) for part in value)
        case slice(start=start, stop=stop, step=step):
            return Slice(*(None if part is None else int(part) for part in (start, stop, step)))
        case Recording():
            return _of_kernel(value)
        case None | str() | bool():
            return value
    if is_python_scalar(value):
        return value
    raise NotRecorded("an object")
