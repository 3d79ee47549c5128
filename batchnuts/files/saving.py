"""Writing the draws without losing existing files or the draws themselves.

Problems that can be known before a run are reported before it (`check_path`, `check_space`). Afterwards the file is
written under a temporary name and renamed; where that fails, the draws go to another folder.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from batchnuts.files.groups import AnyGroup, Group
from batchnuts.files.netcdf import plain, write_group
from batchnuts.files.url import LONGEST_OUTPUT_NAME, as_path, long_name
from batchnuts.files.url import OutputError as OutputError
from batchnuts.process.atomic import replacing
from batchnuts.settings.schema import shown

OVERHEAD = 100_000
"""Bytes of a file besides its arrays, about."""

_TABLE = 2**21
"""Most bytes that HDF5 writes of its own tables at a time: it gathers up to 2**20. Only arrays are longer."""

_AT_ONCE = 2**23
"""Most bytes in one write: signals are handled between two, and HDF5 gives arrays of gigabytes."""


Write = Callable[[Mapping[str, AnyGroup], IO[bytes]], None]
"""Writes groups to an empty file that is open. Raises OSError."""


class NotSaved(OutputError):
    """The draws could not be written to any folder."""


def check_path(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    key: str = "output.path",
    is_store: Callable[[Path], bool] | None = None,
) -> Path:
    """Refuse an output path before any time is spent on sampling; gives back the absolute path.

    Raises OutputError where the folder is missing or cannot be written, where the path is a folder, a device or
    write-protected, and, unless `force`, where the file exists. key: what the user sets for another path.
    is_store: given where a Zarr store is to be made: whether a folder is one, so that with `force` it is replaced, as a
    file is.
    """
    if _names_a_folder(path):
        raise OutputError(f"Cannot write {path}: it names a folder. Set {key} to a file's name.")
    if long := long_name(Path(os.path.basename(path)), LONGEST_OUTPUT_NAME):
        raise OutputError(f"Cannot write {shown(os.fspath(path))}: it {long}. Set {key} to a shorter one.")
    target = Path(as_path(os.fspath(path))).expanduser()
    try:
        target = target.resolve()
        parent = target.parent
        if not parent.is_dir():
            if parent.exists():
                raise OutputError(f"Cannot write {target}: {parent} is not a folder. Set another {key}.")
            raise OutputError(f"Cannot write {target}: the folder {parent} does not exist. Create it, or set {key}.")
        if is_store is not None and target.is_dir():
            if not is_store(target) and any(target.iterdir()):
                raise OutputError(f"Cannot write {target}: it is a folder, but not a Zarr store. Set another {key}.")
            if not force:
                raise OutputError(
                    f"{target} exists and is not overwritten. Give --force to replace it, or another {key}."
                )
        elif target.is_dir():
            raise OutputError(f"Cannot write {target}: it is a folder. Set {key} to a file's name.")
        elif os.path.lexists(target):
            mode = target.lstat().st_mode
            if not stat.S_ISREG(mode):
                raise OutputError(f"Cannot write {target}: it is not a file. Set {key} to a file's name.")
            if not force:
                raise OutputError(
                    f"{target} exists and is not overwritten. Give --force to replace it, or another {key}."
                )
            if not mode & 0o222:
                raise OutputError(f"Cannot write {target}: it is write-protected. Set another {key}.")
        # Permission bits are not sufficient (read-only mounts, quotas, root): make a file and delete it.
        with tempfile.TemporaryFile(dir=parent, prefix=".batchnuts-") as probe:
            probe.write(b"\0")
            probe.flush()
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"Cannot write {target}: {getattr(error, 'strerror', None) or error}.") from error
    return target


def _names_a_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a folder by its end, whether there is such a folder or not."""
    return os.path.basename(os.fspath(path)) in ("", os.curdir, os.pardir)


def check_space(target: Path, size: int, *, folder: bool = False) -> None:
    """Refuse, before anything is sampled, a file of `size` bytes that the disk or a limit has no room for.

    folder: whether it will be a folder of small files.
    """
    reasons = []
    status = os.statvfs(target.parent)
    free = status.f_frsize * (status.f_bfree if os.geteuid() == 0 else status.f_bavail)
    if status.f_blocks and free < size:  # some network file systems do not report it
        reasons.append(f"{short_bytes(free)} are free there")
    limit = _file_size_limit()
    if limit is not None and limit < size and not folder:
        reasons.append(f"files may be at most {short_bytes(limit)} long here (ulimit -f)")
    if reasons:
        raise OutputError(
            f"Cannot write {target}: it needs about {short_bytes(size)}, and {' and '.join(reasons)}. Make room, set "
            "another output.path, or lower sampler.chains or sampler.draws."
        )


def _file_size_limit() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


