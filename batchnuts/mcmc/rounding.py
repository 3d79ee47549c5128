"""Which quantities vary by more than the rounding of the arithmetic that computed them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNITS = 32
"""Units of rounding within which a quantity counts as constant: one that is 1 by what it is, the sum of a simplex or an
element of a diagonal of correlations, is a sum of rounded terms."""


def vary_beyond_rounding(low: NDArray[Any], high: NDArray[Any], dtype: Any) -> NDArray[np.bool_]:
    """Whether quantities from `low` to `high` [...], computed in `dtype`, have more than one value but for rounding.

    Integers and booleans are not rounded. NaN and infinity count as varying.
    """
    dtype = np.dtype(dtype)
    unit = np.finfo(dtype).eps if dtype.kind == "f" else 0.0
    lowest, highest = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return ~(highest - lowest <= UNITS * unit * np.maximum(np.abs(lowest), np.abs(highest)))
