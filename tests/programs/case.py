"""A case of the corpus: a program with inputs for a few lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A program, its inputs for all lanes, and what the plain Python function cannot show of the result."""

    function: Any
    inputs: tuple[Any, ...]
    dtypes: tuple[str, ...] | None = None
    """The results' dtypes, leaf by leaf, where plain Python's depend on the path a lane takes."""
    note: str = ""
    rtol: float | None = None
    """For iterations that amplify rounding: the tolerance on TensorFlow, where the dtype's own would be too small."""

    @property
    def name(self) -> str:
        return self.function.__name__ + (f"-{self.note}" if self.note else "")


def ints(*values: Any) -> np.ndarray:
    return np.array(values, "int64")


def floats(*values: Any, dtype: str = "float64") -> np.ndarray:
    return np.array(values, dtype)
