"""YAML files of settings: read with the line of every key, overridden on the command line, checked against schemas.

All mistakes of a file are reported at once, each with its place. Reading and checking import no TensorFlow.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    ScalarEvent,
)
from ruamel.yaml.reader import ReaderError

from batchnuts.autobatch import BatchnutsError
from batchnuts.settings.schema import Settings, explain, fields_of, nearest, shown

_PACKAGED = Path(__file__).parents[1] / "configs"

Schema = TypeVar("Schema", bound=Settings)


class ConfigError(BatchnutsError):
    """A config that cannot be used; the message has one line for each mistake, with its place."""


@dataclass
class Origin:
    """Where each key path was written: a line of the file, or an override on the command line."""

    file: Path
    lines: dict[str, int] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)

    def __call__(self, path: str) -> str:
        """The place of a key, or of the nearest key above it that was written, ending in `: `; with the overrides of
        keys within it, which may be what is wrong with it."""
        within = [text for key, text in self.overrides.items() if key.startswith(f"{path}.")]
        if within and path not in self.lines and path not in self.overrides:
            return f"command line, {', '.join(within)}: "
        also = f", and command line, {', '.join(within)}" if within else ""
        keys = path.split(".")
        while keys:
            prefix = ".".join(keys)
            if prefix in self.overrides:
                return f"command line, {', '.join([self.overrides[prefix], *within])}: "
            if prefix in self.lines:
                return f"{self.file}:{self.lines[prefix]}{also}: "
            keys.pop()
        return f"{self.file}: "


def packaged_configs(folder: str = ".") -> list[str]:
    """Names of the configs that come with batchnuts: those of the command line, or in a `folder` below them."""
    return sorted(entry.name for entry in (_PACKAGED / folder).glob("*.yaml"))


def find_config(name: str, folder: str = ".") -> Path:
    """The file that `--config` names: a path, or else a packaged config. Raises ConfigError, which lists the latter."""
    path = Path(name).expanduser()
    if os.path.isfile(path):  # false, too, for a name that is too long
        return path
    if os.path.isdir(path):
        raise ConfigError(f"--config {name}: this is a folder; expected a YAML file.")
    packaged = packaged_configs(folder)
    for candidate in (name, f"{name}.yaml"):
        if candidate in packaged:
            return _PACKAGED / folder / candidate
    hint = nearest(path.stem, [Path(config).stem for config in packaged]) or "."
    raise ConfigError(
        f"--config {name}: there is no such file, and no packaged config of that name{hint} "
        f"Packaged configs: {', '.join(packaged)}."
    )


def read_yaml(file: Path, origin: Origin, sections: Sequence[str]) -> dict[str, Any]:
    """A file's content as plain Python values; the line of each key is noted in `origin`.

    Raises ConfigError for what is not YAML, for parts of YAML that configs do not need (see `_check_events`), for a key
    given twice, and for a top level that is no mapping; the message then lists the `sections`.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}.") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{file}: has {len(data)} bytes; expected a config of at most {_MOST_BYTES}.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: not a UTF-8 text file ({error.reason}).") from error
    try:
        content = _load(text)
    except _Refused as error:
        raise ConfigError(f"{file}:{error.line}: {error.problem}.") from error
    if content is None:
        return {}
    if not isinstance(content, CommentedMap):
        type_ = type(_plain(content, origin, "")).__name__
        raise ConfigError(f"{file}: found a {type_}; expected the sections {', '.join(sections)}.")
    plain = _plain(content, origin, "")
    assert isinstance(plain, dict)
    return plain


_MOST_BYTES = 200_000
_MOST_LEVELS = 20
"""The most levels of mappings and lists within each other."""
_MOST_CHARACTERS = 2000
"""The most characters of one value."""


