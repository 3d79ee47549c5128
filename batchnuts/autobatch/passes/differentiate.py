"""The gradient of an expression by reverse-mode differentiation: a table of rules and a short loop.

        %1 = exp(%0)                     %1 = exp(%0)
        %2 = sum(%1)   =>  %2   -->      %2 = sum(%1)
                                         %3 = multiply(%1, ones)          the adjoint of %1 is 1, broadcast
                                         %4 = multiply(%3, %1)   =>  %2, %4

The adjoint of a value is the derivative of the result with respect to it (Griewank and Walther, Evaluating Derivatives,
2008, section 3.2). Nodes are gone through from the last to the first; the rule of a node's function says what its
results' adjoint adds to those of its arguments. Everything is written down by the recorder that has made the
expression, so that a rule is written like any function of the language.

        rule ::= (adjoint, result, argument*) -> adjoint of each argument, or None      (static arguments have none)

At ties and at the ends of domains derivatives are those that the array libraries give (JAX's where they differ).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.expression import SEVERAL, Argument, Constant, Expression, Node, Ref, Slice
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.language.c_functions import c_function
from batchnuts.autobatch.language.libraries.library import TensorLibrary
from batchnuts.autobatch.language.libraries.recording import FUNCTIONS as F
from batchnuts.autobatch.language.libraries.recording import LIBRARY as L
from batchnuts.autobatch.language.libraries.recording import Recorded, Recording, has_recorded
from batchnuts.autobatch.language.libraries.type_rules import NotTyped
from batchnuts.autobatch.language.pytree import LEAF
from batchnuts.autobatch.passes.fold_expressions import folded
from batchnuts.autobatch.passes.record_expressions import Refused, as_expression, recorded

Array = Any
Rule = Callable[..., Sequence[Array | None]]


@functools.lru_cache(4)
def value_and_gradient(expression: Expression) -> Expression | None:
    """An expression whose result is a float scalar, with its gradient with respect to the first input as a second one.

    None where a function on the way has no rule. A run asks for that of its density five times, which is recorded again
    each time.
    """
    recording = Recording()
    values: list[Array] = [recording.input(type_.dtype, type_.shape) for type_ in expression.inputs]
    active = {0}
    """Values that depend on the first input, and have derivatives."""
    steps: list[tuple[Node, list[Array], int]] = []
    try:
        with np.errstate(all="ignore"):
            for node in expression.nodes:
                arguments = [_value(argument, values) for argument in node.arguments]
                steps.append((node, arguments, len(values)))
                if _reads(node.arguments) & active:
                    numbered = enumerate(node.types, len(values))
                    active |= {number for number, type_ in numbered if np.dtype(type_.dtype).kind == "f"}
                values += _results(node, arguments)
            (output,) = expression.outputs
            result = _value(output, values)
            gradient = _backwards(steps, values, active, output)
    except NotTyped:
        return None
    recording.outputs = [result, gradient]
    return folded(as_expression(recording))


def expression_of_gradient(
    function: Callable[..., Any], type_: TensorType, *others: TensorType, refused: Refused | None = None
) -> Expression | None:
    """The value of a function of arrays of these types, a scalar of the first one's dtype, and the gradient with
    respect to that; None where it calls functions other than the language's, or one that has no rule."""
    known = recorded(function, type_, *others, refused=refused)
    if known is None:
        return None
    expression, tree = known
    if tree != LEAF or expression.type_of(expression.outputs[0]) != TensorType(type_.dtype):
        return None
    return value_and_gradient(expression)


def expression_of_library(
    library: TensorLibrary,
    function: Callable[..., Any],
    type_: TensorType,
    *others: TensorType,
    refused: Refused | None = None,
) -> Expression | None:
    """The same of a function written in a library, which differentiates it; None where that records nothing."""
    known = recorded(functools.partial(library.recorded_gradient, function), type_, *others, refused=refused)
    if known is None:
        return None
    expression, _ = known
    types = tuple(map(expression.type_of, expression.outputs))
    return expression if types == (TensorType(type_.dtype), type_) else None


