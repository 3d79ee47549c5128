"""`batchnuts.pymc.sample`: what `pm.sample` does, with its argument names, by batchnuts (docs/pymc_model.md)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from batchnuts.api.sampling import sample_chains
from batchnuts.bridges.versions import PYMC
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.output.result import Result
from batchnuts.process.signals import say
from batchnuts.settings.schema import SettingsError, nearest, shown

METRICS = {
    "auto": "diag",
    "adapt_diag": "diag",
    "jitter+adapt_diag": "diag",
    "jitter+adapt_diag_grad": "diag",
    "adapt_full": "dense",
    "jitter+adapt_full": "dense",
}
"""By `init` of pm.sample. Chains start with PyMC's jitter in any case."""

NAMES = {"target_accept": "target_acceptance", "max_treedepth": "max_tree_depth"}
"""pm.sample's further keywords, which its `nuts` may hold too, and ours."""

WITHOUT_EFFECT = (
    "cores",
    "mp_ctx",
    "blas_cores",
    "jitter_max_retries",
    "n_init",
    "keep_warning_stat",
    "progressbar_theme",
    "compile_kwargs",
    "nuts_sampler_kwargs",
)
"""Keywords that say how PyMC does what batchnuts does in its own way: all chains run together, on all cores."""

OURS = {"draws": "draws", "tune": "warmup", "chains": "chains", "random_seed": "seed"}
"""Numbers by pm.sample's names, and ours."""

REFUSED = {
    "step": "batchnuts samples all variables with NUTS",
    "trace": "draws are returned; sample_chains and its docs/streaming.md write them while they are made",
    "callback": "sample_chains takes progress=, a function",
}
"""Keywords that ask for what there is not, and what there is."""


def sample(
    draws: int | None = None,
    *,
    tune: int | None = None,
    chains: int | None = None,
    random_seed: int | None = None,
    progressbar: bool | str | None = None,
    quiet: bool = False,
    var_names: Sequence[str] | None = None,
    initvals: Mapping[Any, Any] | Sequence[Mapping[Any, Any]] | None = None,
    init: str = "auto",
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    return_inferencedata: bool = True,
    idata_kwargs: Mapping[str, Any] | None = None,
    model: Any = None,
    **kwargs: Any,
) -> Result:
    """Sample a PyMC model: a stand-in for `pm.sample`, whose keywords these are.

    draws, tune, chains: None takes batchnuts' defaults, 200 draws of each of 256 chains after a warmup that ends by
        itself; `pm.sample`'s own are 1000, 1000 and one chain for each core.
    random_seed: None is 0: a run is reproduced unless it has another seed.
    progressbar: a bool; None shows it in a terminal or notebook. quiet: neither that nor the line of the checks.
    var_names: the variables that are kept.
    initvals: values by variable or its name, or a list of these for several starts, on the variables' own scale.
    init: "auto", "jitter+adapt_diag", ...; the metric is diagonal, and dense with "adapt_full", "jitter+adapt_full".
    discard_tuned_samples: False adds `warmup_posterior` and `warmup_sample_stats`.
    compute_convergence_checks: whether what `batchnuts.check` finds is said on stderr.
    idata_kwargs: `log_likelihood=True` adds that group.
    model: None takes the one whose context this is in.

    Further keywords of `pm.sample` are `target_accept`, `max_treedepth`, `nuts={...}` with these; those that say how
    processes and compilers work have no effect, and a line says so. All others are those of `sample_chains`, as
    `until={"ess_bulk": 400}`.

    Returns ArviZ's object. Raises SettingsError for what it does not do, ModelError for a model that cannot be sampled,
    and where PyMC is not installed.
    """
    from batchnuts.mcmc.diagnostics.verdict import check

    PYMC.require()
    settings = _further(kwargs)
    counts = {"draws": draws, "tune": tune, "chains": chains, "random_seed": random_seed}
    for name, value in counts.items():
        if value is not None:
            settings[OURS[name]] = _integer(name, value)
    if init not in METRICS:
        raise SettingsError(f"init: found {shown(init)}; expected one of {', '.join(METRICS)}.")
    if METRICS[init] != "diag":
        settings.setdefault("metric", METRICS[init])
    if not return_inferencedata:
        raise SettingsError("return_inferencedata: found False; batchnuts returns ArviZ's object.")
    wanted = dict(idata_kwargs or {})
    groups = ["log_likelihood"] if wanted.pop("log_likelihood", False) else []
    if wanted:
        raise SettingsError(f"idata_kwargs: found {next(iter(wanted))!r}; expected log_likelihood.")
    if model is None:
        import pymc

        try:
            model = pymc.modelcontext(None)
        except TypeError:
            raise ModelError(
                "batchnuts.pymc.sample: no model on context stack; call it in `with model:`, or give model=..."
            ) from None
    made = Model.from_pymc(model)
    if initvals is not None:
        settings["init"] = {"values": _values(model, initvals)}
    names = None if var_names is None else _names_of(model, var_names)
    progress = False if quiet else None if progressbar is None else bool(progressbar)
    result = sample_chains(made, progress=progress, groups=groups, keep_warmup=not discard_tuned_samples, **settings)
    if compute_convergence_checks and not quiet:
        say(str(check(result)))
    return result if names is None else _only(result, names)


