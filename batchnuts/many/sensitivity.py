"""How a posterior depends on the prior: one fit for each of some priors, whose numbers are entries of the data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from batchnuts.many.data_sets import DataSet, example_of
from batchnuts.many.result import ManyResult
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.settings.schema import nearest, shown

if TYPE_CHECKING:
    import pandas


def priors_of(model: Model, priors: Any) -> list[DataSet]:
    """The data sets of priors: the model's own, and for each prior the data with its numbers.

    priors: a mapping of names of the data to several values, of which all combinations are taken; or a list of mappings
    of names to a value. Raises ModelError.
    """
    data = example_of(model)
    if not isinstance(data, dict):
        raise ModelError(
            f"Model {model.name!r}: its data are no dict, which the numbers of a prior would be entries of."
        )
    if isinstance(priors, Mapping):
        for name, values in priors.items():
            if isinstance(values, (str, bytes)) or np.ndim(values) == np.ndim(data.get(name, 0)):
                raise ModelError(f"priors.{name}: found {shown(values)}; expected a list of values.")
        chosen = [dict(zip(priors, values, strict=True)) for values in itertools.product(*priors.values())]
    elif isinstance(priors, Sequence) and not isinstance(priors, (str, bytes)) and priors:
        chosen = [dict(prior) if isinstance(prior, Mapping) else _refuse(prior) for prior in priors]
    else:
        raise ModelError(f"priors: found {shown(priors)}; expected values by name, or a list of mappings.")
    for prior in chosen:
        for name in prior:
            if name not in data:
                raise ModelError(f"priors: {name!r} is no entry of the model's data{nearest(str(name), data) or '.'}")
    sets = [DataSet(0, "own", data)]
    labels: set[str] = {"own"}
    for number, prior in enumerate(chosen, 1):
        label = ", ".join(f"{name}={_short(value)}" for name, value in prior.items())
        label = label if label not in labels else f"{label} ({number})"
        labels.add(label)
        sets.append(DataSet(number, label, {**data, **prior}))
    return sets


def _refuse(prior: Any) -> dict[str, Any]:
    raise ModelError(f"priors: found {shown(prior)}; expected a mapping of names of the data to values.")


def _short(value: Any) -> str:
    return f"{float(value):g}" if np.ndim(value) == 0 else shown(value)


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The result of `sensitivity`: the fit `own` has the model's own prior, the others those that were given.

    `table` has a row for each prior and parameter: mean, sd, and `shift`, by how many standard deviations of the own
    posterior the mean is from its mean. `fits` has the fits.
    """

    fits: ManyResult

    @cached_property
    def table(self) -> pandas.DataFrame:
        """Mean, sd and shift of each parameter, by prior."""
        import pandas

        mean, sd = self.fits.summary("mean"), self.fits.summary("sd")
        rows = []
        for name in mean.data_vars:
            means, sds = (x[name].transpose("fit", ...).values.reshape(len(self.fits), -1) for x in (mean, sd))
            indices = list(np.ndindex(*mean[name].shape[1:]))
            for number, label in enumerate(self.fits.labels):
                for place, index in enumerate(indices):
                    full = f"{name}[{', '.join(map(str, index))}]" if index else str(name)
                    shift = (means[number, place] - means[0, place]) / sds[0, place] if sds[0, place] else np.nan
                    rows.append((label, full, means[number, place], sds[number, place], shift))
        columns = ["prior", "parameter", "mean", "sd", "shift"]
        return pandas.DataFrame(rows, columns=columns).set_index(["prior", "parameter"])

    def __repr__(self) -> str:
        shifts = self.table["shift"].abs()
        worst = shifts.idxmax() if shifts.notna().any() else None
        line = "" if worst is None else f"\nLargest shift: {worst[1]} by {shifts.max():.2g} sd with {worst[0]}"
        return f"{self.fits!r}{line}"
