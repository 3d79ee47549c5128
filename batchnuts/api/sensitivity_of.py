"""`sensitivity`: one model with several priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from batchnuts.api.options import Options, with_options
from batchnuts.many.data_sets import example_of, require_model
from batchnuts.many.fit import DRAWS
from batchnuts.many.progress import Report
from batchnuts.many.run import ManyRun, fit_settings
from batchnuts.many.sensitivity import Sensitivity, priors_of
from batchnuts.mcmc.model.model import Model


@with_options
def sensitivity(
    model: Model,
    priors: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    *,
    processes: int | None = None,
    progress: Report | bool | None = None,
    **settings: Unpack[Options],
) -> Sensitivity:
    """Fit a model with several priors, whose numbers are entries of its data, and compare the posteriors.

    model: whose functions take data, a dict that has the numbers of the prior too (`{"y": y, "tau_scale": 5.0}`).
    priors: values of such entries, `{"tau_scale": [1.0, 5.0, 25.0]}`, of which all combinations are fitted; or a
        list of mappings, one for each prior.
    processes, progress: as of `sample_many`. The other keywords are those of `sample_chains`, for each fit.

    Returns a Sensitivity: a table of means, standard deviations and shifts, and all fits. Raises ModelError for entries
    that the data do not have.
    """
    example_of(require_model("sensitivity", model))
    of_fits = fit_settings(model, settings, frozenset({DRAWS, "mean", "sd"}), ())
    sets = priors_of(model, priors)
    return Sensitivity(ManyRun(of_fits, processes=processes, progress=progress).of_sets(sets, len(sets)))
