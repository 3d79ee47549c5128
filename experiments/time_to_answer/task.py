"""A sampler, a posterior and a number of effective draws: plain data that crosses to the process of its runs."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from textwrap import shorten
from typing import Any

from batchnuts.experiments.harness.processes import environment_for
from batchnuts.experiments.harness.task import Attempt, fingerprint
from batchnuts.experiments.time_to_answer.measurements import Measurement
from batchnuts.experiments.time_to_answer.registry import REGISTRY

_LONGEST_NOTE = 300
"""Characters; some libraries' messages have thousands."""


@dataclass(frozen=True)
class Figures:
    """The columns of a Measurement that only a run can tell."""

    seconds: float | None
    first_seconds: float | None
    chains: int | None
    draws: int | None
    warmup: int | None
    runs: int | None
    ess: float | None
    ess_of: str
    rhat: float | None
    rhat_limit: float | None
    gradients: float | None
    executed: float | None
    warmup_counted: bool | None
    load: float | None


NOTHING = Figures(None, None, None, None, None, None, None, "", None, None, None, None, None, None)


@dataclass(frozen=True)
class Task:
    """A sampler, a posterior and a number of effective draws."""

    sampler: str
    """A name of `registry.REGISTRY`."""
    options: dict[str, Any]
    problem: dict[str, Any]
    """The config that it was resolved to: if a packaged config or its defaults change, this is another task."""
    goal: int
    """Effective draws."""
    limit: float
    """Seconds, of each run."""
    first_start: bool
    """The first start is measured too."""
    config: str = field(compare=False)
    """The file of `problem`, for its process."""
    overrides: tuple[str, ...] = field(compare=False)
    caches: str = field(compare=False)
    """A folder for what the samplers compile."""
    search_seed: int = field(compare=False)
    """The seed of the runs that find out how many draws are enough."""

    @property
    def module(self) -> str:
        """The module that prepares and runs it, imported in its process only."""
        return "batchnuts.experiments.time_to_answer.runs"

    @property
    def process(self) -> str:
        """A process of its own."""
        return self.fingerprint()

    @property
    def heading(self) -> str:
        """The sampler, the model and the goal."""
        return f"{self.sampler} {json.dumps(self.options)} on {json.dumps(self.problem['model'])}, ESS {self.goal}"

    @property
    def line(self) -> str:
        """The fingerprint for all goals: a task that does not get to a small goal is not asked for a larger one."""
        return fingerprint(replace(self, goal=0, first_start=False))

    def process_environment(self) -> Mapping[str, str]:
        """On the processor, as in posterior_checks.task; BLAS with one thread in every sampler, as chains share the
        cores already."""
        return environment_for("cpu", {"OPENBLAS_NUM_THREADS": "1"})

    def fingerprint(self) -> str:
        """A digest of every field that affects the measurement."""
        return fingerprint(self)

    def may_be_here(self) -> bool:
        """Whether its packages are found."""
        return all(importlib.util.find_spec(module) is not None for module in REGISTRY[self.sampler].needs)

    def failed(self, reason: str) -> str:
        """Why no larger goal is tried."""
        return f"it did not get to fewer effective draws: {reason}"

    def slow(self, seconds: float, limit: float) -> str:
        """Why no larger goal is tried after a run took so long; none takes longer than its limit."""
        return f"took {seconds:.0f} s, more than {limit:g} s"

    def row(self, attempt: Attempt) -> Measurement:
        """The request, and the results of a run."""
        return Measurement(
            task=self.fingerprint(),
            sampler=self.sampler,
            options=json.dumps(self.options, sort_keys=True),
            problem=json.dumps(self.problem, sort_keys=True),
            goal=self.goal,
            status=attempt.status,
            repetition=attempt.repetition,
            seed=attempt.seed,
            environment=attempt.environment,
            started=attempt.started,
            note=shorten(attempt.note, _LONGEST_NOTE, placeholder=" ... (all of it in workers.log)"),
            **(dict(attempt.figures) or asdict(NOTHING)),
        )
