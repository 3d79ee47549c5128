"""Reading the config of an experiment: layers put together, sections checked, all mistakes named at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

from batchnuts.experiments.harness.config import Claim, ResultsSettings
from batchnuts.settings.schema import Settings, dump_settings, nearest
from batchnuts.settings.yaml import (
    ConfigError,
    Origin,
    Schema,
    apply_override,
    check_section,
    find_config,
    read_yaml,
    set_key,
)

FOLDER = "experiments"
"""Below `configs/`: where the packaged ones are."""


class HasOptions(Protocol):
    """Settings with options, whose schema depends on what else they say."""

    @property
    def options(self) -> dict[str, Any]:
        """The options, unchecked."""

    @property
    def options_schema(self) -> type[Settings]:
        """Their schema."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed, as pydantic makes it."""


Optioned = TypeVar("Optioned", bound=HasOptions)
Claiming = TypeVar("Claiming", bound=Claim)
Section = TypeVar("Section")


class Reading:
    """A config as it is read, with the mistakes that were found so far."""

    def __init__(self, name: str, overrides: Sequence[str], sections: Sequence[str], *, quick: bool) -> None:
        """Read a config by path or packaged name, and apply `quick` and then the overrides.

        Raises ConfigError for what cannot be read or applied.
        """
        known = [*sections, "quick"]
        self.quick = quick
        self.content, self.origin = _read_layers(name, overrides, known, quick=quick)
        self.mistakes: list[str] = []
        for key in self.content:
            if key not in known:
                self.mistake(key, f"unknown section{_hint(key, known)}")

    def mistake(self, path: str, text: str) -> None:
        """Note a mistake at a key path, with the line where that is written."""
        self.mistakes.append(f"{self.origin(path)}{path}: {text}")

    def section(self, name: str, schema: type[Schema]) -> Schema | None:
        """A section that passes a schema; None where it does not."""
        return check_section(name, self.content.get(name), schema, self.origin, self.mistakes)

    def named(self, section: str) -> dict[str, dict[str, Any]]:
        """The mappings below a section, by name; a name is one key of a path."""
        content = self.content.get(section)
        if not isinstance(content, dict) or not content:
            self.mistake(section, f"found {content!r}; expected a mapping of names to mappings")
            return {}
        items = {name: item for name, item in content.items() if item is not None}
        for name, item in items.items():
            if not isinstance(item, dict):
                self.mistake(f"{section}.{name}", f"found {item!r}; expected a mapping")
            elif not name.isidentifier():
                self.mistake(section, f"found the name {name!r}; expected letters, digits and _ (put words into label)")
        return {name: item for name, item in items.items() if isinstance(item, dict)}

    def each(self, section: str, schema: type[Schema]) -> dict[str, Schema]:
        """The mappings below a section that pass a schema, by name."""
        checked = {}
        for name, item in self.named(section).items():
            settings = check_section(f"{section}.{name}", item, schema, self.origin, self.mistakes)
            if settings is not None:
                checked[name] = settings
        return checked

    def options(self, section: str, items: Mapping[str, Optioned]) -> dict[str, Optioned]:
        """Those whose options pass, with the defaults written out, so that a later default is another task."""
        checked = {}
        for name, item in items.items():
            path = f"{section}.{name}.options"
            options = check_section(path, item.options, item.options_schema, self.origin, self.mistakes)
            if options is not None:
                checked[name] = item.model_copy(update={"options": dump_settings(options)})
        return checked

    def claims(self, schema: type[Claiming], **names: Collection[str]) -> dict[str, Claiming]:
        """The claims, of which there may be none; their keys of these names must be among what is given for each."""
        claims = {} if self.content.get("claims") in (None, {}) else self.each("claims", schema)
        for name, claim in claims.items():
            for key, valid in names.items():
                self.refer(f"claims.{name}.{key}", getattr(claim, key), valid)
        return claims

    def output(self) -> ResultsSettings | None:
        """The section `output`, with the folder of `--quick` where that was asked for."""
        output = self.section("output", ResultsSettings)
        return output.quick() if output is not None and self.quick else output

    def refer(self, path: str, name: str | Sequence[str] | None, valid: Collection[str]) -> None:
        """Note a mistake if a name, or one of several, is not among the valid names (if there are any)."""
        if name is not None and not isinstance(name, str):
            for index, each in enumerate(name):
                self.refer(f"{path}.{index}", each, valid)
        elif name is not None and valid and name not in valid:
            self.mistake(path, f"found {name!r}{_hint(name, valid)}")

    def whole(self, section: Section | None) -> Section:
        """A section of a config without mistakes. Raises ConfigError with one line for each, if there are any."""
        if self.mistakes or section is None:
            raise ConfigError("\n".join(self.mistakes))
        return section


def _hint(name: str, valid: Collection[str]) -> str:
    return nearest(name, valid) or f"; expected one of {', '.join(valid)}"


def _read_layers(
    name: str, overrides: Sequence[str], sections: Sequence[str], *, quick: bool
) -> tuple[dict[str, Any], Origin]:
    """A config's content with `quick` and then the overrides applied, and where each key was written."""
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
            blame = f"{origin(f'quick.{path}')}quick.{path}"
            _refuse_to_drop_nothing(content, path, value, blame)
            set_key(content, path, value, blame)
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
