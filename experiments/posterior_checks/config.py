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

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from batchnuts.cli.config import RunConfig, load_config
from batchnuts.experiments.harness.config import (
    Point,
    ResultsSettings,
    check_each,
    check_keys,
    check_options,
    dump_sections,
    read_layers,
    refer,
)
from batchnuts.experiments.posterior_checks.measurements import Measurement
from batchnuts.experiments.posterior_checks.registry import REGISTRY
from batchnuts.experiments.posterior_checks.task import AUTOMATIC, Task
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT
from batchnuts.settings.schema import Settings, nearest
from batchnuts.settings.yaml import ConfigError, Origin, check_section, to_yaml

SECTIONS = ("problems", "run", "curves", "measurement", "verdict", "output")

KNOWN = "known"
"""The reference of a problem whose truth is known."""


class RunSettings(Settings):
    """What is different for all problems."""

    settings: dict[str, Any] = Field(
        default_factory=dict, description="keys of the configs' sections, e.g. {sampler: {draws: 100}}"
    )


class ProblemSettings(Settings):
    """One posterior."""

    label: str = Field(min_length=1, description="its name in pictures and tables")
    config: str = Field(min_length=1, description="a config of the command line: packaged, or a path")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="what is different from that, e.g. {model: {parametrization: 1PL}}"
    )
    reference: str = Field("numpyro", description=f"a name among `curves`; {KNOWN}: its moments are known (truths.py)")
    transforms: dict[str, Literal["log"]] = Field(
        default_factory=dict,
        description="parameters without a variance, or with no use for one: the logarithm of their size is compared",
    )
    curves: list[str] | None = Field(None, min_length=1, description="names among `curves`; null: all")
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="of a curve's sampler, what is different for this problem"
    )
    explanation: str = Field("", description="of a failure that stays, for the summary; it stays a failure")


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
        """Whether the sampler is judged."""
        return REGISTRY[self.sampler].ours


class MeasurementSettings(Settings):
    """How each is run."""

    seed: int = Field(0, ge=0, lt=2**31, description="of every sampler")
    timeout: float = Field(3600.0, gt=0.0, le=1e6, description="seconds that a sampler may take for one run")
    workers: int = Field(1, ge=1, description="samplers of one problem that run at the same time")

    @property
    def repetitions(self) -> int:
        """One repetition: a posterior is the same again."""
        return 1

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


@dataclass(frozen=True)
class PosteriorsConfig:
    """A config that passed every check."""

    problems: Mapping[str, ProblemSettings]
    configs: Mapping[str, RunConfig]
    """The config of each problem, with its settings."""
    run: RunSettings
    curves: Mapping[str, Curve]
    measurement: MeasurementSettings
    verdict: VerdictSettings
    output: ResultsSettings

    @property
    def targets(self) -> Mapping[str, ProblemSettings]:
        """The problems."""
        return self.problems

    def curves_of(self, problem: str) -> list[str]:
        """Names of the curves that sample a problem."""
        chosen = self.problems[problem].curves
        return list(self.curves) if chosen is None else list(chosen)

    def size(self, curve: str, problem: str) -> int:
        """Number of chains."""
        options = self.options(curve, problem)
        return int(options.get("chains", self.configs[problem].sampler.chain_count))

    def options(self, curve: str, problem: str) -> dict[str, Any]:
        """The options of a curve's sampler on a problem."""
        return {**self.curves[curve].options, **self.problems[problem].options.get(curve, {})}

    def points(self) -> Iterator[Point]:
        """(curve, problem, chains), in the order of measuring."""
        for problem in self.problems:
            for curve in self.curves_of(problem):
                yield curve, problem, self.size(curve, problem)

    def task(self, curve: str, problem: str, size: int) -> Task:
        """The task at one point."""
        settings, config, options = self.problems[problem], self.configs[problem], self.options(curve, problem)
        changes = overrides_of(merged(self.run.settings, settings.settings))
        transitions = config.sampler.warmup.transitions
        resolved = config.resolved()
        del resolved["output"], resolved["execution"]
        if self.curves[curve].ours:
            # programs kept from an earlier run would take no time to compile
            changes += [f"execution.backend={options['backend']}", f"execution.expert.mode={options['mode']}"]
            changes += ["execution.cache=null"]
        else:  # settings of our sampler are not this sampler's task
            del resolved["sampler"]
        return Task(
            sampler=self.curves[curve].sampler,
            options=options,
            problem=resolved,
            transforms=dict(settings.transforms),
            chains=size,
            warmup=options.get("warmup", AUTOMATIC if transitions == "auto" else transitions),
            draws=options.get("draws", config.sampler.draws),
            config=settings.config,
            overrides=tuple(changes),
        )

    def label(self, curve: str, problem: str, size: int) -> str:
        """A point in words."""
        return f"{self.curves[curve].label}, {self.problems[problem].label}"

    def seeds(self) -> dict[int, int]:
        """The seed of the one repetition."""
        return {0: self.measurement.seed}

    def wants(self, row: Measurement) -> bool:
        """Whether a row has the config's seed."""
        return self.seeds().get(row.repetition) == row.seed

    def to_yaml(self) -> str:
        """YAML that gives the same experiment when it is read as a config."""
        sections: dict[str, Settings | Mapping[str, Settings]] = {
            "problems": self.problems, "run": self.run, "curves": self.curves, "measurement": self.measurement,
            "verdict": self.verdict, "output": self.output,
        }  # fmt: skip
        return to_yaml(dump_sections(sections))


