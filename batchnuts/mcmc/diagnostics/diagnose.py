"""Convergence and precision: R-hat, effective sample sizes, Monte Carlo errors, a verdict.

The statistics are ArviZ's (rank-normalised split R-hat, bulk and tail ESS, Monte Carlo errors: columns.py), nested
R-hat (nested_rhat.py), and what is seen of stuck chains (stuck_chains.py). All of them come from one reduction of each
coefficient (reductions.py). Draws are read some coefficients at a time (draw_blocks.py, coefficient_parts.py), so that
memory is bounded however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.diagnostics.coefficient_parts import DiagnosticsError, in_parts
from batchnuts.mcmc.diagnostics.columns import COLUMNS, computed_columns
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.mcmc.statistics.chain_numbers import named_chains, some_numbers
from batchnuts.mcmc.statistics.convergence import convergence_of, rhat_noise_of
from batchnuts.mcmc.statistics.draw_blocks import DrawBlock, as_block, parts_of
from batchnuts.mcmc.statistics.late_chains import late_by_density, late_by_moments, mean_log_density, within_by_density
from batchnuts.mcmc.statistics.nested_rhat import nested_of
from batchnuts.mcmc.statistics.reductions import NESTED, NOISE, STUCK, Reduced
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT, RhatNoise, joined_noise
from batchnuts.mcmc.statistics.rounding import ROUNDING_LIMIT, rounding_of
from batchnuts.mcmc.statistics.stuck_chains import (
    PERSISTENCE_LIMIT,
    StuckEvidence,
    evidence_of,
    far_below,
    has_enough_draws,
    stuck_of,
)
from batchnuts.settings.schema import in_words

MOST_NAMES = 5
"""Names that a line of the verdict has."""

Blocks = NDArray[Any] | Sequence[DrawBlock]
"""Draws [chains, draws, coefficients], whole or in parts of some coefficients each; parts may be on a disk."""


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
    left_support: int = 0
    """Draws whose trajectory ended where the log-density, or a gradient before, is not a finite number."""
    rounding: float = 0.0
    """Nats, see `rounding_of`."""
    nested: NDArray[np.float64] | None = None
    superchains: int = 0
    limits: NDArray[np.float64] | None = None
    """What the deciding R-hat of each coefficient must be below (`rhat_noise.py`); None: RHAT_LIMIT, of all."""
    persistence: NDArray[np.float64] | None = None
    """Where chains form superchains: the share of the variance that is between chains and persists
    (`stuck_chains.py`)."""
    stuck: tuple[int, ...] = ()
    """The numbers of chains that stay away from all others."""
    low: tuple[int, ...] = ()
    """The stuck chains whose log-density is far below that of the others."""
    high: tuple[int, ...] = ()
    """The stuck chains whose log-density is far above that of the others."""
    furthest: tuple[int, ...] = ()
    """The numbers of the coefficients in which stuck chains are furthest from the others, that of most chains first."""
    late: tuple[int, ...] = ()
    """The numbers of chains with draws far from all others, as those that had not arrived (`late_chains.py`)."""
    not_finite: Mapping[str, int | None] = field(default_factory=dict)
    """Generated quantities that are left out, by name: of how many draws they are not finite; None: not counted."""
    coarse: tuple[str, ...] = ()
    """Coefficients whose draws take few values, since the dtype has no others so far from 0 (see `coarse_of`)."""
    running: bool = False
    """Whether draws were not kept: then `columns` are RUNNING_COLUMNS, R-hat is that of moments, and effective sizes
    are of means."""

    @property
    def divergent_share(self) -> float:
        """The share of draws whose trajectory diverged."""
        return self.divergences / (self.chains * self.draws)

    @property
    def cut_share(self) -> float:
        """Of all draws, those whose trajectory was cut off at the maximum depth of its tree."""
        return self.reached_max_treedepth / (self.chains * self.draws)

    @property
    def rhat(self) -> NDArray[np.float64]:
        """R-hat of each coefficient."""
        return self.columns["r_hat"]

    @property
    def ess(self) -> NDArray[np.float64]:
        """The effective size of each coefficient that is judged: bulk ESS, or that of means."""
        return self.columns["ess_mean" if self.running else "ess_bulk"]

    @property
    def deciding_rhat(self) -> NDArray[np.float64]:
        """What convergence is judged by: nested R-hat where chains form superchains, else R-hat."""
        return self.rhat if self.nested is None else self.nested

    @property
    def limit(self) -> float:
        """What the worst R-hat must be below: RHAT_LIMIT, or what chance allows so few draws."""
        return RHAT_LIMIT if self.limits is None else float(self.limits[self.worst_first()[0]])

    @property
    def converged(self) -> bool | None:
        """True if every R-hat is below its limit and no chain is stuck (`stuck_chains.py`) or late (`late_chains.py`);
        None if there are too few chains or draws to compute any R-hat."""
        few = self.draws < MINIMUM_DRAWS or self.chains < 2
        if self.nested is None and (few or (self.running and np.isnan(self.rhat).all())):
            return None
        return self.agrees and not self.stuck and not self.late and not self.persists

    @property
    def agrees(self) -> bool:
        """Whether every R-hat is below its limit."""
        limits = RHAT_LIMIT if self.limits is None else self.limits
        return bool(np.all(self.deciding_rhat < limits))  # NaN compares as false: a stuck coefficient does not

    @property
    def persists(self) -> bool:
        """Whether differences between chains last in some coefficient, as where they are stuck in several places."""
        return self.persistence is not None and bool((self.persistence > PERSISTENCE_LIMIT).any())

    def worst_first(self) -> NDArray[np.intp]:
        """Indices of the coefficients by how near the deciding R-hat comes to its limit; those without one come
        first."""
        excess = self.deciding_rhat - 1.0
        if self.limits is not None:
            excess = excess / (self.limits - 1.0)
        return np.argsort(np.where(np.isnan(excess), -np.inf, -excess), kind="stable")

    @property
    def worst(self) -> int | None:
        """The coefficient whose R-hat comes nearest to its limit, of those that have one; None where none has."""
        return next((int(index) for index in self.worst_first() if np.isfinite(self.deciding_rhat[index])), None)

    def most_suspect_first(self) -> NDArray[np.intp]:
        """`worst_first`, after the coefficients in which stuck chains are furthest from the others."""
        worst, furthest = self.worst_first(), np.array(self.furthest, np.intp)
        return np.concatenate([furthest, worst[~np.isin(worst, furthest)]])

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
            worst_value = "not defined (it never moved)" if np.isnan(value) else f"{value:.4f}"
            agree = "yes" if self.agrees else "no"
            scope = f"all {count} coefficients" if count > 1 else "the one coefficient"
            below = f" (limit {self.limit:.4f})" if self._by_chance else ""
            lines = [f"{self._kind()} on {scope}: {agree}, worst {self.names[worst]} = {worst_value}{below}"]
            lines += self._stuck()
        ess = self.ess
        if np.isfinite(ess).any():
            lowest = int(np.nanargmin(ess))
            lines.append(f"Minimum {self.size_in_words}: {ess[lowest]:.0f} of {total} draws ({self.names[lowest]})")
        share = f" ({100 * self.divergences / total:.3g}% of the draws)" if self.divergences else ""
        lines.append(f"Divergences: {self.divergences}{share}")
        if self.left_support:
            lines.append(
                f"Trajectories that ended where the log-density is not finite: {self.left_support} of these "
                "(infinite energy, or not a number)"
            )
        if self.divergences > total / 10:
            lines.append(
                "WARNING: so many trajectories diverged that these draws do not represent the posterior. Check that "
                "the density is a fixed, smooth function of the position; raise sampler.target_acceptance; "
                "reparametrize."
            )
        if self.rounding > ROUNDING_LIMIT:
            lines.append(
                f"WARNING: the log-density is so large that it is rounded by {self.rounding:.2g}. Energies, and so "
                "the acceptance of states, are wrong by that much, and these draws may be too wide. Leave out "
                "constant terms (or subtract a constant from each observation's term), or use float64."
            )
        if self.coarse:
            lines.append(
                f"WARNING: {_some(self.coarse)} so far from 0 that rounding leaves the draws few distinct values. Use "
                'dtype="float64", or subtract an offset: sample the difference from a number near the mean.'
            )
        if self.reached_max_treedepth:
            share = f"{100 * self.cut_share:.3g}% of the draws"
            lines.append(f"Draws whose tree reached max_tree_depth: {self.reached_max_treedepth} ({share})")
        for name, bad in list(self.not_finite.items())[:MOST_NAMES]:
            many = "some" if bad is None else bad
            lines.append(f"{name}: {many} of {total} draws are not finite; excluded from diagnostics")
        if (more := len(self.not_finite) - MOST_NAMES) > 0:
            lines.append(f"{more} more generated quantities are not finite in some draws; excluded from diagnostics")
        return "\n".join(lines)

    def _stuck(self) -> list[str]:
        """Sentences about chains that are stuck, or whose draws lie far away."""
        lines = []
        if self.stuck:
            lines.append(
                f"WARNING: {len(self.stuck)} of {self.chains} chains never mixed with the other chains: "
                f"{some_numbers(self.stuck)}{self._furthest_in_words()}. {self._where_stuck()}"
            )
        if self.late:
            have = "has" if len(self.late) == 1 else "have"
            lines.append(
                f"WARNING: {len(self.late)} of {self.chains} chains {have} draws far from all others: "
                f"{some_numbers(self.late)}. Means and standard deviations depend on them."
            )
        if self.persists:
            assert self.persistence is not None
            worst = int(self.persistence.argmax())
            lines.append(
                f"WARNING: {100 * self.persistence[worst]:.0f}% of the variance of {self.names[worst]} is between "
                "chains and persists: chains are stuck in different places, or there are too few draws to tell."
            )
        return lines

    def _where_stuck(self) -> str:
        """What their log-densities say of the chains that are stuck."""
        slowly = "in another mode, or in a part of the posterior that chains leave slowly"
        if self.running:  # of which log-densities are not known
            return f"That is {slowly}, or where the density is low."
        like = tuple(number for number in self.stuck if number not in {*self.low, *self.high})
        sentences = []
        if self.low:
            sentences.append(
                f"The log-density of {named_chains(self.low)} is far below the others': a region of low density."
            )
        if self.high:
            sentences.append(
                f"The log-density of {named_chains(self.high)} is far above the others': another mode, which has most "
                "of the probability if it is not very narrow; or the density has no upper bound there, or rounding "
                "makes it wrong, as where a parameter is very large."
            )
        if like:
            sentences.append(
                f"The log-density of {named_chains(like)} is like the others': {slowly}; compare their draws."
            )
        return " ".join(sentences)

    def _furthest_in_words(self) -> str:
        if not self.furthest:
            return ""
        named = [self.names[number] for number in self.furthest]
        more = len(named) - MOST_NAMES
        return f" (furthest in {', '.join(named[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''})"

    def _kind(self) -> str:
        """Which R-hat decides, with its limit, in words."""
        kind = "R-hat" if self.nested is None else "Nested R-hat"
        limit = f"< {RHAT_LIMIT:g}{' or what chance allows' if self._by_chance else ''}"
        per_superchain = self.chains / max(self.superchains, 1)
        size = f"{'about ' * (per_superchain != int(per_superchain))}{per_superchain:.0f}"
        groups = "" if self.nested is None else f" ({self.superchains} superchains of {size} chains)"
        return f"{kind}{' of moments' * self.running} {limit}{groups}"

    @property
    def _by_chance(self) -> bool:
        """Whether some R-hat is above RHAT_LIMIT, and that of few draws allowed to be."""
        above = ~(self.deciding_rhat < RHAT_LIMIT)
        return self.limits is not None and bool((self.limits[above] > RHAT_LIMIT + 5e-4).any())

    @property
    def size_in_words(self) -> str:
        """The name of what `ess` is."""
        return "ESS of a mean, by batch means" if self.running else "bulk ESS"


def _some(names: Sequence[str]) -> str:
    """The first names as the subject of a sentence, with its verb."""
    more = len(names) - MOST_NAMES
    listing = f"{', '.join(names[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"
    return f"{listing} {'lies' if len(names) == 1 else 'lie'}"


def diagnose(
    position: Blocks,
    names: Sequence[str],
    diverging: NDArray[Any] | DrawBlock | None = None,
    reached_max_treedepth: NDArray[Any] | DrawBlock | None = None,
    log_density: NDArray[Any] | DrawBlock | None = None,
    superchain: NDArray[np.int64] | None = None,
    numbers: NDArray[np.int64] | None = None,
    left_support: NDArray[Any] | DrawBlock | None = None,
) -> Diagnostics:
    """Diagnose draws `position`; the two flags are bool [chains, draws].

    position: [chains, draws, coefficients], or several such blocks, whose coefficients follow each other. They may be
    on a disk (draw_blocks.py), as may flags and log_density, blocks of one coefficient then.
    log_density [chains, draws]: in the dtype in which it was computed. left_support [chains, draws]: the largest error
    of each trajectory's energy, infinite where the log-density was not finite. superchain [chains]: the number of each
    chain's. numbers [chains]: those of the chains; None: from 0.

    Raises DiagnosticsError for another shape, for no draws at all, and for draws that are not finite. Memory is
    `diagnostics_bytes`, besides the draws where they are arrays.
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
        raise DiagnosticsError(
            f"There is nothing to diagnose: {in_words(chains, 'chain')} with {in_words(draws, 'draw')} each."
        )
    count = 0 if superchain is None else len(np.unique(superchain))
    nested = superchain if 1 < count < chains else None
    wanted = {column.needs for column in computed_columns(chains, draws)}
    wanted |= {NESTED} if nested is not None else set()
    if draws >= MINIMUM_DRAWS and nested is None and chains >= 2:
        wanted |= {NOISE}
    if has_enough_draws((chains, draws)):
        wanted |= {STUCK}
    columns = {name: np.full(len(names), np.nan) for name in (*COLUMNS, NESTED)}
    evidence: list[tuple[slice, StuckEvidence]] = []
    noises: list[RhatNoise] = []
    log_ratio = np.full(chains, np.inf)
    of_all = len(names)
    for part, (statistics, stuck_evidence, noise, ratio_of_part) in in_parts(
        blocks, wanted, lambda reduced: _judged(reduced, wanted, nested, of_all)
    ):
        log_ratio = np.minimum(log_ratio, ratio_of_part)
        for name, values in statistics.items():
            columns[name][part] = values
        if stuck_evidence is not None:
            evidence.append((part, stuck_evidence))
        if noise is not None:
            noises.append(noise)
    is_late = np.isfinite(log_ratio)
    if log_density is not None:
        if is_late.any():
            is_late &= ~within_by_density(log_ratio, log_density)
        is_late |= late_by_density(log_density)
    of_nested = columns.pop(NESTED)
    stuck = [stuck_of(_within(evidence, *bounds), chains, bounds[1] - bounds[0]) for bounds in _bounds(blocks)]
    is_stuck = np.any([of_block.mask for of_block in stuck], axis=0)
    numbered = np.arange(chains) if numbers is None else numbers
    is_low, is_high = np.zeros((2, chains), bool)
    if log_density is not None and is_stuck.any():
        density = mean_log_density(log_density)
        is_low, is_high = is_stuck & far_below(density), is_stuck & far_below(-density)
    how_far = np.stack([of_block.how_far for of_block in stuck])
    coefficient = np.stack([first + of.furthest for (first, _), of in zip(_bounds(blocks), stuck, strict=True)])
    furthest = Counter(coefficient[how_far.argmax(axis=0), np.arange(chains)][is_stuck & how_far.any(axis=0)].tolist())
    return Diagnostics(
        names=tuple(names),
        columns=columns,
        chains=chains,
        draws=draws,
        divergences=_count(diverging),
        reached_max_treedepth=_count(reached_max_treedepth),
        left_support=_count(left_support, np.isinf),
        rounding=0.0 if log_density is None else rounding_of(log_density),
        nested=None if nested is None else of_nested,
        superchains=count,
        limits=joined_noise(noises).limits(len(names)) if noises else None,
        persistence=None if nested is None else np.concatenate([of_block.persistence for of_block in stuck]),
        stuck=tuple(numbered[is_stuck].tolist()),
        low=tuple(numbered[is_low].tolist()),
        high=tuple(numbered[is_high].tolist()),
        furthest=tuple(number for number, _ in furthest.most_common()),
        late=tuple(numbered[is_late & ~is_stuck].tolist()),
    )


