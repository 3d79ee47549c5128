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


def with_flag(name: str, flag: str, value: object) -> str | None:
    """What the variable, a list of flags, says, and one more: flag=value.

    None where it says that one already, or is no such list (XLA's may name a file of flags), or the value has blanks,
    at which it would be cut.
    """
    given = os.environ.get(name, "").strip()
    if flag in given or (given and not given.startswith("--")) or len(str(value).split()) != 1:
        return None
    return f"{given} {flag}={value}".strip()
