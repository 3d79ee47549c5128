"""What warmup asks of a run (mcmc/run/run.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.execution.chain_states import ChainStates
from batchnuts.mcmc.execution.evaluation import GradientService
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.execution.window_reduction import ReducedWindow, Reduction
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.storage.progress import RunPhase
from batchnuts.mcmc.warmup.ensemble import EnsembleRun
from batchnuts.mcmc.warmup.windows import Window

Result = TypeVar("Result")


class WarmupRun(EnsembleRun, Protocol):
    """The constants of a run, and its steps."""

    @property
    def tuning(self) -> Tuning | None:
        """The tuning of an earlier run, from which warmup starts."""

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows that are made, or, where warmup ends by itself, may be made."""

    @property
    def check(self) -> Window | None:
        """The window before these, in which an earlier run's tuning is checked."""

    @property
    def keeps_warmup(self) -> bool:
        """Whether the records of windows are kept."""

    @property
    def group(self) -> NDArray[np.int64]:
        """[chains]: the number of the group of chains that each shares its step size and metric with."""

    def timed(self, phase: RunPhase, work: Callable[[], Result]) -> Result:
        """The result of `work`, its time added to the phase."""

    def enter(self, place: Any) -> None:
        """A stretch begins at this place."""

    def inputs(
        self,
        states: ChainStates,
        transitions: int,
        adapting: bool,
        max_tree_depth: int | None = None,
        *,
        settled: bool = False,
    ) -> ChainInputs:
        """The arguments of `run_chain` from the states of all chains."""

    def stretch(
        self,
        runner: Runner,
        inputs: ChainInputs,
        transitions: int,
        phase: RunPhase,
        total: int,
        before: int,
        leave: float = 0.0,
        *,
        missing: tuple[str, ...] = (),
        reduction: Reduction | None = None,
    ) -> ChainResult | ReducedWindow:
        """Run all chains for some transitions."""

    def reduced(self, result: ChainResult | ReducedWindow, states: ChainStates, reduction: Reduction) -> ReducedWindow:
        """A window's result, reduced."""

    @property
    def gradients(self) -> GradientService:
        """What evaluates the density at positions of chains."""

    def use(self, metric: MetricParameters) -> NDArray[Any]:
        """Let programs that start from now on have this metric; returns the chains' inverse masses."""

    def with_searched_step_size(self, states: ChainStates) -> ChainStates:
        """The states with a reasonable step size at their positions."""
