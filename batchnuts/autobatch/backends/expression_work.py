"""How much an expression does for one lane, by its nodes."""

from __future__ import annotations

from batchnuts.autobatch.ir.expression import KERNEL, REDUCTIONS, Expression, Node, Slice, operands

FREE = frozenset({"reshape", "split_last_axis", "full_like", "bitcast"})
"""Functions that compute nothing."""


def work_of(expression: Expression) -> float:
    """Multiplications within products of matrices, and the elements that anything else computes or reduces."""
    return sum(_work(node, expression) for node in expression.nodes)


def _work(node: Node, expression: Expression) -> float:
    size = sum(type_.size for type_ in node.types)
    if node.function == KERNEL:
        return work_of(node.arguments[0])
    if node.function == "matmul":
        contracted = expression.type_of(node.arguments[0]).shape[-1]
        return float(size * contracted)
    if node.function in REDUCTIONS:
        (operand,) = operands(node.arguments)
        return float(expression.type_of(operand).size)
    is_view = node.function == "item" and all(isinstance(part, (Slice, int, type(None))) for part in node.arguments[1])
    return 0.0 if is_view or node.function in FREE else float(size)
