"""Where a Zarr store is: files in a folder, or objects under a URL, by key.

What is put appears whole, in place of what was there: readers find the one or the other. In a folder that is a file of
another name which is renamed.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from batchnuts.files.saving import OutputError, reason_of
from batchnuts.files.url import OutputLocation
from batchnuts.process.atomic import replacing, synchronize

METADATA = "zarr.json"

STATE = ".state"
"""What begins with it in a store is needed until the run ends."""

STATE_FOLDER = "state"
"""The folder, within that of the run's checkpoints, of what a store under a URL needs until the run ends."""


class Place(ABC):
    """Where one store is. Its text is that of the location. Methods raise OSError, but for what is not there."""

    location: OutputLocation
    state: Path
    """A folder on a disk of this machine, for what this process needs until the run ends."""

    def __str__(self) -> str:
        return str(self.location)

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The content of a key; None where there is nothing."""

    @abstractmethod
    def put(self, key: str, data: Any) -> None:
        """Put a content in the place of a key. data: an object with the buffer interface."""

    def put_all(self, items: Mapping[str, bytes]) -> None:
        """Put the contents of several keys, in any order."""
        for key, data in items.items():
            self.put(key, data)

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether there is something of this key."""

    @abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """All keys below `prefix/`, but for what is being put."""

    @abstractmethod
    def delete(self, keys: Iterable[str], *, folders: bool = False) -> None:
        """Delete those of the keys that are there. folders: whether folders that have become empty go, too."""

    @abstractmethod
    def remove(self, prefix: str) -> None:
        """Delete all below `prefix/`."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The names of what has further keys below it."""

    @abstractmethod
    def sweep(self) -> None:
        """Delete what processes have left that were killed while they put something; nobody else puts anything."""

    @abstractmethod
    def sync(self, keys: Collection[str]) -> None:
        """Make durable what was put; what is put under a URL is."""

    @abstractmethod
    def make(self) -> None:
        """Take the place for a new store. Raises FileExistsError where there is something."""

    @abstractmethod
    def is_own(self) -> bool:
        """Whether the store that is there is that of the run whose state is in the folder `state`."""

    @abstractmethod
    def remove_store(self) -> None:
        """Delete the store that may be there, so that no reader sees a half of it. Raises OutputError for what is
        something else."""

    @abstractmethod
    def discard(self) -> None:
        """Delete all that this run has put there."""

    def forget_state(self) -> None:
        """Delete what was needed until the run ended."""
        shutil.rmtree(self.state, ignore_errors=True)

    def root(self) -> Mapping[str, Any] | None:
        """The metadata of the whole store; None where there is none. Raises ValueError for something else."""
        text = self.read(METADATA)
        return None if text is None else json.loads(text)


class LocalPlace(Place):
    """A folder."""

    def __init__(self, path: Path) -> None:
        self.location = self.path = path
        self.state = path / STATE

    @override
    def read(self, key: str) -> bytes | None:
        try:
            return (self.path / key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    @override
    def put(self, key: str, data: Any) -> None:
        path = self.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)

    @override
    def exists(self, key: str) -> bool:
        return (self.path / key).exists()

    @override
    def keys(self, prefix: str) -> list[str]:
        return [path.relative_to(self.path).as_posix() for path in self._files(prefix) if not is_temporary(path.name)]

    def _files(self, prefix: str) -> Iterator[Path]:
        return (path for path in (self.path / prefix).rglob("*") if path.is_file())

    @override
    def delete(self, keys: Iterable[str], *, folders: bool = False) -> None:
        parents = set()
        for key in keys:
            path = self.path / key
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            parents |= set(path.relative_to(self.path).parents)
        for parent in sorted(parents if folders else (), key=lambda path: -len(path.parts)):
            with suppress(OSError):  # others are in it
                (self.path / parent).rmdir()

    @override
    def remove(self, prefix: str) -> None:
        shutil.rmtree(self.path / prefix, ignore_errors=True)

    @override
    def folders(self) -> list[str]:
        return [path.name for path in self.path.iterdir() if path.is_dir()]

    @override
    def sweep(self) -> None:
        for path in list(self._files("")):
            if is_temporary(path.name):
                path.unlink(missing_ok=True)

    @override
    def sync(self, keys: Collection[str]) -> None:
        paths = [self.path / key for key in keys]
        for path in (*paths, *{path.parent for path in paths}):
            if path.exists():  # a group may have been taken out
                synchronize(path)

    @override
    def make(self) -> None:
        self.path.mkdir()
        self.state.mkdir()

    @override
    def is_own(self) -> bool:
        return self.state.exists()  # it is in the store

    @override
    def remove_store(self) -> None:
        """Deletes a file that is there, too."""
        path = self.path
        if not os.path.lexists(path):
            return
        if path.is_dir() and not path.is_symlink():
            if not is_store(path) and any(path.iterdir()):
                raise OutputError(
                    f"{path} is a folder, but not a Zarr store: it is not replaced. Set another output.path."
                )
            moved = path.with_name(f".{path.name}.deleted")
            shutil.rmtree(moved, ignore_errors=True)
            path.rename(moved)  # no half of a store is seen
            with suppress(OSError):
                shutil.rmtree(moved)
        else:
            path.unlink()

    @override
    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def is_store(folder: Path) -> bool:
    """Whether a folder is a Zarr store, or one that a run of ours had just begun when it ended."""
    return (folder / METADATA).exists() or (folder / STATE).exists()


def temporary_name(name: str) -> str:
    """A temporary name of a file that will have this name once it is whole."""
    return f".{name}.{uuid.uuid4().hex}.tmp"


def is_temporary(name: str) -> bool:
    """Whether it is such a name."""
    return name.startswith(".") and name.endswith(".tmp")


def sizes_there(place: Place, group: str) -> tuple[int, int]:
    """How many chains and draws readers see of a group; 0 where there is none."""
    text = place.read(f"{group}/{METADATA}")
    if text is None:
        return 0, 0
    sizes = {
        dim: size
        for array in json.loads(text)["consolidated_metadata"]["metadata"].values()
        for dim, size in zip(array["dimension_names"], array["shape"], strict=True)
    }
    return sizes.get("chain", 0), sizes.get("draw", 0)


def failed_to_write(place: Place, error: OSError, length: int = 0) -> OutputError:
    """The error to raise for it. length: draws of each chain that are there, should it not be reached any longer."""
    with suppress(OSError):
        _, length = sizes_there(place, "posterior")
    saved = f"{length} draws of each chain are in it and can be read" if length else "it has no draws"
    return OutputError(f"Cannot write {place}: {reason_of(error)}; {saved}.")
