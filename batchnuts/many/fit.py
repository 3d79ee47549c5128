"""One fit among many, its row in the table of fits, and what is kept of its draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.files.groups import Group
from batchnuts.many.data_sets import DataSet, Label
from batchnuts.mcmc.diagnostics.verdict import Check, RunMade, diagnose_groups, judge
from batchnuts.mcmc.execution.evaluation import ProgramGradients
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.data_argument import types_of
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.quantities import Quantities
from batchnuts.mcmc.run.prepared import PreparedModel, prepare
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.storage.draws import Draws, RunFailed
from batchnuts.mcmc.storage.layout import Layout
from batchnuts.process.signals import StopSignals
from batchnuts.settings.schema import nearest

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that summaries have."""

SUMMARIES: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "mean": lambda draws: draws.mean(axis=0),
    "sd": lambda draws: draws.std(axis=0, ddof=1),
    "quantiles": lambda draws: np.quantile(draws, QUANTILES, axis=0),
}
"""What may be kept of draws [n, ...] of all chains, in float64."""

DRAWS, RANKS, HELD_OUT = "draws", "ranks", "held_out"
"""What may be kept besides: all draws; the ranks of true values among draws; log-likelihoods of data held out."""

LOG_DENSITY = "log_density"
"""The name of the log-density among ranks."""

GROUPS = ("posterior", "sample_stats", "log_likelihood", "posterior_predictive")
"""The groups of draws that are kept."""


Named = tuple[tuple[str, ...], NDArray[Any]]
"""The axes of an array, and the array."""

Summaries = dict[str, dict[str, Named]]
"""By what is kept, variables by name: each with its axes and an array."""


@dataclass(frozen=True)
class FitSettings:
    """What all fits of a run have in common; it is sent to other processes."""

    model: Model
    sampler: SamplerSettings
    """Of each fit; its seed is the run's, of which each fit makes its own."""
    execution: ExecutionSettings
    content: Content
    keep: frozenset[str]
    """Of the names of SUMMARIES, DRAWS, RANKS and HELD_OUT."""
    tuning: Tuning | None = None
    """Of an earlier run, from which the warmup of each fit starts whose model has the same variables."""