def _backwards(steps: Sequence[Any], values: list[Array], active: set[int], output: Argument) -> Array:
    """The adjoint of the first value."""
    adjoints: dict[int, list[Any]] = {}
    """What was found of each value's: arrays of its shape, and pieces of it (`_Piece`)."""
    if isinstance(output, Ref):
        adjoints[output.number] = [np.ones((), L.dtype_of(values[output.number]))]
    for node, arguments, number in reversed(steps):
        found = [adjoints.pop(number + i, None) for i in range(len(node.types))]
        if not any(found):
            continue
        if node.function not in RULES:
            raise NotTyped(f"a derivative of {node.function}")
        given = [None if parts is None else _sum(parts, values[number + i]) for i, parts in enumerate(found)]
        results = values[number : number + len(node.types)]
        several = node.function in SEVERAL
        parts = RULES[node.function](given if several else given[0], results if several else results[0], *arguments)
        for argument, part in zip(node.arguments, parts, strict=False):
            _add(adjoints, active, argument, part)
    return _sum(adjoints.get(0, []), values[0])


def _add(adjoints: dict[int, list[Any]], active: set[int], argument: Argument, part: Any) -> None:
    if isinstance(argument, Ref) and argument.number in active and part is not None:
        adjoints.setdefault(argument.number, []).append(part)
    elif isinstance(argument, tuple) and part is not None:
        for inner, own in zip(argument, part, strict=True):
            _add(adjoints, active, inner, own)


class _Piece:
    """The adjoint of a part x[start:stop] of a vector, zero elsewhere."""

    def __init__(self, start: int, stop: int, array: Array) -> None:
        self.start, self.stop, self.array = start, stop, array


def _sum(parts: Sequence[Any], value: Array) -> Array:
    """The sum of what was found, in the shape of the value; pieces that do not overlap are put end to end."""
    dtype, shape = L.dtype_of(value), L.static_shape(value)
    arrays = [part for part in parts if not isinstance(part, _Piece)]
    left = sorted((part for part in parts if isinstance(part, _Piece)), key=lambda piece: piece.start)
    while left:
        row, end, rest = [], 0, []
        for piece in left:
            if piece.start < end:
                rest.append(piece)
                continue
            if piece.start > end:
                row.append(np.zeros(piece.start - end, dtype))
            row.append(piece.array)
            end = piece.stop
        if end < shape[0]:
            row.append(np.zeros(shape[0] - end, dtype))
        arrays.append(F.concatenate(tuple(row), 0) if len(row) > 1 else row[0])
        left = rest
    if not arrays:
        return np.zeros(shape, dtype)
    total = arrays[0]
    for array in arrays[1:]:
        total = F.add(total, array)
    return total


def _reads(arguments: Sequence[Argument]) -> set[int]:
    found = set()
    for argument in arguments:
        if isinstance(argument, Ref):
            found.add(argument.number)
        elif isinstance(argument, tuple):
            found |= _reads(argument)
    return found


def _value(argument: Argument, values: Sequence[Array]) -> Any:
    match argument:
        case Ref(number):
            return values[number]
        case Constant():
            return argument.array
        case Slice(start, stop, step):
            return slice(start, stop, step)
        case tuple():
            return tuple(_value(part, values) for part in argument)
        case Expression():
            raise NotTyped("a kernel")
    return argument


def _results(node: Node, arguments: list[Any]) -> list[Array]:
    if node.function == "with_gradient":  # the value as it stands: its own derivative was asked for
        return [arguments[0]]
    result = getattr(F, node.function)(*arguments)
    return list(result) if len(node.types) > 1 or node.function in SEVERAL else [result]


# ---- shapes ----------------------------------------------------------------------------------------------------------


def _shape(x: Array) -> tuple[int, ...]:
    return tuple(L.static_shape(x))


def _number(value: float, like: Array) -> np.ndarray:
    return np.asarray(value, L.dtype_of(like))


def _expanded(x: Array, shape: tuple[int, ...]) -> Array:
    """The array broadcast to a shape."""
    return x if _shape(x) == shape else F.multiply(x, np.ones(shape, L.dtype_of(x)))


