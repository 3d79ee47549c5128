"""`sbc`: simulation-based calibration of a model."""

from __future__ import annotations

import os
from typing import Unpack

from batchnuts.api.options import Options, with_options
from batchnuts.many.calibration import DEFAULTS, Calibration, Simulate, simulations
from batchnuts.many.data_sets import example_of, require_model
from batchnuts.many.fit import RANKS
from batchnuts.many.progress import Report
from batchnuts.many.run import ManyRun, fit_settings
from batchnuts.mcmc.model.model import Model
from batchnuts.settings.schema import SettingsError, shown


@with_options
def sbc(
    model: Model,
    simulate: Simulate | None = None,
    *,
    fits: int = 1000,
    path: str | os.PathLike[str] | None = None,
    resume: bool = False,
    replace_store: bool = False,
    processes: int | None = None,
    progress: Report | bool | None = None,
    **settings: Unpack[Options],
) -> Calibration:
    """Simulation-based calibration: draw parameters from the prior, simulate data, fit them, and rank the parameters.

    model: whose functions take data (`Model.from_function(f, variables=..., data=example)`), or of another library.
    simulate: a function of a `numpy.random.Generator` to a pair: a dict of parameters by name, drawn from the prior of
        the model, and data that were simulated with them. None: by the model's functions `prior` and `predictive`, in
        place of `observed_data`.
    fits: how many data sets are simulated and fitted.
    path, resume, replace_store, processes, progress: as of `sample_many`.

    The other keywords are those of `sample_chains`, for each fit; by default 4 chains that end with 400 effective
    draws.

    Returns a Calibration: `ok`, a table with the p-value of each parameter, all ranks, and a plot. Raises ModelError
    for simulations that do not fit the model.
    """
    example_of(require_model("sbc", model))
    if isinstance(fits, bool) or not isinstance(fits, int) or fits < 10:
        raise SettingsError(f"fits: found {shown(fits)}; expected an integer of at least 10.")
    if simulate is not None and not callable(simulate):
        raise SettingsError(f"simulate: found {shown(simulate)}; expected a function of a generator, or None.")
    of_fits = fit_settings(model, {**DEFAULTS, **settings}, frozenset({RANKS}), ())
    sets = simulations(model, simulate, of_fits.execution, fits, of_fits.sampler.seed)
    run = ManyRun(
        of_fits, path=path, resume=resume, replace_store=replace_store, processes=processes, progress=progress
    )
    return Calibration(run.of_sets(sets, fits))
