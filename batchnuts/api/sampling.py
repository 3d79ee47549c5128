"""`sample_chains`: a run from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import numpy as np

from batchnuts.api.options import Options, with_options
from batchnuts.api.running import check_choices, run_from_python
from batchnuts.mcmc.model.content import Content, chosen_groups
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.wrapping import how_to_wrap
from batchnuts.mcmc.output.result import Result
from batchnuts.mcmc.run.run import ProgressCallback
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.settings.schema import SettingsError, shown


@with_options
def sample_chains(
    model: Model,
    *,
    progress: ProgressCallback | bool | None = None,
    unconstrained: bool = False,
    divergences: bool = False,
    keep_draws: bool = True,
    keep_warmup: bool = False,
    groups: Sequence[str] | None = None,
    signals: Literal["keep", "raise"] = "keep",
    **settings: Unpack[Options],
) -> Result:
    """Sample a model with NUTS and give the draws as an ArviZ object, the same that the command line saves.

    model: from Model.from_function, or of a bridge.
    progress: a function that is called with a Progress a few times a second (docs/progress.md), True or False for
        progress on stderr or none; by default there is some in a terminal or notebook.
    unconstrained: whether to add the group `unconstrained_posterior`, the real numbers that the sampler moved.
    divergences: whether to add the group `divergences`, where trajectories that diverged began and ended.
    keep_draws: False keeps only what is known of them, in memory that does not grow with draws: the group `summary` in
        place of `posterior` (docs/summaries.md). `batchnuts.check` judges the result.
    keep_warmup: whether to add the groups `warmup_posterior` and `warmup_sample_stats`, the transitions of warmup.
    groups: of `log_likelihood`, `posterior_predictive` and `prior`, those that are computed; None: all for which the
        model has functions. They may be much larger than the draws, and take longer.
    signals: what Ctrl-C does, and in a program's main thread SIGTERM and SIGHUP, unless the program handles them. The
        run ends, and `keep` gives the draws made so far, marked as interrupted, with a line on stderr: the program goes
        on. `raise` raises KeyboardInterrupt, which names the signal and has them in its attribute `result`, and the
        signal's number in `signal`: for a program that has to end in time.

    The other keywords are the fields of SamplerSettings and ExecutionSettings.

    Raises KeyboardInterrupt if a signal comes before there are draws, or Ctrl-C again after a warning; SettingsError
    for settings that do not fit, ModelError for a model that cannot be sampled. Any other error after the first draw is
    raised with the draws in its attribute `result`.
    """
    if not isinstance(model, Model):
        raise ModelError(
            f"sample_chains takes a Model, found {type(model).__name__}. Make one from a density with "
            f"batchnuts.Model.from_function(log_density, dimension=...).{how_to_wrap(model)}"
        )
    check_choices(progress, signals)
    for name, flag in (
        ("unconstrained", unconstrained),
        ("divergences", divergences),
        ("keep_draws", keep_draws),
        ("keep_warmup", keep_warmup),
    ):
        if not isinstance(flag, bool | np.bool_):
            raise SettingsError(f"{name}: found {shown(flag)}; expected True or False.")
    sampler, execution = split_settings(settings)
    content = Content(
        unconstrained=unconstrained,
        draws=keep_draws,
        divergences=divergences,
        groups=chosen_groups(groups),
        warmup=keep_warmup,
    )
    if not keep_draws and (unconstrained or divergences or keep_warmup):
        named = "unconstrained" if unconstrained else "divergences" if divergences else "keep_warmup"
        raise SettingsError(
            f"keep_draws: found False with {named}=True, which needs the draws; give only one of the two."
        )
    return run_from_python(model, sampler, execution, content, progress, signals)