def _reduced(x: Array, like: Array) -> Array:
    """The sum over the axes along which an array of this shape was broadcast."""
    shape, target = _shape(x), _shape(like)
    if shape == target:
        return x
    lead = len(shape) - len(target)
    axes = tuple(a for a in range(len(shape)) if a < lead or (target[a - lead] == 1 and shape[a] != 1))
    return F.reshape(F.sum(x, axes, False), target)


def _kept(g: Array, x: Array, axis: Any) -> Array:
    """What a reduction of x gave, with the reduced axes again, of one element."""
    rank = len(_shape(x))
    axes = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    gone = {a % rank for a in axes}
    return F.reshape(g, tuple(1 if a in gone else extent for a, extent in enumerate(_shape(x))))


# ---- rules -----------------------------------------------------------------------------------------------------------


def _unary(derivative: Callable[[Array, Array], Array]) -> Rule:
    """Of one array, elementwise: the adjoint times a function of argument and result."""
    return lambda g, out, x: (F.multiply(g, derivative(x, out)),)


def _binary(left: Callable[..., Array], right: Callable[..., Array]) -> Rule:
    """Of two, which broadcast: functions of the adjoint, both arguments and the result."""

    def rule(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array]:
        return _reduced(left(g, x, y, out), x), _reduced(right(g, x, y, out), y)

    return rule


def _chosen(first: str) -> Rule:
    """Of minimum and maximum: to the one that was taken, half to each at a tie."""

    def share(g: Array, mine: Array, other: Array) -> Array:
        half = F.where(F.equal(mine, other), _number(0.5, mine), _number(0, mine))
        return F.multiply(g, F.where(getattr(F, first)(mine, other), _number(1, mine), half))

    return _binary(lambda g, x, y, _: share(g, x, y), lambda g, x, y, _: share(g, y, x))


def _power(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array | None]:
    one, zero = _number(1, x), _number(0, x)
    flat = F.equal(y, zero)
    slope = F.multiply(y, F.power(x, F.where(flat, one, F.subtract(y, one))))
    by_x = F.multiply(g, F.where(flat, zero, slope))
    positive = F.greater(x, zero)
    by_y = F.multiply(g, F.where(positive, F.multiply(out, F.log(F.where(positive, x, one))), zero))
    return _reduced(by_x, x), _reduced(by_y, y)


def _logaddexp(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array]:
    def share(mine: Array, other: Array) -> Array:
        return F.where(F.equal(mine, other), _number(0.5, mine), F.sigmoid(F.subtract(mine, other)))

    return _reduced(F.multiply(g, share(x, y)), x), _reduced(F.multiply(g, share(y, x)), y)


def _where(g: Array, out: Array, condition: Array, x: Array, y: Array) -> Sequence[Array | None]:
    zero = _number(0, g)
    return None, _reduced(F.where(condition, g, zero), x), _reduced(F.where(condition, zero, g), y)


def _sum_rule(g: Array, out: Array, x: Array, axis: Any, keepdims: bool) -> Sequence[Array]:
    return (_expanded(_kept(g, x, axis), _shape(x)),)


def _mean(g: Array, out: Array, x: Array, axis: Any, keepdims: bool) -> Sequence[Array]:
    count = math.prod(_shape(x)) // max(math.prod(_shape(out)), 1)
    return _sum_rule(F.divide(g, _number(count, g)), out, x, axis, keepdims)


def _extremum(g: Array, out: Array, x: Array, axis: Any, keepdims: bool) -> Sequence[Array]:
    """In equal parts to all elements that have the extreme value."""
    taken = F.cast(F.equal(x, _kept(out, x, axis)), L.dtype_of(x))
    share = F.divide(_kept(g, x, axis), F.sum(taken, axis, True))
    return (F.multiply(taken, share),)


def _cumsum(g: Array, out: Array, x: Array, axis: int) -> Sequence[Array]:
    """Sums from each element to the end."""
    rank = len(_shape(x))
    back = tuple(slice(None, None, -1) if a == axis % rank else slice(None) for a in range(rank))
    return (F.item(F.cumsum(F.item(g, back), axis), back),)