@dataclass(frozen=True)
class Row:
    """What the table of fits says of one."""

    label: Label
    seed: int
    ok: bool = False
    """The verdict; False for a fit that failed."""
    worst_rhat: float = np.nan
    min_ess: float = np.nan
    divergences: int = 0
    draws: int = 0
    """Of each chain."""
    warmup: int = 0
    """Transitions of each chain before."""
    gradients: int = 0
    seconds: float = 0.0
    ended: str = ""
    """Why sampling ended, if it was not at the last draw."""
    advice: str = ""
    """What the verdict advises first."""
    failed: str = ""
    """Why there are no draws."""
    digest: str = ""
    """Of what the fit was given."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit that has ended, well or not."""

    number: int
    row: Row
    groups: Mapping[str, Group] = field(default_factory=dict)
    """Of its draws, where they are kept."""
    summaries: Summaries = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Of axes, by name."""


def seed_of(seed: int, number: int) -> int:
    """The seed of a fit, which depends on the run's seed and the fit's number alone."""
    (word,) = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
    return int(word >> np.uint64(1))


@dataclass
class Fitter:
    """Makes fits one after another in this process; programs are compiled for each new shape of data.

    wanted: how many shapes' programs are kept.
    """

    settings: FitSettings
    wanted: int = 8
    _prepared: dict[Any, tuple[PreparedModel, Layout]] = field(default_factory=dict)
    """By the types of data."""
    _of_argument: dict[Any, Model | None] = field(default_factory=dict)
    """By the types of data, a model of another library that takes data as an argument; None where it cannot."""
    _held_out_quantities: dict[Any, Quantities] = field(default_factory=dict)

    def fit(self, data_set: DataSet) -> Fit:
        """The fit of a data set; errors of its data, density and starts are its own."""
        began = time.perf_counter()
        seed = seed_of(self.settings.sampler.seed, data_set.number)
        row = Row(data_set.label, seed, digest=data_set.digest)
        if data_set.problem:
            return Fit(data_set.number, _failed(row, data_set.problem, began))
        try:
            model = self._with_data(data_set.data)
            prepared, layout = self._prepare(model)
            tuning = self.settings.tuning if model.variables == self.settings.model.variables else None
            draws = prepared.draws(model, seed, _no_progress, StopSignals(), tuning)
            return self._kept(data_set, row, draws, prepared, layout.of_other(model, seed), began)
        except _NotPrepared as error:
            raise error.cause from None
        except RunFailed as error:
            self._prepared.clear()  # their programs are in an unknown state
            return Fit(data_set.number, _failed(row, str(error.cause), began))
        except BatchnutsError as error:
            return Fit(data_set.number, _failed(row, str(error), began))
        except Exception as error:  # of a function of the user's, say: the other fits go on
            self._prepared.clear()
            return Fit(data_set.number, _failed(row, f"{type(error).__name__}: {error}", began))

    def _with_data(self, data: Any) -> Model:
        """The model with other data: as an argument of its functions, if it can take them so."""
        model = self.settings.model
        if model.remade is None or model.remade.of_argument is None:
            return model.with_data(data)
        whole = model.remade.whole(f"Model {model.name!r}", data)
        types = types_of(whole)
        if types not in self._of_argument:
            _make_room(self._of_argument, self.wanted)
            self._of_argument[types] = model.remade.of_argument(whole)
        taking = self._of_argument[types]
        return model.with_data(data) if taking is None else taking.with_data(whole)

    def _prepare(self, model: Model) -> tuple[PreparedModel, Layout]:
        settings, types = self.settings, types_of(model.data)
        if model.remade is not None:  # another density
            prepared = prepare(model, settings.sampler, settings.execution, settings.content)
            return prepared, Layout(model, settings.content, prepared.execution, settings.sampler.seed)
        if types not in self._prepared:
            _make_room(self._prepared, self.wanted)
            example = settings.model if types == types_of(settings.model.data) else model
            try:
                prepared = prepare(example, settings.sampler, settings.execution, settings.content)
            except BatchnutsError as error:
                if example is settings.model:  # with its own data: no fit can be made
                    raise _NotPrepared(error) from error
                raise
            layout = Layout(example, settings.content, prepared.execution, settings.sampler.seed)
            self._prepared[types] = prepared, layout
        return self._prepared[types]

    def _kept(
        self, data_set: DataSet, row: Row, draws: Draws, prepared: PreparedModel, layout: Layout, began: float
    ) -> Fit:
        if not draws.complete:
            raise ModelError("No draw was completed by every chain.")
        groups, keep = groups_of(draws, layout), self.settings.keep
        if layout.left_out is not None:
            raise ModelError(layout.left_out)
        check = judge(diagnose_groups(groups["posterior"], groups["sample_stats"]), _made(draws))
        summaries = summaries_of(groups["posterior"], keep)
        if RANKS in keep:
            summaries[RANKS] = self._ranks(data_set, groups, prepared, layout.model)
        if HELD_OUT in keep:
            summaries[HELD_OUT] = self._held_out(data_set, draws, prepared, layout.model)
        kept = {name: groups[name] for name in GROUPS if name in groups} if DRAWS in keep else {}
        labels = {
            dim: named.values
            for group in groups.values()
            for dim, named in group.coords.items()
            if dim not in ("chain", "draw")
        }
        return Fit(data_set.number, _ended(row, draws, check, began), kept, summaries, labels)

    def _ranks(
        self, data_set: DataSet, groups: Mapping[str, Group], prepared: PreparedModel, model: Model
    ) -> dict[str, Named]:
        """The ranks of the true values among the draws; of their log-density too, where all of them are known."""
        truth, found = dict(data_set.truth or {}), {}
        posterior = groups["posterior"].arrays
        for name, value in truth.items():
            if name not in posterior:
                hint = nearest(name, posterior) or "."
                raise ModelError(f"there are no draws of {name!r}, whose true value is known{hint}")
            axes, draws = flat_draws(posterior[name])
            found[name] = axes, rank_of(draws, value)
        if all(name in truth for name in model.value_shapes):
            programs, execution = prepared.programs, prepared.execution
            gradients = ProgramGradients(model, programs.evaluate, execution, outlined=programs.outlined)
            position = model.unconstrain({name: truth[name] for name in model.value_shapes})
            log_density, _ = gradients.evaluate(position[None])
            _, draws = flat_draws(groups["sample_stats"].arrays["lp"])
            found[LOG_DENSITY] = (), rank_of(draws, log_density[0])
        return found

    def _held_out(self, data_set: DataSet, draws: Draws, prepared: PreparedModel, fitted: Model) -> dict[str, Named]:
        """The log of the mean likelihood of each observation that the fit has not seen, over its draws."""
        model = self._with_data(data_set.held_out)
        model = model.without({"predictive", "prior", *(["generated"] if model.reports_variables else [])})
        if not model.variables == fitted.variables == self.settings.model.variables:
            raise ModelError(
                "its variables have other shapes without the observations that are left out; cross-validation needs "
                "variables that do not depend on the number of observations."
            )
        types = types_of(model.data)
        if types not in self._held_out_quantities or model.data is None:  # data of its own are in the program
            self._held_out_quantities[types] = Quantities(model, prepared.execution, 0, checked=False)
        quantities = self._held_out_quantities[types].of_other(model, 0)
        position = draws.rectangle(draws.position)
        log_likelihood = quantities.of_posterior(position.reshape(-1, position.shape[2]))["log_likelihood"]
        return {
            name: (tuple(f"{name}_dim_{axis}" for axis in range(values.ndim - 1)), log_mean_exp(values))
            for name, values in log_likelihood.items()
        }


def log_mean_exp(values: NDArray[Any]) -> NDArray[np.float64]:
    """The logarithm of the mean of exp(values) along the first axis."""
    largest = values.max(axis=0)
    mean: NDArray[np.float64] = np.log(np.exp(values.astype(np.float64) - largest).mean(axis=0)) + largest
    return mean


class _NotPrepared(Exception):
    """The model cannot be sampled with its own data."""

    def __init__(self, cause: BatchnutsError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _make_room(entries: dict[Any, Any], wanted: int) -> None:
    """Take out the oldest entries, until there are fewer than are wanted."""
    while len(entries) >= wanted:
        del entries[next(iter(entries))]


def _no_progress(_: Any) -> None:
    """Show nothing of one fit."""


def groups_of(draws: Draws, layout: Layout) -> dict[str, Group]:
    """The groups of a fit's draws, without the attributes that its run would have."""
    stats = {name: draws.rectangle(array) for name, array in draws.stats.items()}
    numbers = np.arange(draws.complete)
    by_group = layout.of_draws(draws.rectangle(draws.position), stats, draws.chains, numbers)
    labels = layout.model.labels()
    attributes = {"superchains": count_superchains(draws.settings), "inference_library": "batchnuts"}
    groups = {}
    for name, entries in by_group.items():
        used = {dim for dims, *_ in entries.values() for dim in dims}
        coords = {dim: names for dim, names in labels.items() if dim in used}
        groups[name] = Group.of(entries, {**coords, "chain": draws.chains, "draw": numbers}, attributes)
    return groups


