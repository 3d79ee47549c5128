"""Means and standard deviations of a run with their Monte Carlo standard errors, and how far those of two runs differ.

Everything here is of named parameters: a dict from a name to an array, [chains, draws, *shape] for draws. Some have no
mean or variance, as one with a half-Cauchy prior that the data hardly inform; then their logarithms are compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.mcmc.diagnostics.diagnose import Diagnostics, diagnose

Statistic = Literal["mean", "sd"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
_COLUMNS = ("mean", "sd", "mcse_mean", "mcse_sd")
_DIGITS = 9
"""Significant ones that are kept: a hundredth of a standard error, unless a mean is a million times its deviation."""


class MomentsError(BatchnutsError):
    """Two sets of moments are not of the same parameters."""


@dataclass(frozen=True, eq=False)
class Moment:
    """Mean and standard deviation of one parameter; every array is float64 [*shape].

    Standard errors are 0 where the moments are known exactly.
    """

    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    mcse_mean: NDArray[np.float64]
    mcse_sd: NDArray[np.float64]

    @classmethod
    def exact(cls, mean: Any, sd: Any) -> Moment:
        """Known without an error."""
        mean, sd = np.asarray(mean, np.float64), np.asarray(sd, np.float64)
        return cls(mean, sd, np.zeros_like(mean), np.zeros_like(sd))


Moments = Mapping[str, Moment]
"""Moments by the name of a parameter."""


@dataclass(frozen=True)
class Comparison:
    """One number of a run beside that of its reference."""

    element: str
    """Such as `theta[3]`; of logarithms `log(tau)`."""
    statistic: Statistic
    found: float
    expected: float
    z: float
    """Their difference over the standard error of both; infinite where neither has one, and they differ."""


def label(name: str, transforms: Mapping[str, str]) -> str:
    """A parameter's name, or that of its logarithm."""
    return f"log({name})" if transforms.get(name) == "log" else name


def transformed(draws: Mapping[str, NDArray[Any]], transforms: Mapping[str, str]) -> dict[str, NDArray[np.float64]]:
    """The draws that are compared, by label: logarithms of the absolute values where `transforms` says `log`.

    Raises MomentsError for a parameter that there is not.
    """
    if unknown := sorted(set(transforms) - set(draws)):
        raise MomentsError(f"transforms: there is no parameter {unknown[0]!r}; expected one of {', '.join(draws)}.")
    result = {}
    for name, array in draws.items():
        values = np.asarray(array, np.float64)
        result[label(name, transforms)] = np.log(np.abs(values)) if transforms.get(name) == "log" else values
    return result


def elements(name: str, shape: Sequence[int]) -> list[str]:
    """A name for each element of a parameter."""
    return [f"{name}[{', '.join(map(str, index))}]" if shape else name for index in np.ndindex(*shape)]


def summarize(draws: Mapping[str, NDArray[Any]]) -> tuple[Moments, Diagnostics]:
    """The moments of draws [chains, draws, *shape] by name, and the diagnostics of all their elements.

    Raises DiagnosticsError for draws that are not finite.
    """
    names = [element for name, array in draws.items() for element in elements(name, array.shape[2:])]
    diagnostics = diagnose([array.reshape(*array.shape[:2], -1) for array in draws.values()], names)
    moments, start = {}, 0
    for name, array in draws.items():
        shape = array.shape[2:]
        stop = start + math.prod(shape)
        moments[name] = Moment(*(diagnostics.columns[column][start:stop].reshape(shape) for column in _COLUMNS))
        start = stop
    return moments, diagnostics


def compare(actual: Moments, expected: Moments) -> list[Comparison]:
    """Both statistics of every element of the parameters that are expected, beside the actual ones.

    What is expected to be NaN is not known, and left out; so is an element that is the same constant in both, which has
    no z. Raises MomentsError for a parameter that was not found, or has another shape.
    """
    comparisons = []
    for name, reference in expected.items():
        if name not in actual:
            raise MomentsError(f"the reference has the parameter {name!r}; found only {', '.join(actual)}.")
        ours = actual[name]
        if ours.mean.shape != reference.mean.shape:
            raise MomentsError(f"{name}: found the shape {ours.mean.shape}; the reference's is {reference.mean.shape}.")
        for index, element in zip(np.ndindex(*ours.mean.shape), elements(name, ours.mean.shape), strict=True):
            if ours.sd[index] == reference.sd[index] == 0 and ours.mean[index] == reference.mean[index]:
                continue
            for statistic in STATISTICS:
                value, expected_value = (float(getattr(moment, statistic)[index]) for moment in (ours, reference))
                if math.isnan(expected_value):
                    continue
                errors = [float(getattr(moment, f"mcse_{statistic}")[index]) for moment in (ours, reference)]
                comparisons.append(
                    Comparison(element, statistic, value, expected_value, z_score(value - expected_value, *errors))
                )
    return comparisons


def z_score(difference: float, *errors: float) -> float:
    """A difference over the standard error of both its terms; infinite where there is none."""
    error = math.hypot(*errors)
    if math.isnan(error) or math.isnan(difference) or error == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / error


def encode(moments: Moments) -> str:
    """The moments as JSON: name -> [shape, means, standard deviations, and the standard errors of both]."""

    def numbers(array: NDArray[np.float64], digits: int) -> list[float | None]:
        return [float(f"{x:.{digits}g}") if math.isfinite(x) else None for x in array.ravel()]

    plain = {
        name: [list(moment.mean.shape)]
        + [numbers(getattr(moment, column), 4 if column.startswith("mcse") else _DIGITS) for column in _COLUMNS]
        for name, moment in moments.items()
    }
    return json.dumps(plain, separators=(",", ":"))


def decode(text: str) -> Moments:
    """Inverse of `encode`. Raises MomentsError for a text that is not such."""
    try:
        moments = {}
        for name, (shape, *columns) in json.loads(text).items():
            arrays = [np.array([math.nan if x is None else x for x in values], np.float64) for values in columns]
            moments[name] = Moment(*(array.reshape(shape) for array in arrays))
    except (ValueError, TypeError, AttributeError) as error:
        raise MomentsError(f"moments: found a text that is not JSON of moments ({error}).") from error
    return moments
