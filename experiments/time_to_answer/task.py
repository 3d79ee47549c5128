"""A sampler, a posterior and a number of effective draws: plain data for its process, and the row made of it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field, replace
from typing import Any

from batchnuts.cli.config import RunConfig
from batchnuts.experiments.harness.rows import Row, Status
from batchnuts.experiments.harness.run_configs import RunTask
from batchnuts.experiments.harness.task import fingerprint
from batchnuts.experiments.time_to_answer.registry import REGISTRY


@dataclass(frozen=True)
class Task(RunTask):
    """A sampler, a posterior and a number of effective draws. BLAS has one thread in every sampler, as chains share the
    cores already."""

    goal: int
    """Effective draws."""
    limit: float
    """Seconds, of each run."""
    first_start: bool
    """The first start is measured too."""
    caches: str = field(compare=False)
    """A folder for what the samplers compile."""
    search_seed: int = field(compare=False)
    """The seed of the runs that find out how many draws are enough."""

    module = "batchnuts.experiments.time_to_answer.runs"
    size_field = "goal"
    size_words = "a goal of {} effective draws"

    @property
    def line(self) -> str:
        """The fingerprint for all goals: a task that does not get to a small goal is not asked for a larger one."""
        return fingerprint(replace(self, goal=0, first_start=False))

    def may_be_here(self) -> bool:
        """Whether its packages are found."""
        return all(importlib.util.find_spec(module) is not None for module in REGISTRY[self.sampler].needs)

    @classmethod
    def problem_of(cls, config: RunConfig, *, ours: bool = True) -> dict[str, Any]:
        """What is sampled and how, whatever the goal is."""
        problem = super().problem_of(config, ours=ours)
        problem.get("sampler", {}).pop("until", None)
        return problem


@dataclass(frozen=True)
class Measurement(Row):
    """One second start; where `status` is not `ok`, why there is none (then figures are None)."""

    task: str
    sampler: str
    options: str
    """The options of the sampler, as JSON."""
    problem: str
    """The problem's whole config, as JSON."""
    goal: int
    """Effective draws that were asked for."""
    status: Status
    repetition: int
    seed: int
    seconds: float | None
    """Seconds from the process's start to its end, with caches warm."""
    first_seconds: float | None
    """Seconds with empty caches; None where that was not measured."""
    chains: int | None
    draws: int | None
    """Draws of each chain that are kept."""
    warmup: int | None
    """Transitions of warmup of each chain."""
    runs: int | None
    """Runs until there were enough draws; 1: the first were enough."""
    ess: float | None
    """The smallest bulk ESS."""
    ess_of: str
    """The element that has it."""
    rhat: float | None
    """The largest R-hat of the kind that decides."""
    rhat_limit: float | None
    """What it had to be below: 1.01, for nested R-hat with what few draws of each superchain add."""
    gradients: float | None
    """Gradients of the draws, and of warmup where `warmup_counted`."""
    executed: float | None
    """Gradients computed, useful or not, where the sampler says so."""
    warmup_counted: bool | None
    load: float | None
    environment: str
    started: str
    note: str
