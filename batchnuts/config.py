"""Configs of the command line: YAML files with overrides, checked against a strict schema before anything runs.

Neither reading nor checking a config imports TensorFlow.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.mcmc.model import DType, Model
from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings, Settings, expected, explain, nearest
from batchnuts.models import REGISTRY, ModelOptions, build

_PACKAGED = Path(__file__).parent / "configs"


class ConfigError(BatchnutsError):
    """A config that cannot be used; the message has one line for each mistake, with its place."""


class TargetOptions(Settings):
    """Options of a user's own model."""

    target: str = Field(
        description="your own log-density, as package.module:function (the current folder is importable)"
    )
    dimension: int | None = Field(None, ge=1, description="length of the flat position that the function takes")
    variables: dict[str, list[int]] | None = Field(
        None,
        description="in place of dimension: names and shapes, e.g. {mu: [], theta: [8]}; the function takes a dict",
    )
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")

    @model_validator(mode="after")
    def _layout(self) -> TargetOptions:
        module, colon, function = self.target.partition(":")
        if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise ValueError(f"target is {self.target!r}; expected package.module:function")
        if (self.dimension is None) == (self.variables is None):
            raise ValueError(
                "target needs exactly one of dimension (the function takes a vector) and variables (a dict)"
            )
        if self.variables is not None and not self.variables:
            raise ValueError("variables is empty; expected at least one name and its shape")
        return self


class OutputSettings(Settings):
    """Where the draws go, and how long the summary is."""

    path: str | None = Field(
        None,
        min_length=1,
        description="netCDF file to write, relative to the current folder; null: the config's name + .nc",
    )
    summary_rows: int = Field(
        12, ge=1, description="most rows of the summary table; worst R-hat first if some are left out"
    )


_SECTIONS: dict[str, type[Settings]] = {
    "sampler": SamplerSettings,
    "execution": ExecutionSettings,
    "output": OutputSettings,
}
_ELSEWHERE = {name: f"{section}.{name}" for section, schema in _SECTIONS.items() for name in schema.model_fields}


@dataclass(frozen=True)
class RunConfig:
    """A config that passed every check."""

    model: ModelOptions | TargetOptions
    sampler: SamplerSettings
    execution: ExecutionSettings
    output: OutputSettings

    def resolved(self) -> dict[str, Any]:
        """Plain data that gives the same run again when read as a config."""
        sections = ("model", *_SECTIONS)
        return {name: _dump(getattr(self, name)) for name in sections}

    def to_yaml(self) -> str:
        """`resolved` as YAML."""
        stream = io.StringIO()
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        yaml.dump(self.resolved(), stream)
        return stream.getvalue()


def _dump(settings: Settings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude=settings.without_effect())


@dataclass
class _Origin:
    """Where each key path was written: a line of the file, or an override on the command line."""

    file: Path
    lines: dict[str, int] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)

    def __call__(self, path: str) -> str:
        """The place of a key, or of the nearest key above it that was written, ending in `: `."""
        keys = path.split(".")
        while keys:
            known = ".".join(keys)
            if known in self.overrides:
                return f"command line, {self.overrides[known]}: "
            if known in self.lines:
                return f"{self.file}:{self.lines[known]}: "
            keys.pop()
        return f"{self.file}: "


def packaged_configs() -> list[str]:
    """Names of the configs that come with batchnuts."""
    return sorted(entry.name for entry in _PACKAGED.glob("*.yaml"))


def find_config(name: str) -> Path:
    """The file that `--config` names: a path, or else a packaged config. Raises ConfigError, which lists the latter."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigError(f"--config {name}: this is a folder; expected a YAML file.")
    known = packaged_configs()
    for candidate in (name, f"{name}.yaml"):
        if candidate in known:
            return _PACKAGED / candidate
    raise ConfigError(
        f"--config {name}: there is no such file, and no packaged config of that name{nearest(name, known)} "
        f"Packaged configs: {', '.join(known)}."
    )


def load_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config by path or packaged name, apply `key.path=value` overrides in order, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    file = find_config(name)
    origin = _Origin(file)
    content = _read(file, origin)
    for override in overrides:
        _override(content, override, origin)
    return _check(content, origin)


def _read(file: Path, origin: _Origin) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not a UTF-8 text file ({error}).") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}.") from error
    yaml = YAML(typ="rt", pure=True)
    try:
        content = yaml.load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else "a key"
        raise ConfigError(f"{file}:{line}: the key {key!r} is given twice; keep one of them.") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}" if mark else str(file)
        raise ConfigError(f"{place}: this is not YAML: {error.problem or error.context}.") from error
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{file}: this is not YAML: {error}.") from error
    if content is None:
        return {}
    if not isinstance(content, CommentedMap):
        found = type(_plain(content, origin, "")).__name__
        raise ConfigError(f"{file}: found a {found}; expected the sections {', '.join(('model', *_SECTIONS))}.")
    plain = _plain(content, origin, "")
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any, origin: _Origin, path: str) -> Any:
    """ruamel's annotated containers and numbers as plain Python ones; notes the line of each key in `origin`."""
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{origin(path)}{path or 'top level'}: found the key {key!r}; expected names as keys."
                )
            below = f"{path}.{key}" if path else key
            if isinstance(value, CommentedMap) and key in value.lc.data:
                origin.lines[below] = value.lc.key(key)[0] + 1
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
        f"{origin(path)}{path}: found a {type(value).__name__}; expected a number, a text, true, false, null, a list "
        f"or a mapping. Put quotes around it if it is a text."
    )


