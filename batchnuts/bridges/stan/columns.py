"""Which numbers of a draw, in Stan's order, are which variable's.

Stan names them `mu`, `theta.1`, `L.2.1` (indices from 1, the first one fastest), and parts of tuples `pair:1.3`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Block:
    """A variable: where its elements are among the numbers, [*shape]."""

    name: str
    places: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the variable."""
        return self.places.shape

    @property
    def is_in_order(self) -> bool:
        """Whether its elements, row by row, are numbers one after another."""
        flat = self.places.reshape(-1)
        return bool((np.diff(flat) == 1).all())


def index_from_0(name: str) -> str:
    """`L.2.1`, a number in Stan's words, as results name an element: `L[1, 0]`."""
    variable, *indices = name.split(".")
    return f"{variable}[{', '.join(str(int(i) - 1) for i in indices)}]" if indices else variable


def blocks_of(names: Sequence[str], first: int = 0) -> list[Block]:
    """The variables of names one after another; first: the number of the first name."""
    elements: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for number, name in enumerate(names, first):
        variable, *indices = name.split(".")
        parts = variable.split(":")  # of a tuple: its number follows the name
        elements.setdefault(".".join(parts), []).append((tuple(int(i) - 1 for i in indices), number))
    blocks = []
    for name, found in elements.items():
        shape = tuple(np.max([index for index, _ in found], axis=0) + 1) if found[0][0] else ()
        places = np.zeros(shape, np.int64)
        for index, number in found:
            places[index] = number
        blocks.append(Block(name, places))
    return blocks
