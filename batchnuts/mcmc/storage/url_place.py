"""A store under a URL, by fsspec: objects of S3 and the like, or files of a system that is reached by a protocol.

An object store replaces whole objects, and readers find what was put last: so each is one PUT. Where files can be
renamed (sftp, hdfs), what is put is a file of another name first.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from typing_extensions import override

from batchnuts.files.saving import OutputError
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.files.url import OutputLocation, Url, folder_of
from batchnuts.mcmc.storage.place import (
    METADATA,
    STATE,
    STATE_FOLDER,
    LocalPlace,
    Place,
    is_temporary,
    temporary_name,
)

Result = TypeVar("Result")

OBJECTS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "tos", "r2")
"""Protocols of object stores whose URLs begin with a bucket; all of them replace whole objects."""

AT_ONCE = 16
"""Objects that are put at a time, and"""

DELETED_AT_ONCE = 1000
"""those that are deleted with one request, where there is one for several."""

CLAIM = f"{STATE}/claim"
"""Has the name of the process that has made the store."""

PROBE = f"{STATE}/probe-"
"""The beginning of the keys that are put, and deleted, before a run."""

OF_A_RUN = (CLAIM, PROBE, f"{STATE}/token", f"{STATE}/divergences/")
"""The beginnings of the keys of a run that are needed until it ends."""


class UrlError(OutputError, OSError):
    """What cannot be done under a URL. why: in words; strerror is the same."""

    def __init__(self, url: object, why: str) -> None:
        super().__init__(f"{url}: {why}.")
        self.url = url
        self.why = self.strerror = why

    def __reduce__(self) -> tuple[type[UrlError], tuple[object, str]]:
        return UrlError, (self.url, self.why)


class UrlPlace(Place):
    """Raises OutputError for a protocol that is unknown, or whose package is not installed. Other methods: UrlError."""

    def __init__(self, url: Url) -> None:
        self.location = url
        self.files, self.path = file_system(url)
        self.path = self.path.rstrip("/")
        self.state = folder_of(url) / STATE_FOLDER
        self.renames = url.protocol not in OBJECTS and _can_rename(self.files)
        """Whether what is put goes to a file of another name first."""
        self._made: set[str] = set()
        """Folders, where there are such."""
        self._pool: ThreadPoolExecutor | None = None

    def _at(self, key: str) -> str:
        return f"{self.path}/{key}" if key else self.path

    @contextmanager
    def _in_words(self) -> Any:
        try:
            yield
        except (UrlError, FileExistsError):
            raise
        except Exception as error:  # a package may raise any of its own, which are no OSError
            raise UrlError(self.location, reason_in_words(error)) from error

    # ---- what is there -----------------------------------------------------------------------------------------------

    @override
    def read(self, key: str) -> bytes | None:
        with self._in_words():
            try:
                return bytes(self.files.cat_file(self._at(key)))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    @override
    def exists(self, key: str) -> bool:
        return self.read(key) is not None

    @override
    def keys(self, prefix: str) -> list[str]:
        with self._in_words():
            self.files.invalidate_cache()
            try:
                paths = self.files.find(self._at(prefix))
            except (FileNotFoundError, NotADirectoryError):
                return []
            start = f"{self._at(prefix)}/"
            whole_files = [path for path in paths if not is_temporary(path.rpartition("/")[2])]
            return [self._key(path) for path in whole_files if self._absolute(path).startswith(start)]

    def _absolute(self, path: str) -> str:
        """The path with the first slash, which some systems leave out."""
        return f"/{path}" if self.path.startswith("/") and not path.startswith("/") else path

    def _key(self, path: str) -> str:
        return self._absolute(path).removeprefix(f"{self.path}/")

    def _listed(self) -> list[Mapping[str, Any]]:
        """The entries directly in the place; the place itself where that is a file."""
        with self._in_words():
            self.files.invalidate_cache()
            try:
                entries: list[Mapping[str, Any]] = self.files.ls(self.path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return entries

    @override
    def folders(self) -> list[str]:
        names = [self._key(entry["name"].rstrip("/")) for entry in self._listed() if entry["type"] == "directory"]
        return [name for name in names if name and "/" not in name]

    # ---- what is put and deleted -------------------------------------------------------------------------------------

    @override
    def put(self, key: str, data: Any) -> None:
        with self._in_words():
            path = self._at(key)
            if not self.renames:
                self.files.pipe_file(path, bytes(data))
                return
            folder, _, name = path.rpartition("/")
            if folder not in self._made:
                self.files.makedirs(folder, exist_ok=True)
                self._made.add(folder)
            temporary = f"{folder}/{temporary_name(name)}"
            try:
                self.files.pipe_file(temporary, bytes(data))
                self.files.mv(temporary, path)
            except BaseException:
                with suppress(Exception):
                    self.files.rm_file(temporary)
                raise

    @override
    def put_all(self, items: Mapping[str, bytes]) -> None:
        self._all([partial(self.put, key, data) for key, data in items.items()])

    @override
    def delete(self, keys: Iterable[str], *, folders: bool = False) -> None:
        paths = [self._at(key) for key in keys]
        plain = [path for path in paths if not any(mark in path for mark in "*?[")]  # others would be patterns
        if len(plain) < 2:
            plain = []
        for start in range(0, len(plain), DELETED_AT_ONCE):
            with self._in_words():
                part = plain[start : start + DELETED_AT_ONCE]
                try:
                    self.files.rm(part)
                except FileNotFoundError:
                    self._all([partial(self._delete_one, path) for path in part])
        self._all([partial(self._delete_one, path) for path in sorted(set(paths) - set(plain))])

    def _delete_one(self, path: str) -> None:
        with self._in_words(), suppress(FileNotFoundError):
            self.files.rm_file(path)

    @override
    def remove(self, prefix: str) -> None:
        self.delete(self.keys(prefix))
        if self.renames:  # there are folders, which are empty now
            with suppress(Exception):
                self.files.rm(self._at(prefix), recursive=True)
            self._made = {path for path in self._made if not f"{path}/".startswith(f"{self._at(prefix)}/")}

    def _all(self, calls: list[Callable[[], Result]]) -> list[Result]:
        """The results of calls that are made some at a time."""
        if len(calls) < 2:
            return [call() for call in calls]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="batchnuts-url")
        under_way = [self._pool.submit(call) for call in calls]
        wait(under_way)  # nothing is put any longer when one has failed
        return [future.result() for future in under_way]

    @override
    def sweep(self) -> None:
        if not self.renames:
            return
        with self._in_words():
            self.files.invalidate_cache()
            temporary_files = [path for path in self.files.find(self.path) if is_temporary(path.rpartition("/")[2])]
        self._all([partial(self._delete_one, path) for path in temporary_files])

    @override
    def sync(self, keys: Collection[str]) -> None:
        """Do nothing: what is put under a URL is durable."""

    # ---- whose store it is -------------------------------------------------------------------------------------------

    def what_is_there(self) -> str:
        """`nothing`, `run`: the store of a run, or one that was begun; else what it is, in words."""
        try:
            root = self.root()
        except ValueError:
            return f"its {METADATA} is not metadata of a Zarr store"
        if root is not None:
            ours = isinstance(root, Mapping) and root.get("attributes", {}).get("inference_library") == "batchnuts"
            return "run" if ours else "a Zarr store that is not a batchnuts run is there"
        paths = {self._absolute(entry["name"].rstrip("/")) for entry in self._listed()}
        names = {self._key(path) for path in paths}
        if self.path in paths:
            return "it is a file"
        begun = names == {STATE} and all(key.startswith(OF_A_RUN) for key in self.keys(STATE))
        return "nothing" if not names else "run" if begun else "files are there, but not a Zarr store"

    @override
    def make(self) -> None:
        # of two processes at the same time one gets it, where the protocol can do that
        if self.what_is_there() != "nothing":
            raise FileExistsError(f"{self.location} exists")
        name = uuid.uuid4().hex
        self.forget_state()
        self.state.mkdir(parents=True)
        (self.state / "claim").write_text(name)
        if self.renames:
            self.put(CLAIM, name.encode())
            return
        with self._in_words():
            try:
                self.files.pipe_file(self._at(CLAIM), name.encode(), mode="create")
            except FileExistsError:
                if self.read(CLAIM) != name.encode():  # else an answer was lost, and it was put again
                    raise
            except Exception:  # many have no such mode, each in its own words: it is put as all else is
                self.put(CLAIM, name.encode())

    @override
    def is_own(self) -> bool:
        """Raises CheckpointError where another process has written there since."""
        claim = self.state / "claim"
        if not claim.exists():
            return False
        claimed = self.read(CLAIM)
        if claimed is not None and claimed.decode(errors="replace") == claim.read_text():
            return True
        if claimed is None and self.what_is_there() == "nothing":
            return False
        raise CheckpointError(
            f"{self.location} has changed since this run wrote it: another run was written there, so this one cannot "
            "continue. Start again, with another output.path or with --force."
        )

    @override
    def remove_store(self) -> None:
        # the metadata go first, the root's last of all, so that what is begun can be ended
        state = self.what_is_there()
        if state == "nothing":
            return
        if state != "run":
            raise OutputError(f"{self.location} is not replaced: {state}. Set another output.path.")
        if self.exists(METADATA):
            self.put(METADATA, EMPTY)
        keys = self.keys("")
        first = [key for key in keys if key.endswith(f"/{METADATA}")]
        self.delete(first)
        self.delete(set(keys) - {*first, METADATA})
        self.delete([METADATA])
        if self.renames:
            self.remove("")

    @override
    def discard(self) -> None:
        self.remove_store()
        self.forget_state()

    @override
    def forget_state(self) -> None:
        # where there is no checkpoint, its folder goes too
        super().forget_state()
        with suppress(Exception):
            self.state.parent.rmdir()


def place_of(location: OutputLocation) -> Place:
    """The place of a store. Raises OutputError for a URL whose protocol is unknown, or takes another package."""
    return UrlPlace(location) if isinstance(location, Url) else LocalPlace(location)


EMPTY = (
    b'{"zarr_format": 3, "node_type": "group", "attributes": {"inference_library": "batchnuts", "interrupted": 1}, '
    b'"consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": {}}}'
)
"""Metadata of a store in which there is nothing."""


def _can_rename(files: Any) -> bool:
    """Whether it gives a file another name by itself; else fsspec copies it, as object stores do it."""
    from fsspec import AbstractFileSystem

    return type(files).mv is not AbstractFileSystem.mv


_opening = threading.Lock()


def file_system(url: Url) -> tuple[Any, str]:
    """The file system of fsspec, and the path in it. Raises OutputError."""
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import available_protocols
    except ImportError:
        raise OutputError(
            f"Using {url} needs the package fsspec, which is not installed: pip install fsspec."
        ) from None
    try:
        with _opening:
            files_and_path: tuple[Any, str] = url_to_fs(url.text)
        return files_and_path
    except ImportError as error:
        package = missing_package(error, url.protocol)
        raise OutputError(
            f"{url.protocol}:// needs {package}, which is not installed: pip install {package}."
        ) from error
    except ValueError as error:
        if url.protocol in available_protocols():
            raise UrlError(url, reason_in_words(error)) from error
        raise OutputError(
            f"Cannot use {url}: the protocol {url.protocol!r} is unknown; expected one that fsspec knows, such as s3, "
            "gs, abfs or file, or a path."
        ) from None
    except Exception as error:
        raise UrlError(url, reason_in_words(error)) from error


def missing_package(error: ImportError, protocol: str) -> str:
    """The package that a protocol takes."""
    from fsspec.registry import known_implementations

    cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    if cause.name:
        return cause.name.split(".")[0]
    return str(known_implementations.get(protocol, {}).get("class", protocol)).split(".")[0]


def reason_in_words(error: Exception) -> str:
    """Why something under a URL failed: what kind it is, and what was said of it."""
    message = (error.strerror if isinstance(error, OSError) else None) or str(error)
    text = (message.splitlines() or [""])[0].strip().rstrip(".") or type(error).__name__
    kind = type(error).__name__
    if isinstance(error, PermissionError):
        return f"permission denied ({text})"
    if "credential" in kind.lower() or "credential" in text.lower():
        return f"no credentials were found ({text}): set them where its package looks for them"
    if isinstance(error, FileNotFoundError):
        return f"the bucket or folder does not exist ({text})"
    if isinstance(error, ConnectionError | TimeoutError) or any(w in kind for w in ("Connect", "Timeout", "Endpoint")):
        return f"it cannot be reached ({text})"
    return text if isinstance(error, OSError) else f"{kind}: {text}"


def check_url(url: Url, *, force: bool) -> Url:
    """Refuse a URL before any time is spent on sampling, where no store of a run can be written.

    Raises OutputError where it cannot be reached or written, where something else is there, or, unless `force`, a run.
    """
    place = UrlPlace(url)
    if url.protocol in OBJECTS and "/" not in place.path.strip("/"):
        raise OutputError(
            f"Cannot write {url}: it is a whole bucket. Set output.path to a name in it, such as {url}/run.zarr."
        )
    try:
        state = place.what_is_there()
        if state not in ("nothing", "run"):
            raise OutputError(f"Cannot write {url}: {state}. Set another output.path.")
        if state == "run" and not force:
            raise OutputError(
                f"{url} exists and is not overwritten. Give --force to replace it, or another output.path."
            )
        _try(place)
    except UrlError as error:
        raise OutputError(f"Cannot write {url}: {error.why}.") from error
    return url


def _try(place: UrlPlace) -> None:
    """Put, replace, read and delete something there."""
    probe = f"{PROBE}{uuid.uuid4().hex}"
    try:
        for content in (b"1", b"2"):
            place.put(probe, content)
        if place.read(probe) != b"2":
            raise UrlError(place.location, "what was written there last is not what is read")
    except BaseException:
        with suppress(UrlError):  # the first error says what is wrong
            place.delete([probe])
        raise
    place.delete([probe])
