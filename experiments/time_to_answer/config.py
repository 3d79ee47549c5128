"""Configs of the time to an answer.

problems:    name -> a config of the command line (packaged, or a path), and what is different here
run:         goals (effective draws), and what is different for all problems
curves:      name -> a sampler and its options
measurement: seeds, limits
claims:      name -> what should hold
output:      the folder
quick:       key.path -> value: what `--quick` changes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from batchnuts.experiments.harness import config as harness
from batchnuts.experiments.harness.config import Point, SamplerCurve, check_increasing
from batchnuts.experiments.harness.reading import Reading
from batchnuts.experiments.harness.run_configs import CommonSettings, ConfigOfRuns, RunProblem, read_configs
from batchnuts.experiments.time_to_answer.registry import REGISTRY
from batchnuts.experiments.time_to_answer.task import Task
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT
from batchnuts.settings.schema import Settings


class RunSettings(CommonSettings):
    """What is asked for, and what is different for all problems."""

    goals: list[int] = Field(description="effective draws: the smallest bulk ESS that is enough; increasing")
    first_starts: list[int] = Field(description="the goals at which first starts are measured too")

    @field_validator("goals")
    @classmethod
    def _increasing(cls, goals: list[int]) -> list[int]:
        check_increasing("goals", goals)
        return goals

    @model_validator(mode="after")
    def _of_goals(self) -> RunSettings:
        if unknown := sorted(set(self.first_starts) - set(self.goals)):
            raise ValueError(f"first_starts: found {unknown[0]}; expected some of the goals, {self.goals}")
        return self


class Curve(SamplerCurve):
    """A sampler."""

    registry = REGISTRY


class MeasurementSettings(Settings):
    """How often each is run, and how long at most."""

    seed: int = Field(0, ge=0, lt=2**31 - 1000, description="of the first repetition; the others count up from it")
    repetitions: int = Field(1, ge=1, le=1000, description="second starts of each")
    limit: float = Field(120.0, gt=0.0, le=1e6, description="seconds that a run may take; it is ended then")

    @property
    def max_seconds(self) -> float:
        """The limit."""
        return self.limit

    @property
    def timeout(self) -> float:
        """For all runs of a search, of which the last may be at the limit: they double, and so does their time."""
        return 60.0 + 30 * self.limit

    workers: ClassVar[int] = 1
    compile_at_once: ClassVar[int] = 1
    run_at_once: ClassVar[int] = 1
    """One task at a time: first starts are timed too."""


Kind = Literal["fastest", "times_fastest", "seconds"]


class Claim(harness.Claim):
    """What should hold of ours."""

    figure: Kind = Field(
        description="fastest: the share of posteriors on which ours is; times_fastest: the largest ratio of its "
        "seconds to those of the fastest; seconds: its own, on `problem`"
    )
    goal: int = Field(ge=1, description="effective draws, one of run.goals")
    start: Literal["first", "second"] = Field("second", description="which start")
    curve: str = Field(description="a name among `curves`, of ours")
    problem: str | None = Field(None, description="a name among `problems`, for seconds")

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("found none or both of at_least and at_most; expected one of them")
        if (self.figure == "seconds") != (self.problem is not None):
            raise ValueError(f"problem: found {self.problem!r}; expected one for seconds, and none for other figures")
        return self


@dataclass(frozen=True, kw_only=True)
class AnswerConfig(ConfigOfRuns[MeasurementSettings]):
    """A config that passed every check."""

    run: RunSettings
    curves: Mapping[str, Curve]
    claims: Mapping[str, Claim]

    def points(self) -> Iterator[Point]:
        """(curve, problem, goal), in the order of measuring."""
        for problem in self.problems:
            for goal in self.run.goals:
                for curve in self.curves_of(problem):
                    yield curve, problem, goal

    def task(self, curve: str, problem: str, size: int) -> Task:
        """The task at one point."""
        config, options = self.configs[problem], self.options(curve, problem)
        sampler, ours = self.curves[curve].sampler, self.curves[curve].ours
        if not ours:
            options["target_acceptance"] = options["target_acceptance"] or config.sampler.target_acceptance
        task = Task(
            sampler=sampler,
            options=options,
            problem=Task.problem_of(config, ours=ours),
            goal=size,
            limit=self.measurement.limit,
            first_start=size in self.run.first_starts,
            config=self.problems[problem].config,
            overrides=tuple(self.overrides(problem)),
            caches="",
            search_seed=self.measurement.seed,
        )
        # one for all goals, as a user has
        return replace(task, caches=str(Path(self.output.folder) / "caches" / f"{sampler}-{task.line}"))


def asking_for(goal: float) -> list[str]:
    """Settings of ours with which a run ends at so many effective draws, and with R-hat below the limit."""
    return [f"sampler.until.ess_bulk={goal}", f"sampler.until.rhat={RHAT_LIMIT}"]


def load_answer(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> AnswerConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    reading = Reading(name, overrides, AnswerConfig.sections, quick=quick)
    run = reading.section("run", RunSettings)
    curves = reading.options("curves", reading.each("curves", Curve))
    problems = reading.each("problems", RunProblem)
    also = asking_for(run.goals[0]) if run else []  # a number of chains may be chosen by it
    configs = read_configs(reading, problems, curves, run or CommonSettings(), also)
    measurement = reading.section("measurement", MeasurementSettings)
    ours = [name for name, curve in curves.items() if curve.ours]
    claims = reading.claims(Claim, curve=ours, problem=problems)
    if run:
        _check_goals(reading, claims, run)
    output = reading.output()
    return AnswerConfig(
        problems=problems, configs=configs, run=reading.whole(run), curves=curves,
        measurement=reading.whole(measurement), claims=claims, output=reading.whole(output),
    )  # fmt: skip


def _check_goals(reading: Reading, claims: Mapping[str, Claim], run: RunSettings) -> None:
    """Note goals of claims that are not asked for, or not from a first start."""
    for name, claim in claims.items():
        path = f"claims.{name}"
        if claim.goal not in run.goals:
            reading.mistake(f"{path}.goal", f"found {claim.goal}; expected one of {run.goals}")
        if claim.start == "first" and claim.goal not in run.first_starts:
            reading.mistake(
                f"{path}.start",
                f"found first; expected second, or the goal {claim.goal} in run.first_starts",
            )
