"""A Zarr 3 store of groups that grow along `draw`, in which readers see one length at any moment.

Chunks are written as they are made. What there is of them, readers know from `zarr.json` files: these are kept in
memory and written by `commit` alone, each in one instant, after the chunks. A group's file has the metadata of all its
arrays, and the root's that of all groups (consolidated metadata), so who opens either sees arrays of one length.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr
from typing_extensions import override  # zarr requires it
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from batchnuts.mcmc.saving import synchronize

if TYPE_CHECKING:
    import xarray

    from batchnuts.mcmc.layout import Entries

PIECE_BYTES = 1_000_000
"""Of a chunk at least, where an array is divided along its own axes: so that one coefficient can be read alone."""

METADATA = "zarr.json"


class ChunkStore(LocalStore):
    """A folder with the chunks of a store, whose metadata are in memory."""

    def __init__(self, root: Path, *, read_only: bool = False, other: ChunkStore | None = None) -> None:
        super().__init__(root, read_only=read_only)
        self.metadata: dict[str, bytes] = {} if other is None else other.metadata
        """By key."""
        self.written: set[str] = set() if other is None else other.written
        """Keys of chunks since it was emptied."""

    @override
    def with_read_only(self, read_only: bool = False) -> ChunkStore:
        return ChunkStore(self.root, read_only=read_only, other=self)

    @override
    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return self._there(key, prototype) if _is_metadata(key) else await super().get(key, prototype, byte_range)

    def _there(self, key: str, prototype: BufferPrototype | None) -> Buffer | None:
        there = self.metadata.get(key)
        return None if there is None else (prototype or default_buffer_prototype()).buffer.from_bytes(there)

    @override
    async def set(self, key: str, value: Buffer) -> None:
        if _is_metadata(key):
            self.metadata[key] = value.to_bytes()
        else:
            await super().set(key, value)
            self.written.add(key)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    @override
    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return (
            self._there(key, prototype)
            if _is_metadata(key)
            else super().get_sync(key, prototype=prototype, byte_range=byte_range)
        )

    @override
    def set_sync(self, key: str, value: Buffer) -> None:
        if _is_metadata(key):
            self.metadata[key] = value.to_bytes()
        else:
            super().set_sync(key, value)
            self.written.add(key)

    @override
    async def exists(self, key: str) -> bool:
        return key in self.metadata if _is_metadata(key) else await super().exists(key)

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Of groups and arrays that this process has made: there may be chunks of another one."""
        start = f"{prefix}/" if prefix else ""
        for name in {key.removeprefix(start).partition("/")[0] for key in self.metadata if key.startswith(start)}:
            yield name


def _is_metadata(key: str) -> bool:
    return key.rpartition("/")[2] == METADATA


