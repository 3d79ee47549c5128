"""`cross_validate` and `reloo`: exact refits without some observations."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from batchnuts.api.options import Options, with_options
from batchnuts.many.data_sets import example_of, require_model
from batchnuts.many.fit import HELD_OUT
from batchnuts.many.held_out import CrossValidation, cross_validated, folds_of, pointwise_of, rows_of, without
from batchnuts.many.progress import Report
from batchnuts.many.run import ManyRun, fit_settings
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.settings.run_settings import SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains
from batchnuts.mcmc.starts.tuning import Tuning, tuning_from
from batchnuts.settings.schema import SettingsError

BAD_K = 0.7
"""The Pareto shape above which importance sampling is not trusted (Vehtari et al. 2024, arXiv:1507.02646)."""


@with_options
def cross_validate(
    model: Model,
    folds: int | Sequence[Any] = 10,
    *,
    rows: Sequence[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    resume: bool = False,
    replace_store: bool = False,
    processes: int | None = None,
    progress: Report | bool | None = None,
    **settings: Unpack[Options],
) -> CrossValidation:
    """Exact cross-validation: fit the model without each fold, and judge it by what it says of the fold.

    model: whose functions take data, a dict, with a function `log_likelihood` of values and data; or of another
        library, with a log-likelihood of each observation, whose variables do not depend on how many there are.
    folds: a number of random folds; as many as there are observations for leave-one-out; a label for each observation,
        whose groups are the folds; or a list of the observations of each.
    rows: entries of the data with a row for each observation; None: all that are as long as the observed data, or in
        Stan all that are declared with the same length.
    path, resume, replace_store, processes, progress: as of `sample_many`.

    The other keywords are those of `sample_chains`, for each fit; by default 4 chains and 1,000 draws of each.

    Returns a CrossValidation: `elpd`, `se`, `pointwise`, and the fits. Raises ModelError for a model or folds that do
    not fit.
    """
    example_of(require_model("cross_validate", model))
    of_fits = fit_settings(model, settings, frozenset({HELD_OUT}), ("log_likelihood",))
    parts, names = folds_of(model, folds, rows, of_fits.sampler.seed)
    run = ManyRun(
        of_fits, path=path, resume=resume, replace_store=replace_store, processes=processes, progress=progress
    )
    return cross_validated(run, model, parts, names)


def _tuning_of(result: Any, model: Model, sampler: SamplerSettings) -> Tuning | None:
    """The tuning of a result, if it has one that serves the refits: it only makes them sooner."""
    group = getattr(result, "adaptation", None)
    if group is None:
        return None
    try:
        tuning = tuning_from(group.to_dataset() if hasattr(group, "to_dataset") else group, "result", model, sampler)
    except SettingsError:  # of a run with other settings
        return None
    return tuning if len(tuning.positions) >= count_superchains(sampler) else None


@with_options
def reloo(
    model: Model,
    result: Any,
    *,
    threshold: float = BAD_K,
    rows: Sequence[str] | None = None,
    processes: int | None = None,
    progress: Report | bool | None = None,
    **settings: Unpack[Options],
) -> Any:
    """Leave-one-out cross-validation by importance sampling, with exact refits where that cannot be trusted.

    model: as of `cross_validate`. result: of a run of it, with the group `log_likelihood`. If it has a group
        `adaptation`, as runs of batchnuts have, the warmup of each refit starts from its step size and metric, which
        are checked there.
    threshold: the Pareto shape above which an observation is left out and the model fitted again.

    Returns ArviZ's ELPDData of `arviz.loo`, in which these observations have their exact value and a shape of 0.
    """
    import arviz

    example_of(require_model("reloo", model))
    if not 0 < threshold < 10:
        raise SettingsError(f"threshold: found {threshold!r}; expected a Pareto shape, as 0.7.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the shapes that are dealt with here
        loo = arviz.loo(result, pointwise=True)
    pointwise = "loo_i" if hasattr(loo, "loo_i") else "elpd_i"
    shapes: NDArray[Any] = np.asarray(loo.pareto_k).reshape(-1)
    names, count = rows_of(model, rows)
    if len(shapes) != count:
        raise ModelError(
            f"result has log-likelihoods of {len(shapes)} observations; the model's data have {count} rows."
        )
    bad = np.flatnonzero(shapes > threshold)
    if not len(bad):
        return loo
    parts = [np.array([number]) for number in bad]
    of_fits = fit_settings(model, settings, frozenset({HELD_OUT}), ("log_likelihood",))
    if of_fits.tuning is None:
        of_fits = replace(of_fits, tuning=_tuning_of(result, model, of_fits.sampler))
    run = ManyRun(of_fits, processes=processes, progress=progress)
    fits = run.of_sets(without(model, parts, names, labels=bad.tolist()), len(parts))
    if fits.failed:
        label, why = next(iter(fits.failed.items()))
        raise ModelError(f"{len(fits.failed)} refits failed, first that without observation {label}: {why}")
    values = np.array(getattr(loo, pointwise).values, np.float64)
    values.reshape(-1)[bad] = pointwise_of(fits, parts, count)[bad]
    exact = np.array(loo.pareto_k.values)
    exact.reshape(-1)[bad] = 0.0
    scale = {"log": 1.0, "negative_log": -1.0, "deviance": -2.0}[str(getattr(loo, "scale", "log"))]
    values.reshape(-1)[bad] *= scale
    getattr(loo, pointwise).values[...] = values
    loo.pareto_k.values[...] = exact
    total = float(values.sum())
    p_change = (total - float(loo["elpd_loo"])) / scale
    loo["elpd_loo"], loo["se"] = total, float(np.sqrt(values.size) * values.std())
    loo["p_loo"], loo["warning"] = float(loo["p_loo"]) - p_change, False
    return loo
