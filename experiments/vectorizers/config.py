"""Configs of the benchmark of vectorizers: workloads, ways to vectorize and sizes, all in YAML.

workloads:   name -> a kind of workload, its options and sizes
run:         device, processor cores, seed of the data
curves:      name -> a way to vectorize
measurement: repetitions, limits
claims:      ratios of two curves, with bounds
output:      the folder
quick:       key.path -> value: what `--quick` changes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from batchnuts.experiments.harness.config import (
    SECTIONS,
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
from batchnuts.experiments.harness.processes import Device
from batchnuts.experiments.vectorizers.measurements import Measurement
from batchnuts.experiments.vectorizers.registry import KINDS, Method
from batchnuts.experiments.vectorizers.task import Task
from batchnuts.settings.schema import Settings, nearest
from batchnuts.settings.yaml import ConfigError, Origin, check_section, to_yaml


class WorkloadSettings(Settings):
    """One panel of a picture, and a table."""

    label: str = Field(min_length=1, description="its name in pictures and tables")
    kind: str = Field(description=f"one of {', '.join(KINDS)}")
    options: dict[str, Any] = Field(default_factory=dict, description="of that kind")
    sizes: list[int] = Field(min_length=1, description="how many rows, lanes or outputs: the horizontal axis")
    curves: list[str] | None = Field(None, min_length=1, description="names among `curves`; null: all that can")
    picture: str | None = Field(
        None, pattern=r"^\w+$", description="the file it is drawn in, beside others; null: only a table"
    )

    @model_validator(mode="after")
    def _check_kind(self) -> WorkloadSettings:
        if self.kind not in KINDS:
            raise ValueError(f"kind: found {self.kind!r}{nearest(self.kind, KINDS) or f'; expected one of {_KINDS}'}")
        check_increasing("sizes", self.sizes)
        return self


_KINDS = ", ".join(KINDS)


class RunSettings(Settings):
    """Where all of it runs."""

    device: Device = Field("cpu", description="where arrays live; gpu needs one, and libraries that see it")
    processors: int | None = Field(None, ge=1, description="processor cores that may be used; null: all")
    seed: int = Field(0, ge=0, description="of data and weights")


class Curve(Settings):
    """A way to vectorize."""

    label: str = Field(min_length=1, description="its name in pictures and tables")
    method: Method = Field(description="see vectorizers.Method")
    compiled: bool = Field(True, description="by XLA; JAX always is")

    @model_validator(mode="after")
    def _possible(self) -> Curve:
        if self.method == "jax" and not self.compiled:
            raise ValueError("compiled: found False; expected True: JAX compiles always")
        return self


class MeasurementSettings(Settings):
    """How often, and how long at most."""

    repetitions: int = Field(7, ge=1, description="timings of each point, all kept; all ways take turns")
    min_seconds: float = Field(0.05, ge=0.0, description="a timing repeats a call until about so long")
    max_seconds: float = Field(
        5.0, gt=0.0, description="a curve goes to no larger size of a workload once a call took longer than this"
    )
    timeout: float = Field(300.0, gt=0.0, le=1e6, description="seconds to compile, or for one timing")
    tolerance: float = Field(
        1e-3, gt=0.0, description="relative difference between the outputs of two ways that makes one of them fail"
    )


class Claim(Settings):
    """A ratio of two curves' speeds, and what somebody claims of it: the minimum over the points that the claim is
    about."""

    says: str = Field(min_length=1, description="the claim in words")
    source: str = Field(min_length=1, description="who says so, where")
    workloads: list[str] | None = Field(None, min_length=1, description="names; null: all that have both curves")
    size: int | None = Field(None, ge=1, description="null: all sizes")
    curve: str = Field(description="a name among `curves`")
    over_curve: str = Field(description="the curve to compare with")
    at_least: float = Field(gt=0.0, description="the claim holds from here on")


@dataclass(frozen=True)
class VectorizingConfig:
    """A config that passed every check."""

    workloads: Mapping[str, WorkloadSettings]
    run: RunSettings
    curves: Mapping[str, Curve]
    measurement: MeasurementSettings
    claims: Mapping[str, Claim]
    output: ResultsSettings

    def task(self, curve: str, workload: str, size: int) -> Task:
        """The task at one point."""
        chosen, work = self.curves[curve], self.workloads[workload]
        return Task(
            work.kind, dict(work.options), size, chosen.method, chosen.compiled, self.run.device, self.run.processors,
            self.run.seed, self.measurement.min_seconds,
        )  # fmt: skip

    def curves_of(self, workload: str) -> list[str]:
        """Names of those measured on a workload: all that its kind knows, or of them what it asks for."""
        work = self.workloads[workload]
        methods = KINDS[work.kind].methods
        return [
            name
            for name, curve in self.curves.items()
            if curve.method in methods and (work.curves is None or name in work.curves)
        ]

    def groups(self) -> Iterator[tuple[str, int, list[str]]]:
        """(workload, size, curves): what is measured together, in the order of measuring."""
        for workload, work in self.workloads.items():
            for size in work.sizes:
                yield workload, size, self.curves_of(workload)

    @property
    def targets(self) -> Mapping[str, WorkloadSettings]:
        """The workloads."""
        return self.workloads

    def points(self) -> Iterator[Point]:
        """(curve, workload, size) of every point, in the order of measuring."""
        for workload, size, curves in self.groups():
            for curve in curves:
                yield curve, workload, size

    def label(self, curve: str, workload: str, size: int) -> str:
        """A point in words."""
        return f"{self.workloads[workload].label}, size {size}, {self.curves[curve].label}"

    def seeds(self) -> dict[int, int]:
        """The seed of each repetition: all have the same data, only the order of the ways differs."""
        return {repetition: repetition for repetition in range(self.measurement.repetitions)}

    def wants(self, row: Measurement) -> bool:
        """Whether a row is of one of the repetitions."""
        return row.repetition in range(self.measurement.repetitions)

    def to_yaml(self) -> str:
        """YAML that gives the same experiment again when read as a config."""
        return to_yaml(
            dump_sections(
                {
                    "workloads": self.workloads, "run": self.run, "curves": self.curves,
                    "measurement": self.measurement, "claims": self.claims, "output": self.output,
                }
            )
        )  # fmt: skip


_SECTIONS = ("workloads", *SECTIONS)


def load_vectorizing(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> VectorizingConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    content, origin = read_layers(name, overrides, _SECTIONS, quick=quick)
    problems: list[str] = []
    check_keys(content, _SECTIONS, origin, problems)
    workloads = _check_workloads(content.get("workloads"), origin, problems)
    run = check_section("run", content.get("run"), RunSettings, origin, problems)
    curves = check_each(content.get("curves"), "curves", Curve, origin, problems)
    for workload, work in workloads.items():
        for index, curve_name in enumerate(work.curves or ()):
            refer(f"workloads.{workload}.curves.{index}", curve_name, curves, origin, problems)
    measurement = check_section("measurement", content.get("measurement"), MeasurementSettings, origin, problems)
    claims = _check_claims(content.get("claims"), workloads, curves, origin, problems)
    output = check_section("output", content.get("output"), ResultsSettings, origin, problems)
    if problems or not (run and measurement and output):
        raise ConfigError("\n".join(problems))
    return VectorizingConfig(workloads, run, curves, measurement, claims, output.quick() if quick else output)


def _check_workloads(content: Any, origin: Origin, problems: list[str]) -> dict[str, WorkloadSettings]:
    workloads = check_each(content, "workloads", WorkloadSettings, origin, problems)
    return check_options(workloads, "workloads", lambda work: KINDS[work.kind].options, origin, problems)


def _check_claims(
    content: Any,
    workloads: Mapping[str, WorkloadSettings],
    curves: Mapping[str, Curve],
    origin: Origin,
    problems: list[str],
) -> dict[str, Claim]:
    claims = {} if content in (None, {}) else check_each(content, "claims", Claim, origin, problems)
    for name, claim in claims.items():
        refer(f"claims.{name}.curve", claim.curve, curves, origin, problems)
        refer(f"claims.{name}.over_curve", claim.over_curve, curves, origin, problems)
        for index, workload in enumerate(claim.workloads or ()):
            refer(f"claims.{name}.workloads.{index}", workload, workloads, origin, problems)
    return claims
