"""One sampler on one problem: plain data that crosses to its process, and the figures that come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any

from numpy.typing import NDArray

from batchnuts.experiments.harness.processes import Unavailable, environment_for
from batchnuts.experiments.harness.task import Attempt, fingerprint
from batchnuts.experiments.posterior_checks.measurements import Measurement

_LONGEST_NOTE = 300
"""Characters; some libraries' messages have thousands."""


class MissingLibrary(Unavailable):
    """The library of a sampler, or of a model, is not installed; the message says how to get it."""


class MissingModel(Unavailable):
    """A sampler has no version of a model."""


AUTOMATIC = -1
"""The number of transitions that stands for a warmup that ends by itself."""


@dataclass(frozen=True)
class Task:
    """One sampler on one problem."""

    sampler: str
    """A name of `registry.REGISTRY`."""
    options: dict[str, Any]
    problem: dict[str, Any]
    """The config that it was resolved to: if a packaged config or its defaults change, this is another task."""
    transforms: dict[str, str]
    """By parameter, what is compared instead of its values: `log` (moments.py)."""
    chains: int
    warmup: int
    """Transitions, or AUTOMATIC."""
    draws: int
    config: str = field(compare=False)
    """The file of `problem`, for its process."""
    overrides: tuple[str, ...] = field(compare=False)

    @property
    def module(self) -> str:
        """The module that prepares and runs it, imported in its process only."""
        return "batchnuts.experiments.posterior_checks.sampling"

    @property
    def process(self) -> str:
        """A process of its own."""
        return self.fingerprint()

    @property
    def heading(self) -> str:
        """The sampler and the model."""
        return f"{self.sampler} {json.dumps(self.options)} on {json.dumps(self.problem['model'])}"

    @property
    def line(self) -> str:
        """A line of its own: no size of it is larger than another."""
        return self.fingerprint()

    def process_environment(self) -> Mapping[str, str]:
        """The variables of its process, which runs on the processor. JAX factors matrices with SciPy's OpenBLAS, whose
        threads wait for each other busily: on a machine that does other work too, the gradient of a Gaussian process
        took 300 times as long with two of them."""
        return environment_for("cpu", {"OPENBLAS_NUM_THREADS": "1"})

    def fingerprint(self) -> str:
        """A digest of every field that affects the measurement."""
        return fingerprint(self)

    def may_be_here(self) -> bool:
        """True, since only its process knows."""
        return True

    def failed(self, reason: str) -> str:
        """The reason that is noted after a failure."""
        return f"failed: {reason}"

    def slow(self, seconds: float, limit: float) -> str:
        """The reason that is noted after a run took so long."""
        return f"took {seconds:.0f} s, more than {limit:g} s"

    def row(self, attempt: Attempt) -> Measurement:
        """The request, and the results of a run."""
        figures = attempt.figures
        return Measurement(
            task=self.fingerprint(),
            sampler=self.sampler,
            options=json.dumps(self.options, sort_keys=True),
            problem=json.dumps(self.problem, sort_keys=True),
            chains=self.chains,
            warmup=self.warmup,
            draws=self.draws,
            status=attempt.status,
            repetition=attempt.repetition,
            seed=attempt.seed,
            environment=attempt.environment,
            started=attempt.started,
            note=shorten(attempt.note, _LONGEST_NOTE, placeholder=" ... (all of it in workers.log)"),
            **(dict(figures) or asdict(NOTHING)),
        )


@dataclass(frozen=True)
class Figures:
    """The columns of a Measurement that only a run can tell."""

    seconds: float | None
    compile_seconds: float | None
    divergences: int | None
    rhat: float | None
    rhat_of: str
    ess: float | None
    ess_of: str
    lines: int | None
    moments: str
    load: float | None


NOTHING = Figures(None, None, None, None, "", None, "", None, "", None)


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
