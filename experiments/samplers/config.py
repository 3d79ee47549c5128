"""Configs of experiments with samplers: problems, samplers and sizes to measure.

problems:    name -> a packaged model, its step size, where chains start
run:         what every curve runs, unless it says otherwise
curves:      name -> a sampler, its options, and what is different for it
measurement: repetitions, limits
claims:      what the experiment's own code judges by
output:      the folder
quick:       key.path -> value: what `--quick` changes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from batchnuts.cli.config import check_packaged_model
from batchnuts.experiments.harness import config as harness
from batchnuts.experiments.harness.config import Config, Labelled, Point, SamplerCurve, check_increasing
from batchnuts.experiments.harness.processes import Device
from batchnuts.experiments.harness.reading import Reading
from batchnuts.experiments.samplers.problems import TARGETS, Start, is_target
from batchnuts.experiments.samplers.registry import REGISTRY
from batchnuts.experiments.samplers.task import Task
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.models import ModelOptions
from batchnuts.settings.schema import Settings, dump_settings
from batchnuts.settings.yaml import check_section


class ProblemSettings(Labelled):
    """One target distribution, without its model (which has a schema of its own)."""

    step_size: float = Field(gt=0.0, description="leapfrog step size of every sampler; nothing adapts")
    start: Start = Field(
        "typical",
        description="typical: chains start at draws of the target (or its normal approximation); wide: N(0, 100)",
    )
    transitions: int | None = Field(None, ge=1, description="in place of run.transitions, for curves without their own")


class RunSettings(Settings):
    """What is run at every point of every curve, unless the curve says otherwise."""

    chains: list[int] = Field(min_length=1, description="numbers of chains: the horizontal axis")
    transitions: int = Field(ge=1, description="NUTS transitions per chain in one run")
    max_tree_depth: int = Field(10, ge=1, le=20, description="a trajectory doubles at most this many times")
    leapfrogs_per_leaf: int = Field(1, ge=1, description="leapfrog steps between two states of a trajectory")
    device: Device = Field("cpu", description="where arrays live; gpu needs one, and libraries that see it")
    backend: Literal["tensorflow", "jax", "native"] = Field(
        "tensorflow", description="array library of curves of our sampler that do not name one in options.backend"
    )
    measure_ess: bool = Field(False, description="keep the draws of each run and compute their effective sample size")

    @model_validator(mode="after")
    def _increasing(self) -> RunSettings:
        check_increasing("chains", self.chains)
        return self


class Curve(SamplerCurve):
    """One line of a picture."""

    registry = REGISTRY
    problems: list[str] | None = Field(None, min_length=1, description="names among `problems`; null: all of them")
    chains: list[int] | None = Field(None, description="in place of run.chains")
    transitions: int | None = Field(None, ge=1, description="in place of run.transitions")
    leapfrogs_per_leaf: int | None = Field(None, ge=1, description="in place of run.leapfrogs_per_leaf")
    measure_ess: bool | None = Field(None, description="in place of run.measure_ess")
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables of its process")
    panel: str = Field("", description="curves of the same panel are drawn together")
    flat: bool = Field(False, description="draw its one size as a line across: more chains come one after another")

    @model_validator(mode="after")
    def _increasing(self) -> Curve:
        if self.chains is not None:
            check_increasing("chains", self.chains)
        return self


class MeasurementSettings(Settings):
    """How often, and how long at most."""

    repetitions: int = Field(5, ge=1, description="warm runs of each point, all kept; each has its own seed")
    seed: int = Field(0, ge=0, lt=2**31, description="of the first repetition; the next ones count up")
    max_seconds: float = Field(
        60.0, gt=0.0, description="a curve goes to no larger number of chains once a run of it took longer than this"
    )
    timeout: float = Field(
        900.0,
        gt=0.0,
        le=1e6,
        description="seconds that a sampler may take to compile, or to run once, before it is given up",
    )
    workers: int = Field(
        12, ge=1, description="samplers of one size that are kept ready at the same time and take turns, run by run"
    )
    compile_at_once: int = Field(2, ge=1, description="how many of them compile at the same time, before any is timed")
    run_at_once: int = Field(
        1, ge=1, description="how many of them run at the same time: more than 1 only where nothing but counts matters"
    )


Measure = Literal[
    "rate",
    "typical_rate",
    "utilization",
    "lockstep_utilization",
    "asynchronous_utilization",
    "ess_per_minute",
    "ess_per_second",
    "compile_seconds",
    "peak_memory",
]


class Claim(harness.Claim):
    """A figure that somebody published, or a bound on it, and where in our measurements to look for it.

    The figure is `measure` of `curve` at `chains`, divided by that of `over_curve` at `over_chains` if there is one.
    """

    measure: Measure = Field(description="what is looked at, see results.QUANTITIES")
    problem: str | None = Field(None, description="a name among `problems`; null: the first")
    curve: str = Field(description="a name among `curves`")
    chains: int | None = Field(None, ge=1, description="number of chains; null: where the measure is largest")
    over_curve: str | None = Field(None, description="the curve to compare with; null: the figure stands alone")
    over_chains: int | None = Field(None, ge=1, description="null: as `chains`, or the other curve's largest")

    @model_validator(mode="after")
    def _bounded(self) -> Claim:
        if self.at_least is None and self.at_most is None:
            raise ValueError("found neither at_least nor at_most; expected one of them, or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_most: found {self.at_most:g}; expected at_least ({self.at_least:g}) or more")
        if self.over_chains is not None and self.over_curve is None:
            raise ValueError(f"over_chains: found {self.over_chains}, which has no effect without over_curve")
        return self


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Config[MeasurementSettings]):
    """A config that passed every check."""

    problems: Mapping[str, ProblemSettings]
    models: Mapping[str, ModelOptions]
    """The model of each problem."""
    run: RunSettings
    curves: Mapping[str, Curve]
    claims: Mapping[str, Claim]

    def task(self, curve: str, problem: str, chains: int) -> Task:
        """The task at one point of a curve."""
        chosen = self.curves[curve]
        return Task(
            sampler=chosen.sampler,
            options=dict(chosen.options),
            problem=dump_settings(self.models[problem]),
            chains=chains,
            transitions=chosen.transitions or self.problems[problem].transitions or self.run.transitions,
            step_size=self.problems[problem].step_size,
            max_tree_depth=self.run.max_tree_depth,
            leapfrogs_per_leaf=chosen.leapfrogs_per_leaf or self.run.leapfrogs_per_leaf,
            start=self.problems[problem].start,
            device=self.run.device,
            measure_ess=self.run.measure_ess if chosen.measure_ess is None else chosen.measure_ess,
            environment=dict(chosen.environment),
        )

    def problems_of(self, curve: str) -> list[str]:
        """Names of the problems a curve is measured on."""
        chosen = self.curves[curve].problems
        return list(self.problems) if chosen is None else list(chosen)

    def curves_of(self, target: str) -> list[str]:
        """Names of the curves that are measured on a problem."""
        return [curve for curve in self.curves if target in self.problems_of(curve)]

    def chains_of(self, curve: str) -> list[int]:
        """Numbers of chains a curve is measured at."""
        return list(self.curves[curve].chains or self.run.chains)

    def points(self) -> Iterator[Point]:
        """(curve, problem, chains) of every point, in the order of measuring: curves of one size next to each other."""
        sizes = sorted({size for curve in self.curves for size in self.chains_of(curve)})
        for problem in self.problems:
            for size in sizes:
                for curve in self.curves_of(problem):
                    if size in self.chains_of(curve):
                        yield curve, problem, size

    def resolved(self) -> dict[str, Any]:
        """Plain data that gives the same experiment again when it is read as a config."""
        resolved = super().resolved()
        for name, problem in resolved["problems"].items():
            problem["model"] = dump_settings(self.models[name])
        return resolved


def load_experiment(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> ExperimentConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    reading = Reading(name, overrides, ExperimentConfig.sections, quick=quick)
    models, problems = _read_problems(reading)
    run = reading.section("run", RunSettings)
    curves = _read_curves(reading, problems, run.backend if run else "tensorflow")
    measurement = reading.section("measurement", MeasurementSettings)
    claims = reading.claims(Claim, curve=curves, over_curve=curves, problem=problems)
    output = reading.output()
    if run and (run.measure_ess or any(curve.measure_ess for curve in curves.values())):
        _check_draws(reading, run, problems, curves)
    return ExperimentConfig(
        problems=problems, models=models, run=reading.whole(run), curves=curves,
        measurement=reading.whole(measurement), claims=claims, output=reading.whole(output),
    )  # fmt: skip


def _read_problems(reading: Reading) -> tuple[dict[str, ModelOptions], dict[str, ProblemSettings]]:
    models, problems = {}, {}
    for name, item in reading.named("problems").items():
        path = f"problems.{name}"
        model = check_packaged_model(f"{path}.model", item.get("model"), reading.origin, reading.mistakes)
        settings = {key: value for key, value in item.items() if key != "model"}
        problem = check_section(path, settings, ProblemSettings, reading.origin, reading.mistakes)
        if model is not None and not is_target(model):
            reading.mistake(f"{path}.model.name", f"found {model.name!r}; expected one of {', '.join(TARGETS)}")
        elif model is not None and problem is not None:
            models[name], problems[name] = model, problem
    return models, problems


def _read_curves(reading: Reading, problems: Mapping[str, ProblemSettings], backend: str) -> dict[str, Curve]:
    curves = reading.each("curves", Curve)
    for name, curve in curves.items():
        if curve.ours:
            curves[name] = curve.model_copy(update={"options": {"backend": backend, **curve.options}})
        reading.refer(f"curves.{name}.problems", curve.problems, problems)
    return reading.options("curves", curves)


def _check_draws(
    reading: Reading, run: RunSettings, problems: Mapping[str, ProblemSettings], curves: Mapping[str, Curve]
) -> None:
    """Note a mistake where there are too few transitions for an effective sample size."""
    places: dict[str, int | None] = {"run.transitions": run.transitions}
    places |= {f"problems.{name}.transitions": problem.transitions for name, problem in problems.items()}
    places |= {f"curves.{name}.transitions": curve.transitions for name, curve in curves.items()}
    for path, transitions in places.items():
        if transitions is not None and transitions < MINIMUM_DRAWS:
            reading.mistake(
                path,
                f"found {transitions}; expected at least {MINIMUM_DRAWS}, or run.measure_ess=false: fewer draws have "
                "no effective sample size",
            )
