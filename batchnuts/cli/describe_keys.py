"""Every key of a config, for `--help`: made from the schema itself."""

from __future__ import annotations

import textwrap
from typing import Any, get_args

from batchnuts.bridges.registry import BRIDGES
from batchnuts.cli.config import OPTIONAL, SECTIONS
from batchnuts.models import REGISTRY
from batchnuts.settings.schema import Settings, expected, fields_of
from batchnuts.user_models.target import TargetOptions


def describe_keys() -> str:
    """Every key of a config with its type, bounds, default and meaning."""
    groups: list[tuple[str, type[Settings]]] = []
    for model, packaged in REGISTRY.items():
        groups.append((f"model (name: {model})", packaged.options))
    groups.append(("model (your own)", TargetOptions))
    groups += [(f"model ({key})", bridge.options) for key, bridge in BRIDGES.items()]
    groups += [*SECTIONS.items(), *OPTIONAL.items()]
    lines: list[str] = []
    for title, schema in groups:
        lines += ["", f"{title}:", *_describe(title.split()[0], schema)]
    return "\n".join(lines[1:])


def _describe(path: str, schema: type[Settings]) -> list[str]:
    """The keys of a group, and of groups within it."""
    lines: list[str] = []
    for name, info in fields_of(schema).items():
        types = [kind for kind in (info.annotation, *get_args(info.annotation)) if isinstance(kind, type)]
        if within := next((kind for kind in types if issubclass(kind, Settings)), None):
            lines += [
                f"  {path}.{name}  ({'null, or ' * (info.default is None)}a group of keys)",
                *_wrapped(info.description),
                *_describe(f"{path}.{name}", within),
            ]
            continue
        default = (
            "required" if info.is_required() else f"default {_yaml_word(info.get_default(call_default_factory=True))}"
        )
        lines += [f"  {path}.{name}  ({expected(schema, name)}; {default})", *_wrapped(info.description)]
    return lines


def _wrapped(text: str | None) -> list[str]:
    return textwrap.wrap(text or "", 100, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _yaml_word(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