def short_bytes(count: float) -> str:
    """A number of bytes in words: `1.2 GB`."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def save(
    groups: Mapping[str, AnyGroup], path: str | os.PathLike[str], *, force: bool = False, write: Write | None = None
) -> Path:
    """Write the groups to one file and give back its absolute path; write: makes its content, by default netCDF.

    The file appears whole or not at all. Raises OutputError where it cannot be written, with the cause; the draws are
    then in the first of `other_folders` that can be written, and the message says where. If a file of that name has
    been created meanwhile (and `force` is false), they are saved beside it.
    """
    if _names_a_folder(path):
        raise NotSaved(f"Cannot write {path}: it names a folder. The draws of this run are not saved.")
    target = Path(path).expanduser().resolve()
    try:
        placed = _save(groups, target, force, write or write_netcdf)
    except OSError as error:
        reason = reason_of(error)
        for folder in other_folders():
            if folder == target.parent:
                continue
            try:
                place = _save(groups, folder / target.name, False, write or write_netcdf)
            except OSError:
                continue
            raise OutputError(f"Cannot write {target}: {reason}. The draws are kept in {place}; move them.") from error
        raise NotSaved(f"Cannot write {target}: {reason}. The draws of this run are not saved.") from error
    if placed != target:
        raise OutputError(f"{target} was created during the run and is not overwritten; the draws are in {placed}.")
    return target


def other_folders() -> list[Path]:
    """Folders for draws that cannot be written to their path: the most permanent first; the last one is in memory."""
    folders = [Path(tempfile.gettempdir()), Path.home(), Path.cwd(), Path("/dev/shm")]
    return list(dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir()))


def reason_of(error: Exception) -> str:
    """The cause that the system gives, else the first line of the error's text, or its name where it has none."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.splitlines()[0] if text else type(error).__name__


def _save(groups: Mapping[str, AnyGroup], target: Path, force: bool, write: Write) -> Path:
    """Raises OSError. Gives the path at which the file is, which may be another than the target."""
    placed = [target]

    def put(temporary: Path, path: Path) -> None:
        if force:
            os.replace(temporary, path)
        else:
            placed[:] = [_place(temporary, path)]

    with replacing(target, durable=True, buffering=0, put=put) as raw:
        write(groups, raw)
    return placed[0]


ROOTS = "posterior", "summary", "adaptation", "predictions", "log_likelihood"
"""The groups whose attributes are those of the file, the first that there is."""


def root_attributes(groups: Mapping[str, AnyGroup]) -> dict[str, Any]:
    """The attributes of the file: those of the draws, or of what is there in place of them."""
    return dict(next(groups[name] for name in ROOTS if name in groups).attrs)


def write_netcdf(groups: Mapping[str, AnyGroup], raw: IO[bytes]) -> None:
    """Write the groups as a netCDF file. Raises OSError."""
    import h5netcdf
    import h5py

    quick = {name: group for name, group in groups.items() if isinstance(group, Group) and plain(group)}
    disk = _Disk(raw)
    try:
        with h5netcdf.File(disk, "w") as file:
            for name, value in root_attributes(groups).items():
                file.attrs[name] = value
        if disk.failure is None:
            axes = 0
            with h5py.File(disk, "r+") as file:
                for name, group in quick.items():
                    axes = write_group(file, name, group, axes)
        if disk.failure is None and len(quick) < len(groups):
            _write_by_xarray({name: group for name, group in groups.items() if name not in quick}, disk)
    finally:
        if disk.failure is not None:
            raise disk.failure


def _write_by_xarray(groups: Mapping[str, AnyGroup], disk: _Disk) -> None:
    """Add groups to a file."""
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    with h5netcdf.File(disk, "a") as file:
        for name, group in groups.items():
            dataset = group.dataset() if isinstance(group, Group) else group
            dataset.dump_to_store(H5NetCDFStore(file, group=name, mode="a"))


class _Disk:
    """A file for HDF5 to write to, which never reports a failed write to it: HDF5 cannot handle one in an orderly way.

    The first failure is kept, with the cause that the system gave. From then on nothing is written to the disk, and
    what HDF5 may want to read again (its own tables, all short) is kept in memory: a table that it finds damaged makes
    it crash, and h5py does not look whether a read was short.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.failure: OSError | KeyboardInterrupt | None = None
        self._tables: list[tuple[int, bytes]] = []

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it, or keep the error."""
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        if self.failure is None:
            try:
                while remaining:
                    remaining = remaining[self._raw.write(remaining[:_AT_ONCE]) :]
            except (OSError, KeyboardInterrupt) as error:
                self.failure = error
        if remaining:
            place = self._raw.tell()
            if len(remaining) <= _TABLE:
                self._tables.append((place, bytes(remaining)))
            self._raw.seek(place + len(remaining))
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the length."""
        try:
            if self.failure is None:
                self._raw.truncate(size)
        except OSError as error:
            self.failure = error
        return size or 0

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill all of the buffer with what was written; with zeros where nothing was, as HDF5's own drivers do."""
        view = memoryview(buffer).cast("B")
        place, size, filled = self._raw.tell(), len(view), 0
        while filled < size and (count := self._raw.readinto(view[filled:])):  # type: ignore[attr-defined]
            filled += count
        view[filled:] = bytes(size - filled)
        for start, data in self._tables:
            first, last = max(start, place), min(start + len(data), place + size)
            if first < last:
                view[first - place : last - place] = data[first - start : last - start]
        self._raw.seek(place + size)
        return size

    def read(self, size: int = -1) -> bytes:
        """Read what was written."""
        return self._raw.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """The place."""
        return self._raw.tell()

    def flush(self) -> None:
        """The raw file has no buffer."""


def _place(temporary: Path, target: Path) -> Path:
    """Give the finished file its name, or the first free `name-2.nc`, `name-3.nc`, ...; never replaces a file."""
    number = 1
    while True:
        candidate = target if number == 1 else target.with_name(f"{target.stem}-{number}{target.suffix}")
        try:
            # A hard link fails if the name is taken, and takes it in the same instant: no gap for another writer.
            os.link(temporary, candidate)
            return candidate
        except FileExistsError:
            number += 1
        except OSError:
            break
    # A file system without hard links: claim the name with an empty file of our own, then replace that.
    while True:
        candidate = target if number == 1 else target.with_name(f"{target.stem}-{number}{target.suffix}")
        try:
            os.close(os.open(candidate, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            number += 1
            continue
        os.replace(temporary, candidate)
        return candidate
