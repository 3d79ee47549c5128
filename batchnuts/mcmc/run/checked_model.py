"""A model that was tried where its chains may start, with what was decided by that: what a run begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from batchnuts.mcmc.execution.evaluation import Checked
from batchnuts.mcmc.execution.program_cache import Programs, borrow
from batchnuts.mcmc.model.content import Content, check_content
from batchnuts.mcmc.model.library_choice import DensityLibrary, choose_density_library, confirmed
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.quantities import check_quantities
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.starts.find_starts import check_at_starts
from batchnuts.mcmc.starts.methods import Proposals, positions_to_check


@dataclass(frozen=True, eq=False)
class CheckedModel:
    """A model, and the settings by which it can be sampled."""

    model: Model
    computed: Model
    """The model with the functions whose results are saved."""
    density_library: DensityLibrary
    sampler: SamplerSettings
    execution: ExecutionSettings
    """With the backend decided."""
    checked: Checked

    @property
    def first(self) -> NDArray[Any]:
        """[dimension]: where the density could be evaluated."""
        return self.checked.position

    def borrow_programs(self) -> Programs:
        """Its programs, for one run at a time."""
        return borrow(self.model, self.density_library, self.sampler, self.execution, self.first, self.checked)


def checked_model(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    content: Content,
    proposals: Proposals,
    checked: Checked | None = None,
) -> CheckedModel:
    """Try the density and what is computed of draws, and decide which library computes gradients.

    proposals: where chains may start. checked: what a check found before, if that began at the same place. Raises
    ModelError for a model that cannot be sampled, SettingsError for settings that do not fit it.
    """
    position = positions_to_check(model, sampler, proposals)
    density_library, execution = choose_density_library(model, execution, position[0], sampler.chain_count)
    if checked is None or not checked.is_of(position[0]):
        checked = check_at_starts(model, density_library, proposals, position)
    density_library = confirmed(model, density_library, (checked.position, checked.log_density, checked.gradient))
    computed = content.computed(model)
    check_quantities(computed, density_library, checked.position, whole=computed is model)
    check_content(model, lambda: density_library, content)
    return CheckedModel(model, computed, density_library, sampler, execution, checked)
