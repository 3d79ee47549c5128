"""`check`: the quality of the draws of a run, and advice, from the result or a file of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.files.groups import AnyGroup, Group
from batchnuts.files.netcdf import plain
from batchnuts.mcmc.diagnostics.diagnose import (
    Diagnostics,
    DiagnosticsError,
    diagnose,
)
from batchnuts.mcmc.diagnostics.summary_group import diagnosed
from batchnuts.mcmc.model.supports import elements_that_vary
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.mcmc.statistics.chain_numbers import named_chains, restarted_in_words
from batchnuts.mcmc.statistics.draw_blocks import VariableBlock, parts_of
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT
from batchnuts.mcmc.statistics.rounding import ROUNDING_LIMIT, coarse_of, vary_beyond_rounding
from batchnuts.settings.schema import in_words

if TYPE_CHECKING:
    import xarray

ESS_LIMIT = 400
"""Bulk ESS, over all chains together, from which on R-hat and standard errors can be trusted."""

DIVERGENCE_SHARE = 0.002
"""Share of draws whose trajectory diverged, above which they do not represent the posterior. A region that trajectories
cannot enter, and that holds this share of the posterior three standard deviations from its mean, moves the mean by
0.006 standard deviations: the Monte Carlo error of 28,000 effective draws. A single divergence among thousands is no
more than rounding may give."""

LONG_TREE_SHARE = 0.01
"""Share of draws whose tree reached its maximum depth, above which this slows sampling."""

CUT_SHARE = 0.25
"""The same above which the verdict fails. Trajectories that are cut off leave the posterior as it is, and effective
sizes say what they cost, as long as three of four are long enough to turn back. With more of them chains diffuse along
what is longest, which may take more draws than there are, and no statistic shows what chains have not seen."""


@dataclass(frozen=True, eq=False, repr=False)
class Check:
    """The verdict on a run; `print` shows all of it. `diagnostics` has R-hat, ESS and the rest of every coefficient.

    `ok` is True if R-hat (nested R-hat, where chains form superchains) is below 1.01 or what chance allows so few draws
    (rhat_noise.py), no chain is stuck away from others (stuck_chains.py) or has draws far from them
    (late_chains.py), the bulk ESS is at least 400 on all coefficients, at most one draw in 500 diverged, at most one
    in 4 had its trajectory cut off at the maximum depth, and neither the log-density is rounded by more than 0.05
    (`Diagnostics.rounding`) nor draws to few values (`coarse`).
    `worst_rhat` is of the R-hat that decides. It and `min_ess` are NaN where they cannot be computed (see Diagnostics).
    With fewer than 4 draws of each chain, `min_ess` is the number of chains where nested R-hat is below its limit:
    draws of different chains are independent then. `advice` is empty if all is well.
    """

    diagnostics: Diagnostics
    interrupted: bool
    ok: bool
    worst_rhat: float
    min_ess: float
    divergences: int
    advice: tuple[str, ...]
    restarted: str = ""
    """Which chains started again in warmup, in words."""

    def __str__(self) -> str:
        head = "OK" if self.ok else "NOT OK"
        found = self.diagnostics
        has = "has" if len(found.late) == 1 else "have"
        late = f"; {named_chains(found.late)} {has} draws far from all others" if found.late else ""
        return f"{head}: {in_words(found.chains, 'chain')} x {in_words(found.draws, 'draw')}{late}\n{self.lines()}"

    def __repr__(self) -> str:
        return str(self)

    def lines(self) -> str:
        """What was found, one line each, and then the advice."""
        found = [self.diagnostics.verdict(), *filter(None, [self.restarted])]
        return "\n".join([*found, *(f"-> {line}" for line in self.advice)])


def check(result: Any) -> Check:
    """Judge the draws of `sample_chains`, or those of a file of it that ArviZ has opened.

    result: InferenceData, a DataTree, or another mapping of group names to datasets, with `posterior` and, for
    divergences and tree depths, `sample_stats`; of a run whose draws were not kept, with `summary`. Raises
    DiagnosticsError for anything else and for no draws.
    """
    posterior, summary = _group(result, "posterior"), _group(result, "summary")
    if posterior is None and summary is not None and "ess_mean" in summary:
        return judge(diagnosed(summary), made_by(summary.attrs))
    if posterior is None or not {"chain", "draw"} <= set(posterior.dims):
        raise DiagnosticsError(
            f"check takes the result of sample_chains, or what arviz.from_netcdf gives; found {type(result).__name__} "
            "without a group 'posterior' of dimensions chain and draw."
        )
    if not posterior.sizes["draw"]:
        raise DiagnosticsError("There is no draw that every chain has; see the group 'unfinished' for those that are.")
    found = diagnose_groups(posterior, _group(result, "sample_stats"))
    return judge(found, made_by(posterior.attrs))


def diagnose_groups(posterior: AnyGroup, stats: AnyGroup | None) -> Diagnostics:
    """Diagnose the variables of a group of draws, but for elements that never vary: zeros of triangular matrices.

    The attribute `superchains` of the group says how many superchains its chains form, by their numbers.
    Of generated quantities those are left out that are constant but for rounding, and those that are not finite
    everywhere.
    """
    posterior = _as_group(posterior)
    found = {} if stats is None else _as_group(stats).arrays
    flags: dict[str, Any] = {}
    for name in ("diverging", "reached_max_treedepth"):
        if name in found:
            flags[name] = VariableBlock(found[name].ordered("chain", "draw"))
    numbers = posterior.labels("chain")
    flags["numbers"] = numbers
    if (count := int(posterior.attrs.get("superchains", 0))) > 1:
        flags["superchain"] = superchain_of(int(numbers.max()) + 1, count)[numbers]
    if "max_energy_error" in found and "diverging" in found:
        flags["left_support"] = VariableBlock(found["max_energy_error"].ordered("chain", "draw"))
    if "lp" in found:
        flags["log_density"] = VariableBlock(found["lp"].ordered("chain", "draw"))
    judged, not_finite = _judged(posterior)
    result = diagnose([one.block for one in judged], [name for one in judged for name in one.names], **flags)
    # quantities that are generated may lie near a number by what they are, as a probability near 1
    dtypes = [None if one.generated else one.block.dtype for one in judged for _ in one.names]
    coarse = coarse_of(result.names, result.columns["mean"], result.columns["sd"], dtypes)
    return replace(result, not_finite=not_finite, coarse=coarse)


@dataclass(frozen=True, eq=False)
class _Judged:
    """What is judged of one variable."""

    block: VariableBlock
    names: list[str]
    """Of its coefficients."""
    generated: bool


def coefficients(posterior: AnyGroup, judged: Collection[str] | None = None) -> tuple[list[VariableBlock], list[str]]:
    """Blocks [chain, draw, coefficients] of a group of draws, one of each variable, and the names of all coefficients.

    Without those that `diagnose_groups` leaves out. Of a group that was opened lazily no draws stay in memory; those of
    generated quantities are read once, but not where `judged` has the names of all that were diagnosed.
    """
    found, _ = _judged(_as_group(posterior), judged)
    return [one.block for one in found], [name for one in found for name in one.names]


def _judged(posterior: Group, judged: Collection[str] | None = None) -> tuple[list[_Judged], dict[str, int | None]]:
    """The same by variable; and of how many draws the generated quantities that are left out are not finite."""
    known = None if judged is None else frozenset(judged)
    kept: list[_Judged] = []
    not_finite: dict[str, int | None] = {}
    for variable, array in posterior.arrays.items():
        rest = [d for d in array.dims if d not in ("chain", "draw")]
        ordered = array.ordered("chain", "draw", *rest)
        block = VariableBlock(ordered)
        names = labelled_elements(variable, [posterior.labels(d) for d in rest])
        generated = bool(array.attrs.get("generated"))
        varies = elements_that_vary(array.attrs.get("support", ""), ordered.shape[2:]).reshape(-1)
        if generated and known is not None:
            varies = np.array([name in known for name in names], bool)
        elif generated:
            varies, bad = _vary(block)
            not_finite |= {name: int(count) for name, count in zip(names, bad, strict=True) if count}
        if not varies.all():
            block = VariableBlock(ordered, np.flatnonzero(varies))
            names = list(itertools.compress(names, varies))
        kept.append(_Judged(block, names, generated))
    return kept, not_finite


def _vary(block: VariableBlock) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """[coefficients]: which are finite in all draws, and not the same in all but for rounding; and in how many draws
    they are not finite."""
    count = block.shape[2]
    bad, low, high = np.zeros(count, np.int64), np.full(count, np.inf), np.full(count, -np.inf)
    for _, _, columns, values in parts_of(block):
        bad[columns] += (~np.isfinite(values)).sum(axis=(0, 1))
        low[columns] = np.minimum(low[columns], values.min(axis=(0, 1)))
        high[columns] = np.maximum(high[columns], values.max(axis=(0, 1)))
    return (bad == 0) & vary_beyond_rounding(low, high, block.dtype), bad


@dataclass(frozen=True)
class RunMade:
    """How the draws were made, as far as it is known: what advice may name."""

    interrupted: bool = False
    target_acceptance: float | None = None
    metric: str | None = None
    dtype: str | None = None
    """Of the position."""
    until: Mapping[str, Any] | None = None
    """The settings `sampler.until` of a run that they ended."""
    starts_not_numbers: int = 0
    """Of the starts that were proposed first, those at which the log-density is not a number."""
    restarted: str = ""
    """Which chains started again in warmup, in words."""


def made_by(attributes: Mapping[Any, Any]) -> RunMade:
    """That of a run, from the attributes of its groups; a file of another program has none of them."""
    try:
        sampler = json.loads(str(attributes.get("config", "{}")))["sampler"]
        until = sampler["until"] if attributes.get("sampling_ended") else None
        target, metric = float(sampler["target_acceptance"]), str(sampler["metric"])
        warmup = sampler["warmup"]
    except (ValueError, KeyError, TypeError):
        target, metric, until, warmup = None, None, None, None
    restart = warmup.get("restart") if isinstance(warmup, Mapping) else "auto"
    numbers = str(attributes.get("restarted_chains", "")).split(", ")
    restarted = [int(number) for number in numbers if number.isdecimal()]
    return RunMade(
        bool(attributes.get("interrupted", 0)),
        target,
        metric,
        attributes.get("dtype"),
        until if isinstance(until, Mapping) else None,
        int(attributes.get("starts_not_numbers", 0)),
        restarted_in_words(restarted, restart),
    )


def judge(found: Diagnostics, made: RunMade | None = None) -> Check:
    """The verdict that follows from what was diagnosed. made: None where nothing is known."""
    made = made or RunMade()
    ess = found.ess
    rhat = found.deciding_rhat
    lowest = float(np.nanmin(ess)) if np.isfinite(ess).any() else float("nan")
    if found.draws < MINIMUM_DRAWS and found.nested is not None and found.converged:
        lowest = float(found.chains)
    worst = float(np.nanmax(rhat)) if np.isfinite(rhat).any() else float("nan")
    rounded = found.rounding > ROUNDING_LIMIT
    diverged, cut = found.divergent_share > DIVERGENCE_SHARE, found.cut_share > CUT_SHARE
    return Check(
        diagnostics=found,
        interrupted=made.interrupted,
        ok=bool(found.converged) and lowest >= ESS_LIMIT and not (diverged or cut or rounded or found.coarse),
        worst_rhat=worst,
        min_ess=lowest,
        divergences=found.divergences,
        advice=tuple(_advice(found, made, lowest)),
        restarted=made.restarted,
    )


def _advice(found: Diagnostics, made: RunMade, lowest: float) -> Iterator[str]:
    """What to do, most urgent first; lowest: the minimum effective size."""
    if made.interrupted:
        yield "The run was interrupted: there are fewer draws than were asked for."
    if found.rounding > ROUNDING_LIMIT:  # before what else it may be the cause of
        yield (
            f"The log-density is rounded by {found.rounding:.2g}, so that states are accepted wrongly: compute it in "
            'float64 (dtype="float64" of the model, model.dtype=float64 in a config), or leave out its constant terms.'
        )
    if found.coarse:
        yield (
            f"The draws of {found.coarse[0]} are rounded to few values: sample in float64 "
            '(dtype="float64" of the model, model.dtype=float64 in a config), or the difference from a number near its '
            "mean."
        )
    if found.converged is None:
        yield f"Convergence cannot be judged: run at least 2 chains with {MINIMUM_DRAWS} draws each."
    if found.late:
        yield (
            f"{named_chains(found.late).capitalize()} {'has' if len(found.late) == 1 else 'have'} draws far from all "
            "others: if the log-density rises in the first of them, make warmup longer (sampler.warmup.minimum, or "
            "sampler.warmup.transitions where its length is fixed); if not, others may not have been there yet: double "
            "draws."
        )
    if found.low or (found.stuck and found.running):
        numbers = found.low or found.stuck
        yield (
            f"{named_chains(numbers).capitalize()} {'is' if len(numbers) == 1 else 'are'} stuck apart from the others: "
            "sampler.warmup.restart=true (in Python warmup={'restart': True}) starts those that are stuck in warmup "
            "again, near others; if what they found matters, reparametrize the model."
        )
    elif found.stuck:
        stay = "stays" if len(found.stuck) == 1 else "stay"
        yield (
            f"{named_chains(found.stuck).capitalize()} {stay} where others do not come: look at their draws; "
            "reparametrize the model, so that chains cross from one part of the posterior to another."
        )
    if found.converged is False and (found.persists or not found.agrees):
        yield _on_disagreement(found, made)
    if lowest < ESS_LIMIT:
        wanted = f"the minimum {found.size_in_words} is {ESS_LIMIT}"
        if made.until is None:
            yield f"There are few effective draws: raise draws until {wanted}."
        else:
            yield f"There are few effective draws: set sampler.until.ess_bulk to {ESS_LIMIT} or more, so that {wanted}."
    many = found.divergent_share > DIVERGENCE_SHARE
    inside = found.divergences - found.left_support
    if many and inside >= min(found.left_support, DIVERGENCE_SHARE * found.chains * found.draws):
        higher = [target for target in (0.9, 0.95, 0.99, 0.999) if target > (made.target_acceptance or 0.0)]
        raised = f"raise target_acceptance ({', '.join(f'{target:g}' for target in higher[:2])}), or " if higher else ""
        yield f"Some trajectories diverged: {raised}reparametrize the model."
    if (ran_into := many and found.left_support > inside // 2) or made.starts_not_numbers:
        where = "Trajectories ran into places where the log-density or its gradient is not a finite number"
        if not ran_into:
            where = (
                f"At {made.starts_not_numbers} of {found.chains} starts that were proposed, and drawn again, the "
                "log-density was not a number"
            )
        yield (
            f"{where}: declare where values lie (batchnuts.positive() for a scale), or keep arguments of logarithms "
            "and roots out of such places."
            + (
                " Or they lie within the posterior, and are rounded so, as the Cholesky factor of a nearly singular "
                'matrix is: compute in float64 (dtype="float64" of the model, model.dtype=float64 in a config).'
                if ran_into and made.dtype == "float32"
                else ""
            )
        )
    if found.cut_share > LONG_TREE_SHARE:
        yield (
            "Many trajectories were cut off at max_tree_depth: "
            + ("set sampler.metric to low_rank or dense if variables are correlated, " if made.metric == "diag" else "")
            + "bring the variables to similar scales, or raise it."
        )


def _on_disagreement(found: Diagnostics, made: RunMade) -> str:
    """What to do where R-hat is above its limit, or differences between chains last."""
    of = "R-hat" if found.nested is None else "nested R-hat"
    what = f"{of} above {found.limit:.4g}" if not found.agrees else "differences between them last"
    if made.until is None:
        more = "double draws, and warmup where its length is fixed"
    elif (asked := made.until.get("rhat")) is None:
        more = f"add sampler.until.rhat={RHAT_LIMIT:g}, which lets the run go on until they do"
    elif float(asked) > RHAT_LIMIT:
        more = f"lower sampler.until.rhat from {float(asked):g} to {RHAT_LIMIT:g}"
    else:
        more = "raise sampler.until.ess_bulk, so that there are more draws"
    rest = (
        "chains are stuck in different places: reparametrize the model"
        if found.stuck or found.persists
        else "the posterior may have several modes, or need another parametrization"
    )
    return f"The chains do not agree ({what}): {more}. If that changes little, {rest}."


def _as_group(group: AnyGroup) -> Group:
    """Names are those of the file: labels that xarray writes, times say, are as it has them."""
    if isinstance(group, Group):
        return group if plain(group) else Group.of_dataset(group.dataset())
    return Group.of_dataset(group)


def _group(result: Any, name: str) -> xarray.Dataset | None:
    try:
        group = result[name]
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        return None
    if hasattr(group, "children"):  # a node of a DataTree, which has no numbers for a dimension without labels
        group = group.to_dataset(inherit=False)
    return group if hasattr(group, "data_vars") else None


def labelled_elements(name: str, labels: list[Any]) -> list[str]:
    """The names of the elements of one variable: its own, with the labels of each entry in brackets."""
    if not labels:
        return [name]
    return [f"{name}[{', '.join(map(str, entry))}]" for entry in itertools.product(*labels)]