def _override(content: dict[str, Any], override: str, origin: _Origin) -> None:
    path, equals, text = override.partition("=")
    path = path.strip()
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"command line, {override}: expected key.path=value, e.g. sampler.draws=1000.")
    if not text.strip():
        raise ConfigError(f"command line, {override}: there is no value; write null for none, '' for an empty text.")
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"command line, {override}: the value is not YAML: {reason}.") from error
    scratch = _Origin(origin.file, overrides={path: override})
    value = _plain(value, scratch, path)
    place = content
    for depth, key in enumerate(keys[:-1], start=1):
        below = place.setdefault(key, {})
        if below is None:
            below = place[key] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"command line, {override}: {'.'.join(keys[:depth])} is {below!r}, which has no keys.")
        place = below
    place[keys[-1]] = value
    origin.overrides[path] = override


def _check(content: dict[str, Any], origin: _Origin) -> RunConfig:
    problems: list[str] = []
    known = ["model", *_SECTIONS]
    for key in content:
        if key not in known:
            hint = f"; did you mean {_ELSEWHERE[key]!r}?" if key in _ELSEWHERE else nearest(key, known)
            problems.append(f"{origin(key)}{key}: unknown section{hint or '; expected one of ' + ', '.join(known)}")
    parts: dict[str, Any] = {"model": _check_model(content.get("model"), origin, problems)}
    for name, schema in _SECTIONS.items():
        parts[name] = _check_section(name, content.get(name), schema, origin, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    if parts["output"].path is None:
        parts["output"] = parts["output"].model_copy(update={"path": f"{origin.file.stem}.nc"})
    return RunConfig(**parts)


def _check_section(
    name: str, content: Any, schema: type[Settings], origin: _Origin, problems: list[str]
) -> Settings | None:
    if content is None:  # a section whose lines are all commented out
        content = {}
    if not isinstance(content, dict):
        keys = ", ".join(schema.model_fields)
        problems.append(f"{origin(name)}{name}: found {content!r}; expected a mapping with keys among {keys}")
        return None
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        problems += explain(error, schema, name, origin, _ELSEWHERE)
        return None


def _check_model(content: Any, origin: _Origin, problems: list[str]) -> Settings | None:
    names = ", ".join(REGISTRY)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        problems.append(
            f"{origin('model')}model: found {content!r}; expected a mapping with name (one of {names}) or target"
        )
        return None
    if ("name" in content) == ("target" in content):
        found = "both name and target" if "name" in content else "neither name nor target"
        problems.append(
            f"{origin('model')}model: found {found}; expected one of them: name (one of {names}), or target "
            f"(package.module:function)"
        )
        return None
    if "target" in content:
        return _check_section("model", content, TargetOptions, origin, problems)
    name = content["name"]
    if not isinstance(name, str) or name not in REGISTRY:
        hint = nearest(name, REGISTRY) if isinstance(name, str) else ""
        problems.append(f"{origin('model.name')}model.name: found {name!r}; expected one of {names}{hint}")
        return None
    return _check_section("model", content, REGISTRY[name].options, origin, problems)


def build_model(options: ModelOptions | TargetOptions) -> Model:
    """Make the model that a config asks for.

    Raises ConfigError where a user's function cannot be imported, and the errors of packaged models (e.g. DataError).
    """
    if not isinstance(options, TargetOptions):
        return build(options)
    function = _import_target(options.target)
    return Model.from_function(
        function, dimension=options.dimension, variables=options.variables, name=options.target, dtype=options.dtype
    )


def _import_target(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise ConfigError(
                f"model.target: found {target!r}, but there is no module {missing!r}; expected one in {os.getcwd()} "
                f"or installed in this environment."
            ) from error
        raise ConfigError(f"model.target: {target!r} cannot be imported: {_failure(error)}.") from error
    except BaseException as error:  # the user's module may raise anything, SystemExit too
        raise ConfigError(f"model.target: {target!r} cannot be imported: {_failure(error)}.") from error
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_") and callable(getattr(module, name))]
        hint = nearest(attribute, public) or (f"; its functions are {', '.join(public[:12])}" if public else "")
        raise ConfigError(f"model.target: module {module_name!r} ({module.__file__}) has no {attribute!r}{hint}")
    function = getattr(module, attribute)
    if not callable(function):
        raise ConfigError(f"model.target: {target!r} is {type(function).__name__}; expected a function of a position.")
    return function


def _failure(error: BaseException) -> str:
    """The user's error with the last line of theirs that led to it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{place}"


def describe_keys() -> str:
    """Every key of a config with its type, bounds, default and meaning, for `--help`; made from the schema itself."""
    groups: list[tuple[str, type[Settings]]] = []
    for model, packaged in REGISTRY.items():
        groups.append((f"model (name: {model})", packaged.options))
    groups.append(("model (your own)", TargetOptions))
    groups += list(_SECTIONS.items())
    lines: list[str] = []
    for title, schema in groups:
        section = title.split()[0]
        lines += ["", f"{title}:"]
        for name, info in schema.model_fields.items():
            default = "required" if info.is_required() else f"default {_yaml_word(info.default)}"
            lines.append(f"  {section}.{name}  ({expected(schema, name)}; {default})")
            lines += textwrap.wrap(info.description or "", 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines[1:])


def _yaml_word(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
