"""The file of a checkpoint: written whole or not at all, and read only where it is what was written.

It is one of NumPy's .npz files (a zip archive of arrays), read without pickle. `head` is JSON: format, digests of all
arrays, tree (trees.py); `seal` is the digest of the head. A digest finds damage and edits; it is no signature.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.files.trees import Arrays, pack, unpack
from batchnuts.process.atomic import replacing

FORMAT = 3
"""The version of the format in which runs are saved; a reader of one version refuses all others."""

KIND = "batchnuts checkpoint"

NO_CHECKPOINT = (
    "expected a checkpoint of batchnuts. Draws that the run has saved can be read; to start again, run with --force"
)


class CheckpointError(BatchnutsError):
    """A checkpoint cannot be read, or is not of this run."""


def write_checkpoint(path: Path, tree: Any) -> None:
    """Write the tree to a file, in place of the one that is there, if any. Raises OSError; then that one is left."""
    arrays: Arrays = {}
    packed = pack(tree, arrays)
    digests = {number: digest(array) for number, array in arrays.items()}
    head = json.dumps({"kind": KIND, "format": FORMAT, "digests": digests, "tree": packed}).encode()
    write_arrays(path, {**arrays, "head": _bytes(head), "seal": _bytes(hashlib.sha256(head).digest())})


def read_checkpoint(path: Path, types: Sequence[type]) -> Any:
    """The tree in a file; `types`: see `unpack`.

    Raises CheckpointError for a file that is missing, of something else, truncated, altered, or of another format.
    """
    arrays = read_arrays(path, NO_CHECKPOINT)
    try:
        head, seal = arrays.pop("head").tobytes(), arrays.pop("seal").tobytes()
    except KeyError:
        raise CheckpointError(f"{path} is another .npz file; {NO_CHECKPOINT}.") from None
    if hashlib.sha256(head).digest() != seal:
        raise CheckpointError(f"{path} was altered: its header does not match its digest.")
    try:
        return _tree_of(path, head, arrays, types)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:  # whoever wrote it knew the seal
        raise CheckpointError(f"{path} is damaged: its header cannot be read ({error}); {NO_CHECKPOINT}.") from error


def _tree_of(path: Path, head: bytes, arrays: Arrays, types: Sequence[type]) -> Any:
    """Raises CheckpointError, and what a head raises that is not what `write_checkpoint` writes."""
    content = json.loads(head)
    if content["kind"] != KIND:
        raise CheckpointError(f"{path} is a {content['kind']}; {NO_CHECKPOINT}.")
    if content["format"] != FORMAT:
        age = "newer" if content["format"] > FORMAT else "older"
        raise CheckpointError(
            f"{path} has format {content['format']}, and this version reads format {FORMAT}: it was written by "
            f"{'a' if age == 'newer' else 'an'} {age} batchnuts. Continue with that version."
        )
    if arrays.keys() != content["digests"].keys():
        raise CheckpointError(f"{path} was altered: its arrays are not those that it was written with.")
    for number, array in arrays.items():
        if digest(array) != content["digests"][number]:
            raise CheckpointError(f"{path} was altered: its array {number} does not match its digest.")
    try:
        return unpack(content["tree"], arrays, types)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], *, durable: bool = True) -> None:
    """Write arrays to a file that appears whole. durable: it is on the disk when this returns. Raises OSError."""
    with replacing(path, suffix=".part", private=True, durable=durable) as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_arrays(path: Path, expected: str) -> dict[str, NDArray[Any]]:
    """All arrays of a file. expected: what is said of a file that is something else. Raises CheckpointError."""
    try:
        with open(path, "rb") as file:  # NumPy leaves a damaged one open
            _refuse_sizes_that_are_claimed(path, file)
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise CheckpointError(f"{path} is a .npy file; {expected}.")
            return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {expected}.") from None
    except (OSError, ValueError, TypeError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} is truncated, damaged or something else ({error}); {expected}.") from error


def _refuse_sizes_that_are_claimed(path: Path, file: BinaryIO) -> None:
    """Raise CheckpointError for arrays that are larger by their headers, or once unpacked, than they are in the file:
    reading them would take all memory. We write them as they are."""
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as content:
                version = np.lib.format.read_magic(content)
                read_header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read_header(content)
                claimed, actual = math.prod(shape) * dtype.itemsize, member.file_size - content.tell()
            if dtype.hasobject:  # refused by NumPy
                continue
            if claimed != actual or member.compress_type != zipfile.ZIP_STORED:
                name = member.filename.removesuffix(".npy")
                raise CheckpointError(
                    f"{path} is damaged: its array {name} claims to have {claimed} bytes, and {actual} are there."
                )
    file.seek(0)


def digest(array: NDArray[Any]) -> str:
    """A digest of the dtype, shape and bytes of an array."""
    hash_ = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    hash_.update(np.ascontiguousarray(array).data if array.size else b"")
    return hash_.hexdigest()


def _bytes(content: bytes) -> NDArray[Any]:
    return np.frombuffer(content, np.uint8)
