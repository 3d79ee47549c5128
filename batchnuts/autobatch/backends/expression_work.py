"""How much an expression does for one lane, by its nodes."""

from __future__ import annotations

from batchnuts.autobatch.backends.backend import Work
from batchnuts.autobatch.ir.expression import KERNEL, REDUCTIONS, Expression, Node, Slice, operands

FREE = frozenset({"reshape", "split_last_axis", "full_like", "bitcast"})
"""Functions that compute nothing."""


def work_of(expression: Expression) -> Work:
    """Multiplications within products of matrices, and the elements that anything else computes or reduces."""
    total = Work()
    for node in expression.nodes:
        total += _work(node, expression)
    return total


def _work(node: Node, expression: Expression) -> Work:
    size = sum(type_.size for type_ in node.types)
    if node.function == KERNEL:
        return work_of(node.arguments[0])
    if node.function == "matmul":
        contracted = expression.type_of(node.arguments[0]).shape[-1]
        return Work(products=float(size * contracted))
    if node.function in REDUCTIONS:
        (operand,) = operands(node.arguments)
        return Work(elements=float(expression.type_of(operand).size))
    is_view = node.function == "item" and all(isinstance(part, (Slice, int, type(None))) for part in node.arguments[1])
    return Work() if is_view or node.function in FREE else Work(elements=float(size))