class ZarrFiles:
    """The groups of a run in the folder `path`, each made once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = ChunkStore(path)
        self.arrays: dict[str, dict[str, zarr.Array[Any]]] = {}
        """Those that grow, by group and name."""
        zarr.create_group(self.store, zarr_format=3)

    @classmethod
    def of_store(cls, path: Path) -> ZarrFiles:
        """Of a store that was written before, whose groups with draws grow further."""
        metadata = {}
        for file in (*path.glob(METADATA), *path.glob(f"*/{METADATA}"), *path.glob(f"*/*/{METADATA}")):
            node = json.loads(file.read_bytes())
            node.pop("consolidated_metadata", None)
            metadata[file.relative_to(path).as_posix()] = json.dumps(node).encode()
        return cls.of_metadata(path, metadata)

    @classmethod
    def of_metadata(cls, path: Path, metadata: Mapping[str, bytes]) -> ZarrFiles:
        """Of a store whose metadata are these, by key: of one that another process makes, say."""
        files = cls(path)
        files.store.metadata.update(metadata)
        for name, group in zarr.open_group(files.store, mode="r+", zarr_format=3).groups():
            growing = {key: array for key, array in group.arrays() if "draw" in _dims(array)}
            if growing:
                files.arrays[name] = growing
        return files

    def append(self, name: str, further: xarray.Dataset) -> int:
        """Add the draws of another store to a group that grows, a chunk of draws at a time; gives its new length.

        Readers see it with the next `commit`.
        """
        length = 0
        for variable, array in self.arrays[name].items():
            along = _dims(array).index("draw")
            before, more = array.shape[along], further.sizes["draw"]
            length = before + more
            array.resize(tuple(length if axis == along else size for axis, size in enumerate(array.shape)))
            rows = array.chunks[along]
            for start in range(before // rows * rows, length, rows):
                begin, end = max(start, before), min(start + rows, length)
                values = further[variable].isel(draw=slice(begin - before, end - before)).values
                array[(slice(None),) * along + (slice(begin, end),)] = values
        return length

    def put(self, name: str, dataset: xarray.Dataset) -> None:
        """A whole group."""
        texts = {key: array.astype(object) for key, array in dataset.variables.items() if array.dtype.kind == "U"}
        dataset.assign(texts).to_zarr(self.store, group=name, mode="a", zarr_format=3, consolidated=False)

    def replace(self, name: str, dataset: xarray.Dataset) -> None:
        """A whole group, in place of one that is there."""
        self._forget(name)
        self.arrays.pop(name, None)
        self.put(name, dataset)

    def begin(
        self, name: str, coordinates: xarray.Dataset, entries: Entries, length: int, chunk: tuple[int, int]
    ) -> None:
        """A group whose arrays will have up to `length` draws, of which none is there.

        coordinates: a group without variables, of all chains and of `length` draws. entries: what a block has. chunk:
        chains and draws of one.
        """
        self.put(name, coordinates)
        group = zarr.open_group(self.store, path=name, mode="r+", zarr_format=3)
        self.arrays[name] = {
            variable: group.create_array(
                variable,
                shape=(coordinates.sizes["chain"], length, *array.shape[2:]),
                chunks=chunk_shape(chunk, array.shape[2:], array.dtype.itemsize),
                dtype=array.dtype,
                compressors=None,  # slower to read, and draws hardly shrink (decision 51)
                dimension_names=dims,
                attributes=attributes,
                config={"write_empty_chunks": array.dtype != bool},
            )
            for variable, (dims, array, attributes) in entries.items()
        }

    def write(self, name: str, entries: Entries, chains: slice, draws: slice) -> None:
        """A block of a group that grows."""
        for variable, (_, array, _) in entries.items():
            self.arrays[name][variable][chains, draws] = array

    def drop(self, name: str, variables: Iterable[str] | None = None) -> None:
        """Take a group that grows out, or some of its variables."""
        for variable in list(variables or self.arrays[name]):
            del self.arrays[name][variable]
            self._forget(f"{name}/{variable}")
        if not self.arrays[name]:
            del self.arrays[name]
            self._forget(name)

    def _forget(self, key: str) -> None:
        """An array or a group, with what is in it."""
        for kept in (self.store.metadata, self.store.written):
            for inside in [one for one in kept if one.startswith(f"{key}/")]:
                kept.pop(inside) if isinstance(kept, dict) else kept.remove(inside)
        shutil.rmtree(self.path / key, ignore_errors=True)

    def trim(self, name: str, length: int) -> None:
        """Delete the chunks of a group that grows which are all beyond so many draws."""
        for variable, array in self.arrays[name].items():
            first = -(-length // array.chunks[1])
            for path in (self.path / name / variable / "c").glob("*/*"):
                if int(path.name) >= first:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def clear(self, name: str) -> None:
        """Delete what another process has left of a group."""
        shutil.rmtree(self.path / name, ignore_errors=True)

    def set_attributes(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Of a group (`""`: the root), in place of all others but xarray's own."""
        key = _key(name)
        node = json.loads(self.store.metadata[key])
        own = {name: value for name, value in node["attributes"].items() if name == "coordinates"}
        self.store.metadata[key] = json.dumps({**node, "attributes": {**own, **attributes}}).encode()

    def commit(self, lengths: Mapping[str, int], first: str = "") -> None:
        """Let readers see so many draws of each group that grows. first: the group that is written first."""
        nodes = {key.rpartition("/")[0]: json.loads(text) for key, text in sorted(self.store.metadata.items())}
        for path, node in nodes.items():
            length = lengths.get(path.rpartition("/")[0])
            if node["node_type"] == "array" and length is not None:
                sizes = zip(node["dimension_names"], node["shape"], strict=True)
                node["shape"] = [length if dim == "draw" else size for dim, size in sizes]
        root = nodes.pop("")
        groups = [path for path, node in nodes.items() if node["node_type"] == "group"]
        for group in sorted(groups, key=lambda path: path != first):
            arrays = {path: node for path, node in nodes.items() if path.startswith(f"{group}/")}
            for path, node in arrays.items():
                self._place(path, node)
            nodes[group] |= _consolidated({path.removeprefix(f"{group}/"): node for path, node in arrays.items()})
            self._place(group, nodes[group])
        self._place("", root | _consolidated(nodes))

    def _place(self, path: str, node: Mapping[str, Any]) -> None:
        """Write metadata in one instant, unless that is what is there."""
        key = _key(path)
        target = self.path / key
        text = json.dumps(node, indent=1).encode()
        if target.exists() and target.read_bytes() == text:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{METADATA}.tmp")
        temporary.write_bytes(text)
        os.replace(temporary, target)
        self.store.written.add(key)

    def tidy(self, kept: Iterable[str]) -> None:
        """Delete folders that are no groups: of an earlier process, say; but for those of these names."""
        groups = {key.partition("/")[0] for key in self.store.metadata if "/" in key}
        for path in self.path.iterdir():
            if path.is_dir() and path.name not in (*groups, *kept):
                shutil.rmtree(path, ignore_errors=True)

    def sync(self) -> None:
        """Make everything durable that was written since it was called last."""
        paths = [self.path / key for key in self.store.written]
        self.store.written.clear()
        for path in (*paths, *{path.parent for path in paths}):
            if path.exists():  # a group may have been taken out
                synchronize(path)


