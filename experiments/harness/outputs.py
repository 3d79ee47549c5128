"""Whether two computations gave the same outputs, by a few numbers that their processes send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def fingerprint(array: NDArray[Any]) -> tuple[float, float]:
    """Norm, and the sum with irregular weights in [-1, 1], over the norm.

    Entries off by a small share of the norm move both by as little; entries that changed places move the second by
    about 1.
    """
    flat = array.astype(np.float64).ravel()
    norm = float(np.linalg.norm(flat))
    weights = np.cos(np.arange(flat.size) ** 1.5)
    return norm, float(flat @ weights) / (norm or 1.0)


def difference(ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]) -> float:
    """The largest relative difference of two computations' fingerprints; infinite where they do not match."""
    if len(ours) != len(theirs):
        return math.inf
    largest = 0.0
    for (norm, along), (other_norm, other_along) in zip(ours, theirs, strict=True):
        apart = max(abs(norm - other_norm) / (max(norm, other_norm) or 1.0), abs(along - other_along))
        largest = math.inf if math.isnan(apart) else max(largest, apart)
    return largest