def bulk_ess(position: NDArray[Any]) -> NDArray[np.float64]:
    """Bulk effective sample size of each coefficient [coefficients], of draws [chains, draws, coefficients].

    NaN as in Diagnostics. Raises DiagnosticsError for draws that are not finite.
    """
    sizes = np.full(position.shape[2], np.nan)
    if position.shape[1] >= MINIMUM_DRAWS:
        names = {"ess_bulk"}
        for part, values in in_parts([position], names, lambda reduced: convergence_of(reduced, names)["ess_bulk"]):
            sizes[part] = values
    return sizes


def _judged(
    reduced: Reduced, wanted: set[str], superchain: NDArray[np.int64] | None, coefficients: int
) -> tuple[dict[str, NDArray[np.float64]], StuckEvidence | None, RhatNoise | None, NDArray[np.float64]]:
    """COLUMNS and NESTED, as far as they are wanted, what is seen of stuck chains, the noise of R-hat, and by how much
    chains are late in some of so many coefficients (`late_by_moments`)."""
    statistics = {column.name: column.of(reduced) for column in computed_columns(reduced.chains, reduced.draws)}
    noise = rhat_noise_of(reduced) if NOISE in wanted else None
    if superchain is not None:
        nested = nested_of(reduced, superchain)
        statistics[NESTED], noise = nested.rhat, nested.noise
    log_ratio = np.full(reduced.chains, np.inf)
    if reduced.values is not None:
        log_ratio = late_by_moments(reduced.values.mean, reduced.values.variance, coefficients)
    return statistics, evidence_of(reduced) if STUCK in wanted else None, noise, log_ratio


def _bounds(blocks: Sequence[DrawBlock]) -> list[tuple[int, int]]:
    """The numbers of each block's first coefficient, and of the one after its last."""
    ends = np.cumsum([block.shape[2] for block in blocks]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _within(parts: Sequence[tuple[slice, StuckEvidence]], first: int, last: int) -> Iterator[StuckEvidence]:
    """The evidence of the coefficients of one block."""
    for part, evidence in parts:
        low, high = max(part.start, first), min(part.stop, last)
        if low < high:
            yield evidence.of(slice(low - part.start, high - part.start))


def _count(values: NDArray[Any] | DrawBlock | None, counts: Callable[[NDArray[Any]], Any] = np.asarray) -> int:
    """The number of values that are true, or of which a function gives true."""
    return 0 if values is None else sum(int(np.count_nonzero(counts(part))) for *_, part in parts_of(as_block(values)))
