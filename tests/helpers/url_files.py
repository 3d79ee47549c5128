"""Two protocols of fsspec as a user's packages may bring them; several processes share what is there.

`objects://FOLDER/bucket/key` is an object store: objects are files in a folder that must be there, the bucket. As in S3
there are no folders in it and no new names, and an object is replaced as a whole. A file `.denied` in the bucket makes
it read-only, `.gone` makes it unreachable. `folders:///a/b` is the folder `/a/b` on this disk; there files can be given
other names, as with sftp.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem, register_implementation
from fsspec.implementations.local import LocalFileSystem

from batchnuts.files.url import Url
from batchnuts.mcmc.storage import streamed

BUCKET = "bucket"


class ObjectStore(AbstractFileSystem):
    protocol = "objects"
    root_marker = ""
    cachable = False

    def _file(self, path: str, writes: bool = False) -> Path:
        path = self._strip_protocol(path)
        before, found, _ = path.partition(f"/{BUCKET}")
        bucket = Path(before + found)
        if (bucket / ".gone").exists():
            raise ConnectionRefusedError(f"Could not connect to the endpoint of {bucket.name}")
        if not found or not bucket.is_dir():
            raise FileNotFoundError("The specified bucket does not exist")
        if writes and (bucket / ".denied").exists():
            raise PermissionError("Access Denied")
        return Path(path)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        file = self._file(path)
        if not file.is_file():
            raise FileNotFoundError(path)
        return file.read_bytes()[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        file = self._file(path, writes=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".part-{uuid.uuid4().hex}")
        part.write_bytes(value)
        if mode == "create":
            try:
                os.link(part, file)
            finally:
                part.unlink()
        else:
            os.replace(part, file)

    def rm_file(self, path: str) -> None:
        self._file(path, writes=True).unlink()

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        top = self._file(path)
        found = [top] if top.is_file() else [p for p in sorted(top.glob("*")) if p.is_file() or _objects(p)]
        if not found:
            raise FileNotFoundError(path)
        found = [p for p in found if not _hidden(p)]
        entries = [{"name": str(p), "size": 0, "type": "file" if p.is_file() else "directory"} for p in found]
        return entries if detail else [entry["name"] for entry in entries]

    def find(self, path: str, **_: Any) -> list[str]:
        top = self._file(path)
        return [str(top)] if top.is_file() else _objects(top)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        file = self._file(path)
        if not (file.is_file() or _objects(file)):
            raise FileNotFoundError(path)
        return {"name": str(file), "size": 0, "type": "file" if file.is_file() else "directory"}


def _hidden(path: Path) -> bool:
    return path.name.startswith((".part-", ".gone", ".denied"))


def _objects(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and not _hidden(path)]


def bucket_in(folder: Path) -> str:
    """The URL of a new bucket."""
    (folder / BUCKET).mkdir()
    return f"objects://{folder / BUCKET}"


class Folders(LocalFileSystem):
    protocol = "folders"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return super()._strip_protocol(str(path).removeprefix("folders://"))


register_implementation("objects", ObjectStore, clobber=True)
register_implementation("folders", Folders, clobber=True)


KINDS = ["memory", "folders"]
"""Of URLs: one whose objects are replaced, and one whose files are renamed."""


def url_of(kind: str, tmp_path: Path) -> Url:
    root = f"/{uuid.uuid4().hex}" if kind == "memory" else f"{tmp_path}/there"
    if kind == "folders":
        Path(root).mkdir()
    return Url(f"{kind}://{root}/a.zarr")


def content_of(url: Url) -> dict[str, bytes]:
    """All that is there, by key."""
    files, path = fsspec.url_to_fs(url.text)
    found = files.find(path)
    return {name.removeprefix(path).strip("/"): files.cat_file(name) for name in found}


def small_blocks_from(tmp_path: Path, patch: pytest.MonkeyPatch) -> Path:
    """The current folder of a test, for what is kept beside a run: its store is elsewhere, in blocks of 8 draws."""
    patch.setattr(streamed, "SHARE", 6)
    patch.setattr(streamed, "SMALL_BLOCK", 1)
    patch.setattr(streamed, "CHAINS_BYTES", 1500)
    here = tmp_path / "here"
    here.mkdir()
    patch.chdir(here)
    return here
