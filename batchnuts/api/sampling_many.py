"""`sample_many`: one model for many data sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

from batchnuts.api.options import Options, with_options
from batchnuts.many.data_sets import Label, data_sets, require_model
from batchnuts.many.fit import DRAWS, SUMMARIES
from batchnuts.many.progress import Report
from batchnuts.many.result import ManyResult
from batchnuts.many.run import ManyRun, fit_settings
from batchnuts.mcmc.model.model import Model
from batchnuts.settings.schema import SettingsError, nearest, shown

KEPT = (DRAWS, *SUMMARIES)


@with_options
def sample_many(
    model: Model,
    data: Any,
    *,
    labels: Sequence[Label] | None = None,
    by: str | None = None,
    mask: str | None = None,
    keep: Sequence[str] = ("draws",),
    groups: Sequence[str] | None = (),
    path: str | os.PathLike[str] | None = None,
    resume: bool = False,
    replace_store: bool = False,
    processes: int | None = None,
    progress: Report | bool | None = None,
    **settings: Unpack[Options],
) -> ManyResult:
    """Fit one model to many data sets: each fit has its own warmup, stopping rule and verdict.

    model: whose functions take data (`Model.from_function(f, variables=..., data=example)`).
    data: arrays like the model's own with an axis of fits first (those without it are shared), a list or an iterator of
        data sets, a pandas table (`by`), or a folder of files, one for each fit.
    labels: of the fits; None: numbers, groups of the table, or names of files.
    by: the column that tells the data sets of a table apart.
    mask: the entry of the data, a vector of booleans, that says which rows are data: data sets are padded to few sizes.
    keep: of `draws`, `mean`, `sd` and `quantiles`, what is kept of each fit.
    groups: of `log_likelihood` and `posterior_predictive`, those that are computed; None: all that the model has.
    path: a Zarr store for all that is kept; None: memory.
    resume: go on with the store of a run that was interrupted; its fits have the draws that they would have had.
    replace_store: delete a store that is there.
    processes: on which fits are made, one at a time on each; None: one for each core.
    progress: a function that is called with a ManyProgress, or whether there is a line on stderr.

    The other keywords are those of `sample_chains`, for each fit; by default 4 chains and at most 1,000 draws of each.
    The draws of a fit depend on `seed`, its number and its data alone. Ctrl-C ends the run and gives what has ended.

    Raises ModelError and SettingsError for what no fit could be made of. A fit that fails is listed in
    `ManyResult.failed`, and the others go on.
    """
    found = data_sets(require_model("sample_many", model), data, labels, by)
    kept = _chosen(keep)
    of_fits = fit_settings(model, settings, kept, groups)
    run = ManyRun(
        of_fits, path=path, resume=resume, replace_store=replace_store, processes=processes, progress=progress
    )
    return run.of_data(found, mask)


def _chosen(keep: Any) -> frozenset[str]:
    names = [keep] if isinstance(keep, str) else list(keep)
    for name in names:
        if name not in KEPT:
            hint = nearest(str(name), KEPT) or f"; expected some of {', '.join(KEPT)}."
            raise SettingsError(f"keep: found {shown(name)}{hint}")
    return frozenset(names)
