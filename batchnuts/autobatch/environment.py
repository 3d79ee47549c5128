"""The process's surroundings: its processor cores, and environment variables that libraries read once in a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def processors() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def variable_set(name: str, value: str) -> Iterator[None]:
    """Within, the environment variable has the value; afterwards it is restored: other libraries read it too."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def with_flag(name: str, flag: str, value: object) -> str | None:
    """The variable, a list of flags, with flag=value added.

    None where it has that flag already, or is not such a list (XLA's may name a file of flags), or the value has
    blanks, at which it would be split.
    """
    given = os.environ.get(name, "").strip()
    if flag in given or (given and not given.startswith("--")) or len(str(value).split()) != 1:
        return None
    return f"{given} {flag}={value}".strip()