def _dims(array: zarr.Array[Any]) -> tuple[str | None, ...]:
    """Names of dimensions; none of arrays that xarray has not written."""
    return getattr(array.metadata, "dimension_names", None) or ()


def _key(path: str) -> str:
    return f"{path}/{METADATA}" if path else METADATA


def _consolidated(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}}


def chunk_shape(chunk: tuple[int, int], rest: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Of an array [chains, draws, *rest]: divided along its first own axes into pieces of about PIECE_BYTES."""
    sizes = list(rest)
    for axis, size in enumerate(rest):
        one = math.prod(chunk) * math.prod(sizes[axis + 1 :]) * item
        least = min(size, max(1, PIECE_BYTES // one))
        # chunks at the end are stored whole: of sizes up to twice that, the one that leaves least empty
        sizes[axis] = min(range(least, min(size, 2 * least) + 1), key=lambda n: -(-size // n) * n)
        if sizes[axis] > 1 or one <= PIECE_BYTES:
            break
    return (*chunk, *sizes)


def sizes_there(path: Path, group: str) -> tuple[int, int]:
    """How many chains and draws readers see of a group; 0 where there is none."""
    try:
        node = json.loads((path / group / METADATA).read_text())
    except FileNotFoundError:
        return 0, 0
    sizes = {
        dim: size
        for array in node["consolidated_metadata"]["metadata"].values()
        for dim, size in zip(array["dimension_names"], array["shape"], strict=True)
    }
    return sizes.get("chain", 0), sizes.get("draw", 0)
