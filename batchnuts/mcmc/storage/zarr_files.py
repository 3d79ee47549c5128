"""A Zarr 3 store of groups that grow along `draw`, in which readers see one length at any moment.

Chunks are written as they are made. What there is of them, readers know from `zarr.json` files: these are kept in
memory and written by `commit` alone, each in one instant, after the chunks. A group's file has the metadata of all its
arrays, and the root's that of all groups (consolidated metadata), so who opens either sees arrays of one length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import zarr
from typing_extensions import override
from zarr.abc.store import Store
from zarr.storage import MemoryStore

from batchnuts.mcmc.storage.place import METADATA, Place
from batchnuts.mcmc.storage.place_store import chunk_store

if TYPE_CHECKING:
    import xarray

    from batchnuts.mcmc.storage.layout import Entries

PIECE_BYTES = 1_000_000
"""The minimum bytes of a chunk where an array is divided along its own axes: one coefficient can be read alone."""


class ZarrFiles:
    """The groups of a run at a place, each made once."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.store = chunk_store(place)
        self.placed: dict[str, bytes] = {}
        """Metadata that are known to be there, by key."""
        self.arrays: dict[str, dict[str, zarr.Array[Any]]] = {}
        """The arrays that grow, by group and name."""
        zarr.create_group(self.store, zarr_format=3)

    @classmethod
    def of_store(cls, place: Place) -> ZarrFiles:
        """The files of a store that was written before, whose groups with draws grow further."""
        root = dict(place.root() or {})
        nodes = {"": root} | root.pop("consolidated_metadata")["metadata"]
        metadata = {}
        for path, node in nodes.items():
            attributes_of_node = {name: value for name, value in node.items() if name != "consolidated_metadata"}
            metadata[_key(path)] = json.dumps(attributes_of_node).encode()
        return cls.of_metadata(place, metadata)

    @classmethod
    def of_metadata(cls, place: Place, metadata: Mapping[str, bytes]) -> ZarrFiles:
        """The files of a store with these metadata, by key: one that another process makes, say."""
        files = cls(place)
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
            old_length, added = array.shape[along], further.sizes["draw"]
            length = old_length + added
            if not added:
                continue
            array.resize(tuple(length if axis == along else size for axis, size in enumerate(array.shape)))
            rows = array.chunks[along]
            for start in range(old_length // rows * rows, length, rows):
                begin, end = max(start, old_length), min(start + rows, length)
                values = further[variable].isel(draw=slice(begin - old_length, end - old_length)).values
                array[(slice(None),) * along + (slice(begin, end),)] = values
        return length

    def put(self, name: str, dataset: xarray.Dataset) -> None:
        """Write a whole group."""
        _put(self.store, name, dataset)

    def read(self, name: str) -> xarray.Dataset:
        """A group as it is written, whatever readers see of it; values are read when they are used."""
        import xarray

        return xarray.open_dataset(self.store, engine="zarr", group=name, zarr_format=3, consolidated=False)  # type: ignore[arg-type]

    def replace(self, name: str, dataset: xarray.Dataset) -> None:
        """Write a whole group, in place of one that is there."""
        self._forget(name)
        self.arrays.pop(name, None)
        self.put(name, dataset)

    def begin(
        self, name: str, coordinates: xarray.Dataset, entries: Entries, length: int, chunk: tuple[int, int]
    ) -> None:
        """Begin a group whose arrays will have up to `length` draws, of which none is there.

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
        """Write a block of a group that grows."""
        for variable, (_, array, _) in entries.items():
            self.arrays[name][variable][chains, draws] = array

    def drop(self, name: str, variables: Iterable[str] | None = None) -> None:
        """Take a group out, or some variables of one that grows."""
        growing = self.arrays.get(name, {})
        for variable in list(variables or growing):
            del growing[variable]
            self._forget(f"{name}/{variable}")
        if not growing:
            self.arrays.pop(name, None)
            self._forget(name)

    def _forget(self, key: str) -> None:
        """Delete an array or a group, with what is in it."""
        self._leave_out(key)
        self.place.remove(key)

    def _leave_out(self, key: str) -> None:
        for collection in (self.store.metadata, self.store.written, self.placed):
            for below in [member for member in collection if member.startswith(f"{key}/")]:
                collection.pop(below) if isinstance(collection, dict) else collection.remove(below)

    def trim(self, name: str, length: int) -> None:
        """Delete the chunks of a group that grows which are all beyond so many draws."""
        for variable, array in self.arrays[name].items():
            first = -(-length // array.chunks[1])
            if first * array.chunks[1] >= array.shape[1]:
                continue
            folder = f"{name}/{variable}/c"
            keys = self.place.keys(folder)
            beyond = [key for key in keys if int(key.removeprefix(f"{folder}/").split("/")[1]) >= first]
            self.place.delete(beyond, folders=True)

    def clear(self, name: str) -> None:
        """Delete what another process has left of a group."""
        self.place.remove(name)

    def set_attributes(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Set the attributes of a group (`""`: the root), in place of all others but xarray's own."""
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
            self._place(arrays)
            nodes[group] |= _consolidated({path.removeprefix(f"{group}/"): node for path, node in arrays.items()})
            self._place({group: nodes[group]})
        self._place({"": root | _consolidated(nodes)})

    def _place(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Write metadata, each in one instant, unless that is what is there."""
        texts = {_key(path): json.dumps(node, indent=1).encode() for path, node in nodes.items()}
        new = {key: text for key, text in texts.items() if self._there(key) != text}
        self.place.put_all(new)
        self.placed |= new
        self.store.written |= new.keys()

    def _there(self, key: str) -> bytes | None:
        return self.placed[key] if key in self.placed else self.place.read(key)

    def tidy(self, names: Iterable[str]) -> None:
        """Delete folders that are no groups: of an earlier process, say; but for those of these names."""
        groups = {key.partition("/")[0] for key in self.store.metadata if "/" in key}
        for name in self.place.folders():
            if name not in (*groups, *names):
                self.place.remove(name)

    def forget(self) -> None:
        """Delete what was left for those who read it."""

    def sync(self) -> None:
        """Make everything durable that was written since it was called last."""
        written = set(self.store.written)
        self.store.written -= written  # other threads may add to it meanwhile
        try:
            self.place.sync(written)
        except BaseException:
            self.store.written |= written
            raise


WAYS: tuple[dict[str, Any], ...] = (
    {"name": "default", "configuration": {"separator": "/"}},
    {"name": "v2", "configuration": {"separator": "."}},
)
"""The encodings by which the chunks of an array may be named: `c/0/1`, as all are at first, and `0.1`. No name is one
of both."""

_CHUNK = re.compile(r"/c(/\d+)*$")
"""The end of one of the first."""


class ZarrFilesBeside(ZarrFiles):
    """The files of a store while others read it: readers find what was there until `commit`, and then what is.

    Arrays that take the place of others have chunks of other names beside theirs. The metadata lead to the one or the
    other.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.replaced: set[str] = set()
        """Groups and arrays of which not everything is needed any longer."""
        self.needed: set[str] = set()
        """Keys of their chunks that are needed."""

    @override
    def replace(self, name: str, dataset: xarray.Dataset) -> None:
        old_nodes = [json.loads(node) for key, node in self.store.metadata.items() if key.startswith(f"{name}/")]
        encodings = [node["chunk_key_encoding"] for node in old_nodes if node["node_type"] == "array"]
        encoding = WAYS[1] if WAYS[0] in encodings else WAYS[0]
        self._forget(name)
        self.arrays.pop(name, None)
        self._clean(name, encoding)
        written: dict[str, Any] = {}
        _put(MemoryStore(written), name, dataset)
        for key, content in written.items():
            array, _, chunk = key.rpartition(f"/{METADATA}") if key.endswith(METADATA) else key.rpartition("/c")
            if key == METADATA:
                continue
            if key.endswith(METADATA):
                node = json.loads(content.to_bytes())
                if node["node_type"] == "array":
                    node["chunk_key_encoding"] = encoding
                self.store.metadata[key] = json.dumps(node).encode()
                continue
            named = key if encoding == WAYS[0] else f"{array}/{chunk.removeprefix('/').replace('/', '.') or '0'}"
            self.place.put(named, content.to_bytes())
            self.store.written.add(named)
            self.needed.add(named)

    def _clean(self, name: str, encoding: Mapping[str, Any]) -> None:
        """Delete chunks that are named in this way: a process has left them that was killed on the way."""
        keys = [key for key in self.place.keys(name) if not key.endswith(METADATA)]
        self.place.delete([key for key in keys if (_CHUNK.search(key) is not None) == (encoding == WAYS[0])])

    def _forget(self, key: str) -> None:
        self._leave_out(key)
        self.replaced.add(key)

    @override
    def forget(self) -> None:
        for name in self.replaced:
            keys = self.place.keys(name)
            self.place.delete([key for key in keys if key not in self.needed and key not in self.store.metadata])


def _put(store: Store, name: str, dataset: xarray.Dataset) -> None:
    texts = {key: array.astype(object) for key, array in dataset.variables.items() if array.dtype.kind == "U"}
    dataset.assign(texts).to_zarr(store, group=name, mode="a", zarr_format=3, consolidated=False)


def _dims(array: zarr.Array[Any]) -> tuple[str | None, ...]:
    """Names of dimensions; none of arrays that xarray has not written."""
    return getattr(array.metadata, "dimension_names", None) or ()


def _key(path: str) -> str:
    return f"{path}/{METADATA}" if path else METADATA


def _consolidated(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}}


def chunk_shape(chunk: tuple[int, int], rest: tuple[int, ...], item: int) -> tuple[int, ...]:
    """The shape of chunks of an array [chains, draws, *rest], divided along its first own axes: about PIECE_BYTES."""
    sizes = list(rest)
    for axis, size in enumerate(rest):
        row_bytes = math.prod(chunk) * math.prod(sizes[axis + 1 :]) * item
        minimum = min(size, max(1, PIECE_BYTES // row_bytes))
        # chunks at the end are stored whole: of sizes up to twice that, the one that leaves least empty
        sizes[axis] = min(range(minimum, min(size, 2 * minimum) + 1), key=lambda n: -(-size // n) * n)
        if sizes[axis] > 1 or row_bytes <= PIECE_BYTES:
            break
    return (*chunk, *sizes)
