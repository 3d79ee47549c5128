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
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from batchnuts.cli.config import RunConfig, load_config
from batchnuts.experiments.harness.config import (
    Point,
    ResultsSettings,
    check_each,
    check_increasing,
    check_keys,
    check_options,
    dump_sections,
    read_layers,
    refer,
)
from batchnuts.experiments.posterior_checks.config import merged, overrides_of
from batchnuts.experiments.time_to_answer.measurements import Measurement
from batchnuts.experiments.time_to_answer.registry import REGISTRY
from batchnuts.experiments.time_to_answer.task import Task
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT
from batchnuts.settings.schema import Settings, nearest
from batchnuts.settings.yaml import ConfigError, Origin, check_section, to_yaml

SECTIONS = ("problems", "run", "curves", "measurement", "claims", "output")


class RunSettings(Settings):
    """What is asked for, and what is different for all problems."""

    goals: list[int] = Field(description="effective draws: the smallest bulk ESS that is enough; increasing")
    first_starts: list[int] = Field(description="the goals at which first starts are measured too")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="keys of the configs' sections, e.g. {sampler: {warmup: auto}}"
    )

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


class ProblemSettings(Settings):
    """One posterior."""

    label: str = Field(min_length=1, description="its name in pictures and tables")
    config: str = Field(min_length=1, description="a config of the command line: packaged, or a path")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="what is different from that, e.g. {model: {parametrization: 1PL}}"
    )
    curves: list[str] | None = Field(None, min_length=1, description="names among `curves`; null: all")
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="of a curve's sampler, what is different for this problem"
    )


class Curve(Settings):
    """A sampler."""

    label: str = Field(min_length=1, description="its name in pictures and tables")
    sampler: str = Field(description=f"one of {', '.join(REGISTRY)}")
    options: dict[str, Any] = Field(default_factory=dict, description="of that sampler")

    @model_validator(mode="after")
    def _check_sampler(self) -> Curve:
        if self.sampler not in REGISTRY:
            hint = nearest(self.sampler, REGISTRY) or f"; expected one of {', '.join(REGISTRY)}"
            raise ValueError(f"sampler: found {self.sampler!r}{hint}")
        return self

    @property
    def ours(self) -> bool:
        """The claims are about it."""
        return REGISTRY[self.sampler].ours


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

    @property
    def workers(self) -> int:
        """One task at a time: first starts are timed too."""
        return 1

    @property
    def compile_at_once(self) -> int:
        """One task at a time."""
        return 1

    @property
    def run_at_once(self) -> int:
        """One task at a time."""
        return 1


Kind = Literal["fastest", "times_fastest", "seconds"]


class Claim(Settings):
    """What should hold of ours."""

    says: str = Field(min_length=1, description="the claim in words")
    source: str = Field(min_length=1, description="who says so, where")
    figure: Kind = Field(
        description="fastest: the share of posteriors on which ours is; times_fastest: the largest ratio of its "
        "seconds to those of the fastest; seconds: its own, on `problem`"
    )
    goal: int = Field(ge=1, description="effective draws, one of run.goals")
    start: Literal["first", "second"] = Field("second", description="which start")
    curve: str = Field(description="a name among `curves`, of ours")
    problem: str | None = Field(None, description="a name among `problems`, for seconds")
    at_least: float | None = Field(None, description="the claim holds only from here on")
    at_most: float | None = Field(None, description="the claim holds only up to here")

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("found none or both of at_least and at_most; expected one of them")
        if (self.figure == "seconds") != (self.problem is not None):
            raise ValueError(f"problem: found {self.problem!r}; expected one for seconds, and none for other figures")
        return self


@dataclass(frozen=True)
class AnswerConfig:
    """A config that passed every check."""

    problems: Mapping[str, ProblemSettings]
    configs: Mapping[str, RunConfig]
    """The config of each problem, with its settings."""
    run: RunSettings
    curves: Mapping[str, Curve]
    measurement: MeasurementSettings
    claims: Mapping[str, Claim]
    output: ResultsSettings

    @property
    def targets(self) -> Mapping[str, ProblemSettings]:
        """The problems."""
        return self.problems

    def curves_of(self, problem: str) -> list[str]:
        """Names of the curves that sample a problem."""
        chosen = self.problems[problem].curves
        return list(self.curves) if chosen is None else list(chosen)

    def points(self) -> Iterator[Point]:
        """(curve, problem, goal), in the order of measuring."""
        for problem in self.problems:
            for goal in self.run.goals:
                for curve in self.curves_of(problem):
                    yield curve, problem, goal

    def task(self, curve: str, problem: str, size: int) -> Task:
        """The task at one point."""
        settings, config = self.problems[problem], self.configs[problem]
        sampler = self.curves[curve].sampler
        options = {**self.curves[curve].options, **settings.options.get(curve, {})}
        resolved = problem_of(config)
        if not self.curves[curve].ours:  # other settings of our sampler are not this sampler's task
            del resolved["sampler"]
            options["target_acceptance"] = options["target_acceptance"] or config.sampler.target_acceptance
        task = Task(
            sampler=sampler,
            options=options,
            problem=resolved,
            goal=size,
            limit=self.measurement.limit,
            first_start=size in self.run.first_starts,
            config=settings.config,
            overrides=tuple(overrides_of(merged(self.run.settings, settings.settings))),
            caches="",
            search_seed=self.measurement.seed,
        )
        # one for all goals, as a user has
        return replace(task, caches=str(Path(self.output.folder) / "caches" / f"{sampler}-{task.line}"))

    def label(self, curve: str, problem: str, size: int) -> str:
        """A point in words."""
        return f"{self.curves[curve].label}, {self.problems[problem].label}, ESS {size:,}"

    def seeds(self) -> dict[int, int]:
        """The seed of each repetition."""
        return {number: self.measurement.seed + number for number in range(self.measurement.repetitions)}

    def wants(self, row: Measurement) -> bool:
        """Whether a row has the seed of its repetition."""
        return self.seeds().get(row.repetition) == row.seed

    def to_yaml(self) -> str:
        """YAML that gives the same experiment when it is read as a config."""
        sections: dict[str, Settings | Mapping[str, Settings]] = {
            "problems": self.problems, "run": self.run, "curves": self.curves, "measurement": self.measurement,
            "claims": self.claims, "output": self.output,
        }  # fmt: skip
        return to_yaml(dump_sections(sections))