def _new_axis(x: Array, last: bool) -> Array:
    shape = _shape(x)
    return F.reshape(x, (*shape, 1) if last else (*shape[:-1], 1, shape[-1]))


def _row_times(g: Array, matrix: Array) -> Array:
    """g' M. Of a symmetric M that is known M g, and of a multiple of a vector the multiple: so that the gradient of a
    normal density has the product that its value has, which is computed once."""
    known = isinstance(matrix, np.ndarray) and isinstance(g, Recorded)
    if not known or not np.array_equal(matrix, matrix.T):
        return F.matmul(g, matrix)
    made = next((call for call in g.recording.calls if call.results[0] is g), None)
    if made is not None and made.function == "multiply":
        factor, vector = sorted(made.arguments, key=lambda argument: len(_shape(argument)))
        if _shape(factor) == () and _shape(vector) == _shape(g):
            return F.multiply(factor, F.matmul(matrix, vector))
    return F.matmul(matrix, g)


def _matmul(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array]:
    left, right = len(_shape(x)), len(_shape(y))
    if left == right == 1:
        return F.multiply(g, y), F.multiply(g, x)
    if right == 1:
        by_y = _row_times(g, x) if left == 2 else _reduced(F.multiply(_new_axis(g, True), x), y)
        return F.multiply(_new_axis(g, True), y), by_y
    if left == 1:
        by_x = F.matmul(y, g) if right == 2 else _reduced(F.matmul(y, _new_axis(g, True)), _new_axis(x, True))
        return F.reshape(by_x, _shape(x)), F.multiply(_new_axis(x, True), _new_axis(g, False))
    return _reduced(F.matmul(g, F.transpose(y)), x), _reduced(F.matmul(F.transpose(x), g), y)


def _concatenate(g: Array, out: Array, arrays: Sequence[Array], axis: int) -> Sequence[Any]:
    rank, first, parts = len(_shape(out)), 0, []
    for array in arrays:
        last = first + _shape(array)[axis % rank]
        parts.append(F.item(g, tuple(slice(first, last) if a == axis % rank else slice(None) for a in range(rank))))
        first = last
    return (tuple(parts),)


def _stack(g: Array, out: Array, arrays: Sequence[Array], axis: int) -> Sequence[Any]:
    rank = len(_shape(out))
    at = [tuple(i if a == axis % rank else slice(None) for a in range(rank)) for i in range(len(arrays))]
    return (tuple(F.item(g, parts) for parts in at),)


def _parts_of_last_axis(given: Sequence[Array | None], results: Sequence[Array], x: Array, sizes: Any) -> Sequence[Any]:
    parts = [np.zeros(_shape(r), L.dtype_of(r)) if g is None else g for g, r in zip(given, results, strict=True)]
    return (F.concatenate(tuple(parts), -1),)


def _call_c(given: Sequence[Array | None], results: Sequence[Array], arrays: Any, key: str) -> Sequence[Any]:
    if not c_function(key).gives_gradient or given[1] is not None:
        raise NotTyped("a derivative of a function of C that has none")
    adjoint, gradient = given[0], results[1]
    if isinstance(adjoint, np.ndarray) and adjoint == 1:
        return ((gradient,),)
    return ((F.multiply(F.full_like(gradient, adjoint), gradient),),)


def _with_gradient(g: Array, out: Array, value: Array, x: Array, gradient: Array) -> Sequence[Any]:
    is_one = isinstance(g, np.ndarray) and g == 1
    return (None, gradient if is_one else F.multiply(F.full_like(gradient, g), gradient), None)


def _item(g: Array, out: Array, x: Array, parts: tuple[Any, ...]) -> Sequence[Any]:
    shape = _shape(x)
    if len(shape) == len(parts) == 1 and isinstance(parts[0], slice):
        start, stop, step = parts[0].indices(shape[0])
        if step == 1:
            return (_Piece(start, max(start, stop), g),)
    if not has_recorded(parts):  # the numbers of the elements that were taken
        taken = np.arange(math.prod(shape)).reshape(shape)[parts]
        flat = F.scatter_add(F.reshape(g, (taken.size,)), taken.reshape(-1), 0, math.prod(shape))
        return (F.reshape(flat, shape),)
    if len(shape) == len(parts) == 1:
        return _gather(g, out, x, parts[0], 0)
    raise NotTyped("a derivative of elements at computed places of several axes")


