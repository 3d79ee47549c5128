"""The parameters of a model as they are reported: a name for each element, and its values at positions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.quantities import Quantities, generated_shapes
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.settings.schema import SettingsError, nearest, shown


@dataclass(frozen=True)
class NaturalParameters:
    """Some elements of a model's parameters: `mu`, `theta[0]`, `theta[1]`, ..."""

    names: tuple[str, ...]
    values: Callable[[NDArray[Any]], NDArray[Any]]
    """A function of positions [draws, dimension]: the elements [draws, elements]."""
    may_be_constant: tuple[bool, ...]
    """Which of them may have one value for all positions: of generated quantities that is not known before."""

    def has(self, name: str) -> list[int]:
        """The elements that a name stands for: `theta` for all of them, `theta[3]` for one."""
        return [i for i, element in enumerate(self.names) if element == name or element.startswith(f"{name}[")]

    def of(self, indices: Sequence[int]) -> NaturalParameters:
        """Some of the elements, by number."""
        all_values = self.values
        return NaturalParameters(
            tuple(self.names[i] for i in indices),
            lambda position: all_values(position)[:, indices],
            tuple(self.may_be_constant[i] for i in indices),
        )

    def __add__(self, other: NaturalParameters) -> NaturalParameters:
        return NaturalParameters(
            self.names + other.names,
            lambda position: np.concatenate([self.values(position), other.values(position)], axis=1),
            self.may_be_constant + other.may_be_constant,
        )


def natural_parameters(
    model: Model,
    density_library: DensityLibrary,
    execution: ExecutionSettings,
    seed: int,
    requested: Sequence[str] | None,
    key: str,
) -> NaturalParameters:
    """The parameters that are asked for, by the names of the summary: `theta` for all its elements, `theta[3]` for one.

    requested None: all variables; of a model that does not report its variables, all quantities that it generates.
    Quantities that it generates besides can be asked for by name.

    Raises SettingsError, which names the setting `key`, for names that there are not.
    """
    parameters = _variables(model) if model.reports_variables else NaturalParameters((), _nothing, ())
    unknown = [] if requested is None else [name for name in requested if not parameters.has(name)]
    if not model.reports_variables or (unknown and model.gives("generated")):
        parameters = parameters + _generated(model, density_library, execution, seed)
    if requested is None:
        return parameters
    if unknown := [name for name in requested if not parameters.has(name)]:
        variable_names = list(dict.fromkeys(name.partition("[")[0] for name in parameters.names))
        raise SettingsError(
            "\n".join(
                f"{key}: found {shown(name)}, which is not a parameter of the model"
                + (
                    nearest(name, [*variable_names, *parameters.names])
                    or f"; expected some of {', '.join(variable_names)}"
                )
                for name in unknown
            )
        )
    return parameters.of(sorted({i for name in requested for i in parameters.has(name)}))


def _nothing(position: NDArray[Any]) -> NDArray[Any]:
    return np.empty((len(position), 0))


def _variables(model: Model) -> NaturalParameters:
    """All elements of a model's variables that vary."""
    varies = model.varies()
    names = tuple(itertools.compress(model.element_names(), varies))
    return NaturalParameters(names, lambda position: model.elements(position)[:, varies], (False,) * len(names))


def _generated(
    model: Model, density_library: DensityLibrary, execution: ExecutionSettings, seed: int
) -> NaturalParameters:
    """All elements of what a model generates from a draw."""
    shapes = generated_shapes(model, density_library)
    labels = model.labels()
    names: list[str] = []
    for name, shape in shapes.items():
        dims = model.dims_of(name, shape)
        entries = itertools.product(*(labels.get(dim, range(n)) for dim, n in zip(dims, shape, strict=True)))
        names += [f"{name}[{', '.join(map(str, entry))}]" if shape else name for entry in entries]
    quantities = Quantities(model, execution, seed)

    def values(position: NDArray[Any]) -> NDArray[Any]:
        generated = quantities.of_posterior(position)["generated"]
        return np.concatenate([generated[name].reshape(len(position), -1) for name in shapes], axis=1)

    return NaturalParameters(tuple(names), values, (True,) * len(names))
