"""What of a run is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.quantities import generated_shapes
from batchnuts.settings.schema import SettingsError, nearest, shown

KEY = "output.variables"

FUNCTION_OF_GROUP = {"log_likelihood": "log_likelihood", "posterior_predictive": "predictive", "prior": "prior"}
"""Groups that may be left out, and the functions of a model that give them; `prior_predictive` takes two of these."""

AXES_OF_DIVERGENCES = frozenset({"divergence", "point"})
"""Axes of the group `divergences`, the ends of trajectories that diverged (datasets.py)."""


@dataclass(frozen=True)
class Content:
    """The settings of `output` that say what is saved, whatever the format."""

    variables: tuple[str, ...] | None = None
    """Names of the variables and generated quantities that are saved; None: all."""
    thin: int = 1
    """Draws 0, thin, 2 thin, ... are saved."""
    dtype: str | None = None
    """The dtype of saved numbers other than integers and statistics; None: the model's."""
    unconstrained: bool = False
    """Whether the real numbers that the sampler moved are saved too."""
    draws: bool = True
    """Whether draws are kept at all; else a summary of them (summarizing.py)."""
    divergences: bool = False
    """Whether the ends of trajectories that diverged are saved too, those of draws that are not saved included."""
    groups: tuple[str, ...] | None = None
    """The names in FUNCTION_OF_GROUP that are computed and saved; None: all that the model has functions for."""
    warmup: bool = False
    """Whether the draws of warmup are saved too."""

    def computed(self, model: Model) -> Model:
        """The model with those of its functions alone whose groups are saved."""
        if self.groups is None:
            return model
        return model.without([role for group, role in FUNCTION_OF_GROUP.items() if group not in self.groups])

    def has(self, name: str) -> bool:
        """Whether a variable is saved."""
        return self.variables is None or name in self.variables

    def kept(self, draws: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the draws with these numbers [n] are saved."""
        mask: NDArray[np.bool_] = draws % self.thin == 0
        return mask

    def length(self, draws: int) -> int:
        """How many of the first `draws` are saved."""
        return -(-draws // self.thin)

    def cast(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array in the dtype in which it is saved."""
        if self.dtype is None or array.dtype.kind != "f":
            return array
        return array.astype(self.dtype, copy=False)


def chosen_groups(groups: Any) -> tuple[str, ...] | None:
    """The argument `groups` of `sample_chains`, checked.

    Raises SettingsError for what is neither None nor an iterable of names of FUNCTION_OF_GROUP.
    """
    if groups is None:
        return None
    expected = f"expected None or a list of some of {', '.join(map(repr, FUNCTION_OF_GROUP))}"
    if isinstance(groups, str | bytes | Mapping) or not isinstance(groups, Iterable):
        raise SettingsError(f"groups: found {shown(groups)}; {expected}.")
    chosen = tuple(groups)
    for group in chosen:
        if not isinstance(group, str) or group not in FUNCTION_OF_GROUP:
            hint = nearest(group, FUNCTION_OF_GROUP) if isinstance(group, str) and group != "prior_predictive" else ""
            raise SettingsError(f"groups: found {shown(group)} in it{hint or f'; {expected}.'}")
    return chosen


def check_content(model: Model, density_library: Callable[[], DensityLibrary], content: Content) -> None:
    """Raise SettingsError for variables that the model does not report, or that cannot be saved with divergences.

    density_library: asked for where the names of generated quantities are needed.
    """
    if content.divergences:
        reserved = {name for variable in model.variables for name in (variable.name, *variable.axis_names)}
        if clashes := sorted(reserved & AXES_OF_DIVERGENCES):
            raise SettingsError(
                f"output.divergences: found true, and {clashes[0]!r} in the model, as the name of a variable or of an "
                "axis; the group divergences has an axis of that name. Rename the model's."
            )
    if content.variables is None:
        return
    names = [variable.name for variable in model.variables if model.reports_variables]
    if model.gives("generated") and any(name not in names for name in content.variables):
        names += generated_shapes(model, density_library())
    if unknown := [name for name in content.variables if name not in names]:
        raise SettingsError(
            "\n".join(
                f"{KEY}: found {shown(name)}, which the model does not report"
                + (nearest(name, names) or f"; expected some of {', '.join(names)}")
                for name in unknown
            )
        )