def _gather(g: Array, out: Array, x: Array, index: Array, axis: int) -> Sequence[Array]:
    shape = _shape(x)
    axis %= len(shape)
    if not _shape(index):
        index = F.reshape(index, (1,)) if isinstance(index, Recorded) else np.reshape(index, 1)
        g = F.reshape(g, (*shape[:axis], 1, *shape[axis + 1 :]))
    return (F.scatter_add(g, index, axis, shape[axis]),)


def _nothing(*_: Any) -> Sequence[None]:
    return ()


RULES: Mapping[str, Rule] = {
    "add": _binary(lambda g, x, y, _: g, lambda g, x, y, _: g),
    "subtract": _binary(lambda g, x, y, _: g, lambda g, x, y, _: F.negative(g)),
    "multiply": _binary(lambda g, x, y, _: F.multiply(g, y), lambda g, x, y, _: F.multiply(g, x)),
    "divide": _binary(
        lambda g, x, y, _: F.divide(g, y), lambda g, x, y, out: F.negative(F.divide(F.multiply(g, out), y))
    ),
    "remainder": _binary(lambda g, x, y, _: g, lambda g, x, y, _: F.negative(F.multiply(g, F.floor(F.divide(x, y))))),
    "power": _power,
    "logaddexp": _logaddexp,
    "minimum": _chosen("less"),
    "maximum": _chosen("greater"),
    "negative": lambda g, out, x: (F.negative(g),),
    "square": _unary(lambda x, out: F.add(x, x)),
    "abs": _unary(lambda x, out: F.sign(x)),
    "sqrt": lambda g, out, x: (F.divide(F.multiply(g, _number(0.5, g)), out),),
    "exp": _unary(lambda x, out: out),
    "expm1": _unary(lambda x, out: F.add(out, _number(1, out))),
    "log": lambda g, out, x: (F.divide(g, x),),
    "log1p": lambda g, out, x: (F.divide(g, F.add(x, _number(1, x))),),
    "sigmoid": _unary(lambda x, out: F.multiply(out, F.subtract(_number(1, out), out))),
    "softplus": _unary(lambda x, out: F.sigmoid(x)),
    "tanh": _unary(lambda x, out: F.subtract(_number(1, out), F.square(out))),
    "sin": _unary(lambda x, out: F.cos(x)),
    "cos": _unary(lambda x, out: F.negative(F.sin(x))),
    "tan": _unary(lambda x, out: F.add(_number(1, out), F.square(out))),
    "erf": _unary(lambda x, out: F.multiply(_number(2 / math.sqrt(math.pi), x), F.exp(F.negative(F.square(x))))),
    "erfinv": _unary(lambda x, out: F.multiply(_number(math.sqrt(math.pi) / 2, x), F.exp(F.square(out)))),
    "gammaln": _unary(lambda x, out: F.digamma(x)),
    **dict.fromkeys(("sign", "floor", "ceil", "round", "floor_divide"), _nothing),
    "where": _where,
    "cast": lambda g, out, x, dtype: (F.cast(g, L.dtype_of(x)),),
    "full_like": lambda g, out, x, value: (None, _reduced(g, value)),
    "sum": _sum_rule,
    "mean": _mean,
    "min": _extremum,
    "max": _extremum,
    "cumsum": _cumsum,
    "matmul": _matmul,
    "transpose": lambda g, out, x: (F.transpose(g),),
    "reshape": lambda g, out, x, shape: (F.reshape(g, _shape(x)),),
    "split_last_axis": lambda g, out, x, shape: (F.reshape(g, _shape(x)),),
    "parts_of_last_axis": _parts_of_last_axis,
    "call_c": _call_c,
    "with_gradient": _with_gradient,
    "concatenate": _concatenate,
    "stack": _stack,
    "item": _item,
    "gather": _gather,
}
"""By function. A rule that gives fewer adjoints than there are arguments gives none for the others."""