class _Refused(Exception):
    """A text that is not YAML, or not what a config needs of it."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line, self.problem = line, problem


@functools.lru_cache(maxsize=64)  # the parser is slow, and a process may read a config again and again
def _load(text: str) -> Any:
    """The content of a YAML text, in ruamel's containers, which stay as they are. Raises _Refused."""
    try:
        _check_events(text)
        return YAML(typ="rt", pure=True).load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else "a key"
        raise _Refused(line, f"the key {key!r} is given twice; keep one of them") from error
    except ReaderError as error:
        character = error.character if isinstance(error.character, str) else chr(error.character)
        line = text.count("\n", 0, max(text.find(character), 0)) + 1
        raise _Refused(line, f"this is not YAML: the character {character!r} is not allowed") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _Refused(mark.line + 1 if mark else 1, f"this is not YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError) as error:
        raise _Refused(1, f"this is not YAML: {error}") from error


def _check_events(text: str) -> None:
    """Refuse, with its line, YAML that would take forever to read, or that reads differently from its text.

    Reads the text piece by piece, and no further than the first such piece.
    """
    depth = documents = 0
    for event in YAML(typ="rt", pure=True).parse(io.StringIO(text)):
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refused(
                line, f"anchors and aliases (&{event.anchor}, *{event.anchor}) are not supported; repeat the value"
            )
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _Refused(line, "a second document begins here; expected one")
            if event.version not in (None, (1, 2)) or event.tags:
                raise _Refused(line, "directives are not supported; remove the lines that begin with %")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _Refused(line, f"the tag {_short(str(tag))} is not supported; expected a plain value")
        if isinstance(event, ScalarEvent):
            if len(event.value) > _MOST_CHARACTERS:
                raise _Refused(line, f"found {_short(event.value)}; expected at most {_MOST_CHARACTERS} characters")
            if event.value == "<<" and event.style is None:
                raise _Refused(line, "merge keys (<<) are not supported; repeat the keys")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _MOST_LEVELS:
            raise _Refused(line, f"more than {_MOST_LEVELS} levels of nested lists or mappings")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plain(value: Any, origin: Origin, path: str) -> Any:
    """ruamel's annotated containers and numbers as plain Python ones; notes the line of each key in `origin`."""
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            if not isinstance(key, str):
                place = f"{origin.file}:{_line(value, key)}: " if isinstance(value, CommentedMap) else origin(path)
                raise ConfigError(f"{place}{path or 'top level'}: found the key {shown(key)}; expected names as keys.")
            below = f"{path}.{key}" if path else key
            if isinstance(value, CommentedMap):
                origin.lines[below] = _line(value, key)
            result[str(key)] = _plain(item, origin, below)
        return result
    if isinstance(value, list):
        return [_plain(item, origin, f"{path}.{index}") for index, item in enumerate(value)]
    for kind in (bool, int, float, str):
        # ruamel's own booleans are integers with an anchor.
        if isinstance(value, kind) or (kind is bool and type(value).__name__ == "ScalarBoolean"):
            return kind(value)
    if value is None:
        return None
    raise ConfigError(
        f"{origin(path)}{path}: found a {type(value).__name__}; expected a number, a string, true, false, null, a list "
        f"or a mapping. Put quotes around it if it is a string."
    )


def _line(mapping: CommentedMap, key: Any) -> int:
    return int(mapping.lc.key(key)[0]) + 1


def refuse_unknown_arguments(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """End the program with argparse's error for arguments that it does not know; with a hint for keys with dashes."""
    if unknown:
        key = unknown[0].lstrip("-")
        hint = f"; keys of a config are written without dashes: {key.partition('=')[0]}=value" if "." in key else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def apply_override(
    content: dict[str, Any], override: str, origin: Origin, main_keys: Mapping[str, str] | None = None
) -> None:
    """Set one key of `content`, given as `key.path=value` on the command line; see `set_key`. Raises ConfigError."""
    path, equals, text = override.partition("=")
    path = path.strip()
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"command line, {override}: expected key.path=value, e.g. sampler.draws=1000.")
    if not text.strip():
        raise ConfigError(
            f"command line, {override}: the value is missing; write null for none, '' for an empty string."
        )
    if len(keys) > _MOST_LEVELS:
        raise ConfigError(f"command line, {_short(override)}: found {len(keys)} keys; expected key.path=value.")
    override = _short(override)
    try:
        value = _load(text)
    except _Refused as error:
        problem = error.problem.replace("this is not YAML", "the value is not YAML")
        raise ConfigError(f"command line, {override}: {problem}.") from error
    scratch = Origin(origin.file, overrides={path: override})
    value = _plain(value, scratch, path)
    set_key(content, path, value, f"command line, {override}", main_keys)
    origin.overrides[path] = override


def set_key(
    content: dict[str, Any], path: str, value: Any, blame: str, main_keys: Mapping[str, str] | None = None
) -> None:
    """Set the key at a dotted path, making the mappings on the way. Raises ConfigError, beginning with `blame`.

    main_keys: by the path of a mapping that may be written as one value, the key in it which that stands for; a
    mapping that is there keeps its other keys.
    """
    keys = path.split(".")
    place = content
    main_keys = main_keys or {}
    for depth, key in enumerate(keys[:-1], start=1):
        below = place.setdefault(key, {})
        main = main_keys.get(".".join(keys[:depth]))
        if below is None:
            below = place[key] = {}
        elif main and not isinstance(below, dict):
            below = place[key] = {main: below}
        if not isinstance(below, dict):
            raise ConfigError(f"{blame}: {'.'.join(keys[:depth])} is {shown(below)}, which has no keys.")
        place = below
    if path in main_keys and isinstance(place.get(keys[-1]), dict) and not isinstance(value, dict):
        place[keys[-1]][main_keys[path]] = value
    else:
        place[keys[-1]] = value


def check_section(
    name: str,
    content: Any,
    schema: type[Schema],
    origin: Origin,
    problems: list[str],
    elsewhere: Mapping[str, str] | None = None,
) -> Schema | None:
    """The section as its schema makes it, or None with the mistakes added to `problems`; see `settings.explain`."""
    if content is None:  # a section whose lines are all commented out
        content = {}
    if not isinstance(content, dict):
        keys = ", ".join(fields_of(schema))
        problems.append(f"{origin(name)}{name}: found {shown(content)}; expected a mapping with keys among {keys}")
        return None
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        problems += explain(error, schema, name, origin, elsewhere)
        return None


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, in its own order."""
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(dict(data), stream)
    return stream.getvalue()
