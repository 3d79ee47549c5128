"""Exact cross-validation: the model is fitted without some observations, and judged by these.

The expected log predictive density of an observation is the logarithm of its mean likelihood over draws of a posterior
that has not seen it (Vehtari, Gelman and Gabry 2017, arXiv:1507.04544, equations 3 and 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.many.data_sets import DataSet, example_of
from batchnuts.many.fit import HELD_OUT
from batchnuts.many.result import ManyResult
from batchnuts.many.run import ManyRun
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.settings.schema import in_words, nearest, shown

Folds = Sequence[NDArray[np.int64]]
"""The observations of each fold."""


def folds_of(model: Model, folds: Any, rows: Sequence[str] | None, seed: int) -> tuple[Folds, list[str]]:
    """The observations that are left out of each fit, and the entries of the data that have a row for each.

    folds: a number of folds, into which observations are divided at random; or the observations of each, lists of
    numbers or one list of labels, one for each observation. rows: None: entries as long as the observed data.
    """
    names, count = rows_of(model, rows)
    if isinstance(folds, bool) or folds is None:
        raise ModelError(f"folds: found {shown(folds)}; expected a number of folds, or the observations of each.")
    if isinstance(folds, (int, np.integer)):
        if not 2 <= folds <= count:
            raise ModelError(f"folds: found {folds}; expected 2 to {count}, the number of observations.")
        order = np.random.default_rng(seed).permutation(count) if folds < count else np.arange(count)
        return [np.sort(part) for part in np.array_split(order, folds)], names
    listed = list(folds)
    if len(listed) == count and all(np.ndim(label) == 0 for label in listed):  # labels
        labels = np.asarray(listed)
        return [np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())], names
    parts = [np.atleast_1d(np.asarray(part, np.int64)) for part in listed]
    for number, part in enumerate(parts):
        if not len(part) or part.min() < 0 or part.max() >= count or len(np.unique(part)) != len(part):
            raise ModelError(
                f"folds: fold {number} is {shown(listed[number])}; expected numbers of observations, 0 to "
                f"{count - 1}, each once."
            )
        if len(part) == count:
            raise ModelError(f"folds: fold {number} leaves nothing to fit.")
    return parts, names


def rows_of(model: Model, rows: Sequence[str] | None) -> tuple[list[str], int]:
    """The entries of the data with a row for each observation, and the number of observations. Raises ModelError."""
    owner, data = f"Model {model.name!r}", example_of(model)
    if not isinstance(data, dict):
        raise ModelError(f"{owner}: cross-validation needs data that are a dict.")
    if not model.gives("log_likelihood"):
        raise ModelError(
            f"{owner}: cross-validation needs a log-likelihood of each observation: the function log_likelihood of "
            "values and data; in Stan, log_lik among the generated quantities."
        )
    observed = [name for name in model.observed_data if name in data and np.ndim(data[name])]
    if rows is None:
        lengths_of = _lengths(model)
        declared = {lengths_of[name] for name in observed or lengths_of if name in lengths_of}
        if len(declared) == 1:
            rows = [name for name in lengths_of if lengths_of[name] in declared]
        elif not observed:
            raise ModelError(f"{owner}: it has no observed_data among its data; name them, or give rows.")
        else:
            count = len(data[observed[0]])
            return [name for name, array in data.items() if np.shape(array)[:1] == (count,)], count
    for name in rows:
        if name not in data or not np.ndim(data[name]):
            raise ModelError(f"rows: found {name!r}, which is no array of the data{nearest(str(name), data) or '.'}")
    lengths = {len(data[name]) for name in rows}
    if len(lengths) != 1:
        raise ModelError(f"rows: found arrays of {sorted(lengths)} rows; expected one number of observations.")
    return list(rows), lengths.pop()


def without(model: Model, folds: Folds, names: Sequence[str], labels: Sequence[Any] | None = None) -> Iterator[DataSet]:
    """For each fold the data without it, and those of it."""
    data, lengths = example_of(model), _lengths(model)
    declared = {lengths[name] for name in names if name in lengths}

    def one(part: NDArray[np.int64], inside: bool) -> dict[str, Any]:
        chosen = np.isin(np.arange(len(data[names[0]])), part) == inside
        rows = {name: np.asarray(data[name])[chosen] for name in names}
        return {**data, **rows, **dict.fromkeys(declared, int(chosen.sum()))}

    for number, part in enumerate(folds):
        label = number if labels is None else labels[number]
        yield DataSet(number, label, one(part, False), held_out=one(part, True))


def _lengths(model: Model) -> Mapping[str, str]:
    """Of a model of another library, which data are the lengths of others."""
    return {} if model.remade is None else model.remade.lengths


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The result of exact cross-validation.

    `pointwise` [observations]: the expected log predictive density of each; NaN where its fit has failed. `elpd` is
    their sum and `se` its standard error. `fits` has the fits, one for each fold. Two models of the same data are
    compared observation by observation: the standard error of the difference is `sqrt(n) * (a.pointwise -
    b.pointwise).std()`.
    """

    fits: ManyResult
    folds: Folds
    pointwise: NDArray[np.float64]

    @property
    def elpd(self) -> float:
        """The expected log predictive density of all observations."""
        return float(self.pointwise.sum())

    @property
    def se(self) -> float:
        """Its standard error."""
        return float(np.sqrt(len(self.pointwise)) * self.pointwise.std())

    @property
    def ok(self) -> bool:
        """Whether all folds were fitted, with good draws."""
        return self.fits.ok

    def __repr__(self) -> str:
        return (
            f"elpd {self.elpd:.1f}, standard error {self.se:.1f}, of {len(self.pointwise):,} observations\n{self.fits}"
        )


def cross_validated(run: ManyRun, model: Model, folds: Folds, names: Sequence[str]) -> CrossValidation:
    """The result of a run without each of some folds (`folds_of`)."""
    fits = run.of_sets(without(model, folds, names), len(folds))
    return CrossValidation(fits, folds, pointwise_of(fits, folds, len(example_of(model)[names[0]])))


def pointwise_of(fits: ManyResult, folds: Folds, count: int) -> NDArray[np.float64]:
    """[observations]: what the fit without each says of it; NaN where it has failed.

    Raises ModelError where a log-likelihood is of other observations than those that the fit has not seen.
    """
    found = np.full(count, np.nan)
    for number, part in enumerate(folds):
        if number not in fits.rows or fits.rows[number].failed:
            continue
        kept = fits.fits.get(number).summaries[HELD_OUT]
        for name, (_, values) in kept.items():
            if values.shape[:1] != part.shape and values.shape != part.shape[1:]:
                raise ModelError(
                    f"log_likelihood[{name!r}] has shape {values.shape} for {in_words(len(part), 'observation')} that "
                    "a fit has not seen; expected a first axis of these. Name all data that have a row for each in "
                    "`rows`, and let no other number of the model depend on how many there are."
                )
        found[part] = sum(values.reshape(len(part), -1).sum(axis=1) for _, values in kept.values())
    return found
