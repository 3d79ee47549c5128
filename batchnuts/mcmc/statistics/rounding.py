"""What rounding does to draws and to their log-densities, and which quantities vary by no more than it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.draw_blocks import DrawBlock, as_block, parts_of

ROUNDING_LIMIT = 0.05
"""Nats of rounding in the log-density above which acceptances are visibly wrong: exp(0.05) is 1.05."""
COARSE = 4.0
"""Units of rounding that a standard deviation should have: with 4 rounding adds half a percent to the variance."""
UNITS = 32
"""Units of rounding within which a quantity counts as constant: one that is 1 by what it is, the sum of a simplex or an
element of a diagonal of correlations, is a sum of rounded terms."""


def coarse_of(
    names: Sequence[str], mean: NDArray[np.float64], sd: NDArray[np.float64], dtypes: Sequence[np.dtype[Any] | None]
) -> tuple[str, ...]:
    """Those of the coefficients whose standard deviation is below COARSE units of rounding at their mean.

    dtypes: of the draws of each; None for one that is not looked at. Coefficients that never move are none of them.
    """
    coarse = []
    for name, centre, spread, dtype in zip(names, mean, sd, dtypes, strict=True):
        if dtype is not None and dtype.kind == "f" and 0 < spread < COARSE * np.spacing(np.abs(centre).astype(dtype)):
            coarse.append(name)
    return tuple(coarse)


def rounding_of(log_density: NDArray[Any] | DrawBlock) -> float:
    """Nats to which such log-densities are rounded at least: the spacing of their dtype at their median size.

    log_density [chains, draws], or a block of one coefficient. A difference of energies has an error of about as much,
    whatever the step size. 0 if none is finite. Of an even number the smaller one of the two middle sizes counts.
    """
    info = np.finfo(log_density.dtype)
    counts = np.zeros(info.maxexp - info.minexp + 2, np.int64)  # of exponents
    for _, _, _, values in parts_of(as_block(log_density)):
        finite = values[np.isfinite(values)]
        exponents = np.where(finite == 0, info.minexp, np.frexp(finite)[1]) - info.minexp
        counts += np.bincount(np.maximum(exponents, 0), minlength=len(counts))
    if not counts.any():
        return 0.0
    exponent = int(np.searchsorted(np.cumsum(counts), (counts.sum() + 1) // 2)) + info.minexp
    return float(np.spacing(np.ldexp(log_density.dtype.type(0.5), exponent)))


def vary_beyond_rounding(low: NDArray[Any], high: NDArray[Any], dtype: Any) -> NDArray[np.bool_]:
    """Whether quantities from `low` to `high` [...], computed in `dtype`, have more than one value but for rounding.

    Integers and booleans are not rounded. NaN and infinity count as varying.
    """
    dtype = np.dtype(dtype)
    unit = np.finfo(dtype).eps if dtype.kind == "f" else 0.0
    lowest, highest = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return ~(highest - lowest <= UNITS * unit * np.maximum(np.abs(lowest), np.abs(highest)))
