"""The value of a tensor of the loop body for all iterations together.

    Value ::= Invariant(tensor)         one tensor for every iteration
            | Stacked(tensor)           one row an iteration, along a new leading axis ("varying")
            | Padded(tensor)            rows of different lengths, padded to one
            | Deferred(tensor)          rows of a loop around, of which ops take a part before this loop takes its rows
            | ListHandle(tensor)        one TensorList or Optional for all iterations, whose contents have rows
            | OptionalValue(contents)   what an Optional holds, known while the body is converted

A row is what one iteration has; the number of rows is the number of iterations. What is invariant is never stacked or
tiled unless a converter has no other way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Tensor = Any
"""tf.Tensor"""


@dataclass(frozen=True)
class Invariant:
    """A value that is the same for every iteration."""

    tensor: Tensor


@dataclass(frozen=True)
class Stacked:
    """[rows, *shape of one row]."""

    tensor: Tensor
    counts: bool = False
    """The rows are 0, 1, 2, ...: the loop's index, or a cast of it. Gathering by it needs no gather."""
    shape_of: Padded | None = None
    """The rows are the shapes of these rows of different lengths."""


@dataclass(frozen=True)
class Padded:
    """[rows, longest, *rest]: row i has `lengths[i]` entries at the front, of shape `rest`. The padding after them is
    finite if they are, has no gradient, and is ignored."""

    tensor: Tensor
    lengths: Tensor
    """[rows] int32."""
    origin: str
    """The origin of the lengths: two values with the same one have the same lengths."""


@dataclass(frozen=True)
class Deferred:
    """What an inner loop only reads: the rows of the loop around it, whole, and what has to be done to them before an
    op may use them (those still in the loop taken, or those that are done made harmless).

    An op that takes an element of each row runs first, so that a sequence [rows, longest, ...] which is read element by
    element is not copied at every trip.
    """

    tensor: Tensor
    """[count, *shape of one row]."""
    count: Tensor
    """How many rows the loop around has: scalar int32."""
    settle: Callable[[Tensor], Tensor]
    """To [rows of this loop, *shape of one row], whatever that shape is."""

    def rows(self) -> Stacked:
        """The value with the rows of this loop."""
        return Stacked(self.settle(self.tensor))


@dataclass(frozen=True)
class ListHandle:
    """A TensorList of elements [rows, *shape of one row], or an Optional with such values; TensorFlow's dtype variant.

    All iterations have the list in common, and it has one length. Iterations that stopped before others have their
    elements at its end (`lists.realign`), so that each that takes elements from the end finds its own.
    """

    tensor: Tensor
    lengths: Tensor | None = None
    """[rows] int32, where rows have pushed different numbers of elements; None where all have the list's length."""


@dataclass(frozen=True)
class OptionalValue:
    """The values of an Optional: nothing of it is in the graph.

    TensorFlow makes them of what a branch computes and its gradient needs. Where iterations take different branches,
    one Optional has what each branch left, and the gradient of branch k opens the k-th.
    """

    contents: tuple[tuple[Value, ...] | None, ...]
    """One for each branch that it came from, or a single one; None where a branch left nothing."""

    def map(self, function: Callable[[Value], Value]) -> OptionalValue:
        """The Optional with a function applied to each of its values."""
        return OptionalValue(tuple(None if part is None else tuple(map(function, part)) for part in self.contents))


Value: TypeAlias = "Invariant | Stacked | Padded | Deferred | ListHandle | OptionalValue"


def varies(value: Value) -> bool:
    """Whether a value may differ between iterations."""
    return not isinstance(value, Invariant)
