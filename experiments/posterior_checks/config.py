"""Configs of the check of posteriors.

problems:    name -> a config of the command line (packaged, or a path), and what is different here
run:         what is different for all of them
curves:      name -> a sampler and its options
measurement: seed, limits
verdict:     what makes a posterior right
output:      the folder
quick:       key.path -> value: what `--quick` changes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from batchnuts.experiments.harness.config import Point, SamplerCurve
from batchnuts.experiments.harness.reading import Reading
from batchnuts.experiments.harness.run_configs import CommonSettings, ConfigOfRuns, RunProblem, read_configs
from batchnuts.experiments.posterior_checks.registry import REGISTRY
from batchnuts.experiments.posterior_checks.task import AUTOMATIC, Task
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT
from batchnuts.settings.schema import Settings

KNOWN = "known"
"""The reference of a problem whose truth is known."""


class ProblemSettings(RunProblem):
    """One posterior."""

    reference: str = Field("numpyro", description=f"a name among `curves`; {KNOWN}: its moments are known (truths.py)")
    moments: str | None = Field(
        None,
        min_length=1,
        description=f"a JSON file of the moments that are {KNOWN}: name -> [shape, means, standard deviations, and the "
        "standard errors of both]",
    )
    transforms: dict[str, Literal["log"]] = Field(
        default_factory=dict,
        description="parameters without a variance, or with no use for one: the logarithm of their size is compared",
    )
    explanation: str = Field("", description="of a failure that stays, for the summary; it stays a failure")


class Curve(SamplerCurve):
    """A sampler."""

    registry = REGISTRY


class MeasurementSettings(Settings):
    """How each is run."""

    seed: int = Field(0, ge=0, lt=2**31, description="of every sampler")
    timeout: float = Field(3600.0, gt=0.0, le=1e6, description="seconds that a sampler may take for one run")
    workers: int = Field(1, ge=1, description="samplers of one problem that run at the same time")

    repetitions: ClassVar[int] = 1
    """A posterior is the same again."""

    @property
    def max_seconds(self) -> float:
        """No limit but the timeout."""
        return self.timeout

    @property
    def compile_at_once(self) -> int:
        """All."""
        return self.workers

    @property
    def run_at_once(self) -> int:
        """All."""
        return self.workers


class VerdictSettings(Settings):
    """What makes a posterior right."""

    alpha: float = Field(
        0.01,
        gt=0.0,
        lt=1.0,
        description="chance that any of all comparisons fails though all posteriors are right (Bonferroni)",
    )
    rhat: float = Field(RHAT_LIMIT, gt=1.0, description="the largest R-hat must be below")
    divergences: float = Field(0.001, ge=0.0, lt=1.0, description="the largest share of divergent draws")


@dataclass(frozen=True, kw_only=True)
class PosteriorsConfig(ConfigOfRuns[MeasurementSettings]):
    """A config that passed every check."""

    sections = ("problems", "run", "curves", "measurement", "verdict", "output")
    problems: Mapping[str, ProblemSettings]
    curves: Mapping[str, Curve]
    verdict: VerdictSettings

    def size(self, curve: str, problem: str) -> int:
        """Number of chains."""
        options = self.options(curve, problem)
        return int(options.get("chains", self.configs[problem].sampler.chain_count))

    def points(self) -> Iterator[Point]:
        """(curve, problem, chains), in the order of measuring."""
        for problem in self.problems:
            for curve in self.curves_of(problem):
                yield curve, problem, self.size(curve, problem)

    def task(self, curve: str, problem: str, size: int) -> Task:
        """The task at one point."""
        config, options = self.configs[problem], self.options(curve, problem)
        transitions, changes, ours = config.sampler.warmup.transitions, self.overrides(problem), self.curves[curve].ours
        if ours:
            # programs kept from an earlier run would take no time to compile
            changes += [f"execution.backend={options['backend']}"]
            changes += [f"execution.expert.mode={options['mode']}"] if options["backend"] != "auto" else []
            changes += ["execution.cache=null"]
        return Task(
            sampler=self.curves[curve].sampler,
            options=options,
            problem=Task.problem_of(config, ours=ours),
            transforms=dict(self.problems[problem].transforms),
            chains=size,
            warmup=options.get("warmup", AUTOMATIC if transitions == "auto" else transitions),
            draws=options.get("draws", config.sampler.draws),
            config=self.problems[problem].config,
            overrides=tuple(changes),
        )


def load_posteriors(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> PosteriorsConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    reading = Reading(name, overrides, PosteriorsConfig.sections, quick=quick)
    run = reading.section("run", CommonSettings)
    curves = reading.options("curves", reading.each("curves", Curve))
    problems = reading.each("problems", ProblemSettings)
    configs = read_configs(reading, problems, curves, run or CommonSettings())
    for name, problem in problems.items():
        path, measured = f"problems.{name}", problem.curves or list(curves)
        reading.refer(f"{path}.reference", problem.reference, [*curves, KNOWN])
        if problem.moments is not None and problem.reference != KNOWN:
            reading.mistake(
                f"{path}.moments", f"found with reference {problem.reference!r}; expected {KNOWN!r} with it"
            )
        if problem.moments is not None and not Path(problem.moments).is_file():
            reading.mistake(f"{path}.moments", f"found {problem.moments!r}; expected a file")
        if problem.reference in curves and problem.reference not in measured:
            reading.mistake(
                f"{path}.curves",
                f"found {measured}; expected {problem.reference!r} among them, which is the problem's reference",
            )
        if name in configs and configs[name].sampler.chains == "auto":
            reading.mistake(
                f"{path}.config",
                f"{problem.config} with its settings: sampler.chains: found auto; expected a number, since every "
                "measurement has one",
            )
    measurement = reading.section("measurement", MeasurementSettings)
    verdict = reading.section("verdict", VerdictSettings)
    output = reading.output()
    return PosteriorsConfig(
        problems=problems, configs=configs, run=reading.whole(run), curves=curves,
        measurement=reading.whole(measurement), verdict=reading.whole(verdict), output=reading.whole(output),
    )  # fmt: skip
