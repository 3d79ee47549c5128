"""A program of the shape of NUTS without its statistics: a loop around a binary recursion with a heavy leaf."""

from __future__ import annotations

from typing import Any, NamedTuple

from batchnuts.autobatch import batch, ops, primitive


@primitive(costly=True)
def heavy(x: Any) -> Any:
    """Stands for a gradient."""
    return x - 0.1 * ops.tanh(x)


class Tree(NamedTuple):
    """What a finished half keeps while the other half is built."""

    chosen: Any
    total: Any
    weight: Any


@batch
def grow(x, tree_depth):
    if tree_depth == 0:
        x = heavy(x)
        return x, Tree(x, x, ops.sum(x * x))
    x, first = grow(x, tree_depth - 1)
    if first.weight > 1e6:
        return x, first
    x, second = grow(x, tree_depth - 1)
    better = second.weight < first.weight
    return x, Tree(
        ops.where(better, second.chosen, first.chosen), first.total + second.total, first.weight + second.weight
    )


@batch
def nuts_shaped(x, tree_depth, transitions):
    """`transitions` times: grow a tree of 2**tree_depth leaves and go on from where one of them is."""
    i = 0
    weight = 0.0
    while i < transitions:
        _, tree = grow(x, tree_depth)
        x = tree.chosen
        weight = weight + tree.weight
        i += 1
    return x, weight


NUTS_SHAPED_TYPES = ("float64[5]", "int64", "int64")
