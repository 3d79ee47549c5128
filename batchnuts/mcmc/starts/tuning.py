"""The tuning of a run: its step size and metric, where its chains ended, and what these belong to.

A file has it in the group `adaptation` (`tuning_of`), and a later run of the same model may start from it
(`read_tuning`, the setting sampler.warmup.from). What does not carry over is refused there, before anything is
compiled; whether the numbers fit the model as it is now, warmup finds out (warmup/phase.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.kernel.metric_estimates import BOUND, Floats, MetricParameters, of_all_chains
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.variables import variables_in_words
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.mcmc.settings.run_settings import SamplerSettings
from batchnuts.mcmc.statistics.chain_means import ChainMeans
from batchnuts.mcmc.statistics.window_moments import Centre
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.earlier_run import read_groups
from batchnuts.settings.schema import SettingsError

if TYPE_CHECKING:
    import xarray

KEY = "sampler.warmup.from"

ORTHONORMAL = 1e-3
"""By how much scalar products of eigenvectors may differ from 0 and 1."""


@dataclass(frozen=True, eq=False)
class Tuning:
    """What a run takes from an earlier one."""

    path: str
    """The path of its file, as the settings give it."""
    step_size: float
    metric: MetricParameters
    """The metric of all chains."""
    positions: NDArray[Any]
    """[chains of that run, dimension]: the last draw of each."""
    centre: Centre
    """[dimension], of its draws."""
    remarks: tuple[str, ...] = ()
    """What a user should know of how it was taken."""

    def __str__(self) -> str:
        """The text in a run's summary."""
        return f"{self.path} ({'; '.join(self.remarks)})" if self.remarks else self.path


# ---- writing ---------------------------------------------------------------------------------------------------------


