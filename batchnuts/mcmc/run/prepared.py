"""A model that is ready for many runs: checked and compiled once, sampled for one data set after another (many/)."""

from __future__ import annotations

from dataclasses import dataclass

from batchnuts.autobatch import random
from batchnuts.disk_cache.folder import keeping
from batchnuts.mcmc.execution.program_cache import Programs, check_disk_cache, give_back
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.checked_model import CheckedModel, checked_model
from batchnuts.mcmc.run.run import ProgressCallback, Run
from batchnuts.mcmc.run.sampling import phases
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.starts.methods import make_proposals
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.stopping.interim_analyses import interim_analyses_of
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.process.signals import StopSignals


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model with its compiled programs, which serve one run at a time."""

    checked: CheckedModel
    content: Content
    programs: Programs

    @property
    def model(self) -> Model:
        """The model, with the data by which it was prepared."""
        return self.checked.model

    @property
    def execution(self) -> ExecutionSettings:
        """The settings of the execution, with the backend decided."""
        return self.checked.execution

    def draws(
        self, model: Model, seed: int, progress: ProgressCallback, stop: StopSignals, tuning: Tuning | None = None
    ) -> Draws:
        """A run of the model with other data of the same types, which gives what `run_chains` gives for it.

        tuning: of an earlier run, from which warmup starts; `sampler.warmup.from` is not read. Raises what a run raises
        from its starts on; the checks of a model were made when it was prepared.
        """
        checked, execution = self.checked, self.checked.execution
        sampler = checked.sampler.model_copy(update={"seed": seed})
        library = checked.density_library
        with keeping(execution.cache):
            run = Run(
                model,
                library,
                sampler,
                execution,
                progress,
                stop,
                self.programs,
                random.lane_keys(seed, sampler.chain_count),
                divergences=self.content.divergences,
                keeps_warmup=self.content.warmup,
                checks=interim_analyses_of(model, library, sampler, execution),
                tuning=tuning,
            )
            proposals = make_proposals(model, sampler, execution, tuning)
            return phases(run, proposals, self.content.computed(model))

    def give_back(self) -> None:
        """Let other runs of the model use its programs."""
        give_back(self.model, self.checked.sampler, self.execution, self.programs)


def prepare(model: Model, sampler: SamplerSettings, execution: ExecutionSettings, content: Content) -> PreparedModel:
    """Check a model with its own data, and make its programs.

    sampler: with a number of chains. Raises ModelError for a model that cannot be
    sampled, SettingsError for settings that do not fit it.
    """
    check_disk_cache(execution.cache)
    with keeping(execution.cache):
        proposals = make_proposals(model, sampler, execution)
        checked = checked_model(model, sampler, execution, content, proposals)
        return PreparedModel(checked, content, checked.borrow_programs())
