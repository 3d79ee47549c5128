"""What a checkpoint holds of a run: how it is taken from one under way, made from the file of one that has ended, and
given back to one that goes on.

A new field of `SavedRun` (checkpoint/saved_run.py) is filled in the first two, and read in one of the others or, of the
stretch under way, in `Run.stretch`.
"""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.checkpoint.keeper import Keeper
from batchnuts.mcmc.checkpoint.saved_run import SavedRun, require_same, require_same_density
from batchnuts.mcmc.execution.chain_states import ChainStates, InDraws
from batchnuts.mcmc.execution.evaluation import Checked, GradientService
from batchnuts.mcmc.execution.model_description import described, made_with
from batchnuts.mcmc.execution.runner import Counts, RunningStretch
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.spent import Spent
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.starts.methods import Proposals
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.stopping.interim_analyses import InterimAnalyses
from batchnuts.mcmc.storage.draws import WarmupReport, WindowTuning
from batchnuts.mcmc.storage.history import HistoryKeeper
from batchnuts.mcmc.storage.logged import LoggedStorage
from batchnuts.mcmc.warmup.place import InWarmup

if TYPE_CHECKING:
    import xarray

# ---- saving ----------------------------------------------------------------------------------------------------------


class SavableRun(Protocol):
    """The part of a run (run.py) that is saved."""

    @property
    def model(self) -> Model:
        """The model that is sampled."""

    @property
    def sampler(self) -> SamplerSettings:
        """The settings by which it is sampled."""

    @property
    def execution(self) -> ExecutionSettings:
        """The settings of the execution, with the backend decided."""

    @property
    def chains_reason(self) -> str:
        """Why there are so many chains, where the number was chosen."""

    @property
    def tuning(self) -> Tuning | None:
        """The tuning of an earlier run, from which warmup starts."""

    @property
    def checks(self) -> InterimAnalyses | None:
        """The interim analyses of the draws."""

    @property
    def spent(self) -> Spent:
        """What phases have taken so far."""

    @property
    def gradients(self) -> GradientService:
        """What evaluates the density at positions of chains."""


def saved_now(run: SavableRun, keeper: Keeper, running: RunningStretch | None) -> SavedRun:
    """The checkpoint of a run, whose stretch under way, if any, is paused."""
    if keeper.density is None:
        keeper.density = run.gradients.evaluate(keeper.place.states.position)
    saved = None if running is None else running.save()
    in_draws = isinstance(keeper.place, InDraws) and saved is not None and run.checks is not None
    return SavedRun(
        config=keeper.config,
        made_with=made_with(run.execution.backend),
        model=described(run.model),
        chains=run.sampler.chain_count,
        chains_reason=run.chains_reason,
        backend=run.execution.backend,
        place=keeper.place,
        density=keeper.density,
        tuning=run.tuning,
        seconds=keeper.spent.seconds,
        counts=keeper.spent.counts,
        elapsed=time.perf_counter() - keeper.began,
        stretch=None if saved is None else saved.state,
        parts=tuple(saved.storage.parts) if saved is not None and isinstance(saved.storage, LoggedStorage) else (),
        interim_analyses=run.checks.saved if in_draws and run.checks is not None else None,
        history=run.spent.history,
    )


