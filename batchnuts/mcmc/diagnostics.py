"""Convergence and precision: R-hat, effective sample sizes, Monte Carlo errors, a verdict.

The statistics are ArviZ's (rank-normalised split R-hat, bulk and tail ESS, Monte Carlo errors: convergence.py), and
nested R-hat (nested_rhat.py). They are computed of one slice of the coefficients per thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.mcmc.convergence import MINIMUM_DRAWS, STATISTICS, TAILS, convergence
from batchnuts.mcmc.nested_rhat import limit_of, nested_rhat
from batchnuts.mcmc.stuck_chains import PERSISTENCE_LIMIT, find_stuck

RHAT_LIMIT = 1.01
ROUNDING_LIMIT = 0.05
"""Nats of rounding in the log-density above which acceptances are visibly wrong: exp(0.05) is 1.05."""
COLUMNS = ("mean", "sd", "5%", "95%", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")
"""What is computed of each coefficient; `batchnuts/report/table.py` prints it."""
_SLICE_VALUES = 2_000_000
"""Values in one slice of coefficients (16 MB in float64), of which several copies are made."""

AT_ONCE = min(2, os.cpu_count() or 1)
"""Slices: each takes several times its own memory, and sorting is bound by memory bandwidth."""


Blocks = NDArray[Any] | Sequence[NDArray[Any]]
"""Draws [chains, draws, coefficients], whole or in parts of some coefficients each."""


class DiagnosticsError(BatchnutsError):
    """The draws do not have the form that the diagnostics need."""


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """One row for each coefficient, and the verdict on all of them.

    Every array is float64 of shape [coefficients]; R-hat and ESS are NaN where they cannot be computed (fewer than
    4 draws, R-hat also for fewer than 2 chains, and for a coefficient that never moved). `divergences` counts draws.
    `nested` is nested R-hat, where chains form `superchains`; None where each chain has its own.
    """

    names: tuple[str, ...]
    columns: dict[str, NDArray[np.float64]]
    chains: int
    draws: int
    divergences: int
    reached_max_treedepth: int
    rounding: float = 0.0
    """Nats, see `rounding_of`."""
    nested: NDArray[np.float64] | None = None
    superchains: int = 0
    persistence: NDArray[np.float64] | None = None
    """Of chains that form superchains: what lasts of the differences between chains (`stuck_chains.py`)."""
    apart: tuple[int, ...] = ()
    """The numbers of chains that stay away from all others."""

    @property
    def rhat(self) -> NDArray[np.float64]:
        """R-hat of each coefficient."""
        return self.columns["r_hat"]

    @property
    def deciding_rhat(self) -> NDArray[np.float64]:
        """What convergence is judged by: nested R-hat where chains form superchains, else R-hat."""
        return self.rhat if self.nested is None else self.nested

    @property
    def limit(self) -> float:
        """What that must be below: RHAT_LIMIT, for nested R-hat with what few draws add (`nested_rhat.limit_of`)."""
        return RHAT_LIMIT if self.nested is None else limit_of(RHAT_LIMIT, self.chains / self.superchains, self.draws)

    @property
    def converged(self) -> bool | None:
        """True if every R-hat is below its limit and no chain is stuck (`stuck_chains.py`); None if there are too few
        chains or draws to compute any R-hat."""
        if self.nested is None and (self.draws < MINIMUM_DRAWS or self.chains < 2):
            return None
        return self.agrees and not self.apart and not self.persists

    @property
    def agrees(self) -> bool:
        """Whether every R-hat is below its limit."""
        return bool(np.all(self.deciding_rhat < self.limit))  # NaN compares as false: a stuck coefficient does not

    @property
    def persists(self) -> bool:
        """Whether differences between chains last in some coefficient, as where they are stuck in several places."""
        return self.persistence is not None and bool((self.persistence > PERSISTENCE_LIMIT).any())

    def worst_first(self) -> NDArray[np.intp]:
        """Indices of the coefficients by decreasing R-hat, the deciding one; those without one come first."""
        rhat = self.deciding_rhat
        return np.argsort(np.where(np.isnan(rhat), -np.inf, -rhat), kind="stable")

    def verdict(self) -> str:
        """Some lines: convergence, the minimum effective sample size, divergences, trees cut at the depth limit."""
        count = len(self.names)
        total = self.chains * self.draws
        if self.converged is None:
            lines = [
                f"R-hat was not computed: it needs at least 2 chains and {MINIMUM_DRAWS} draws, and there are "
                f"{self.chains} and {self.draws}."
            ]
        else:
            worst = int(self.worst_first()[0])
            value = self.deciding_rhat[worst]
            shown = "not defined (it never moved)" if np.isnan(value) else f"{value:.4f}"
            agree = "yes" if self.agrees else "no"
            lines = [f"{self._kind()} on all {count} coefficients: {agree}, worst {self.names[worst]} = {shown}"]
            lines += self._stuck()
        ess = self.columns["ess_bulk"]
        if np.isfinite(ess).any():
            lowest = int(np.nanargmin(ess))
            lines.append(f"Minimum bulk ESS: {ess[lowest]:.0f} of {total} draws ({self.names[lowest]})")
        share = f" ({100 * self.divergences / total:.3g}% of the draws)" if self.divergences else ""
        lines.append(f"Divergences: {self.divergences}{share}")
        if self.divergences > total / 10:
            lines.append(
                "WARNING: so many trajectories diverged that these draws do not represent the posterior. Check that "
                "the density is a fixed, smooth function of the position; raise sampler.target_acceptance; "
                "reparametrize."
            )
        if self.rounding > ROUNDING_LIMIT:
            lines.append(
                f"WARNING: the log-density is so large that it is rounded by {self.rounding:.2g}. Energies, and with "
                "them which states are accepted, are wrong by as much, and these draws may be too wide. Leave out "
                "constant terms (or subtract a constant from each observation's term), or use float64."
            )
        if self.reached_max_treedepth:
            lines.append(f"Draws whose tree reached max_tree_depth: {self.reached_max_treedepth}")
        return "\n".join(lines)

    def _stuck(self) -> list[str]:
        """What was found of stuck chains, in words."""
        lines = []
        if self.apart:
            lines.append(
                f"WARNING: {len(self.apart)} of {self.chains} chains stayed away from all others: "
                f"{some_numbers(self.apart)}. What they found is another mode, or nothing: look at their draws."
            )
        if self.persists:
            assert self.persistence is not None
            worst = int(self.persistence.argmax())
            lines.append(
                f"WARNING: {100 * self.persistence[worst]:.0f}% of the variance of {self.names[worst]} is between "
                "chains and lasts: chains are stuck in different places, or have too few draws to tell."
            )
        return lines

    def _kind(self) -> str:
        """Which R-hat decides, with its limit, in words."""
        if self.nested is None:
            return f"R-hat < {RHAT_LIMIT}"
        each = self.chains / self.superchains
        size = f"{'about ' * (each != int(each))}{each:.0f}"
        return f"Nested R-hat < {self.limit:.4g} ({self.superchains} superchains of {size} chains)"


def some_numbers(numbers: Sequence[int], most: int = 20) -> str:
    """The first of the numbers of chains, and how many more there are."""
    more = len(numbers) - most
    return f"{', '.join(map(str, numbers[:most]))}{f' and {more} more' if more > 0 else ''}"


def rounding_of(log_density: NDArray[Any]) -> float:
    """Nats to which such log-densities are rounded at least: the spacing of their dtype at their median size.

    A difference of energies has an error of about as much, whatever the step size. 0 if none is finite.
    """
    sizes = np.abs(log_density[np.isfinite(log_density)])
    return float(np.spacing(np.median(sizes).astype(sizes.dtype))) if sizes.size else 0.0


def diagnose(
    position: Blocks,
    names: Sequence[str],
    diverging: NDArray[Any] | None = None,
    reached_max_treedepth: NDArray[Any] | None = None,
    log_density: NDArray[Any] | None = None,
    superchain: NDArray[np.int64] | None = None,
    numbers: NDArray[np.int64] | None = None,
) -> Diagnostics:
    """Diagnose draws `position`; the two flags are bool arrays [chains, draws].

    position: [chains, draws, coefficients], or several such arrays, whose coefficients follow each other.
    log_density [chains, draws]: in the dtype in which it was computed. superchain [chains]: the number of each chain's.
    numbers [chains]: those of the chains; None: from 0.

    Raises DiagnosticsError for another shape, for no draws at all, and for draws that are not finite.
    """
    blocks = [position] if isinstance(position, np.ndarray) else list(position)
    shapes = [block.shape for block in blocks]
    if (
        any(len(shape) != 3 for shape in shapes)
        or len({shape[:2] for shape in shapes}) != 1
        or (sum(shape[2] for shape in shapes) != len(names))
    ):
        raise DiagnosticsError(
            f"Draws have shape {', '.join(map(str, shapes))}; expected [chains, draws, {len(names)}], one entry for "
            "each name."
        )
    chains, draws, _ = shapes[0]
    if not chains or not draws:
        raise DiagnosticsError(f"There is nothing to diagnose: {chains} chains with {draws} draws each.")
    columns = _in_slices(blocks, _columns, COLUMNS)
    nested, count = None, 0 if superchain is None else len(np.unique(superchain))
    if superchain is not None and 1 < count < chains:
        nested = _in_slices(blocks, lambda part: {"nested": nested_rhat(part, superchain)}, ["nested"])["nested"]
    stuck = [find_stuck(block) for block in blocks]
    apart = np.flatnonzero(np.any([one.apart for one in stuck], axis=0))
    return Diagnostics(
        names=tuple(names),
        columns=columns,
        chains=chains,
        draws=draws,
        divergences=0 if diverging is None else int(np.sum(diverging)),
        reached_max_treedepth=0 if reached_max_treedepth is None else int(np.sum(reached_max_treedepth)),
        rounding=0.0 if log_density is None else rounding_of(log_density),
        nested=nested,
        superchains=count,
        persistence=None if nested is None else np.concatenate([one.persistence for one in stuck]),
        apart=tuple((apart if numbers is None else numbers[apart]).tolist()),
    )


def bulk_ess(position: NDArray[Any]) -> NDArray[np.float64]:
    """Bulk effective sample size of each coefficient [coefficients], of draws [chains, draws, coefficients].

    NaN as in Diagnostics. Raises DiagnosticsError for draws that are not finite.
    """
    return _in_slices([position], _bulk_ess, ("ess_bulk",))["ess_bulk"]


def _in_slices(
    blocks: Sequence[NDArray[Any]],
    statistics: Callable[[NDArray[Any]], dict[str, NDArray[np.float64]]],
    names: Sequence[str],
) -> dict[str, NDArray[np.float64]]:
    """`statistics` of all coefficients, in slices; NaN for a name that it leaves out."""
    chains, draws, _ = blocks[0].shape
    count = sum(block.shape[2] for block in blocks)
    columns = {name: np.full(count, np.nan) for name in names}
    width = slice_width(chains, draws, count)
    slices = [slice(start, min(start + width, count)) for start in range(0, count, width)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for part, result in zip(slices, pool.map(lambda part: statistics(_taken(blocks, part)), slices), strict=True):
            for name, values in result.items():
                columns[name][part] = values
    return columns


def slice_width(chains: int, draws: int, count: int) -> int:
    """Coefficients of a slice, of `count` in all."""
    return max(1, min(_SLICE_VALUES // (chains * draws), -(-count // (os.cpu_count() or 1))))


def _taken(blocks: Sequence[NDArray[Any]], part: slice) -> NDArray[Any]:
    """A slice of the coefficients of all blocks."""
    parts, start = [], 0
    for block in blocks:
        width = block.shape[2]
        low, high = max(part.start - start, 0), min(part.stop - start, width)
        if low < high:
            parts.append(block[:, :, low:high])
        start += width
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def _bulk_ess(position: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    _refuse_what_is_not_finite(position)
    return convergence(position, ["ess_bulk"]) if position.shape[1] >= MINIMUM_DRAWS else {}


def _columns(position: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    _refuse_what_is_not_finite(position)
    values = position.astype(np.float64)
    flat = values.reshape(-1, values.shape[2])
    low, high = np.quantile(flat, TAILS, axis=0)
    result = {
        "mean": flat.mean(axis=0),
        "sd": flat.std(axis=0, ddof=1) if len(flat) > 1 else np.full(flat.shape[1], np.nan),
        "5%": low,
        "95%": high,
    }
    if position.shape[1] >= MINIMUM_DRAWS:
        result |= convergence(values, [name for name in STATISTICS if name != "r_hat" or position.shape[0] >= 2])
    return result


def _refuse_what_is_not_finite(position: NDArray[Any]) -> None:
    if not np.isfinite(position).all():
        raise DiagnosticsError("Some draws are NaN or infinite; they cannot be summarised.")
