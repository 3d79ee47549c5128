"""Which arrays of an expression, and of which functions by name, are written to memory; readers compute the others.

        %1 = exp(%0)          one loop for the sum and one for the product, each of which would compute the exponential:
        %2 = sum(%1)          %1 is written to memory
        %3 = matmul(M, %1)

Elements of elementwise functions are computed in the loops of their readers (expressions.py). That saves memory where
there is one loop. An array whose elements are costly is written where several loops read it, where a reader has more
elements than it has, and where the loop that reads it is one that LLVM does not vectorize. Costly functions of several
axes are loops of their own, over arrays in memory, however short the rows are.
"""

from __future__ import annotations

from collections.abc import Collection

from batchnuts.autobatch.ir.expression import Constant, Expression, Node, Ref, operands
from batchnuts.autobatch.native.function_table import COSTLY

PRODUCTS = frozenset({1.0, 2.0, 3.0, -1.0, 0.5})
"""Known exponents of powers that are products, quotients or roots (powers.py)."""

MOVING = frozenset({"transpose", "parts_of_last_axis", "item", "gather"})
"""Functions whose elements are those of another array."""

SEQUENTIAL = frozenset({"scatter_add", "cumsum"})
"""Functions whose loops depend on what they have written before."""


FEW = 16
"""Elements below which a loop over rows is as well."""


def is_costly(node: Node) -> bool:
    """Whether an element takes tens of instructions; a power that is a product does not."""
    if node.function == "power" and isinstance(exponent := node.arguments[1], Constant) and not exponent.type.shape:
        return float(exponent.array) not in PRODUCTS
    return node.function in COSTLY


def is_flat(node: Node) -> bool:
    """Whether the elements of a node of several axes are computed in one loop, from arrays in memory."""
    (type_, *_) = node.types
    return is_costly(node) and len(type_.shape) > 1 and type_.size >= FEW


def materialized(expression: Expression, elementwise: Collection[str]) -> frozenset[int]:
    """The numbers of the nodes whose results are written to memory.

    elementwise: functions whose elements are computed where they are read.
    """
    types, nodes = expression.types, expression.nodes
    delayed = [node.function in elementwise or node.function in MOVING for node in nodes]
    numbers, owner = [], {}
    """The first value of each node; and the node of each value."""
    number = len(expression.inputs)
    for place, node in enumerate(nodes):
        numbers.append(number)
        for _ in node.types:
            owner[number] = place
            number += 1
    reads = [[r.number for r in operands(node.arguments) if isinstance(r, Ref)] for node in nodes]
    costly: list[bool] = []
    for place, node in enumerate(nodes):
        own = [owner[r] for r in reads[place] if r in owner and types[r].size > 1]
        costly.append(is_costly(node) or any(delayed[n] and costly[n] for n in own))
    loops: list[set[object]] = [set() for _ in nodes]
    """The loops in which a node's elements are read."""
    written = set()
    again = [False] * len(nodes)
    """Whether a reader reads elements more than once, or one after another."""
    for output in expression.outputs:
        if isinstance(output, Ref) and output.number in owner:
            loops[owner[output.number]].add(types[output.number].shape)
    for place in reversed(range(len(nodes))):
        node = nodes[place]
        if (
            delayed[place]
            and not is_flat(node)
            and costly[place]
            and node.types[0].size > 1
            and (len(loops[place]) > 1 or again[place])
        ):
            written.add(place)
        passed_on = delayed[place] and place not in written and not is_flat(node) and node.types[0].size > 1
        for r in reads[place]:
            if r not in owner:
                continue
            loops[owner[r]] |= loops[place] if passed_on else {place}
            if is_flat(node) and delayed[owner[r]] and types[r].shape == node.types[0].shape:
                written.add(owner[r])
            larger = delayed[place] and node.types[0].size > types[r].size
            again[owner[r]] |= node.function in SEQUENTIAL or larger or (passed_on and again[place])
    return frozenset(written)
