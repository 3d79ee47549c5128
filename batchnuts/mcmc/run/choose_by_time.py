"""`sampler.chains: auto` for a model on this machine: its gradient is timed, and the number chosen from that."""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.machine import processors
from batchnuts.mcmc.execution.chunk_plan import is_compiled
from batchnuts.mcmc.execution.evaluation import ProgramGradients, make_evaluate
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.library_choice import choose_density_library
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.chains_choice import ChainsChoice, choose_chains, possible_chains, with_chains
from batchnuts.mcmc.run.forecast import Size
from batchnuts.mcmc.run.gradient_times import gradient_times
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.starts.find_starts import check_at_starts
from batchnuts.mcmc.starts.methods import count_starts, make_proposals, positions_to_check
from batchnuts.mcmc.starts.tuning import read_tuning
from batchnuts.settings.schema import SettingsError


def choose_by_time(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    *,
    content: Content | None = None,
    streamed: bool = False,
) -> ChainsChoice:
    """Choose the number of chains of a run, by times that are measured, or were before for the same density.

    The model is checked first. content, streamed: see `possible_chains`. Raises ModelError for a model that cannot be
    sampled, SettingsError where no number fits the other settings, or the machine is not one compiled program, of which
    there is nothing to time.
    """
    cores = execution.expert.shards or processors()
    numbers = possible_chains(
        sampler,
        execution,
        Size.of(model, content),
        cores,
        starts=count_starts(model, sampler.init),
        content=content,
        streamed=streamed,
    )
    tried = with_chains(sampler, numbers[0])
    proposals = make_proposals(model, tried, execution, read_tuning(model, tried))
    position = positions_to_check(model, tried, proposals)
    density_library, execution = choose_density_library(model, execution, position[0])
    if not is_compiled(execution):
        expert = execution.expert
        raise SettingsError(
            f"sampler.chains: found auto with executor {expert.executor}, backend {execution.backend} and mode "
            f"{expert.mode}; expected a number of chains, or executor virtual_machine in mode xla, whose speed "
            "depends on the number."
        )
    checked = check_at_starts(model, density_library, proposals, position)
    try:
        times = gradient_times(model, density_library, checked, execution)
    except Exception:
        program = make_evaluate(value_and_gradient(model, density_library))
        ProgramGradients(model, program, execution).evaluate(position)  # raises what is wrong with the model, in words
        raise
    seconds = {chains: times.of_all_chains(chains, model.dimension, execution, cores) for chains in numbers}
    return replace(choose_chains(sampler, seconds, cores, model.dimension), checked=checked)
