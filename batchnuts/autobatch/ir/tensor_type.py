"""The type of one lane's array."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TensorType:
    """One lane's array: dtype and static shape. `weak` marks a Python literal, which takes the dtype it meets."""

    dtype: str
    shape: tuple[int, ...] = ()
    weak: bool = False
    __tree_leaf__ = True

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        star = "*" if self.weak else ""
        return f"{self.dtype}{star}[{','.join(map(str, self.shape))}]"