def overrides_of(settings: Mapping[str, Any], path: str = "") -> list[str]:
    """Nested settings as what the command line takes: `sampler.draws=100`."""
    overrides = []
    for key, value in settings.items():
        key_path = f"{path}{key}"
        overrides += (
            overrides_of(value, f"{key_path}.") if isinstance(value, Mapping) else [f"{key_path}={json.dumps(value)}"]
        )
    return overrides


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged; where both have a key, the second's value."""
    result = dict(first)
    for key, value in second.items():
        existing = result.get(key)
        result[key] = merged(existing, value) if isinstance(existing, Mapping) and isinstance(value, Mapping) else value
    return result


def load_posteriors(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> PosteriorsConfig:
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
    configs = _check_problems(targets, curves, run or RunSettings(), origin, problems)
    measurement = check_section("measurement", content.get("measurement"), MeasurementSettings, origin, problems)
    verdict = check_section("verdict", content.get("verdict"), VerdictSettings, origin, problems)
    output = check_section("output", content.get("output"), ResultsSettings, origin, problems)
    if problems or not (run and measurement and verdict and output):
        raise ConfigError("\n".join(problems))
    return PosteriorsConfig(targets, configs, run, curves, measurement, verdict, output.quick() if quick else output)


def _check_problems(
    targets: Mapping[str, ProblemSettings],
    curves: Mapping[str, Curve],
    run: RunSettings,
    origin: Origin,
    problems: list[str],
) -> dict[str, RunConfig]:
    """The config of each problem; notes what is wrong with it, and with the names of curves."""
    configs = {}
    for name, target in targets.items():
        path = f"problems.{name}"
        for index, curve in enumerate(target.curves or ()):
            refer(f"{path}.curves.{index}", curve, curves, origin, problems)
        refer(f"{path}.reference", target.reference, {**curves, KNOWN: None}, origin, problems)
        measured = target.curves if target.curves is not None else list(curves)
        if target.reference in curves and target.reference not in measured:
            problems.append(
                f"{origin(f'{path}.curves')}{path}.curves: found {measured}; expected {target.reference!r} among them, "
                "which is the problem's reference"
            )
        for curve, options in target.options.items():
            refer(f"{path}.options.{curve}", curve, curves, origin, problems)
            if curve in curves:
                merged_options = {**curves[curve].options, **options}
                schema = REGISTRY[curves[curve].sampler].options
                check_section(f"{path}.options.{curve}", merged_options, schema, origin, problems)
        try:
            configs[name] = load_config(target.config, overrides_of(merged(run.settings, target.settings)))
            if configs[name].sampler.chains == "auto":
                raise ConfigError("sampler.chains: found auto; expected a number, since every measurement has one")
        except ConfigError as error:
            problems.append(f"{origin(f'{path}.config')}{path}.config: {target.config} with its settings: {error}")
    return configs
