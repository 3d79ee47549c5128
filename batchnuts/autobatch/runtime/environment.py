"""Settings that libraries read once, from the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def variable_set(name: str, value: str) -> Iterator[None]:
    """Within, the environment variable has the value; afterwards what it had before: other libraries read it too."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def with_flag(name: str, flag: str) -> str:
    """What the variable, a list of flags, says, and one more."""
    return f"{os.environ.get(name, '')} {flag}".strip()
