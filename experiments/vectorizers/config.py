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
from typing import Any, ClassVar

from pydantic import Field, model_validator

from batchnuts.experiments.harness import config as harness
from batchnuts.experiments.harness.config import Config, Labelled, Point, Target, check_increasing, check_name
from batchnuts.experiments.harness.processes import Device
from batchnuts.experiments.harness.reading import Reading
from batchnuts.experiments.vectorizers.registry import KINDS, Method
from batchnuts.experiments.vectorizers.task import Task
from batchnuts.settings.schema import Settings


class WorkloadSettings(Target):
    """One panel of a picture, and a table."""

    kind: str = Field(description=f"one of {', '.join(KINDS)}")
    options: dict[str, Any] = Field(default_factory=dict, description="of that kind")
    sizes: list[int] = Field(min_length=1, description="how many rows, lanes or outputs: the horizontal axis")
    picture: str | None = Field(
        None, pattern=r"^\w+$", description="the file it is drawn in, beside others; null: only a table"
    )

    @model_validator(mode="after")
    def _check_kind(self) -> WorkloadSettings:
        check_name("kind", self.kind, KINDS)
        check_increasing("sizes", self.sizes)
        return self

    @property
    def options_schema(self) -> type[Settings]:
        """The schema of the options."""
        return KINDS[self.kind].options


class RunSettings(Settings):
    """Where all of it runs."""

    device: Device = Field("cpu", description="where arrays live; gpu needs one, and libraries that see it")
    processors: int | None = Field(None, ge=1, description="processor cores that may be used; null: all")
    seed: int = Field(0, ge=0, description="of data and weights")


class Curve(Labelled):
    """A way to vectorize."""

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
    min_seconds: float = Field(0.05, ge=0.0, description="a timing repeats a call for about this long")
    max_seconds: float = Field(
        5.0, gt=0.0, description="a curve goes to no larger size of a workload once a call took longer than this"
    )
    timeout: float = Field(300.0, gt=0.0, le=1e6, description="seconds to compile, or for one timing")
    tolerance: float = Field(
        1e-3, gt=0.0, description="relative difference between the outputs of two ways that makes one of them fail"
    )
    seed: ClassVar[int] = 0
    """All repetitions have the same data; only the order of the ways differs."""


class Claim(harness.Claim):
    """A ratio of two curves' speeds, and what somebody claims of it: the minimum over the points that the claim is
    about."""

    workloads: list[str] | None = Field(None, min_length=1, description="names; null: all that have both curves")
    size: int | None = Field(None, ge=1, description="null: all sizes")
    curve: str = Field(description="a name among `curves`")
    over_curve: str = Field(description="the curve to compare with")
    at_least: float = Field(gt=0.0, description="the claim holds from here on")


@dataclass(frozen=True, kw_only=True)
class VectorizingConfig(Config[MeasurementSettings]):
    """A config that passed every check."""

    sections = ("workloads", *Config.sections[1:])
    workloads: Mapping[str, WorkloadSettings]
    run: RunSettings
    curves: Mapping[str, Curve]
    claims: Mapping[str, Claim]

    def task(self, curve: str, workload: str, size: int) -> Task:
        """The task at one point."""
        chosen, work = self.curves[curve], self.workloads[workload]
        return Task(
            work.kind, dict(work.options), size, chosen.method, chosen.compiled, self.run.device, self.run.processors,
            self.run.seed, self.measurement.min_seconds,
        )  # fmt: skip

    def curves_of(self, target: str) -> list[str]:
        """Names of those measured on a workload: all that its kind knows, or of them what it asks for."""
        chosen, methods = super().curves_of(target), KINDS[self.workloads[target].kind].methods
        return [name for name, curve in self.curves.items() if name in chosen and curve.method in methods]

    def groups(self) -> Iterator[tuple[str, int, list[str]]]:
        """(workload, size, curves): what is measured together, in the order of measuring."""
        for workload, work in self.workloads.items():
            for size in work.sizes:
                yield workload, size, self.curves_of(workload)

    def points(self) -> Iterator[Point]:
        """(curve, workload, size) of every point, in the order of measuring."""
        for workload, size, curves in self.groups():
            for curve in curves:
                yield curve, workload, size


def load_vectorizing(name: str, overrides: Sequence[str] = (), *, quick: bool = False) -> VectorizingConfig:
    """Read a config by path or packaged name, apply `quick` and then the overrides, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    reading = Reading(name, overrides, VectorizingConfig.sections, quick=quick)
    workloads = reading.options("workloads", reading.each("workloads", WorkloadSettings))
    run = reading.section("run", RunSettings)
    curves = reading.each("curves", Curve)
    for workload, work in workloads.items():
        reading.refer(f"workloads.{workload}.curves", work.curves, curves)
    measurement = reading.section("measurement", MeasurementSettings)
    claims = reading.claims(Claim, curve=curves, over_curve=curves, workloads=workloads)
    output = reading.output()
    return VectorizingConfig(
        workloads=workloads, run=reading.whole(run), curves=curves, measurement=reading.whole(measurement),
        claims=claims, output=reading.whole(output),
    )  # fmt: skip