def _made(draws: Draws) -> RunMade:
    settings = draws.settings
    return RunMade(
        draws.interrupted,
        settings.target_acceptance,
        settings.metric,
        str(draws.position.dtype),
        settings.until.model_dump() if draws.ended and settings.until is not None else None,
        draws.warmup.not_numbers,
    )


def _failed(row: Row, why: str, began: float) -> Row:
    return replace(row, failed=why, seconds=time.perf_counter() - began)


def _ended(row: Row, draws: Draws, check: Check, began: float) -> Row:
    return replace(
        row,
        ok=check.ok,
        worst_rhat=check.worst_rhat,
        min_ess=check.min_ess,
        divergences=check.divergences,
        draws=draws.complete,
        warmup=draws.warmup.transitions,
        gradients=draws.useful_gradients,
        seconds=time.perf_counter() - began,
        ended=draws.ended,
        advice=check.advice[0] if check.advice else "",
    )


# ---- what is kept of draws -------------------------------------------------------------------------------------------


def flat_draws(array: Any) -> tuple[tuple[str, ...], NDArray[Any]]:
    """The axes of a variable of a group, and its draws [n, ...] of all chains, one chain after another."""
    axes = tuple(dim for dim in array.dims if dim not in ("chain", "draw"))
    values = np.asarray(array.ordered("chain", "draw", *axes))
    return axes, values.reshape(-1, *values.shape[2:])


def summaries_of(posterior: Group, keep: frozenset[str]) -> Summaries:
    """What is kept of the variables of a group."""
    found: Summaries = {}
    flat = {name: flat_draws(array) for name, array in posterior.arrays.items()}
    for kind, summary in SUMMARIES.items():
        if kind in keep:
            lead = ("quantile",) if kind == "quantiles" else ()
            found[kind] = {name: ((*lead, *axes), summary(x.astype(np.float64))) for name, (axes, x) in flat.items()}
    return found


LEVELS = 99
"""Draws among which a true value has its rank, of 0 to LEVELS."""


def rank_of(draws: NDArray[Any], truth: Any) -> NDArray[Any]:
    """The rank, from 0 to LEVELS, of true values [...] among LEVELS of the draws [n, ...], evenly spaced.

    Ranks are uniform if these draws are independent (Talts et al. 2018, section 4.3), as nearly holds where the
    effective size is some times LEVELS.
    """
    chosen = np.linspace(0, len(draws) - 1, LEVELS).round().astype(int)
    return np.asarray((draws[chosen] < truth).sum(axis=0), np.int32)
