"""What a sampler is asked to do, and what it answers: plain data, so that both can cross to another process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.harness.processes import Unavailable
from batchnuts.experiments.samplers.problems import Problem, Start

Device = Literal["cpu", "gpu"]


class MissingSampler(Unavailable):
    """A sampler's library is not installed, or cannot do what is asked; the message says what and how to get it."""


@dataclass(frozen=True)
class Task:
    """One sampler on one problem at one size."""

    sampler: str
    """A name of `samplers.REGISTRY`."""
    options: dict[str, Any]
    """Of that sampler; its schema stands beside it in the registry."""
    problem: dict[str, Any]
    """Options of a packaged model."""
    chains: int
    transitions: int
    """Per chain and run."""
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

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with anything in the task."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Outcome:
    """What one run of a prepared sampler did. Everything in it is on the host."""

    leapfrogs: NDArray[np.integer]
    """[chains, transitions]: gradients that the chain's own NUTS needed. Their sum is the useful gradients."""
    executed_gradients: int | None
    """Gradients computed times lanes, waste included; None where the library does not tell."""
    draws: NDArray[np.floating] | None
    """[chains, transitions, dimension], or None where the task does not measure ESS."""


Prepared = Callable[[int], Callable[[], Outcome]]
"""Compiled as far as the library allows. Called with a seed, it lays out the inputs of a run (not timed); what it
returns does the run (timed), and has all results on the host when it is done."""


class Sampler(Protocol):
    """A module of this folder: it makes a task ready. Importing the module imports no foreign library."""

    def prepare(self, task: Task, problem: Problem) -> Prepared:
        """Build and compile. Raises MissingSampler where that cannot be."""
