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
from batchnuts.experiments.harness.config import (
    SECTIONS,
    Point,
    ResultsSettings,
    check_each,
    check_increasing,
    check_keys,
    check_options,
    dump_sections,
    named,
    read_layers,
    refer,
)
from batchnuts.experiments.harness.processes import Device
from batchnuts.experiments.samplers.measurements import Measurement
from batchnuts.experiments.samplers.problems import TARGETS, Start, is_target
from batchnuts.experiments.samplers.registry import REGISTRY
from batchnuts.experiments.samplers.task import Task
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.models import ModelOptions
from batchnuts.settings.schema import Settings, nearest
from batchnuts.settings.yaml import ConfigError, Origin, check_section, dump_settings, to_yaml


class ProblemSettings(Settings):
    """One target distribution, without its model (which has a schema of its own)."""

    label: str = Field(min_length=1, description="its name in pictures and tables")
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
    backend: Literal["tensorflow", "jax"] = Field(
        "tensorflow", description="array library of curves of our sampler that do not name one in options.backend"
    )
    measure_ess: bool = Field(False, description="keep the draws of each run and compute their effective sample size")

    @model_validator(mode="after")
    def _increasing(self) -> RunSettings:
        check_increasing("chains", self.chains)
        return self


class Curve(Settings):
    """One line of a picture."""

    label: str = Field(min_length=1, description="its name in pictures and tables")
    sampler: str = Field(description=f"one of {', '.join(REGISTRY)}")
    options: dict[str, Any] = Field(default_factory=dict, description="of that sampler")
    problems: list[str] | None = Field(None, min_length=1, description="names among `problems`; null: all of them")
    chains: list[int] | None = Field(None, description="in place of run.chains")
    transitions: int | None = Field(None, ge=1, description="in place of run.transitions")
    leapfrogs_per_leaf: int | None = Field(None, ge=1, description="in place of run.leapfrogs_per_leaf")
    measure_ess: bool | None = Field(None, description="in place of run.measure_ess")
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables of its process")
    panel: str = Field("", description="curves of the same panel are drawn together")
    flat: bool = Field(False, description="draw its one size as a line across: more chains come one after another")

    @model_validator(mode="after")
    def _check_sampler(self) -> Curve:
        if self.sampler not in REGISTRY:
            hint = nearest(self.sampler, REGISTRY) or f"; expected one of {', '.join(REGISTRY)}"
            raise ValueError(f"sampler: found {self.sampler!r}{hint}")
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


class Claim(Settings):
    """A figure that somebody published, or a bound on it, and where in our measurements to look for it.

    The figure is `measure` of `curve` at `chains`, divided by that of `over_curve` at `over_chains` if there is one.
    """

    says: str = Field(min_length=1, description="the claim in words")
    source: str = Field(min_length=1, description="who says so, where")
    measure: Measure = Field(description="what is looked at, see results.QUANTITIES")
    problem: str | None = Field(None, description="a name among `problems`; null: the first")
    curve: str = Field(description="a name among `curves`")
    chains: int | None = Field(None, ge=1, description="number of chains; null: where the measure is largest")
    over_curve: str | None = Field(None, description="the curve to compare with; null: the figure stands alone")
    over_chains: int | None = Field(None, ge=1, description="null: as `chains`, or the other curve's largest")
    at_least: float | None = Field(None, description="the claim holds only from here on")
    at_most: float | None = Field(None, description="the claim holds only up to here")

    @model_validator(mode="after")
    def _bounded(self) -> Claim:
        if self.at_least is None and self.at_most is None:
            raise ValueError("found neither at_least nor at_most; expected one of them, or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_most: found {self.at_most:g}; expected at_least ({self.at_least:g}) or more")
        if self.over_chains is not None and self.over_curve is None:
            raise ValueError(f"over_chains: found {self.over_chains}, which has no effect without over_curve")
        return self


@dataclass(frozen=True)
class ExperimentConfig:
    """A config that passed every check."""

    problems: Mapping[str, ProblemSettings]
    models: Mapping[str, ModelOptions]
    """The model of each problem."""
    run: RunSettings
    curves: Mapping[str, Curve]
    measurement: MeasurementSettings
    claims: Mapping[str, Claim]
    output: ResultsSettings

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

    def chains_of(self, curve: str) -> list[int]:
        """Numbers of chains a curve is measured at."""
        return list(self.curves[curve].chains or self.run.chains)

    @property
    def targets(self) -> Mapping[str, ProblemSettings]:
        """The problems."""
        return self.problems

    def label(self, curve: str, problem: str, chains: int) -> str:
        """A point in words."""
        return f"{self.curves[curve].label}, {chains} chains"

    def seeds(self) -> dict[int, int]:
        """The seed of each repetition."""
        return {repetition: self.measurement.seed + repetition for repetition in range(self.measurement.repetitions)}

    def wants(self, row: Measurement) -> bool:
        """Whether a row is of one of the repetitions, with its seed."""
        return self.seeds().get(row.repetition) == row.seed

    def points(self) -> Iterator[Point]:
        """(curve, problem, chains) of every point, in the order of measuring: curves of one size next to each other."""
        sizes = sorted({size for curve in self.curves for size in self.chains_of(curve)})
        for problem in self.problems:
            for size in sizes:
                for curve in self.curves:
                    if problem in self.problems_of(curve) and size in self.chains_of(curve):
                        yield curve, problem, size

    def resolved(self) -> dict[str, Any]:
        """Plain data that gives the same experiment again when read as a config."""
        problems = {
            name: {**dump_settings(settings), "model": dump_settings(self.models[name])}
            for name, settings in self.problems.items()
        }
        sections: dict[str, Settings | Mapping[str, Settings]] = {
            "run": self.run, "curves": self.curves, "measurement": self.measurement, "claims": self.claims,
            "output": self.output,
        }  # fmt: skip
        return {"problems": problems, **dump_sections(sections)}

    def to_yaml(self) -> str:
        """`resolved` as YAML."""
        return to_yaml(self.resolved())


