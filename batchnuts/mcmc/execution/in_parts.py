"""A program that is called for many chains: some at a time, always of one width.

So one compiled program serves however many chains there are, its memory is bounded, and what it gives for a chain does
not depend on which machine of a cluster the chain is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 256
"""Chains of a call, where there are more."""


def width_for(chains: int) -> int:
    """The width of the calls in a run of so many chains."""
    return min(chains, AT_ONCE)


def in_parts(
    call: Callable[..., Sequence[Any]],
    arguments: Sequence[NDArray[Any]],
    width: int,
    each: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = map,
) -> tuple[NDArray[Any], ...]:
    """The results [n, ...] of a program of `width` chains for arguments [n, ...]; the last part is filled up with
    copies of its last chain. each: calls a function for some values, perhaps on several threads, and gives its results
    in their order."""
    n = len(arguments[0])
    if n == width:
        return tuple(call(*arguments))

    def part(start: int) -> list[NDArray[Any]]:
        rows = np.minimum(np.arange(start, start + width), n - 1)
        return [np.asarray(array) for array in call(*(array[rows] for array in arguments))]

    parts = list(each(part, range(0, n, width)))
    return tuple(np.concatenate(arrays)[:n] for arrays in zip(*parts, strict=True))
