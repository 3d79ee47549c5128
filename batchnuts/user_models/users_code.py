"""Functions and other objects of a user's modules, which a config names as `package.module:name`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from batchnuts.settings.schema import nearest, shown
from batchnuts.settings.yaml import ConfigError


def refuse_other_than_place(key: str, name: str) -> None:
    """Raise ValueError for a text that is not `package.module:name`."""
    module, colon, attribute = name.partition(":")
    if not (colon and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        hint = ", without .py" if module.endswith(".py") else ""
        raise ValueError(f"{key} is {shown(name)}; expected package.module:function{hint}")


def without_ending(name: str) -> str:
    """`mine:f` for `mine.py:f`, the file that is meant."""
    module, colon, attribute = name.partition(":")
    return f"{module.removesuffix('.py')}{colon}{attribute}" if "/" not in module else name


Place = Annotated[str, AfterValidator(without_ending)]
"""A key `package.module:name` of a config."""


def imported(key: str, target: str, *, function: bool = True, section: str = "model") -> Any:
    """What `package.module:name` names, the value of the key `<section>.<key>`; the current folder is importable.

    Raises ConfigError where it cannot be imported, and, unless `function` is false, where it cannot be called.
    """
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
                f"{section}.{key}: found {target!r}, but there is no module {missing!r}; expected one in {os.getcwd()} "
                f"or installed in this environment."
            ) from error
        raise ConfigError(f"{section}.{key}: {target!r} cannot be imported: {_failure(error)}.") from error
    except BaseException as error:  # the user's module may raise anything, SystemExit too
        raise ConfigError(f"{section}.{key}: {target!r} cannot be imported: {_failure(error)}.") from error
    if not hasattr(module, attribute):
        public = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and (callable(value) if function else not isinstance(value, ModuleType))
        ]
        kind = "functions" if function else "names"
        hint = nearest(attribute, public) or (f"; its {kind} are {', '.join(public[:12])}" if public else "")
        raise ConfigError(f"{section}.{key}: module {module_name!r} ({module.__file__}) has no {attribute!r}{hint}")
    value = getattr(module, attribute)
    if function and not callable(value):
        raise ConfigError(f"{section}.{key}: {target!r} is {type(value).__name__}; expected a function.")
    return value


def _failure(error: BaseException) -> str:
    """The user's error with the last line of their code in its traceback."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{place}"
