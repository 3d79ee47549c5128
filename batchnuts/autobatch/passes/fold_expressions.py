"""Expressions with less to compute: what is known is computed now, what is computed twice is computed once.

        %1 = not_equal(%0, int64 0)
        %2 = all(%1)                        %1 = not_equal(%0, int64 0)
        %3 = full_like(%0, int64 1)   -->   %2 = where(%1, %0, int64 1)
        %4 = where(%2, %0, %3)

Only functions whose results are exact are computed at compile time: rounding by another library would change a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from batchnuts.autobatch.ir.evaluate import as_function
from batchnuts.autobatch.ir.expression import REDUCTIONS, SEVERAL, Argument, Constant, Expression, Node, Ref, operands
from batchnuts.autobatch.ir.tensor_type import TensorType

EXACT = frozenset(
    {
        *("abs", "add", "all", "any", "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "concatenate", "equal"),
        *("floor", "gather", "greater", "greater_equal", "isfinite", "isnan", "item", "less", "less_equal"),
        *("logical_and", "logical_not", "logical_or", "multiply", "negative", "not_equal", "reshape"),
        *("split_last_axis", "stack", "subtract", "transpose", "where"),
    }
)
"""Functions whose results are exact, or rounded as IEEE 754 says, on every library: of bools, of integers, and of
floats none of which is subnormal, which XLA takes for zero. The minimum of zeros of two signs is either."""

_LARGEST_RESULT = 64
"""Elements of an array that is written down in place of the node that makes it."""


def folded(expression: Expression) -> Expression:
    """The expression without nodes that compute what is known, reduce one number, or repeat another node."""
    inputs = len(expression.inputs)
    types = list(expression.inputs)
    """Of the values that remain, by their numbers."""
    replaced: dict[int, Ref | Constant] = {number: Ref(number) for number in range(inputs)}
    nodes: list[Node] = []
    earlier: dict[Node, tuple[Ref, ...]] = {}
    old, new = inputs, inputs
    for node in expression.nodes:
        node = Node(node.function, _with(node.arguments, replaced), node.types)
        results: tuple[Ref | Constant, ...] | None = _known(node, types) or earlier.get(node)
        if results is None:
            results = earlier[node] = tuple(Ref(new + i) for i in range(len(node.types)))
            nodes.append(node)
            types += node.types
            new += len(results)
        replaced.update({old + i: result for i, result in enumerate(results)})
        old += len(results)
    outputs = tuple(_operand(output, replaced) for output in expression.outputs)
    return _used(Expression(expression.inputs, tuple(nodes), outputs))


def _known(node: Node, types: Sequence[TensorType]) -> tuple[Ref | Constant, ...] | None:
    """The results of a node that need not be computed when the program runs; `types` of the values before it."""
    read = tuple(operands(node.arguments))
    if node.function in REDUCTIONS:
        (operand,) = read
        type_ = operand.type if isinstance(operand, Constant) else types[operand.number]
        if type_ == node.types[0] and not type_.shape:  # one number is its own sum
            return (operand,)
    if node.function == "full_like":
        value = node.arguments[1]
        if isinstance(value, Constant) and node.types[0].size <= _LARGEST_RESULT:
            return (Constant.of(np.broadcast_to(value.array, node.types[0].shape)),)
    if node.function not in EXACT or node.function in SEVERAL:
        return None
    if not all(isinstance(operand, Constant) and _is_plain(operand) for operand in read):
        return None
    if any(type_.size > _LARGEST_RESULT for type_ in node.types):
        return None
    (value,) = as_function(Expression((), (node,), (Ref(0),)))()
    result = Constant.of(value)
    return (result,) if result.type == node.types[0] and _is_plain(result) else None


def _is_plain(constant: Constant) -> bool:
    """Whether all libraries compute alike with it."""
    array = constant.array
    if array.dtype.kind != "f":
        return array.dtype.kind in "biu"
    return not ((array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)).any()


def _operand(operand: Ref | Constant, replaced: Mapping[int, Ref | Constant]) -> Ref | Constant:
    return replaced[operand.number] if isinstance(operand, Ref) else operand


def _with(arguments: tuple[Argument, ...], replaced: Mapping[int, Ref | Constant]) -> tuple[Argument, ...]:
    """Arguments in which the values of these numbers are others."""

    def argument(old: Argument) -> Argument:
        if isinstance(old, tuple):
            return tuple(map(argument, old))
        return _operand(old, replaced) if isinstance(old, Ref) else old

    return tuple(map(argument, arguments))


def _used(expression: Expression) -> Expression:
    """The expression without nodes whose results nothing reads."""
    firsts = []
    number = len(expression.inputs)
    for node in expression.nodes:
        firsts.append(number)
        number += len(node.types)
    needed = {output.number for output in expression.outputs if isinstance(output, Ref)}
    kept = []
    for first, node in reversed(list(zip(firsts, expression.nodes))):
        if not needed.isdisjoint(range(first, first + len(node.types))):
            kept.append((first, node))
            needed |= {operand.number for operand in operands(node.arguments) if isinstance(operand, Ref)}
    replaced: dict[int, Ref | Constant] = {number: Ref(number) for number in range(len(expression.inputs))}
    nodes = []
    for first, node in reversed(kept):
        nodes.append(Node(node.function, _with(node.arguments, replaced), node.types))
        start = len(replaced)
        replaced.update({first + i: Ref(start + i) for i in range(len(node.types))})
    outputs = tuple(_operand(output, replaced) for output in expression.outputs)
    return Expression(expression.inputs, tuple(nodes), outputs)
