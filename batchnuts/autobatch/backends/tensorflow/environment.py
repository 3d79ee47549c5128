"""Settings that libraries read once in a process, from the environment, and what was decided about them (`PROCESS`)."""

from __future__ import annotations

import tempfile
import threading
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
"""The settings of this process."""
