"""Configs of experiments: problems, samplers and sizes to measure, all in YAML: the code has no figures.

problems:    name -> a packaged model, its step size, where chains start
run:         what every curve runs, unless it says otherwise
curves:      name -> a sampler, its options, and what is different for it
measurement: repetitions, limits
claims:      what the experiment's own code judges by (its schema is the experiment's)
output:      the folder
quick:       key.path -> value: what `--quick` changes
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from batchnuts.config import check_packaged_model
from batchnuts.experiments.samplers import REGISTRY
from batchnuts.experiments.samplers.problems import Start
from batchnuts.experiments.samplers.task import Device, Task
from batchnuts.mcmc.diagnostics import MINIMUM_DRAWS
from batchnuts.models import ModelOptions
from batchnuts.settings.schema import Settings, nearest
from batchnuts.settings.yaml import (
    ConfigError,
    Origin,
    Schema,
    apply_override,
    check_section,
    dump_settings,
    find_config,
    read_yaml,
    set_key,
    to_yaml,
)

FOLDER = "experiments"
"""Below `configs/`: where the packaged ones are."""


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
    measure_ess: bool = Field(False, description="keep the draws of each run and compute their effective sample size")

    @model_validator(mode="after")
    def _increasing(self) -> RunSettings:
        check_sizes(self.chains)
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
    def _known(self) -> Curve:
        if self.sampler not in REGISTRY:
            hint = nearest(self.sampler, REGISTRY) or f"; expected one of {', '.join(REGISTRY)}"
            raise ValueError(f"sampler: found {self.sampler!r}{hint}")
        if self.chains is not None:
            check_sizes(self.chains)
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


class ResultsSettings(Settings):
    """Where the results go."""

    folder: str = Field(min_length=1, description="relative to the current folder; `--quick` adds -quick to it")

    def quick(self) -> ResultsSettings:
        """Where `--quick` writes."""
        folder = Path(self.folder)
        return ResultsSettings(folder=str(folder.with_name(f"{folder.name}-quick")) if folder.name else "quick")


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


def check_sizes(chains: Sequence[int]) -> None:
    """Raise ValueError unless these are numbers of chains in increasing order."""
    if not chains or chains[0] < 1 or any(a >= b for a, b in pairwise(chains)):
        raise ValueError(f"chains: found {list(chains)}; expected increasing integers of at least 1")


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
        """What is run at one point of a curve."""
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

    def seeds(self) -> dict[int, int]:
        """The seed of each repetition."""
        return {repetition: self.measurement.seed + repetition for repetition in range(self.measurement.repetitions)}

    def points(self) -> Iterator[tuple[str, str, int]]:
        """(curve, problem, chains) of every point, in the order of measuring: curves of one size next to each other."""
        sizes = sorted({size for curve in self.curves for size in self.chains_of(curve)})
        for problem in self.problems:
            for size in sizes:
                for curve in self.curves:
                    if problem in self.problems_of(curve) and size in self.chains_of(curve):
                        yield curve, problem, size

    def resolved(self) -> dict[str, Any]:
        """Plain data that gives the same experiment again when read as a config."""
        return {
            "problems": {
                name: {**dump_settings(settings), "model": dump_settings(self.models[name])}
                for name, settings in self.problems.items()
            },
            "run": dump_settings(self.run),
            "curves": {name: dump_settings(curve) for name, curve in self.curves.items()},
            "measurement": dump_settings(self.measurement),
            "claims": {name: dump_settings(claim) for name, claim in self.claims.items()},
            "output": dump_settings(self.output),
        }

    def to_yaml(self) -> str:
        """`resolved` as YAML."""
        return to_yaml(self.resolved())


_SECTIONS = ("problems", "run", "curves", "measurement", "claims", "output", "quick")


def load_experiment(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> ExperimentConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    content, origin = read_layers(name, overrides, _SECTIONS, quick=quick)
    return _check(content, origin, quick)


def read_layers(
    name: str, overrides: Sequence[str], sections: Sequence[str], *, quick: bool
) -> tuple[dict[str, Any], Origin]:
    """A config's content with `quick` and then the overrides applied, and where each key was written.

    Raises ConfigError for what cannot be read or applied; the content is not checked.
    """
    file = find_config(name, FOLDER)
    origin = Origin(file)
    content = read_yaml(file, origin, sections)
    changes = content.pop("quick", None)
    changes = {} if changes is None else changes
    if not isinstance(changes, dict):
        raise ConfigError(f"{origin('quick')}quick: found {changes!r}; expected a mapping of key paths to values.")
    if quick:
        if not changes:
            raise ConfigError(f"{file}: --quick needs the section quick, which says what it changes; there is none.")
        for path, value in changes.items():
            _refuse_to_drop_nothing(content, path, value, f"{origin(f'quick.{path}')}quick.{path}")
            set_key(content, path, value, f"{origin(f'quick.{path}')}quick.{path}")
            origin.lines[path] = origin.lines.get(f"quick.{path}", origin.lines["quick"])
    for override in overrides:
        path, _, value = (part.strip() for part in override.partition("="))
        if path.split(".")[0] == "quick":
            raise ConfigError(
                f"command line, {override}: the section quick is applied before the command line; set "
                f"{path[6:] or 'its keys'} itself."
            )
        if value in ("null", "~"):
            _refuse_to_drop_nothing(content, path, None, f"command line, {override}")
        apply_override(content, override, origin)
    return content, origin


def _refuse_to_drop_nothing(content: Mapping[str, Any], path: str, value: Any, blame: str) -> None:
    """Raise ConfigError, beginning with `blame`, for a null in place of a problem, curve or claim that is not there."""
    section, _, name = path.partition(".")
    known = content.get(section)
    if value is None and section in ("problems", "workloads", "curves", "claims") and name and "." not in name:
        names = list(known) if isinstance(known, dict) else []
        if name not in names:
            hint = nearest(name, names) or f"; expected one of {', '.join(names) or 'none: the section is empty'}"
            raise ConfigError(f"{blame}: there is no {path} to leave out{hint}")


def _check(content: dict[str, Any], origin: Origin, quick: bool) -> ExperimentConfig:
    problems: list[str] = []
    check_keys(content, _SECTIONS, origin, problems)
    models, targets = _check_problems(content.get("problems"), origin, problems)
    run = check_section("run", content.get("run"), RunSettings, origin, problems)
    curves = _check_curves(content.get("curves"), list(targets), origin, problems)
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


def check_keys(content: Mapping[str, Any], sections: Sequence[str], origin: Origin, problems: list[str]) -> None:
    """Note a mistake for each section that there is not."""
    for key in content:
        if key not in sections:
            hint = nearest(key, sections) or f"; expected one of {', '.join(sections)}"
            problems.append(f"{origin(key)}{key}: unknown section{hint}")


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


def named(content: Any, path: str, origin: Origin, problems: list[str]) -> dict[str, dict[str, Any]]:
    """The mappings below a section, by name; a name is one key of a path."""
    if not isinstance(content, dict) or not content:
        problems.append(f"{origin(path)}{path}: found {content!r}; expected a mapping of names to mappings")
        return {}
    content = {name: item for name, item in content.items() if item is not None}
    for name, item in content.items():
        if not isinstance(item, dict):
            problems.append(f"{origin(f'{path}.{name}')}{path}.{name}: found {item!r}; expected a mapping")
        elif not name.isidentifier():
            problems.append(
                f"{origin(path)}{path}: found the name {name!r}; expected letters, digits and _ (put words into label)"
            )
    return {name: item for name, item in content.items() if isinstance(item, dict)}


def check_each(
    content: Any, section: str, schema: type[Schema], origin: Origin, problems: list[str]
) -> dict[str, Schema]:
    """The mappings below a section that pass a schema, by name."""
    checked = {}
    for name, item in named(content, section, origin, problems).items():
        settings = check_section(f"{section}.{name}", item, schema, origin, problems)
        if settings is not None:
            checked[name] = settings
    return checked


def _check_problems(
    content: Any, origin: Origin, problems: list[str]
) -> tuple[dict[str, ModelOptions], dict[str, ProblemSettings]]:
    models, targets = {}, {}
    for name, item in named(content, "problems", origin, problems).items():
        path = f"problems.{name}"
        model = check_packaged_model(f"{path}.model", item.get("model"), origin, problems)
        rest = {key: value for key, value in item.items() if key != "model"}
        target = check_section(path, rest, ProblemSettings, origin, problems)
        if model is not None and target is not None:
            models[name], targets[name] = model, target
    return models, targets


def _check_curves(content: Any, targets: list[str], origin: Origin, problems: list[str]) -> dict[str, Curve]:
    curves = {}
    for name, curve in check_each(content, "curves", Curve, origin, problems).items():
        path = f"curves.{name}"
        for index, problem in enumerate(curve.problems or ()):
            refer(f"{path}.problems.{index}", problem, targets, origin, problems)
        schema = REGISTRY[curve.sampler].options
        options = check_section(f"{path}.options", curve.options, schema, origin, problems)
        if options is not None:  # with the defaults written out, so that a later default is another task
            curves[name] = curve.model_copy(update={"options": dump_settings(options)})
    return curves


def _check_claims(
    content: Any, targets: Mapping[str, Any], curves: Mapping[str, Any], origin: Origin, problems: list[str]
) -> dict[str, Claim]:
    claims = {} if content in (None, {}) else check_each(content, "claims", Claim, origin, problems)
    for name, claim in claims.items():
        refer(f"claims.{name}.curve", claim.curve, curves, origin, problems)
        refer(f"claims.{name}.over_curve", claim.over_curve, curves, origin, problems)
        refer(f"claims.{name}.problem", claim.problem, targets, origin, problems)
    return claims


def refer(path: str, name: str | None, known: Collection[str], origin: Origin, problems: list[str]) -> None:
    """Note a mistake if `name` is none of the names known (where those are in order themselves)."""
    if name is not None and known and name not in known:
        hint = nearest(name, known) or f"; expected one of {', '.join(known)}"
        problems.append(f"{origin(path)}{path}: found {name!r}{hint}")
