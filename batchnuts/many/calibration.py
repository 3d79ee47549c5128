"""Simulation-based calibration: data are simulated from known parameters, and each data set is fitted.

If model, simulator and sampler agree, the rank of a true parameter among posterior draws is uniform (Talts, Betancourt,
Simpson, Vehtari and Gelman 2018, arXiv:1804.06788, theorem 1). The log-density is ranked too, which sees errors that
leave each parameter's marginal as it is (Modrak et al. 2023, arXiv:2211.02383).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.many.data_sets import DataSet, example_of
from batchnuts.many.fit import LEVELS, RANKS
from batchnuts.many.result import ManyResult
from batchnuts.many.uniformity import Uniformity
from batchnuts.mcmc.model.library_choice import density_library_for
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.quantities import Quantities, generated_shapes
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.settings.schema import in_words, nearest, shown

if TYPE_CHECKING:
    import pandas

Simulate = Callable[[np.random.Generator], tuple[Mapping[str, Any], Any]]
"""A function of a generator to parameters by name and data, as the model takes both."""

LEVEL = 0.01
"""How probable it is that a calibrated model is said to be wrong."""

_SIMULATIONS = 1
"""What keeps their random numbers apart from those of fits."""

MOST_FAILED = 0.01
"""Share of fits without draws above which their ranks say nothing: it may be those of extreme parameters that fail."""


DEFAULTS: Mapping[str, Any] = {"draws": 2000, "until": {"ess_bulk": 400}}
"""Of the settings of each fit: enough effective draws for ranks among LEVELS."""


def simulations(
    model: Model, simulate: Simulate | None, execution: ExecutionSettings, fits: int, seed: int
) -> Iterator[DataSet]:
    """Data sets with their true parameters: by a function, or by the model's own where that is None."""
    if simulate is None:
        return by_prior(model, execution, fits, seed)
    return simulated(model, simulate, execution, fits, seed)


def simulated(
    model: Model, simulate: Simulate, execution: ExecutionSettings, fits: int, seed: int
) -> Iterator[DataSet]:
    """Data sets with their true parameters. Raises ModelError for what a function gives that does not fit the model."""
    shapes = model.value_shapes if model.reports_variables or model.parameters is not None else {}
    derived = generated_shapes(model, density_library_for(model, execution.backend)) if model.gives("generated") else {}
    for number in range(fits):
        made = simulate(np.random.default_rng([_SIMULATIONS, seed, number]))
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Mapping):
            raise ModelError(
                f"simulate returned {shown(made)}; expected a pair: a dict of parameters by name, and data as "
                "the model takes them."
            )
        parameters, data = made
        yield DataSet(number, number, data, truth=_checked(model, parameters, shapes, derived))


def _checked(
    model: Model, parameters: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], derived: Iterable[str]
) -> dict[str, NDArray[Any]]:
    """The true parameters as arrays. shapes, derived: of the model's parameters, names of its generated quantities."""
    found = {}
    for name, value in parameters.items():
        array = np.asarray(value)
        if name not in (known := dict.fromkeys([*shapes, *derived])):
            hint = nearest(str(name), known) or f"; they are {', '.join(known)}."
            raise ModelError(f"simulate returned {name!r}, which is no parameter of the model{hint}")
        if name in shapes and array.shape != shapes[name]:
            raise ModelError(f"simulate returned {name!r} of shape {array.shape}; the model has {shapes[name]}.")
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise ModelError(f"simulate returned {name!r} as {shown(value)}; expected finite numbers.")
        found[str(name)] = array.astype(model.dtype)
    if not found:
        raise ModelError("simulate returned no parameters; their ranks are what calibration is judged by.")
    return found


