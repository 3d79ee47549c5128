"""Where the output of a run is: a path, or a URL of an object store or another file system."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from batchnuts.autobatch import BatchnutsError
from batchnuts.settings.schema import shown

_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.:-]*)://(?P<rest>.*)", re.DOTALL)

LOCAL = ("file", "local")
"""Protocols of URLs that are paths."""

LONGEST_NAME = 255
"""Bytes of a file's name, on all usual file systems."""

LONGEST_OUTPUT_NAME = LONGEST_NAME - 32
"""Those of an output's name: a run makes files beside it whose names are longer."""


class OutputError(BatchnutsError):
    """The output file cannot be written: it exists, or its folder is missing, unwritable or full; or cannot be read."""


@dataclass(frozen=True)
class Url:
    """What is at another place than in a folder. `str` gives it as it was written."""

    text: str
    folder: Path = field(default_factory=Path.cwd, compare=False, repr=False)
    """The current one, when it was named."""

    def __str__(self) -> str:
        return self.text

    @property
    def protocol(self) -> str:
        """The part before `://`."""
        return self.text.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.text.rpartition("/")[2]

    def with_name(self, name: str) -> Url:
        """The URL of that name beside this one."""
        return Url(f"{self.text.rpartition('/')[0]}/{name}", self.folder)

    @property
    def here(self) -> Path:
        """The path in the folder beside which files are kept that belong to it: its name and a part of a digest
        of the whole URL, since several may have the same name."""
        return self.folder / f"{self.name}-{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"


OutputLocation = Path | Url


def location_of(path: str | os.PathLike[str] | Url, folder: Path | None = None) -> OutputLocation:
    """The place that a user names: a path, also as the URL of a file, or a URL of another place.

    folder: that in which it was named; then a path is absolute. None: the current one.
    Raises OutputError for what is no path, and for a name that is too long for any file.
    """
    if isinstance(path, Url):
        return path
    if not isinstance(path, str | os.PathLike):
        raise OutputError(f"Found {shown(path)} in place of a path; expected the path or the URL of a run's output.")
    text = os.fspath(path)
    if is_url(text):
        return Url(text, folder or Path.cwd())
    place = Path(as_path(text)).expanduser()
    if long := long_name(place, LONGEST_NAME):
        raise OutputError(f"The path {long}.")
    return place if folder is None else folder / place


def long_name(path: Path, most: int) -> str | None:
    """What is wrong where the name of a file or a folder in a path is longer than `most` bytes."""
    for part in path.parts:
        if (length := len(os.fsencode(part))) > most:
            return f"has the name {shown(part)} of {length} bytes; expected names of at most {most} bytes"
    return None


def is_url(text: str) -> bool:
    """Whether a text names another place than a path."""
    match = _URL.fullmatch(text)
    return match is not None and match["protocol"].lower() not in LOCAL


def as_path(text: str) -> str:
    """The path of a `file://` URL; a path as it is."""
    match = _URL.fullmatch(text)
    return text if match is None else match["rest"]


def url_problem(path: str) -> str | None:
    """What is wrong with a URL by how it is written, if anything; without a password that may be in it."""
    match = _URL.fullmatch(path)
    assert match is not None
    host = match["rest"].partition("/")[0]
    if "@" in host and ":" in host.rpartition("@")[0]:
        return (
            "found a URL with a password; expected one without, since it is saved with the draws: put the password "
            "into the configuration files or environment variables of fsspec"
        )
    if ":" in match["protocol"]:
        return f"found {path!r}; expected one protocol: chained ones hide what is written"
    if PurePosixPath(match["rest"]).name in ("", "..") or path.endswith(("/", "/.")):
        return f"found {path!r}; expected the URL of a store in it, such as {path.rstrip('/.')}/run.zarr"
    return None


def folder_of(location: OutputLocation) -> Path:
    """Where the checkpoints are of a run whose output is there: beside it, or in the current folder."""
    path = location if isinstance(location, Path) else location.here
    return path.with_name(f"{path.name}.checkpoint")
