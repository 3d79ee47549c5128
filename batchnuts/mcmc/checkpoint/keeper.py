"""When checkpoints are written, where, and what they replace.

    run.nc.checkpoint/     of a URL: in the current folder (url.py)
        lock               held by the process that runs it
        checkpoint.npz     the last one (sealed_file.py)
        000001.npz, ...    records of the stretch under way (storage/logged.py); those of older stretches are deleted
        state/             of a store under a URL: what is needed until the run ends (storage/url_place.py)

The folder is made with the first checkpoint, and deleted when the run's file is written.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from batchnuts.files.sealed_file import CheckpointError, read_checkpoint, write_checkpoint
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.logged import LoggedStorage
from batchnuts.mcmc.storage.place import STATE_FOLDER
from batchnuts.process.signals import say

NAME = "checkpoint.npz"
LOCK = "lock"
BLOCKS = "blocks"
"""A folder with what a run without draws has reduced (summarizing.py)."""


def delete(folder: Path) -> None:
    """Delete what runs have put there, and the folder if nothing else is in it."""
    for path in folder.glob("*"):
        if path.name in (NAME, LOCK) or (path.suffix == ".npz" and path.stem.isdigit()) or path.suffix == ".part":
            path.unlink(missing_ok=True)
        elif path.name in (BLOCKS, STATE_FOLDER):
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def read_saved_run(folder: Path, types: Sequence[type]) -> SavedRun:
    """The run in a folder; types: those of its tree. Raises CheckpointError."""
    saved = read_checkpoint(folder / NAME, [SavedRun, *types])
    if not isinstance(saved, SavedRun):
        raise CheckpointError(f"{folder / NAME} has no run in it.")
    if wrong := saved.wrong_field():
        raise CheckpointError(f"{folder / NAME} is damaged: its run has no valid {wrong}.")
    return saved


class Keeper:
    """Writes the checkpoints of one run. seconds: between two of them; None: only when the run ends early. saved: the
    checkpoint from which the run resumes.

    Raises CheckpointError where another process runs it.
    """

    def __init__(
        self, folder: Path, seconds: float | None, config: dict[str, Any], saved: SavedRun | None = None
    ) -> None:
        self.folder = folder
        self.seconds = seconds
        self.config = config
        self.saved = saved
        """The checkpoint from which the run resumes; None once it goes on."""
        self.goes_on = saved is not None
        """Whether the run has not come beyond the checkpoint, which is not replaced before."""
        self._parts: tuple[str, ...] = ()
        """Files that the next storage reads."""
        self.place: Any = None
        """Where the stretch under way began."""
        self.began = 0.0
        """The time at which the stretch began, by time.perf_counter."""
        self.spent: Any = None
        """What phases had taken then, as a copy."""
        self.density: Any = None
        """`SavedRun.density`; None until it is needed."""
        self._last = time.monotonic()
        self._lock: int | None = None
        if saved is not None:
            self._hold()

    def enter(self, place: Any, spent: Any, elapsed: float) -> None:
        """A stretch begins at a place, or has begun so many seconds ago."""
        self.place, self.spent, self.density = place, spent, None
        self.began = time.perf_counter() - elapsed

    def go_on(self) -> SavedRun | None:
        """The saved stretch from which the one that begins now goes on; later ones have none."""
        saved, self.saved = self.saved, None
        self._parts = () if saved is None else saved.parts
        return saved

    def went_on(self) -> None:
        """The run has come beyond the checkpoint where no stretch was under way."""
        self.goes_on = False
        self.go_on()

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self.seconds is not None and time.monotonic() - self._last >= self.seconds

    def make_storage(self, like: Record, chains: int, transitions: int, room: int | None = None) -> LoggedStorage:
        """Make the storage of the stretch under way: a MakeStorage."""
        parts, self._parts = self._parts, ()  # another attempt begins from the start
        return LoggedStorage(like, chains, transitions, room, folder=self.folder, parts=parts)

    def make_folder(self) -> None:
        """Make the folder where there is none yet. Raises OSError."""
        self.folder.mkdir(exist_ok=True)
        if self._lock is None:
            self._hold()

    def write(self, saved: SavedRun) -> None:
        """Write a checkpoint in place of the last one, and delete records that it does not name. Raises OSError."""
        write_checkpoint(self.folder / NAME, saved)
        self._last = time.monotonic()
        for path in self.folder.glob("*.npz"):
            if path.name != NAME and path.name not in saved.parts:
                path.unlink(missing_ok=True)

    def failed(self, error: OSError) -> None:
        """Say that a checkpoint could not be written; the run goes on, and the last one stays."""
        self._last = time.monotonic()
        retry = f", and the next attempt is in {self.seconds:g} s" if self.seconds is not None else ""
        say(
            f"warning: no checkpoint could be written to {self.folder} ({error.strerror or error}); the run "
            f"continues{retry}."
        )

    def remove(self) -> None:
        """Delete the folder: the run's file is written."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        delete(self.folder)

    def exists(self) -> bool:
        """Whether there is a checkpoint."""
        return (self.folder / NAME).exists()

    def _hold(self) -> None:
        """Lock the folder until the process ends, however that is."""
        import fcntl

        handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise CheckpointError(
                f"Another process is running {self.folder.stem}: it holds {self.folder / LOCK}."
            ) from None
        self._lock = handle
        for path in self.folder.glob(".*.part"):  # of a process that was killed
            with suppress(OSError):
                path.unlink()
