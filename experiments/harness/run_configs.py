"""Problems that are configs of `python -m batchnuts.sample`, with what is different: for all of them, or for one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from pydantic import Field

from batchnuts.autobatch import BatchnutsError
from batchnuts.cli.config import RunConfig, load_config
from batchnuts.experiments.harness.config import Config, Limiting, SamplerCurve, Target
from batchnuts.experiments.harness.processes import environment_for
from batchnuts.experiments.harness.reading import Reading
from batchnuts.experiments.harness.task import Task
from batchnuts.settings.schema import Settings
from batchnuts.settings.yaml import ConfigError, check_section


class CommonSettings(Settings):
    """What is different for all problems."""

    settings: dict[str, Any] = Field(
        default_factory=dict, description="keys of the configs' sections, e.g. {sampler: {draws: 100}}"
    )


class RunProblem(Target):
    """One posterior."""

    config: str = Field(min_length=1, description="a config of the command line: packaged, or a path")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="what is different from that, e.g. {model: {parametrization: 1PL}}"
    )
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="of a curve's sampler, what is different for this problem"
    )


@dataclass(frozen=True, kw_only=True)
class ConfigOfRuns(Config[Limiting], Generic[Limiting]):
    """Base of configs whose problems are configs of runs, and whose curves are samplers."""

    problems: Mapping[str, RunProblem]
    configs: Mapping[str, RunConfig]
    """The config of each problem, with its settings."""
    run: CommonSettings
    curves: Mapping[str, SamplerCurve]

    def options(self, curve: str, problem: str) -> dict[str, Any]:
        """The options of a curve's sampler on a problem."""
        return {**self.curves[curve].options, **self.problems[problem].options.get(curve, {})}

    def overrides(self, problem: str) -> list[str]:
        """What is different from a problem's file, as the command line takes it."""
        return overrides_of(_merged(self.run.settings, self.problems[problem].settings))


def overrides_of(settings: Mapping[str, Any], path: str = "") -> list[str]:
    """Nested settings as what the command line takes: `sampler.draws=100`."""
    overrides = []
    for key, value in settings.items():
        key_path = f"{path}{key}"
        overrides += (
            overrides_of(value, f"{key_path}.") if isinstance(value, Mapping) else [f"{key_path}={json.dumps(value)}"]
        )
    return overrides


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged; where both have a key, the second's value."""
    result = dict(first)
    for key, value in second.items():
        existing = result.get(key)
        if isinstance(existing, Mapping) and isinstance(value, Mapping):
            value = _merged(existing, value)
        result[key] = value
    return result


def read_configs(
    reading: Reading,
    problems: Mapping[str, RunProblem],
    curves: Mapping[str, SamplerCurve],
    common: CommonSettings,
    also: Sequence[str] = (),
) -> dict[str, RunConfig]:
    """The config of each problem, with overrides that all have also; notes what is wrong with it, or with what a
    problem says of curves."""
    configs = {}
    for name, problem in problems.items():
        path = f"problems.{name}"
        reading.refer(f"{path}.curves", problem.curves, curves)
        for curve, options in problem.options.items():
            place = f"{path}.options.{curve}"
            reading.refer(place, curve, curves)
            if curve in curves:
                schema, merged = curves[curve].options_schema, {**curves[curve].options, **options}
                check_section(place, merged, schema, reading.origin, reading.mistakes)
        try:
            changes = overrides_of(_merged(common.settings, problem.settings))
            configs[name] = load_config(problem.config, [*changes, *also])
        except ConfigError as error:
            reading.mistake(f"{path}.config", f"{problem.config} with its settings: {error}")
    return configs


@dataclass(frozen=True)
class RunTask(Task):
    """Base of tasks that are a sampler on such a problem."""

    sampler: str
    """A name of the registry."""
    options: dict[str, Any]
    problem: dict[str, Any]
    """The config that it was resolved to: if a packaged config or its defaults change, this is another task."""
    config: str = field(compare=False)
    """The file of `problem`, for its process."""
    overrides: tuple[str, ...] = field(compare=False)

    @property
    def heading(self) -> str:
        """The sampler, the model and the size."""
        model = json.dumps(self.problem["model"])
        return f"{self.sampler} {json.dumps(self.options)} on {model}, {self.size_in_words}"

    def process_environment(self) -> Mapping[str, str]:
        """The variables of its process, which runs on the processor. JAX factors matrices with SciPy's OpenBLAS, whose
        threads wait for each other busily: on a machine that does other work too, the gradient of a Gaussian process
        took 300 times as long with two of them."""
        return environment_for("cpu", {"OPENBLAS_NUM_THREADS": "1"})

    def run_config(self, also: Sequence[str] = ()) -> RunConfig:
        """The config of its runs, with overrides of its own also, in its process.

        Raises BatchnutsError where the file is not what it was when the experiment began.
        """
        config = load_config(self.config, [*self.overrides, *also])
        found = self.problem_of(config)
        if any(found[section] != expected for section, expected in self.problem.items()):
            raise BatchnutsError(f"{self.config} was changed while the experiment ran. Run the same command again.")
        return config

    @classmethod
    def problem_of(cls, config: RunConfig, *, ours: bool = True) -> dict[str, Any]:
        """What is sampled, and how if it is ours: settings of our sampler are not another sampler's task."""
        resolved = config.resolved()
        for section in ("output", "execution", *(() if ours else ("sampler",))):
            del resolved[section]
        return resolved
