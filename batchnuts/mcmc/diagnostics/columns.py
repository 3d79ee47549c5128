"""The columns of the table of coefficients, one entry for each: how it is computed, printed, and when it is left out.

A new column is an entry of `COLUMN_TABLE`, and, if it is a statistic that there is not yet, a function of
`statistics/convergence.py`. Runs without draws have those of `summary_without_draws.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS, Array
from batchnuts.mcmc.statistics.convergence import convergence_of
from batchnuts.mcmc.statistics.reductions import SUMMARY, Reduced

Compute = Callable[[Reduced], Array]
"""The column, float64 [coefficients]."""


@dataclass(frozen=True)
class Column:
    """One number of each coefficient."""

    name: str
    digits: str
    """The format of a printed number."""
    left_out: int | None
    """Where a table is too wide: the step at which it is left out, counted from 1; None: never."""


@dataclass(frozen=True)
class ComputedColumn(Column):
    """A column that is computed of draws."""

    of: Compute
    needs: str
    """What draws must be reduced to, by a name that `reduce_draws` knows."""
    fewest_chains: int = 1
    fewest_draws: int = 1
    is_running: bool = True
    """Whether runs without draws have it, too."""


def _mean(reduced: Reduced) -> Array:
    """That of coefficients that do not vary is their only value, as are their quantiles."""
    return reduced.of_all(np.empty(0) if reduced.values is None else reduced.values.overall_mean, reduced.first)


def _sd(reduced: Reduced) -> Array:
    constant = np.nan if reduced.chains * reduced.draws == 1 else 0.0
    if reduced.values is None:
        return reduced.of_all(np.empty(0), constant)
    count = reduced.values.mean.shape[1] * reduced.draws
    return reduced.of_all(np.sqrt(reduced.values.overall_variance * (count / max(count - 1, 1))), constant)


def _quantile(number: int) -> Compute:
    """One of reductions.TAILS."""
    return lambda reduced: reduced.of_all(
        np.empty(0) if reduced.values is None else reduced.quantiles[number], reduced.first
    )


def _statistic(
    name: str, digits: str, left_out: int | None, *, fewest_chains: int = 1, is_running: bool = False
) -> ComputedColumn:
    """One of convergence.STATISTICS."""

    def compute(reduced: Reduced) -> Array:
        return convergence_of(reduced, {name})[name]

    return ComputedColumn(name, digits, left_out, compute, name, fewest_chains, MINIMUM_DRAWS, is_running)


COLUMN_TABLE: tuple[Column, ...] = (
    ComputedColumn("mean", ".3g", 7, _mean, SUMMARY),
    ComputedColumn("sd", ".3g", 5, _sd, SUMMARY),
    ComputedColumn("5%", ".3g", 2, _quantile(0), SUMMARY),
    ComputedColumn("95%", ".3g", 2, _quantile(1), SUMMARY),
    _statistic("mcse_mean", ".3g", 3, is_running=True),
    _statistic("mcse_sd", ".3g", 1, is_running=True),
    _statistic("ess_bulk", ".0f", 6),
    _statistic("ess_tail", ".0f", 4),
    Column("ess_mean", ".0f", 6),
    _statistic("r_hat", ".4f", None, fewest_chains=2, is_running=True),
)
"""In the order in which they are printed; those that are not computed of draws are of runs without draws."""

COLUMNS = tuple(column.name for column in COLUMN_TABLE if isinstance(column, ComputedColumn))
"""What is computed of each coefficient."""

RUNNING_COLUMNS = tuple(
    column.name for column in COLUMN_TABLE if not isinstance(column, ComputedColumn) or column.is_running
)
"""The columns where draws were not kept (running_summary.py)."""

NESTED_RHAT = "nested R-hat"
"""The column that a table has in place of `r_hat`, or beside it, where chains form superchains."""

DIGITS = {column.name: column.digits for column in COLUMN_TABLE}
DIGITS[NESTED_RHAT] = DIGITS["r_hat"]
"""The formats of printed numbers, by the names of columns."""


def computed_columns(chains: int, draws: int) -> tuple[ComputedColumn, ...]:
    """Those that can be computed of so many chains, and draws of each."""
    return tuple(
        column
        for column in COLUMN_TABLE
        if isinstance(column, ComputedColumn) and chains >= column.fewest_chains and draws >= column.fewest_draws
    )


def left_out_first() -> tuple[tuple[str, ...], ...]:
    """Columns in the order in which they are left out where a table is too wide."""
    steps = sorted({column.left_out for column in COLUMN_TABLE if column.left_out is not None})
    return tuple(tuple(column.name for column in COLUMN_TABLE if column.left_out == step) for step in steps)