def _further(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Our settings of keywords that are not in the signature."""
    settings = dict(kwargs)
    nuts = settings.pop("nuts", None) or {}
    if not isinstance(nuts, Mapping):
        raise SettingsError(f"nuts: found {shown(nuts)}; expected a mapping with some of {', '.join(NAMES)}.")
    for name in nuts:
        if name not in NAMES:
            raise SettingsError(f"nuts: found {name!r}{nearest(str(name), NAMES) or _expected(NAMES)}")
    settings.update(nuts)
    for name, why in REFUSED.items():
        if settings.pop(name, None) is not None:
            raise SettingsError(f"{name}: {why}; leave it out.")
    sampler = settings.pop("nuts_sampler", "pymc")
    if sampler not in ("pymc", "batchnuts"):
        raise SettingsError(f"nuts_sampler: found {shown(sampler)}; this is batchnuts, leave it out.")
    without = [name for name in WITHOUT_EFFECT if settings.pop(name, None) is not None]
    if without:
        say(f"batchnuts.pymc.sample: {', '.join(without)} has no effect: all chains run together, on all cores.")
    return {NAMES.get(name, name): value for name, value in settings.items()}


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise SettingsError(f"{name}: found {shown(value)}; expected an integer.") from None


def _values(model: Any, initvals: Any) -> dict[str, Any]:
    """Values of random variables by name, of one start or several, as PyMC makes them."""
    from pymc.initial_point import make_initial_point_fn

    several = [initvals] if isinstance(initvals, Mapping) else list(initvals)
    known = {variable.name: variable for variable in model.free_RVs}
    points = []
    for start in several:
        named = {str(getattr(key, "name", key)): value for key, value in (start or {}).items()}
        for name in named:
            if name not in known:
                raise SettingsError(f"initvals: found {name!r}{nearest(name, known) or _expected(known)}")
        overrides = {known[name]: value for name, value in named.items()}
        point = make_initial_point_fn(model=model, overrides=overrides, jitter_rvs=set(), return_transformed=False)(0)
        points.append({name: point[name] for name in named})
    if any(point.keys() != points[0].keys() for point in points):
        raise SettingsError("initvals: found starts of different variables; expected the same ones in each.")
    if len(points) == 1:
        return points[0]
    return {name: np.stack([point[name] for point in points]) for name in points[0]}


def _expected(names: Iterable[str]) -> str:
    """The end of a message: which names there are."""
    return f"; expected some of {', '.join(names)}."


def _names_of(model: Any, names: Any) -> list[str]:
    """Names of variables that the model has."""
    known = [variable.name for variable in (*model.free_RVs, *model.deterministics)]
    several = [names] if isinstance(names, str) else list(names)
    for name in several:
        if name not in known:
            raise SettingsError(f"var_names: found {shown(name)}{nearest(str(name), known) or _expected(known)}")
    return several


def _only(result: Any, names: list[str]) -> Any:
    """The result with some variables of the posterior."""
    group = result["posterior"]
    if hasattr(group, "to_dataset"):
        result["posterior"] = type(group)(group.to_dataset()[names])
    else:
        result.posterior = group[names]
    return result
