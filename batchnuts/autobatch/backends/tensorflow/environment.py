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
    """The settings of TensorFlow and XLA in this process.

    They read such settings once and keep them until the process ends, so the first user of a setting decides it for
    all. The only other state of the backends that belongs to the process is the shard of each thread (devices.py).
    """

    small_loop_bytes: int | None = None
    """XLA's bound for small loops (xla_flags.py); 0 where we did not set it; None: XLA has not been used yet."""
    devices: tuple[str, ...] = ()
    """The processor's parts of one thread each, by TensorFlow's names (devices.py); none: it is not divided."""
    programs: tempfile.TemporaryDirectory[str] | None = None
    """Where TensorFlow stores what XLA has compiled, if it does; deleted when the process ends."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while XLA's bound is decided: several threads may be the first to compile."""


PROCESS = ProcessSettings()
"""The one of this process."""


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
