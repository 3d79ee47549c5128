"""What the configs of all experiments have in common: points to measure, limits, the folder, and how they are read.

Sections: what is measured (`problems` or `workloads`), `run`, `curves`, `measurement`, `claims`, `output`, and `quick`:
key.path -> value, what `--quick` changes. All figures are in YAML, the code has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from pydantic import Field

from batchnuts.experiments.harness.rows import Row
from batchnuts.experiments.harness.task import Task
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
)

FOLDER = "experiments"
"""Below `configs/`: where the packaged ones are."""

SECTIONS = ("run", "curves", "measurement", "claims", "output", "quick")
"""The sections of every config, after the section that says what is measured."""

Point = tuple[str, str, int]
"""(curve, target, size): a curve is measured on a problem or a workload, at a number of chains or of rows."""


class Labelled(Protocol):
    """A curve or a target, which has a label."""

    @property
    def label(self) -> str:
        """The name in pictures and tables."""


class Limits(Protocol):
    """How often a task is run, and how long at most."""

    @property
    def repetitions(self) -> int:
        """Runs of each task that are wanted."""

    @property
    def max_seconds(self) -> float:
        """The most seconds of a run; after a longer one, no larger size is measured."""

    @property
    def timeout(self) -> float:
        """Seconds that a process has for an answer."""


R = TypeVar("R", bound=Row)
Limiting = TypeVar("Limiting", bound=Limits, covariant=True)


class Config(Protocol[R, Limiting]):
    """A config that passed every check."""

    @property
    def curves(self) -> Mapping[str, Labelled]:
        """Curves by name."""

    @property
    def targets(self) -> Mapping[str, Labelled]:
        """The targets that curves are measured on, by name."""

    @property
    def measurement(self) -> Limiting:
        """Limits."""

    @property
    def output(self) -> ResultsSettings:
        """Names the folder."""

    def points(self) -> Iterator[Point]:
        """All points, in the order of measuring: those of one target and size are adjacent."""

    def task(self, curve: str, target: str, size: int, /) -> Task[R]:
        """The task at one point; several points may have the same."""

    def label(self, curve: str, target: str, size: int, /) -> str:
        """A point in words, for progress."""

    def seeds(self) -> Mapping[int, int]:
        """The seed of each repetition."""

    def wants(self, row: R) -> bool:
        """Whether a row of one of its tasks is of one of its repetitions."""

    def to_yaml(self) -> str:
        """YAML that gives the same experiment when it is read as a config."""


class ResultsSettings(Settings):
    """Where the results go."""

    folder: str = Field(min_length=1, description="relative to the current folder; `--quick` adds -quick to it")

    def quick(self) -> ResultsSettings:
        """The folder to which `--quick` writes."""
        folder = Path(self.folder)
        return ResultsSettings(folder=str(folder.with_name(f"{folder.name}-quick")) if folder.name else "quick")


def check_increasing(name: str, sizes: Sequence[int]) -> None:
    """Raise ValueError, with the name of the key, unless these are positive integers in increasing order."""
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
        raise ValueError(f"{name}: found {list(sizes)}; expected increasing integers of at least 1")


def dump_sections(sections: Mapping[str, Settings | Mapping[str, Settings]]) -> dict[str, Any]:
    """Plain data of sections; one with several settings has them by name."""
    return {
        key: dump_settings(section)
        if isinstance(section, Settings)
        else {name: dump_settings(item) for name, item in section.items()}
        for key, section in sections.items()
    }


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
    entries = content.get(section)
    if value is None and section in ("problems", "workloads", "curves", "claims") and name and "." not in name:
        names = list(entries) if isinstance(entries, dict) else []
        if name not in names:
            hint = nearest(name, names) or f"; expected one of {', '.join(names) or 'none: the section is empty'}"
            raise ConfigError(f"{blame}: there is no {path} to leave out{hint}")


def check_keys(content: Mapping[str, Any], sections: Sequence[str], origin: Origin, problems: list[str]) -> None:
    """Note a mistake for each unknown section."""
    for key in content:
        if key not in sections:
            hint = nearest(key, sections) or f"; expected one of {', '.join(sections)}"
            problems.append(f"{origin(key)}{key}: unknown section{hint}")


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


class HasOptions(Protocol):
    """Settings with options, whose schema depends on what else they say."""

    @property
    def options(self) -> dict[str, Any]:
        """The options, unchecked."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed, as pydantic makes it."""


Optioned = TypeVar("Optioned", bound=HasOptions)


def check_options(
    items: Mapping[str, Optioned],
    section: str,
    schema: Callable[[Optioned], type[Settings]],
    origin: Origin,
    problems: list[str],
) -> dict[str, Optioned]:
    """Those whose options pass, with the defaults written out, so that a later default is another task."""
    checked = {}
    for name, item in items.items():
        options = check_section(f"{section}.{name}.options", item.options, schema(item), origin, problems)
        if options is not None:
            checked[name] = item.model_copy(update={"options": dump_settings(options)})
    return checked


def refer(path: str, name: str | None, valid: Collection[str], origin: Origin, problems: list[str]) -> None:
    """Note a mistake if `name` is not among the valid names (if there are any)."""
    if name is not None and valid and name not in valid:
        hint = nearest(name, valid) or f"; expected one of {', '.join(valid)}"
        problems.append(f"{origin(path)}{path}: found {name!r}{hint}")
