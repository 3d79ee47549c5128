"""A protocol of fsspec as a user's package may bring it: `folders:///a/b` is the folder `/a/b` on this disk.

Names can be given anew there, as with sftp. Stores of it are URLs to us, and other processes find them.
"""

from __future__ import annotations

from typing import Any

from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem


class Folders(LocalFileSystem):
    protocol = "folders"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return super()._strip_protocol(str(path).removeprefix("folders://"))


register_implementation("folders", Folders, clobber=True)
