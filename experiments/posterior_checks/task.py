"""One sampler on one problem: plain data that crosses to its process, the row made of it, and what a run gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from batchnuts.experiments.harness.processes import Unavailable
from batchnuts.experiments.harness.rows import Row, Status
from batchnuts.experiments.harness.run_configs import RunTask
from batchnuts.experiments.posterior_checks.moments import Moments, decode


class MissingLibrary(Unavailable):
    """The library of a sampler, or of a model, is not installed; the message says how to get it."""


class MissingModel(Unavailable):
    """A sampler has no version of a model."""


AUTOMATIC = -1
"""The number of transitions that stands for a warmup that ends by itself."""


@dataclass(frozen=True)
class Task(RunTask):
    """One sampler on one problem."""

    transforms: dict[str, str]
    """By parameter, what is compared instead of its values: `log` (moments.py)."""
    chains: int
    warmup: int
    """Transitions, or AUTOMATIC."""
    draws: int

    module = "batchnuts.experiments.posterior_checks.sampling"
    size_field = "chains"
    size_words = "{} chains"


@dataclass(frozen=True)
class Measurement(Row):
    """One run of one sampler on one problem; where `status` is not `ok`, why there is none (then figures are None)."""

    task: str
    sampler: str
    options: str
    """The options of the sampler, as JSON."""
    problem: str
    """The problem's whole config, as JSON."""
    chains: int
    warmup: int
    draws: int
    status: Status
    repetition: int
    seed: int
    seconds: float | None
    """Seconds of warmup and draws."""
    compile_seconds: float | None
    divergences: int | None
    """Divergences among the draws."""
    rhat: float | None
    """The largest R-hat."""
    rhat_of: str
    """The element that has it."""
    ess: float | None
    """The smallest bulk ESS."""
    ess_of: str
    lines: int | None
    """Lines of code that a user writes for the model, where they are counted."""
    moments: str
    """moments.encode of what is compared."""
    load: float | None
    environment: str
    started: str
    note: str

    needed = ("seconds", "moments")

    @cached_property
    def decoded(self) -> Moments:
        """The moments. Raises MomentsError."""
        return decode(self.moments)


@dataclass(frozen=True, eq=False)
class Run:
    """The results of one run of a sampler."""

    draws: Mapping[str, NDArray[Any]]
    """Draws [chains, draws, *shape] by parameter."""
    divergences: int
    seconds: float
    compile_seconds: float


@dataclass(frozen=True)
class Sampling:
    """A sampler made ready."""

    run: Callable[[int], Run]
    """Makes the run with a seed."""
    lines: int | None
    """Lines of code that a user writes for the model; None for a model of another library, whose are not counted."""
