"""batchnuts on a problem: what `python -m batchnuts.sample` does with its config."""

from __future__ import annotations

from batchnuts.cli.config import RunConfig, bridge_of
from batchnuts.experiments.posterior_checks.lines import lines_of_model
from batchnuts.experiments.posterior_checks.task import Run, Sampling, Task
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.run.sampling import run_chains


def prepare(task: Task, config: RunConfig, model: Model) -> Sampling:
    """Nothing is compiled before the run, which tells how long that took."""
    # parameters are reported, as always; predictions and pointwise likelihoods would only take time
    content = Content(config.output.content.variables, groups=())

    def run(seed: int) -> Run:
        sampler = config.sampler.model_copy(update={"seed": seed})
        draws = run_chains(model, sampler, config.execution, content=content)
        posterior = to_datasets(draws, content.computed(model))["posterior"]
        return Run(
            draws={str(name): array.values for name, array in posterior.data_vars.items()},
            divergences=int(draws.stats["diverging"].sum()),
            seconds=draws.timings["warmup"] + draws.timings["sampling"],
            compile_seconds=draws.timings["compile"],
        )

    return Sampling(run, lines_of_model(model) if bridge_of(config.model) is None else None)