def by_prior(model: Model, execution: ExecutionSettings, fits: int, seed: int) -> Iterator[DataSet]:
    """The same by the model's own functions `prior` and `predictive`; the rest of the data is the model's own.

    Parameters of another library's model are among its generated quantities; those that data decide are not ranked.
    """
    example = example_of(model)
    observed = [name for name in model.observed_data if isinstance(example, dict) and name in example]
    if model.prior is None or model.predictive is None or not observed:
        raise ModelError(
            f"Model {model.name!r}: give simulate, a function of a generator to parameters and data; or give the model "
            "the functions prior and predictive, and observed_data, names of its data, in whose place the predictions "
            "are put."
        )
    values, computed = Quantities(model, execution, seed, checked=False).of_prior(fits)
    predicted = computed["predictive"]
    for name in observed:
        if name not in predicted:
            raise ModelError(f"Model {model.name!r}: its function predictive gives no {name!r}, which it observes.")
    if not model.reports_variables:
        values = {name: values for name, values in computed["generated"].items() if name not in model.of_data}
    for number in range(fits):
        data = {**example, **{name: predicted[name][number] for name in observed}}
        yield DataSet(number, number, data, truth={name: array[number] for name, array in values.items()})


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of simulation-based calibration.

    `ok`: whether the ranks of all parameters, and of the log-density, are uniform, at a level of 1 % for all together.
    `table` has the p-value of each; `ranks` all of them, (fit, ...), from 0 to 99; `fits` the fits. `print` shows the
    verdict, `plot` the distributions.
    """

    fits: ManyResult

    @cached_property
    def ranks(self) -> Any:
        """The ranks of all fits that have draws, as xarray's Dataset."""
        ranks = self.fits.summary(RANKS)
        failed = set(self.fits.failed)
        return ranks.sel(fit=[label for label in self.fits.labels if label not in failed])

    @cached_property
    def _columns(self) -> dict[str, NDArray[Any]]:
        """The ranks [fits] of each element, by name."""
        columns = {}
        for name, array in self.ranks.data_vars.items():
            values = array.transpose("fit", ...).values
            for index in np.ndindex(*values.shape[1:]):
                columns[f"{name}[{', '.join(map(str, index))}]" if index else str(name)] = values[(slice(None), *index)]
        return columns

    @cached_property
    def uniformity(self) -> Uniformity:
        """How ranks are compared with uniform ones."""
        return Uniformity(self.ranks.sizes["fit"], LEVELS)

    @cached_property
    def table(self) -> pandas.DataFrame:
        """For each parameter the p-value of its ranks, and whether they are uniform."""
        import pandas

        p = {name: self.uniformity.p_value(ranks) for name, ranks in self._columns.items()}
        mean = {name: float(ranks.mean()) / LEVELS for name, ranks in self._columns.items()}
        uniform = {name: value > LEVEL / len(p) for name, value in p.items()}
        return pandas.DataFrame({"p": p, "mean_rank": mean, "uniform": uniform})

    @property
    def ok(self) -> bool:
        """Whether all is as it is where model, simulator and sampler agree."""
        return not self._many_failed and not self.fits.interrupted and bool(self.table["uniform"].all())

    @property
    def _many_failed(self) -> bool:
        return len(self.fits.failed) > MOST_FAILED * max(1, len(self.fits))

    def __repr__(self) -> str:
        if len(self.fits.failed) == len(self.fits):
            first = next(iter(self.fits.failed.values()), "there are none")
            return f"NOT OK: all of {len(self.fits):,} fits failed, first: {first}"
        bad = self.table[~self.table["uniform"]].sort_values("p")
        count = len(self.table)
        lines = [f"{'OK' if self.ok else 'NOT OK'}: {self.uniformity.n:,} fits, {in_words(count, 'coefficient')}"]
        if len(bad):
            named = ", ".join(
                f"{name} (p = {p:.2g}, {_shape(m)})" for name, p, m in bad[["p", "mean_rank"]].itertuples()
            )
            lines.append(f"Ranks that are not uniform: {named}")
        else:
            lines.append(f"All ranks are uniform: least p = {self.table['p'].min():.2g} of {count}")
        if self.fits.failed:
            label, why = next(iter(self.fits.failed.items()))
            lines.append(f"{len(self.fits.failed):,} fits failed, first {label!r}: {why}")
        if (unsettled := sum(not row.ok and not row.failed for row in self.fits.rows.values())) > 0:
            lines.append(f"{unsettled:,} fits have draws that are judged not to be good; their ranks are among these")
        return "\n".join(lines)

    def plot(self, names: list[str] | None = None) -> Any:
        """A figure: for each parameter the difference of its ranks' distribution function from that of uniform ones,
        and a band that such differences stay within 19 times of 20. Needs Matplotlib."""
        from matplotlib.figure import Figure

        chosen = list(self._columns) if names is None else names
        rows = -(-len(chosen) // 4)
        figure = Figure(figsize=(3.2 * min(4, len(chosen)), 2.4 * rows), layout="constrained")
        band = self.uniformity.band()
        for place, name in enumerate(chosen):
            axes = figure.add_subplot(rows, min(4, len(chosen)), place + 1)
            axes.fill_between(band.points, band.low, band.high, color="0.85", step="mid")
            axes.plot(band.points, self.uniformity.differences(self._columns[name]), lw=1.2)
            axes.set_title(name, fontsize=9)
        figure.supxlabel("share of ranks", fontsize=9)
        figure.supylabel("difference of distribution functions", fontsize=9)
        return figure


def _shape(mean_rank: float) -> str:
    if abs(mean_rank - 0.5) < 0.02:
        return "too narrow or too wide"
    return "true values are above the draws" if mean_rank > 0.5 else "true values are below the draws"
