"""Bytes by key in a folder: entries that are whole and what they say they are, or not there.

An entry is one file. It begins with the version of this format and the SHA-256 digest of its key and content, which is
checked before anyone sees a byte: an entry that is truncated, altered, of another key or of another version is deleted,
and counts as missing. A file is written under another name and then renamed, so that processes that write the same key
at once replace each other's whole files. Whatever the system refuses (no room, no permission) means a missing entry or
one that is not kept; nothing here raises OSError.

Who can write to the folder can run code in this process, since programs are machine code. So it is made for its owner
alone, and one that others own or can write to is not used.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from batchnuts.process.atomic import replacing

FORMAT = b"batchnuts program 1\n"
"""The first bytes of an entry."""

MOST_BYTES = 1 << 30
"""The most bytes of all entries of a folder; beyond it the least recently used ones are deleted."""

_ENDING = ".program"
_UNFINISHED = ".part"
_ABANDONED_AFTER = 3600.0
"""Seconds after which a file that was being written belongs to a process that has died."""


@dataclass(frozen=True)
class Summary:
    """What a folder holds."""

    folder: Path
    entries: int
    size: int
    """Their size in bytes."""


@dataclass
class Tally:
    """Counts of what this process has asked of the entries."""

    found: int = 0
    missing: int = 0
    dropped: int = 0
    """Damaged, foreign or old; these count as missing too."""
    written: int = 0


@dataclass
class Entries:
    """The entries of one folder, which is made when the first one is written. Threads and processes may share it."""

    folder: Path
    most_bytes: int = MOST_BYTES
    tally: Tally = field(default_factory=Tally)
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def get(self, key: str) -> bytes | None:
        """The content kept under a key (hexadecimal digits); None if there is none that is sound."""
        path = self._path(key)
        content = None
        with suppress(OSError):
            if self._is_ours():
                data = path.read_bytes()
                content = _content(key, data)
                if content is None:
                    self.drop(key)
                else:
                    os.utime(path)  # used just now
        with self._counting:
            self.tally.found += content is not None
            self.tally.missing += content is None
        return content

    def put(self, key: str, content: bytes) -> bool:
        """Keep the content under the key; returns whether it is kept."""
        data = _header(key, content) + content
        if len(data) > self.most_bytes:
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return False
            with replacing(self._path(key), suffix=_UNFINISHED, private=True) as file:
                file.write(data)
        except OSError:
            return False
        with self._counting:
            self.tally.written += 1
        self._make_room()
        return True

    def drop(self, key: str) -> None:
        """Delete an entry, which turned out to be of no use."""
        with self._counting:
            self.tally.dropped += 1
        with suppress(OSError):
            self._path(key).unlink()

    def clear(self) -> Summary:
        """Delete all entries, and nothing else that may be in the folder; returns what was deleted."""
        entries = size = 0
        for path, status in self._files():
            with suppress(OSError):
                path.unlink()
                entries += path.suffix == _ENDING
                size += status.st_size
        with suppress(OSError):  # not empty
            self.folder.rmdir()
        return Summary(self.folder, entries, size)

    def summary(self) -> Summary:
        """The number of entries, and their size."""
        sizes = [status.st_size for path, status in self._files() if path.suffix == _ENDING]
        return Summary(self.folder, len(sizes), sum(sizes))

    def problem(self) -> str | None:
        """Why nothing can be kept: the folder, or that in which it would be made, cannot be written, or the folder is
        not the user's own; None where entries can be kept. Nothing that was written for this stays."""
        folder = self.folder
        try:
            while not folder.exists():
                folder = folder.parent
            if folder == self.folder and folder.is_dir() and not self._is_ours():
                return f"others own {folder} or may write to it"
            with tempfile.TemporaryDirectory(dir=folder):  # permission bits are not sufficient (read-only mounts, root)
                return None
        except OSError as error:
            return f"{folder} cannot be written: {error.strerror or error}"

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_ENDING}"

    def _is_ours(self) -> bool:
        status = os.stat(self.folder)
        if not stat.S_ISDIR(status.st_mode):
            return False
        return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """The files that were written here."""
        with suppress(OSError), os.scandir(self.folder) as listed:
            for entry in listed:
                with suppress(OSError):  # another process has deleted it
                    if entry.name.endswith((_ENDING, _UNFINISHED)) and entry.is_file(follow_symlinks=False):
                        yield Path(entry.path), entry.stat(follow_symlinks=False)

    def _make_room(self) -> None:
        """Delete the least recently used entries until the rest is small enough, and files of processes that died."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime, reverse=True)
        total = 0
        for path, status in files:
            total += status.st_size
            abandoned = path.suffix == _UNFINISHED and status.st_mtime < time.time() - _ABANDONED_AFTER
            if total > self.most_bytes or abandoned:
                total -= status.st_size
                with suppress(OSError):
                    path.unlink()


def _header(key: str, content: bytes) -> bytes:
    return FORMAT + hashlib.sha256(key.encode() + b"\n" + content).digest()


def _content(key: str, data: bytes) -> bytes | None:
    """The content that an entry's bytes hold, if they are sound and of that key."""
    length = len(FORMAT) + hashlib.sha256().digest_size
    content = data[length:]
    return content if len(data) >= length and data[:length] == _header(key, content) else None
