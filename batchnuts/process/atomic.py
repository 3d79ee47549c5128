"""Files that appear whole or not at all: written under another name beside their place, then put there in one step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

LONGEST_PREFIX = 40
"""Characters of a file's name that its temporary name has: some systems allow few."""


@contextmanager
def replacing(
    path: Path,
    *,
    suffix: str = ".tmp",
    private: bool = False,
    durable: bool = False,
    buffering: int = -1,
    put: Callable[[Path, Path], object] | None = None,
) -> Iterator[IO[bytes]]:
    """An open binary file that is put in the place of `path` at the end, and deleted after an error.

    suffix: of its name until then. private: for this user alone; otherwise with the permissions that new files of this
    process have in that folder. durable: it is on the disk when this ends. buffering: see `open`. put: moves the first
    path to the second one; None: and replaces it. Raises OSError.
    """
    temporary = path.with_name(f".{path.name[:LONGEST_PREFIX]}-{secrets.token_hex(8)}{suffix}")
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600 if private else 0o666)
    try:
        with open(handle, "w+b", buffering=buffering) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        (put or os.replace)(temporary, path)
        if durable:
            synchronize(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def synchronize(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; folders only where the system can do that.

    Raises OSError for a file that cannot be written.
    """
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