def tuning_of(draws: Draws, model: Model, means: ChainMeans) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables and attributes of the group `adaptation`, besides its coordinates. means: of the draws of all
    chains.

    Of the windows of warmup what they came to (`WindowTuning`): transitions, step size, variances. Of the chains that
    had begun: their step sizes, and, where each of them has a draw, their last positions (with the gradients there:
    lengthen.py), with the means of all draws and the means' standard errors, which are the centre that a later run
    compares its own with. The mean of a chain is first_position + total / draws.
    """
    metric, settings = draws.metric, draws.settings
    own = metric.inverse_mass.ndim == 2
    inverse_mass = metric.inverse_mass[draws.chains] if own else metric.inverse_mass
    entries: dict[str, Any] = {"inverse_mass": (("chain", "coefficient")[-inverse_mass.ndim :], inverse_mass)}
    if METRIC_KINDS[metric.kind].has_directions:
        entries["metric_eigenvectors"] = (("coefficient", "direction"), metric.eigenvectors)
        entries["metric_eigenvalues"] = (("direction",), metric.eigenvalues)
    if draws.complete:
        centre = means.centre(draws.chains)
        step_size = means.step_size if draws.step_size is None else draws.step_size
        entries["step_size"] = (("chain",), step_size[draws.chains])
        entries["first_position"] = (("chain", "coefficient"), means.first[draws.chains])
        entries["total"] = (("chain", "coefficient"), means.total[draws.chains])
        entries["last_position"] = (("chain", "coefficient"), means.last[draws.chains])
        if draws.last_gradient is not None:
            entries["last_gradient"] = (("chain", "coefficient"), draws.last_gradient[draws.chains])
        entries["mean"] = (("coefficient",), centre.mean)
        entries["mean_error"] = (("coefficient",), np.sqrt(centre.squared_error))
    if windows := draws.warmup.windows:
        entries["window_transitions"] = (("window",), np.array([window.transitions for window in windows]))
        steps, description = (
            np.array([window.step_size for window in windows]),
            "the lowest, median and highest of all chains",
        )
        entries["window_step_size"] = (("window", "quantile"), steps, {"quantile": description})
        entries["window_variance"] = (("window", "coefficient"), np.array([window.variance for window in windows]))
    entries["variables"] = (("variable",), variables_in_words(model.variables))
    attributes = {
        "metric": metric.kind,
        "transition": settings.transition,
        "leapfrogs_per_leaf": settings.leapfrogs_per_leaf,
        "target_acceptance": settings.target_acceptance,
        "pool": settings.warmup.pool,
        "tuned": int(draws.warmup.transitions > 0 or settings.warmup.from_ is not None),
        "dtype": model.dtype,
    }
    return entries, attributes


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_tuning(model: Model, sampler: SamplerSettings) -> Tuning | None:
    """The tuning of the earlier run that the settings name, if they name one.

    Step sizes and metrics that its chains had of their own are pooled: the median, and the geometric mean. Raises
    SettingsError for a file that cannot be read, and for one that does not fit the model or the other settings.
    """
    path = sampler.warmup.from_
    if path is None:
        return None
    return tuning_from(read_groups(path, ("adaptation",), KEY)["adaptation"], path, model, sampler)


def tuning_from(group: xarray.Dataset, path: str, model: Model, sampler: SamplerSettings) -> Tuning:
    """The tuning in the group `adaptation` of an earlier run. path: of its file, or what it is called.

    Raises SettingsError for one that does not fit the model or the other settings.
    """
    _require_written(path, group)
    _require_same_model(path, group, model)
    _require_same_sampler(path, group, sampler)
    arrays = {str(name): np.asarray(array.values) for name, array in group.data_vars.items()}
    _require_numbers(path, arrays, model.dimension)
    inverse_mass = arrays["inverse_mass"].astype(np.float64)
    metric = MetricParameters(
        group.attrs["metric"],
        of_all_chains(inverse_mass),
        arrays.get("metric_eigenvectors", np.zeros((model.dimension, 0))).astype(np.float64),
        arrays.get("metric_eigenvalues", np.zeros(0)).astype(np.float64),
    )
    return Tuning(
        path,
        float(np.exp(np.median(np.log(arrays["step_size"].astype(np.float64))))),
        metric,
        arrays["last_position"].astype(model.dtype),
        Centre(arrays["mean"].astype(np.float64), arrays["mean_error"].astype(np.float64) ** 2),
        _remarks(group.attrs, model, sampler),
    )


def _remarks(attributes: Mapping[str, Any], model: Model, sampler: SamplerSettings) -> tuple[str, ...]:
    remarks = []
    if attributes["model"] != model.name:
        remarks.append(f"a run of the model {attributes['model']!r}")
    if attributes["pool"] != "all":
        remarks.append("the median of its step sizes, and the geometric mean of its metrics")
    target = float(attributes["target_acceptance"])
    if target != sampler.target_acceptance and sampler.step_size is None:
        remarks.append(f"its target_acceptance was {target:g}, so its step size is only a first guess")
    return tuple(remarks)


def _refused(path: str, problem: str, advice: str) -> SettingsError:
    return SettingsError(f"{KEY}: {path} {problem}. {advice}")


_ANOTHER = f"Give the file of a run of this model, or leave out {KEY}."


def _require_written(path: str, group: xarray.Dataset) -> None:
    """Raise SettingsError unless the group is of a run that has draws and was tuned."""
    version = group.attrs.get("inference_library_version", "unknown")
    needed = ("metric", "transition", "leapfrogs_per_leaf", "target_acceptance", "pool", "tuned")
    lacking = [name for name in needed if name not in group.attrs]
    lacking += [name for name in ("inverse_mass", "variables") if name not in group.variables]
    if lacking:
        raise _refused(
            path,
            f"has no {lacking[0]!r} in its group 'adaptation'; it was written by an older version of batchnuts "
            f"({version}), or by another program",
            "Repeat that run with this version; its draws can still be used as initial values (sampler.init.run).",
        )
    if "last_position" not in group.variables or "step_size" not in group.variables:
        raise _refused(
            path,
            "is from a run that was interrupted before each of its chains had a draw",
            f"Give the file of a longer run, or leave out {KEY}.",
        )
    if not group.attrs["tuned"]:
        raise _refused(
            path,
            "is from a run without warmup: its step size and metric were not adapted",
            f"Make that run with a warmup, or leave out {KEY}; its draws can still be used as "
            "initial values (sampler.init.run).",
        )


def _require_same_model(path: str, group: xarray.Dataset, model: Model) -> None:
    saved, expected = [str(text) for text in group["variables"].values], variables_in_words(model.variables)
    if saved == expected and group["last_position"].shape[1:] == (model.dimension,):
        return
    differs = [text for text in saved if text not in expected], [text for text in expected if text not in saved]
    if any(differs):
        saved_texts, expected_texts = (_some(texts) or "nothing of that name" for texts in differs)
    else:
        saved_texts, expected_texts = (_some(texts) for texts in (saved, expected))
    raise _refused(
        path,
        f"is from a run of another model, {group.attrs.get('model', '')!r}: it has {saved_texts}, where {model.name!r} "
        f"has {expected_texts} (name, shape, support)",
        _ANOTHER,
    )


def _some(texts: list[str]) -> str:
    more = len(texts) - _MOST_NAMES
    return ", ".join(texts[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


_MOST_NAMES = 4
"""Variables that are listed."""


def _require_same_sampler(path: str, group: xarray.Dataset, sampler: SamplerSettings) -> None:
    """Refuse other settings on which step size and metric depend; a step size is still a first one where
    target_acceptance differs."""
    for name, reason in (
        ("transition", "a step size does not carry over"),
        ("leapfrogs_per_leaf", "a step size does not carry over"),
        ("metric", "one form of the metric cannot be converted to another"),
    ):
        saved, expected = group.attrs[name], getattr(sampler, name)
        if saved != expected:
            raise _refused(
                path,
                f"is from a run with {name} {saved}, this one has sampler.{name} {expected}: {reason}",
                f"Set sampler.{name}={saved}, or leave out {KEY}.",
            )
    directions = group.sizes.get("direction", 0)
    if METRIC_KINDS[sampler.metric].is_limited and directions > sampler.metric_rank:
        raise _refused(
            path,
            f"has a metric with {directions} directions; sampler.metric_rank is {sampler.metric_rank}",
            f"Set sampler.metric_rank to at least {directions}, or leave out {KEY}.",
        )


def _require_numbers(path: str, arrays: Mapping[str, NDArray[Any]], dimension: int) -> None:
    """Raise SettingsError unless shapes fit together and all numbers can be used."""
    wrong = _what_is_wrong(arrays, dimension)
    if wrong:
        raise _refused(path, f"cannot be used: {wrong}", f"The file is damaged, or was changed. {_ANOTHER}")


def _what_is_wrong(arrays: Mapping[str, NDArray[Any]], dimension: int) -> str | None:
    """The first mistake, in words."""
    for name in ("mean", "mean_error", "inverse_mass"):
        if name not in arrays or arrays[name].shape[-1:] != (dimension,):
            return f"expected {dimension} numbers {name!r}"
    for name, array in arrays.items():
        if name == "variables":
            continue
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            return f"{name!r} has values that are not finite"
        if name in ("step_size", "inverse_mass", "metric_eigenvalues") and not (array > 0).all():
            return f"{name!r} has {array.min():g}; expected numbers above 0"
    if not arrays["step_size"].size:
        return "it has no chains"
    if not ((arrays["inverse_mass"] >= 1 / BOUND) & (arrays["inverse_mass"] <= BOUND)).all():
        return f"'inverse_mass' has values beyond {1 / BOUND:g} to {BOUND:g}"
    vectors, values = (arrays.get(f"metric_eigen{part}") for part in ("vectors", "values"))
    if vectors is None and values is None:
        return None
    if vectors is None or values is None or vectors.shape != (dimension, len(values)):
        return "its eigenvectors and eigenvalues do not fit together"
    products: Floats = vectors.T @ vectors
    if len(values) and np.abs(products - np.eye(len(values))).max() > ORTHONORMAL:
        return "its eigenvectors are not orthonormal"
    return None
