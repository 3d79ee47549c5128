"""`--dry-run`: what is known of a run, or of many fits, before they are made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from batchnuts.cli.config import RunConfig, build_model, is_users_own
from batchnuts.cli.output_path import checked_path_of_new_run, require_space
from batchnuts.cli.size_and_format import decided, forecast_of
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.forecast import Size, memory_problem
from batchnuts.process.signals import say
from batchnuts.user_models.target import DataOptions

if TYPE_CHECKING:
    from batchnuts.mcmc.model.library_choice import DensityLibrary


def dry_run(config: RunConfig, *, force: bool) -> int:
    """Print the resolved config, and on stderr what the run would take; gives the exit code.

    force: whether its output may replace what is there.
    """
    return _of_many_fits(config, force) if config.many is not None else _of_one_run(config, force)


def _of_one_run(config: RunConfig, force: bool) -> int:
    """Print the resolved config; on stderr the memory and disk that the run takes, and the check of a user's model.

    Raises what the run would raise before it draws: for an output that cannot be written, variables that there are
    not, and values or an earlier run from which chains cannot start.
    """
    from batchnuts.disk_cache.folder import keeping
    from batchnuts.mcmc.execution.program_cache import check_disk_cache
    from batchnuts.mcmc.model.content import check_content
    from batchnuts.mcmc.model.library_choice import choose_density_library, likely_backend

    begun_in = Path.cwd()
    own, fits = is_users_own(config.model), True
    if own:
        from batchnuts.cli.first_imports import import_first, import_for

        import_first(config)
    try:
        with keeping(config.execution.cache):
            model = build_model(config.model)
        if own:
            import_for(model, config)
        config = decided(config.from_folder(begun_in), model)
    finally:
        sys.stdout.write(config.to_yaml())
        sys.stdout.flush()
    if isinstance(data := getattr(config.model, "data", None), DataOptions):
        dtype = getattr(config.model, "dtype", None) or "float64"
        say(f"{data.path}, as it is read: {data.read(dtype)}")
    if own:
        model_check = config.output.content.computed(model).check(config.sampler.seed)
        fits = model_check.ok
        say(f"the model was {'checked' if model_check.ok else 'checked, with problems'}:\n{model_check}")
    expected = forecast_of(config, model)
    say(f"forecast of this run:\n{expected}")
    check_disk_cache(config.execution.cache)
    problem = memory_problem(
        config.sampler,
        config.execution,
        Size.of(model, config.output.content),
        content=config.output.content,
        streamed=config.output.streams,
        backend=likely_backend(model, config.execution),
    )
    if problem is not None:
        say(f"the run does not fit into memory.\n{problem}.")

    def density_library() -> DensityLibrary:
        start = model.initial_positions(np.random.default_rng(0), 1)[0]
        chains = None if config.sampler.chains == "auto" else config.sampler.chains
        return choose_density_library(model, config.execution, start, chains)[0]

    check_content(model, density_library, config.output.content)
    _check_starts(config, model)
    location = checked_path_of_new_run(config, force=force, begun_in=begun_in)
    require_space(location, expected.file_at_least, config)
    return 0 if fits and problem is None else 1


def _check_starts(config: RunConfig, model: Model) -> None:
    """Raise SettingsError where chains cannot start as the settings say; their number need not be decided yet."""
    from batchnuts.autobatch.machine import processors
    from batchnuts.mcmc.run.chains_choice import possible_chains, with_chains
    from batchnuts.mcmc.starts.methods import count_starts, make_proposals
    from batchnuts.mcmc.starts.tuning import read_tuning

    sampler, execution = config.sampler, config.execution
    if sampler.chains == "auto":
        size, starts = Size.of(model, config.output.content), count_starts(model, sampler.init)
        numbers = possible_chains(sampler, execution, size, execution.expert.shards or processors(), starts=starts)
        sampler = with_chains(sampler, numbers[0])
    make_proposals(model, sampler, execution, read_tuning(model, sampler))


def _of_many_fits(config: RunConfig, force: bool) -> int:
    """Print the resolved config; on stderr how many fits there are, and the check of the model with its example."""
    from batchnuts.cli.many_fits import plan_of, refuse_existing, settings_of_fits, store_path, with_defaults

    config = with_defaults(config)
    try:
        plan = plan_of(config)
    finally:
        sys.stdout.write(config.to_yaml())
        sys.stdout.flush()
    settings_of_fits(config, plan)
    check = plan.model.check(config.sampler.seed)
    say(f"the model was {'checked' if check.ok else 'checked, with problems'}:\n{check}")
    sampler = config.sampler
    say(
        f"{plan.count:,} fits of {sampler.chains} chains, {'at most ' * (sampler.until is not None)}{sampler.draws:,} "
        f"draws of each; of each fit {', '.join(sorted(plan.keep))} would be written to {store_path(config)}"
    )
    refuse_existing(store_path(config), force)
    return 0 if check.ok else 1
