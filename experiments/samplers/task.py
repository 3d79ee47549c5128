"""What a sampler is asked to do, the row that is made of it, and what the sampler's module gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.harness import task as harness
from batchnuts.experiments.harness.processes import Device, Unavailable, environment_for
from batchnuts.experiments.harness.rows import Row, Status
from batchnuts.experiments.samplers.problems import Problem, Start


class MissingSampler(Unavailable):
    """A sampler's library is not installed, or cannot do what is asked; the message says what and how to get it."""


@dataclass(frozen=True)
class Task(harness.Task):
    """One sampler on one problem at one size."""

    sampler: str
    """A name of `samplers.REGISTRY`."""
    options: dict[str, Any]
    """The options of that sampler; their schema stands beside it in the registry."""
    problem: dict[str, Any]
    """Options of a packaged model."""
    chains: int
    transitions: int
    """Transitions of a chain in a run."""
    step_size: float
    """Fixed; no sampler adapts anything. The metric is the identity for all."""
    max_tree_depth: int
    leapfrogs_per_leaf: int
    start: Start
    device: Device
    measure_ess: bool
    """Keep the draws of each run and compute their effective sample size."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the sampler's process, e.g. for its threads."""

    module = "batchnuts.experiments.samplers.timing"
    size_field = "chains"
    size_words = "{} chains"

    @property
    def heading(self) -> str:
        """The sampler and its number of chains."""
        return f"{self.sampler} {json.dumps(self.options)}, {self.size_in_words}"

    def process_environment(self) -> Mapping[str, str]:
        """The variables of its process, with those that the curve sets."""
        return environment_for(self.device, self.environment)


@dataclass(frozen=True)
class Measurement(Row):
    """One run of one task; or, where `status` is not `ok`, why there is none (then the figures are None)."""

    task: str
    sampler: str
    options: str
    """The options of the sampler, as JSON."""
    problem: str
    """The options of the problem's model, as JSON."""
    chains: int
    transitions: int
    step_size: float
    max_tree_depth: int
    leapfrogs_per_leaf: int
    start: str
    device: str
    status: Status
    repetition: int
    seed: int
    seconds: float | None
    useful_gradients: int | None
    """Gradients that single-chain NUTS evaluates too; waste is left out."""
    executed_gradients: int | None
    """Gradient evaluations times lanes; None where the library does not report it."""
    lockstep_gradients: int | None
    """What the same trajectories would execute if all chains met after each: chains times the sum of the longest. None
    where the library reports only how many gradients several trajectories took together."""
    asynchronous_gradients: int | None
    """What they would execute if no chain ever waited before its end: chains times the chain that needs most."""
    ess_min: float | None
    """Minimum bulk ESS of all coordinates, over all chains; None if not asked for."""
    ess_mean: float | None
    prepare_seconds: float | None
    """Building, compiling and the first run."""
    peak_memory_mb: float | None
    """The peak memory of the process so far."""
    load: float | None
    environment: str
    started: str
    note: str

    needed = ("useful_gradients", "seconds")

    @property
    def rate(self) -> float:
        """Useful gradients per second, over all chains."""
        assert self.useful_gradients is not None
        assert self.seconds is not None
        return self.useful_gradients / self.seconds

    @property
    def utilization(self) -> float | None:
        """Useful share of the gradients executed, where the sampler reports how many those were."""
        return self._useful_share(self.executed_gradients)

    @property
    def lockstep_utilization(self) -> float | None:
        """What utilization would be if all chains met after every trajectory."""
        return self._useful_share(self.lockstep_gradients)

    @property
    def asynchronous_utilization(self) -> float | None:
        """What it would be if no chain ever waited for another: the most that any schedule can reach."""
        return self._useful_share(self.asynchronous_gradients)

    def _useful_share(self, gradients: int | None) -> float | None:
        return None if self.useful_gradients is None or not gradients else self.useful_gradients / gradients

    @property
    def ess_per_minute(self) -> float | None:
        """Minimum bulk ESS of all coordinates, per minute of running; None where it was not asked for."""
        if self.ess_min is None or self.seconds is None:
            return None
        return 60 * self.ess_min / self.seconds


def require_plain(sampler: str, task: Task) -> None:
    """Raise MissingSampler for what a sampler cannot do that runs on the CPU, with one leapfrog in each leaf."""
    if task.device != "cpu":
        raise MissingSampler(f"Sampler {sampler} runs on the CPU only; device is {task.device}, set it to cpu.")
    require_one_leapfrog(sampler, task)


def require_one_leapfrog(sampler: str, task: Task) -> None:
    """Raise MissingSampler for several leapfrogs in each leaf."""
    if task.leapfrogs_per_leaf != 1:
        raise MissingSampler(
            f"Sampler {sampler} takes one leapfrog per leaf; leapfrogs_per_leaf is {task.leapfrogs_per_leaf}, set it "
            "to 1."
        )


@dataclass(frozen=True)
class Outcome:
    """What one run of a prepared sampler did. Everything in it is on the host."""

    leapfrogs: NDArray[np.integer]
    """[chains, transitions]: gradients that the chain's own NUTS needed. Their sum is the useful gradients."""
    executed_gradients: int | None
    """Gradients computed times lanes, wasted ones included; None where the library does not report it."""
    draws: NDArray[np.floating] | None
    """[chains, transitions, dimension], or None where the task does not measure ESS."""


Prepared = Callable[[int], Callable[[], Outcome]]
"""Compiled as far as the library allows. Called with a seed, it lays out the inputs of a run (not timed); what it
returns does the run (timed), and has all results on the host when it is done."""


class Sampler(Protocol):
    """A module of this folder: it makes a task ready. Importing the module imports no foreign library."""

    def prepare(self, task: Task, problem: Problem) -> Prepared:
        """Build and compile. Raises MissingSampler where that is not possible."""
