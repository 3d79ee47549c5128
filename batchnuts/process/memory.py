"""How much memory there is: imported by schemas, and so at every start."""

from __future__ import annotations

from pathlib import Path

import psutil

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the limits of containers and jobs, under Linux."""


def machine_memory() -> int:
    """Bytes: the machine's, or what its container may use."""
    smallest = int(psutil.virtual_memory().total)
    for name in _LIMITS:
        try:
            smallest = min(smallest, int(Path(name).read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return smallest


def available_memory() -> int:
    """Bytes that are free now, or can be freed at once, of `machine_memory`."""
    available = int(psutil.virtual_memory().available)
    return min(available, machine_memory())
