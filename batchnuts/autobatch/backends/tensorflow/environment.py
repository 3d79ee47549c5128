"""Settings that libraries read once in a process, from the environment, and what was decided about them (`PROCESS`)."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass


@dataclass
class ProcessSettings:
    """The settings of TensorFlow and XLA in this process.

    They read such settings once and keep them until the process ends, so the first user of a setting decides it for
    all.
    """

    programs: tempfile.TemporaryDirectory[str] | None = None
    """Where TensorFlow stores what XLA has compiled, if it does; deleted when the process ends."""


PROCESS = ProcessSettings()
"""The settings of this process."""