_SECTIONS = ("problems", *SECTIONS)


def load_experiment(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> ExperimentConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    content, origin = read_layers(name, overrides, _SECTIONS, quick=quick)
    return _check(content, origin, quick)


def _check(content: dict[str, Any], origin: Origin, quick: bool) -> ExperimentConfig:
    problems: list[str] = []
    check_keys(content, _SECTIONS, origin, problems)
    models, targets = _check_problems(content.get("problems"), origin, problems)
    run = check_section("run", content.get("run"), RunSettings, origin, problems)
    backend = run.backend if run else "tensorflow"
    curves = _check_curves(content.get("curves"), list(targets), backend, origin, problems)
    measurement = check_section("measurement", content.get("measurement"), MeasurementSettings, origin, problems)
    claims = _check_claims(content.get("claims"), targets, curves, origin, problems)
    output = check_section("output", content.get("output"), ResultsSettings, origin, problems)
    if run and (run.measure_ess or any(curve.measure_ess for curve in curves.values())):
        _check_draws(run, targets, curves, origin, problems)
    if problems or not (run and measurement and output):
        raise ConfigError("\n".join(problems))
    if quick:
        output = output.quick()
    return ExperimentConfig(targets, models, run, curves, measurement, claims, output)


def _check_draws(
    run: RunSettings,
    targets: Mapping[str, ProblemSettings],
    curves: Mapping[str, Curve],
    origin: Origin,
    problems: list[str],
) -> None:
    """Note a mistake where there are too few transitions for an effective sample size."""
    places: dict[str, int | None] = {"run.transitions": run.transitions}
    places |= {f"problems.{name}.transitions": target.transitions for name, target in targets.items()}
    places |= {f"curves.{name}.transitions": curve.transitions for name, curve in curves.items()}
    for path, transitions in places.items():
        if transitions is not None and transitions < MINIMUM_DRAWS:
            problems.append(
                f"{origin(path)}{path}: found {transitions}; expected at least {MINIMUM_DRAWS}, or "
                "run.measure_ess=false: fewer draws have no effective sample size"
            )


def _check_problems(
    content: Any, origin: Origin, problems: list[str]
) -> tuple[dict[str, ModelOptions], dict[str, ProblemSettings]]:
    models, targets = {}, {}
    for name, item in named(content, "problems", origin, problems).items():
        path = f"problems.{name}"
        model = check_packaged_model(f"{path}.model", item.get("model"), origin, problems)
        settings = {key: value for key, value in item.items() if key != "model"}
        target = check_section(path, settings, ProblemSettings, origin, problems)
        if model is not None and not is_target(model):
            place = f"{path}.model.name"
            problems.append(f"{origin(place)}{place}: found {model.name!r}; expected one of {', '.join(TARGETS)}")
            model = None
        if model is not None and target is not None:
            models[name], targets[name] = model, target
    return models, targets


def _check_curves(
    content: Any, targets: list[str], backend: str, origin: Origin, problems: list[str]
) -> dict[str, Curve]:
    curves = check_each(content, "curves", Curve, origin, problems)
    for name, curve in curves.items():
        if REGISTRY[curve.sampler].role == "ours":
            curves[name] = curve.model_copy(update={"options": {"backend": backend, **curve.options}})
        for index, problem in enumerate(curve.problems or ()):
            refer(f"curves.{name}.problems.{index}", problem, targets, origin, problems)
    return check_options(curves, "curves", lambda curve: REGISTRY[curve.sampler].options, origin, problems)


def _check_claims(
    content: Any, targets: Mapping[str, Any], curves: Mapping[str, Any], origin: Origin, problems: list[str]
) -> dict[str, Claim]:
    claims = {} if content in (None, {}) else check_each(content, "claims", Claim, origin, problems)
    for name, claim in claims.items():
        refer(f"claims.{name}.curve", claim.curve, curves, origin, problems)
        refer(f"claims.{name}.over_curve", claim.over_curve, curves, origin, problems)
        refer(f"claims.{name}.problem", claim.problem, targets, origin, problems)
    return claims
