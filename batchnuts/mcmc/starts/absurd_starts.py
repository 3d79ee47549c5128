"""Starts that are left for others, because no chain comes far from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ABSURD, LOWEST = 1e4, 0.25
"""A start is absurd where its log-density is rounded to more than a nat, and lies further below the highest one than
that of the LOWEST quarter's upper end does by this factor."""


def absurd_starts(log_density: NDArray[np.floating]) -> NDArray[np.bool_]:
    """[starts]: where a log-density [starts] is absurd beside those of the others.

    There accepting is decided by rounding, so that a chain moves little or not at all. None where most starts are so.
    """
    if not len(log_density):
        return np.zeros(0, bool)
    depth = log_density.max() - log_density.astype(np.float64)
    rounded = np.spacing(np.abs(log_density)) > 1.0
    typical = max(float(np.quantile(depth, LOWEST)), 1.0)
    absurd = rounded & (depth > ABSURD * typical)
    return absurd if absurd.mean() <= 0.5 else np.zeros_like(absurd)
