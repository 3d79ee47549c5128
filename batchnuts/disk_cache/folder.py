"""Where compiled programs are kept: which folder, and whether at all, for the code that runs now.

`keeping` sets it for a run. Without it nothing is kept: a program that is compiled outside of a run, by calling a
batched function say, is compiled in each process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from batchnuts.disk_cache.entries import Entries

AUTO = "auto"
"""The setting for the user's own cache folder."""

VARIABLE = "BATCHNUTS_CACHE"
"""Environment variable: the folder that `auto` stands for; if it is empty, nothing is kept."""

_NOT_SET: Any = object()

_current: ContextVar[Entries | None] = ContextVar("batchnuts_kept_programs", default=_NOT_SET)
_opened: dict[Path, Entries] = {}
"""One object for each folder, so that it counts all that happens in this process."""


def entries_of(setting: str | None) -> Entries | None:
    """The entries by the setting `execution.cache`: auto, a path, or None for none."""
    if setting == AUTO:
        setting = os.environ.get(VARIABLE)
        if setting is None:
            try:
                from platformdirs import user_cache_path

                setting = str(user_cache_path("batchnuts", appauthor=False))
            except (OSError, RuntimeError):  # no home folder
                return None
    if not setting:
        return None
    try:
        folder = Path(setting).expanduser().absolute() / "programs"
    except (OSError, RuntimeError, ValueError):  # an unknown user's home, or no present folder
        return None
    return _opened.setdefault(folder, Entries(folder))


def problem_with(setting: str) -> str | None:
    """Why a text cannot be the setting, to be put after it; None where it can."""
    if setting == AUTO:
        return None
    try:
        path = Path(setting).expanduser()
        if setting and "\0" not in setting:
            return ", which is not a folder" if path.exists() and not path.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        pass
    return ", which is not a path here"


def current() -> Entries | None:
    """The entries that the present context uses; None: nothing is read or written."""
    entries = _current.get()
    return None if entries is _NOT_SET else entries


def for_models() -> Entries | None:
    """The entries for what is found out when a model is made: outside of any context those of `auto`."""
    entries = _current.get()
    return entries_of(AUTO) if entries is _NOT_SET else entries


@contextmanager
def keeping(setting: str | None) -> Iterator[Entries | None]:
    """A context in which compiled programs are kept as the setting says. Threads need a copy of it."""
    token = _current.set(entries_of(setting))
    try:
        yield current()
    finally:
        _current.reset(token)