def saved_of_file(
    stats: xarray.Dataset, adaptation: xarray.Dataset, progress: xarray.Dataset | None, further_draws: int
) -> SavedRun:
    """A run that has ended as if it had been interrupted after its last draw, with a config that asks for more draws.

    stats, adaptation, progress: groups of its file, the first two with all that a run saves; progress None where the
    file has none.
    """
    about = adaptation.attrs
    arrays = {str(name): array.values for name, array in adaptation.data_vars.items()}
    draws, dtype = int(about["draws_complete"]), about["dtype"]
    config = json.loads(about["config"])
    config["sampler"] |= {"draws": draws + further_draws, "until": None, "chains": len(arrays["last_position"])}
    metric = MetricParameters(
        about["metric"],
        arrays["inverse_mass"],
        arrays.get("metric_eigenvectors", np.zeros((arrays["last_position"].shape[1], 0))),
        arrays.get("metric_eigenvalues", np.zeros(0)),
    )
    position, log_density = arrays["last_position"], stats["lp"][:, -1].values
    gradient = arrays.get("last_gradient", np.full_like(position, np.nan))
    inverse_mass = np.broadcast_to(metric.inverse_mass.astype(dtype), position.shape)
    states = ChainStates(
        position, log_density, gradient, metric, inverse_mass, arrays["step_size"], int(about["warmup"])
    )
    outliers, restarted, late = (
        tuple(int(number) for number in about.get(f"{which}_chains", "").split(", ") if number)
        for which in ("outlier", "restarted", "late")
    )
    agreed = None if about["warmup_agreed"] < 0 else bool(about["warmup_agreed"])
    columns = (arrays.get(f"window_{name}", ()) for name in ("transitions", "step_size", "variance"))
    windows = tuple(WindowTuning(int(transitions), *rest) for transitions, *rest in zip(*columns, strict=True))
    warmup = WarmupReport(
        int(about["warmup"]),
        about["warmup_ended"],
        agreed,
        outliers,
        windows,
        restarted,
        late,
        int(about.get("starts_not_numbers", 0)),
        int(about.get("warmup_burn_in", 0)),
    )
    useful = int(stats.attrs["useful_gradients"])
    counts = Counts(useful_gradients=useful, executed_gradients=round(useful / max(stats.attrs["utilization"], 1e-9)))
    history, phases = HistoryKeeper(), {"compile": Counts(), "warmup": Counts(), "sampling": counts}
    if progress is not None:
        history = HistoryKeeper.of({str(name): column.values for name, column in progress.items()})
        phases |= {row.phase: Counts(*row[2:]) for row in history.rows}  # the last of each
        warmup_counts = phases["warmup"]
        phases["sampling"] = replace(
            phases["sampling"],
            transitions=0,  # chains count on from where they were
            useful_gradients=useful - warmup_counts.useful_gradients,
            executed_gradients=counts.executed_gradients - warmup_counts.executed_gradients,
        )
    return SavedRun(
        config=config,
        made_with=json.loads(about["made_with"]),
        model=json.loads(about["model_described"]),
        chains=len(position),
        chains_reason=about.get("chains_reason", ""),
        backend=about["backend"],
        place=InDraws(states, warmup, draws),
        density=(log_density, gradient),
        tuning=None,
        seconds={phase: float(about[f"{phase}_time"]) for phase in ("compile", "warmup", "sampling")},
        counts=phases,
        elapsed=0.0,
        stretch=None,
        parts=(),
        interim_analyses=None,
        history=history,
    )


# ---- resuming --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Beginning:
    """What a run starts or resumes with: its number of chains, an earlier run's tuning, what was spent, positions."""

    chains: int
    chains_reason: str
    tuning: Tuning | None
    spent: Spent
    proposals: Proposals | None = None
    """The starts that are proposed; None: as the settings say."""
    checked: Checked | None = None
    """The result of a check of the model, if it was made already."""


def resumed(model: Model, saved: SavedRun) -> Beginning:
    """The beginning of the rest of a run: where its chains were when the stretch began."""
    require_same(saved, model, saved.backend)
    spent = Spent(dict(saved.seconds), dict(saved.counts), history=saved.history)
    spent.began -= saved.history.seconds  # the time between the two processes does not count
    proposals = functools.partial(_always, saved.place.states.position)
    return Beginning(saved.chains, saved.chains_reason, saved.tuning, spent, proposals)


def _always(position: NDArray[Any], attempt: int) -> NDArray[Any]:
    """Propose the same position at every attempt."""
    return position


def place_of_saved(saved: SavedRun, gradients: GradientService) -> InWarmup | InDraws:
    """Where the stretch began that goes on. Raises CheckpointError where the density has other values there."""
    place: InWarmup | InDraws = saved.place
    values = gradients.evaluate(place.states.position)
    require_same_density(saved, values)
    if np.isnan(place.states.gradient).all():  # chains had gone beyond what was kept
        place = replace(place, states=replace(place.states, gradient=values[1]))
    return place
