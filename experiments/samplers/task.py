"""What a sampler is asked to do, and what it answers: plain data, so that both can cross to another process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.harness.processes import Device, Unavailable, environment_for
from batchnuts.experiments.harness.task import Attempt, fingerprint
from batchnuts.experiments.samplers.measurements import Measurement
from batchnuts.experiments.samplers.problems import Problem, Start


class MissingSampler(Unavailable):
    """A sampler's library is not installed, or cannot do what is asked; the message says what and how to get it."""


@dataclass(frozen=True)
class Task:
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

    @property
    def module(self) -> str:
        """The module that prepares and runs it, imported in its process only."""
        return "batchnuts.experiments.samplers.timing"

    @property
    def process(self) -> str:
        """A process of its own: TensorFlow and JAX each keep threads that spin for a while after work."""
        return self.fingerprint()

    @property
    def heading(self) -> str:
        """The sampler and its number of chains."""
        return f"{self.sampler} {json.dumps(self.options)}, {self.chains} chains"

    @property
    def line(self) -> str:
        """The fingerprint that tasks with all numbers of chains share."""
        return replace(self, chains=0).fingerprint()

    def process_environment(self) -> Mapping[str, str]:
        """The variables of its process, with those that the curve sets."""
        return environment_for(self.device, self.environment)

    def fingerprint(self) -> str:
        """A digest of every field that affects the measurement."""
        return fingerprint(self)

    def may_be_here(self) -> bool:
        """True, since only its process knows."""
        return True

    def failed(self, reason: str) -> str:
        """Why no more chains are measured after a failure."""
        return f"failed with {self.chains} chains: {reason}"

    def slow(self, seconds: float, limit: float) -> str:
        """Why no more chains are measured after a run took so long."""
        return f"a run with {self.chains} chains took {seconds:.0f} s, more than {limit:g} s"

    def row(self, attempt: Attempt) -> Measurement:
        """The request, and the results of a run."""
        timing = Timing(**attempt.figures) if attempt.figures else None
        return Measurement(
            **describe(self),
            **(asdict(timing) if timing else dict.fromkeys(item.name for item in fields(Timing))),
            status=attempt.status,
            repetition=attempt.repetition,
            seed=attempt.seed,
            prepare_seconds=attempt.preparation.seconds if attempt.preparation else None,
            environment=attempt.environment,
            started=attempt.started,
            note=" ".join(attempt.note.split()),
        )


def describe(task: Task) -> dict[str, Any]:
    """The fields of a Measurement that say what was asked."""
    return {
        "task": task.fingerprint(),
        "sampler": task.sampler,
        "options": json.dumps(task.options, sort_keys=True),
        "problem": json.dumps(task.problem, sort_keys=True),
        **{
            name: getattr(task, name)
            for name in (
                "chains", "transitions", "step_size", "max_tree_depth", "leapfrogs_per_leaf", "start", "device"
            )
        },
    }  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """One warm run, and what it did."""

    seconds: float
    useful_gradients: int
    """Gradients that single-chain NUTS evaluates too; waste is left out."""
    executed_gradients: int | None
    """Gradient evaluations times lanes; None where the library does not report it."""
    lockstep_gradients: int | None
    """What the same trajectories would execute if all chains met after each: chains times the sum of the longest. None
    where the library reports only how many gradients several trajectories took together."""
    asynchronous_gradients: int
    """What they would execute if no chain ever waited before its end: chains times the chain that needs most."""
    ess_min: float | None
    """Minimum bulk ESS of all coordinates, over all chains; None if not asked for."""
    ess_mean: float | None
    peak_memory_mb: float
    """The peak memory of the process so far."""
    load: float
    """The machine's load average over the last minute, just before the run."""


def require_plain(sampler: str, task: Task) -> None:
    """Raise MissingSampler for what a sampler cannot do that runs on the CPU, with one leapfrog in each leaf."""
    if task.device != "cpu":
        raise MissingSampler(f"Sampler {sampler} runs on the CPU only; device is {task.device}, set it to cpu.")
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
