"""Memory that was freed, given back to the system.

glibc keeps what was freed for later allocations, in an arena for each thread: after chains have run, that may be a
gigabyte, which whoever limits the memory of a process counts.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back_freed() -> None:
    """Give freed memory back; where the C library is not glibc, nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