def problem_of(config: RunConfig) -> dict[str, Any]:
    """The settings of what is sampled and how, whatever the goal is."""
    resolved = config.resolved()
    del resolved["output"], resolved["execution"], resolved["sampler"]["until"]
    return resolved


def asking_for(goal: float) -> list[str]:
    """Settings of ours with which a run ends at so many effective draws, and with R-hat below the limit."""
    return [f"sampler.until.ess_bulk={goal}", f"sampler.until.rhat={RHAT_LIMIT}"]


def load_answer(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> AnswerConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    content, origin = read_layers(name, overrides, (*SECTIONS, "quick"), quick=quick)
    problems: list[str] = []
    check_keys(content, SECTIONS, origin, problems)
    run = check_section("run", content.get("run"), RunSettings, origin, problems)
    curves = check_each(content.get("curves"), "curves", Curve, origin, problems)
    curves = check_options(curves, "curves", lambda curve: REGISTRY[curve.sampler].options, origin, problems)
    targets = check_each(content.get("problems"), "problems", ProblemSettings, origin, problems)
    configs = _check_problems(targets, curves, run, origin, problems)
    measurement = check_section("measurement", content.get("measurement"), MeasurementSettings, origin, problems)
    claims = {}
    if content.get("claims"):
        claims = check_each(content["claims"], "claims", Claim, origin, problems)
        _check_claims(claims, targets, curves, run, origin, problems)
    output = check_section("output", content.get("output"), ResultsSettings, origin, problems)
    if problems or not (run and measurement and output):
        raise ConfigError("\n".join(problems))
    return AnswerConfig(targets, configs, run, curves, measurement, claims, output.quick() if quick else output)


def _check_problems(
    targets: Mapping[str, ProblemSettings],
    curves: Mapping[str, Curve],
    run: RunSettings | None,
    origin: Origin,
    problems: list[str],
) -> dict[str, RunConfig]:
    """The config of each problem; notes what is wrong with it, and with the names of curves."""
    configs = {}
    for name, target in targets.items():
        path = f"problems.{name}"
        for index, curve in enumerate(target.curves or ()):
            refer(f"{path}.curves.{index}", curve, curves, origin, problems)
        for curve, options in target.options.items():
            refer(f"{path}.options.{curve}", curve, curves, origin, problems)
            if curve in curves:
                merged_options = {**curves[curve].options, **options}
                schema = REGISTRY[curves[curve].sampler].options
                check_section(f"{path}.options.{curve}", merged_options, schema, origin, problems)
        try:
            common = run.settings if run else {}
            goal_overrides = asking_for(run.goals[0]) if run else []  # a number of chains may be chosen by it
            configs[name] = load_config(
                target.config, [*overrides_of(merged(common, target.settings)), *goal_overrides]
            )
        except ConfigError as error:
            problems.append(f"{origin(f'{path}.config')}{path}.config: {target.config} with its settings: {error}")
    return configs


def _check_claims(
    claims: Mapping[str, Claim],
    targets: Mapping[str, ProblemSettings],
    curves: Mapping[str, Curve],
    run: RunSettings | None,
    origin: Origin,
    problems: list[str],
) -> None:
    """Note what claims name that there is not."""
    ours = {name: curve for name, curve in curves.items() if curve.ours}
    for name, claim in claims.items():
        path = f"claims.{name}"
        refer(f"{path}.curve", claim.curve, ours, origin, problems)
        refer(f"{path}.problem", claim.problem, targets, origin, problems)
        if run and claim.goal not in run.goals:
            problems.append(f"{origin(f'{path}.goal')}{path}.goal: found {claim.goal}; expected one of {run.goals}")
        if run and claim.start == "first" and claim.goal not in run.first_starts:
            problems.append(
                f"{origin(f'{path}.start')}{path}.start: found first; expected second, or the goal {claim.goal} in "
                "run.first_starts"
            )
