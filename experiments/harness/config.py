"""What the configs of all experiments have in common: points to measure, limits, claims, the folder.

Sections: what is measured (`problems` or `workloads`), `run`, `curves`, `measurement`, `claims`, `output`, and `quick`:
key.path -> value, what `--quick` changes. All figures are in YAML, the code has none. `reading.py` reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import Field, model_validator

from batchnuts.experiments.harness.rows import Row
from batchnuts.experiments.harness.task import Task
from batchnuts.settings.schema import Settings, dump_settings, nearest
from batchnuts.settings.yaml import to_yaml

Point = tuple[str, str, int]
"""(curve, target, size): a curve is measured on a problem or a workload, at a number of chains or of rows."""


class Labelled(Settings):
    """A curve or a target."""

    label: str = Field(min_length=1, description="its name in pictures and tables")


class Target(Labelled):
    """What curves are measured on, unless the curves themselves name what they are measured on."""

    curves: list[str] | None = Field(None, min_length=1, description="names among `curves`; null: all that can")


@dataclass(frozen=True)
class Registered:
    """A sampler that curves may name: its options, and who it is."""

    options: type[Settings]

    @property
    def ours(self) -> bool:
        """Whether it is batchnuts: what claims and verdicts are about."""
        raise NotImplementedError


class SamplerCurve(Labelled):
    """A curve that is a sampler, with options of that sampler."""

    registry: ClassVar[Mapping[str, Registered]]
    """The samplers by name."""
    sampler: str = Field(description="a name of the registry")
    options: dict[str, Any] = Field(default_factory=dict, description="of that sampler")

    @model_validator(mode="after")
    def _check_sampler(self) -> SamplerCurve:
        check_name("sampler", self.sampler, self.registry)
        return self

    @property
    def options_schema(self) -> type[Settings]:
        """The schema of the options."""
        return self.registry[self.sampler].options

    @property
    def ours(self) -> bool:
        """Whether the sampler is batchnuts."""
        return self.registry[self.sampler].ours


class Claim(Settings):
    """A bound on a figure, from somebody; a kind of experiment says which figures there are."""

    says: str = Field(min_length=1, description="the claim in words")
    source: str = Field(min_length=1, description="who says so, where")
    at_least: float | None = Field(None, description="the claim holds only from here on")
    at_most: float | None = Field(None, description="the claim holds only up to here")

    @property
    def bounds(self) -> str:
        """What it holds from and up to, in words."""
        low = "" if self.at_least is None else f"≥ {self.at_least:g}"
        high = "" if self.at_most is None else f"≤ {self.at_most:g}"
        return " and ".join(bound for bound in (low, high) if bound)


class ResultsSettings(Settings):
    """Where the results go."""

    folder: str = Field(min_length=1, description="relative to the current folder; `--quick` adds -quick to it")

    def quick(self) -> ResultsSettings:
        """The folder to which `--quick` writes."""
        folder = Path(self.folder)
        return ResultsSettings(folder=str(folder.with_name(f"{folder.name}-quick")) if folder.name else "quick")


class Limits(Protocol):
    """How often a task is run, and how long at most."""

    @property
    def repetitions(self) -> int:
        """Runs of each task that are wanted."""

    @property
    def seed(self) -> int:
        """The seed of the first repetition; the others count up from it."""

    @property
    def max_seconds(self) -> float:
        """The most seconds of a run; after a longer one, no larger size is measured."""

    @property
    def timeout(self) -> float:
        """Seconds that a process has for an answer."""


Limiting = TypeVar("Limiting", bound=Limits, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Config(ABC, Generic[Limiting]):
    """Base of configs that passed every check: each section is a field of its name."""

    sections: ClassVar[tuple[str, ...]] = ("problems", "run", "curves", "measurement", "claims", "output")
    """The sections in order; the first says what is measured."""
    curves: Mapping[str, Labelled]
    measurement: Limiting
    claims: Mapping[str, Claim] = field(default_factory=dict)
    output: ResultsSettings

    @property
    def targets(self) -> Mapping[str, Labelled]:
        """The targets that curves are measured on, by name."""
        targets: Mapping[str, Labelled] = getattr(self, self.sections[0])
        return targets

    def curves_of(self, target: str) -> list[str]:
        """Names of the curves that are measured on a target."""
        settings = self.targets[target]
        return list((settings.curves if isinstance(settings, Target) else None) or self.curves)

    @abstractmethod
    def points(self) -> Iterator[Point]:
        """All points, in the order of measuring: those of one target and size are adjacent."""

    @abstractmethod
    def task(self, curve: str, target: str, size: int, /) -> Task:
        """The task at one point; several points may have the same."""

    def seeds(self) -> dict[int, int]:
        """The seed of each repetition."""
        return {number: self.measurement.seed + number for number in range(self.measurement.repetitions)}

    def wants(self, row: Row) -> bool:
        """Whether a row of one of its tasks is of one of its repetitions, with its seed if rows have a seed."""
        return self.seeds().get(row.repetition) == getattr(row, "seed", row.repetition)

    def resolved(self) -> dict[str, Any]:
        """Plain data that gives the same experiment again when it is read as a config."""
        return dump_sections({name: getattr(self, name) for name in self.sections})

    def to_yaml(self) -> str:
        """`resolved` as YAML."""
        return to_yaml(self.resolved())


def check_increasing(name: str, sizes: Sequence[int]) -> None:
    """Raise ValueError, with the name of the key, unless these are positive integers in increasing order."""
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
        raise ValueError(f"{name}: found {list(sizes)}; expected increasing integers of at least 1")


def check_name(key: str, name: str, valid: Mapping[str, Any]) -> None:
    """Raise ValueError, with the name of the key, unless `name` is among the valid ones."""
    if name not in valid:
        hint = nearest(name, valid) or f"; expected one of {', '.join(valid)}"
        raise ValueError(f"{key}: found {name!r}{hint}")


def dump_sections(sections: Mapping[str, Settings | Mapping[str, Settings]]) -> dict[str, Any]:
    """Plain data of sections; one with several settings has them by name."""
    return {
        key: dump_settings(section)
        if isinstance(section, Settings)
        else {name: dump_settings(item) for name, item in section.items()}
        for key, section in sections.items()
    }
