"""`check`: the quality of the draws of a run, and advice, from the result or a file of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.files.groups import AnyGroup, Group, dataset_in
from batchnuts.files.netcdf import plain
from batchnuts.mcmc.diagnostics.coefficient_parts import DiagnosticsError
from batchnuts.mcmc.diagnostics.diagnose import (
    Diagnostics,
    diagnose,
)
from batchnuts.mcmc.diagnostics.summary_without_draws import diagnosed
from batchnuts.mcmc.model.supports import elements_that_vary
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.mcmc.statistics.chain_numbers import named_chains, restarted_in_words
from batchnuts.mcmc.statistics.draw_blocks import VariableBlock, parts_of
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT
from batchnuts.mcmc.statistics.rounding import ROUNDING_LIMIT, coarse_of, vary_beyond_rounding
from batchnuts.settings.schema import in_words

if TYPE_CHECKING:
    pass

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
    `worst_rhat` is the R-hat that comes nearest to its limit, of those that decide: with few draws each coefficient has
    a limit of its own, and another R-hat may be larger. It and `min_ess` are NaN where they cannot be computed (see
    Diagnostics).
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
        diagnostics = self.diagnostics
        verb = "has" if len(diagnostics.late) == 1 else "have"
        late = f"; {named_chains(diagnostics.late)} {verb} draws far from all others" if diagnostics.late else ""
        size = f"{in_words(diagnostics.chains, 'chain')} x {in_words(diagnostics.draws, 'draw')}"
        return f"{head}: {size}{late}\n{self.lines()}"

    def __repr__(self) -> str:
        return str(self)

    def lines(self) -> str:
        """What was found, one line each, and then the advice."""
        lines = [self.diagnostics.verdict(), *filter(None, [self.restarted])]
        return "\n".join([*lines, *(f"-> {line}" for line in self.advice)])


def check(result: Any) -> Check:
    """Diagnose the draws of `sample_chains`, or those of a file of it that ArviZ has opened.

    result: InferenceData, a DataTree, or another mapping of group names to datasets, with `posterior` and, for
    divergences and tree depths, `sample_stats`; of a run whose draws were not kept, with `summary`. Raises
    DiagnosticsError for anything else and for no draws.
    """
    posterior, summary = dataset_in(result, "posterior"), dataset_in(result, "summary")
    if posterior is None and summary is not None and "ess_mean" in summary:
        return judge(diagnosed(summary), made_by(summary.attrs))
    if posterior is None or not {"chain", "draw"} <= set(posterior.dims):
        raise DiagnosticsError(
            f"check takes the result of sample_chains, or what arviz.from_netcdf gives; found {type(result).__name__} "
            "without a group 'posterior' of dimensions chain and draw. (Of many fits give one, results[label]; "
            "results.table has the verdict of each.)"
        )
    if not posterior.sizes["draw"]:
        raise DiagnosticsError("No draw was completed by every chain; the group 'unfinished' has the draws so far.")
    diagnostics = diagnose_groups(posterior, dataset_in(result, "sample_stats"))
    return judge(diagnostics, made_by(posterior.attrs))


def diagnose_groups(posterior: AnyGroup, stats: AnyGroup | None) -> Diagnostics:
    """Diagnose the variables of a group of draws, but for elements that never vary: zeros of triangular matrices.

    The attribute `superchains` of the group says how many superchains its chains form, by their numbers.
    Of generated quantities those are left out that are constant but for rounding, and those that are not finite
    everywhere.
    """
    posterior = _as_group(posterior)
    arrays = {} if stats is None else _as_group(stats).arrays
    flags: dict[str, Any] = {}
    for name in ("diverging", "reached_max_treedepth"):
        if name in arrays:
            flags[name] = VariableBlock(arrays[name].ordered("chain", "draw"))
    numbers = posterior.labels("chain")
    flags["numbers"] = numbers
    if (count := int(posterior.attrs.get("superchains", 0))) > 1:
        flags["superchain"] = superchain_of(int(numbers.max()) + 1, count)[numbers]
    if "max_energy_error" in arrays and "diverging" in arrays:
        flags["left_support"] = VariableBlock(arrays["max_energy_error"].ordered("chain", "draw"))
    if "lp" in arrays:
        flags["log_density"] = VariableBlock(arrays["lp"].ordered("chain", "draw"))
    judged, not_finite = _judged(posterior)
    result = diagnose(
        [variable.block for variable in judged], [name for variable in judged for name in variable.names], **flags
    )
    # quantities that are generated may lie near a number by what they are, as a probability near 1
    dtypes = [None if variable.generated else variable.block.dtype for variable in judged for _ in variable.names]
    coarse = coarse_of(result.names, result.columns["mean"], result.columns["sd"], dtypes)
    return replace(result, not_finite=not_finite, coarse=coarse)


@dataclass(frozen=True, eq=False)
class _Judged:
    """The coefficients of one variable that are judged."""

    block: VariableBlock
    names: list[str]
    """Names of its coefficients."""
    generated: bool


def coefficients(posterior: AnyGroup, judged: Collection[str] | None = None) -> tuple[list[VariableBlock], list[str]]:
    """Blocks [chain, draw, coefficients] of a group of draws, one of each variable, and the names of all coefficients.

    Without those that `diagnose_groups` leaves out. Of a group that was opened lazily no draws stay in memory; those of
    generated quantities are read once, but not where `judged` has the names of all that were diagnosed.
    """
    variables, _ = _judged(_as_group(posterior), judged)
    return [variable.block for variable in variables], [name for variable in variables for name in variable.names]


def _judged(posterior: Group, judged: Collection[str] | None = None) -> tuple[list[_Judged], dict[str, int | None]]:
    """The same by variable; and of how many draws the generated quantities that are left out are not finite."""
    judged_names = None if judged is None else frozenset(judged)
    variables: list[_Judged] = []
    not_finite: dict[str, int | None] = {}
    for variable, array in posterior.arrays.items():
        axes = [d for d in array.dims if d not in ("chain", "draw")]
        ordered = array.ordered("chain", "draw", *axes)
        block = VariableBlock(ordered)
        names = labelled_elements(variable, [posterior.labels(d) for d in axes])
        generated = bool(array.attrs.get("generated"))
        varies = elements_that_vary(array.attrs.get("support", ""), ordered.shape[2:]).reshape(-1)
        if generated and judged_names is not None:
            varies = np.array([name in judged_names for name in names], bool)
        elif generated:
            varies, bad = _vary(block)
            not_finite |= {name: int(count) for name, count in zip(names, bad, strict=True) if count}
        if not varies.all():
            block = VariableBlock(ordered, np.flatnonzero(varies))
            names = list(itertools.compress(names, varies))
        variables.append(_Judged(block, names, generated))
    return variables, not_finite


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
    """The dtype of the position."""
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


def judge(diagnostics: Diagnostics, run: RunMade | None = None) -> Check:
    """The verdict that follows from diagnostics. run: None where nothing is known of it."""
    run = run or RunMade()
    ess = diagnostics.ess
    lowest = float(np.nanmin(ess)) if np.isfinite(ess).any() else float("nan")
    if diagnostics.draws < MINIMUM_DRAWS and diagnostics.nested is not None and diagnostics.converged:
        lowest = float(diagnostics.chains)
    rounded = diagnostics.rounding > ROUNDING_LIMIT
    diverged, cut = diagnostics.divergent_share > DIVERGENCE_SHARE, diagnostics.cut_share > CUT_SHARE
    return Check(
        diagnostics=diagnostics,
        interrupted=run.interrupted,
        ok=bool(diagnostics.converged)
        and lowest >= ESS_LIMIT
        and not (diverged or cut or rounded or diagnostics.coarse),
        worst_rhat=float("nan") if diagnostics.worst is None else float(diagnostics.deciding_rhat[diagnostics.worst]),
        min_ess=lowest,
        divergences=diagnostics.divergences,
        advice=tuple(_advice(diagnostics, run, lowest)),
        restarted=run.restarted,
    )


def _advice(diagnostics: Diagnostics, run: RunMade, lowest: float) -> Iterator[str]:
    """What to do, most urgent first; lowest: the minimum effective size."""
    if run.interrupted:
        yield "The run was interrupted: there are fewer draws than were asked for."
    if diagnostics.rounding > ROUNDING_LIMIT:  # before what else it may be the cause of
        yield (
            f"The log-density is rounded by {diagnostics.rounding:.2g}, so that states are accepted wrongly: compute "
            "it in "
            'float64 (dtype="float64" of the model, model.dtype=float64 in a config), or leave out its constant terms.'
        )
    if diagnostics.coarse:
        yield (
            f"The draws of {diagnostics.coarse[0]} are rounded to few values: sample in float64 "
            '(dtype="float64" of the model, model.dtype=float64 in a config), or the difference from a number near its '
            "mean."
        )
    if diagnostics.converged is None:
        yield f"Convergence cannot be assessed: run at least 2 chains with {MINIMUM_DRAWS} draws each."
    if diagnostics.late:
        yield (
            f"{named_chains(diagnostics.late).capitalize()} {'has' if len(diagnostics.late) == 1 else 'have'} draws "
            "far from all others: if the log-density rises in the first of them, make warmup longer "
            "(sampler.warmup.minimum, or sampler.warmup.transitions where its length is fixed); if not, other chains "
            "may not have been there yet: double draws."
        )
    if diagnostics.low or (diagnostics.stuck and diagnostics.running):
        numbers = diagnostics.low or diagnostics.stuck
        yield (
            f"{named_chains(numbers).capitalize()} {'is' if len(numbers) == 1 else 'are'} stuck away from the others: "
            "sampler.warmup.restart=true (in Python warmup={'restart': True}) restarts those that are stuck in "
            "warmup near others; if the region they found matters, reparametrize the model."
        )
    elif diagnostics.high:
        where = diagnostics.names[diagnostics.furthest[0]] if diagnostics.furthest else "their draws"
        yield (
            f"{named_chains(diagnostics.high).capitalize()} {'has' if len(diagnostics.high) == 1 else 'have'} a far "
            f"higher log-density than the others: look at {where} there. If such values make no sense, bound that "
            "parameter, or give it a prior that rules them out, or start elsewhere (sampler.init); if they do, the "
            "other chains have not found this mode."
        )
    elif diagnostics.stuck:
        stay = "stays" if len(diagnostics.stuck) == 1 else "stay"
        yield (
            f"{named_chains(diagnostics.stuck).capitalize()} {stay} where others do not go: look at their draws; "
            "reparametrize the model, so that chains cross from one part of the posterior to another."
        )
    if diagnostics.converged is False and (diagnostics.persists or not diagnostics.agrees):
        yield _on_disagreement(diagnostics, run)
    if lowest < ESS_LIMIT:
        goal = f"the minimum {diagnostics.size_in_words} is {ESS_LIMIT}"
        if run.until is None:
            yield f"There are few effective draws: raise draws until {goal}."
        else:
            yield f"There are few effective draws: set sampler.until.ess_bulk to {ESS_LIMIT} or more, so that {goal}."
    many = diagnostics.divergent_share > DIVERGENCE_SHARE
    inside = diagnostics.divergences - diagnostics.left_support
    if many and inside >= min(diagnostics.left_support, DIVERGENCE_SHARE * diagnostics.chains * diagnostics.draws):
        higher = [target for target in (0.9, 0.95, 0.99, 0.999) if target > (run.target_acceptance or 0.0)]
        raised = f"raise target_acceptance ({', '.join(f'{target:g}' for target in higher[:2])}), or " if higher else ""
        yield f"Some trajectories diverged: {raised}reparametrize the model."
    if (ran_into := many and diagnostics.left_support > inside // 2) or run.starts_not_numbers:
        problem = "Trajectories reached places where the log-density or its gradient is not finite"
        if not ran_into:
            problem = (
                f"At {run.starts_not_numbers} of {diagnostics.chains} proposed initial positions, which were drawn "
                "again, the log-density was not a number"
            )
        yield (
            f"{problem}: declare supports (batchnuts.positive() for a scale), or keep the arguments of logarithms and "
            "roots out of such places."
            + (
                " Or they lie within the posterior and come from rounding, as in the Cholesky factor of a nearly "
                "singular matrix: compute "
                'in float64 (dtype="float64" of the model, model.dtype=float64 in a config).'
                if ran_into and run.dtype == "float32"
                else ""
            )
        )
    if diagnostics.cut_share > LONG_TREE_SHARE:
        yield (
            "Many trajectories were cut off at max_tree_depth: "
            + ("set sampler.metric to low_rank or dense if variables are correlated, " if run.metric == "diag" else "")
            + "bring the variables to similar scales, or raise it."
        )


def _on_disagreement(diagnostics: Diagnostics, run: RunMade) -> str:
    """What to do where R-hat is above its limit, or differences between chains last."""
    kind = "R-hat" if diagnostics.nested is None else "nested R-hat"
    symptom = f"{kind} above {diagnostics.limit:.4g}" if not diagnostics.agrees else "differences between them persist"
    if run.until is None:
        more = "double draws, and warmup where its length is fixed"
    elif (rhat_limit := run.until.get("rhat")) is None:
        more = f"add sampler.until.rhat={RHAT_LIMIT:g}, which continues the run until they do"
    elif float(rhat_limit) > RHAT_LIMIT:
        more = f"lower sampler.until.rhat from {float(rhat_limit):g} to {RHAT_LIMIT:g}"
    else:
        more = "raise sampler.until.ess_bulk, so that there are more draws"
    remedy = (
        "chains are stuck in different places: reparametrize the model"
        if diagnostics.stuck or diagnostics.persists
        else "the posterior may have several modes, or need another parametrization"
    )
    return f"The chains do not agree ({symptom}): {more}. If that changes little, {remedy}."


def _as_group(group: AnyGroup) -> Group:
    """Names are those of the file: labels that xarray writes, times say, are as it has them."""
    if isinstance(group, Group):
        return group if plain(group) else Group.of_dataset(group.dataset())
    return Group.of_dataset(group)


def labelled_elements(name: str, labels: list[Any]) -> list[str]:
    """The names of the elements of one variable: its own, with the labels of each entry in brackets."""
    if not labels:
        return [name]
    return [f"{name}[{', '.join(map(str, entry))}]" for entry in itertools.product(*labels)]
