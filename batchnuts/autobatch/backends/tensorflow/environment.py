"""Settings that libraries read once in a process, from the environment, and what was decided about them (`PROCESS`)."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class ProcessSettings:
    """What TensorFlow and XLA have been told in this process.

    They read such settings once, and keep to them until the process ends: so whoever needs one first decides it for
    all. Nothing else of the backends is the process's, but the shard of each thread (devices.py).
    """

    small_loop_bytes: int | None = None
    """XLA's bound for small loops (xla_flags.py); 0 where it is not ours; None: XLA has not been asked for anything."""
    devices: tuple[str, ...] = ()
    """The processor's parts of one thread each, by TensorFlow's names (devices.py); none: it is not divided."""
    programs: tempfile.TemporaryDirectory[str] | None = None
    """Where TensorFlow keeps what XLA has compiled, if it was told to; deleted when the process ends."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while XLA's bound is decided: several threads may be the first to compile."""


PROCESS = ProcessSettings()
"""The one of this process."""


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
