"""Where fits go when they have ended: memory, or a Zarr store, from which an interrupted run goes on.

In a store each group of draws is a group, and each variable an array (fit, chain, draw, ...); what is kept of draws is
in the groups `mean`, `sd`, `quantiles`, `ranks` and `held_out`, (fit, ...). Fits may have different numbers of draws:
the array has room for the longest, and NaN, or 0 where there are no fractions, after a fit's own. `fits/row` has what
the table says of each fit, as JSON, and `fits/done` whether it is there.

Fits are written by blocks of consecutive numbers, whose arrays share chunks: a block is marked as done after all of its
arrays, so a process may be killed at any time. Fits of blocks that were not done are made again, with the same draws.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch import BatchnutsError
from batchnuts.files.groups import Group
from batchnuts.files.url import is_url
from batchnuts.many.fit import GROUPS, HELD_OUT, QUANTILES, RANKS, SUMMARIES, Fit, Named, Row, Summaries
from batchnuts.mcmc.storage.stored_run import MANY_FITS
from batchnuts.settings.schema import shown

FORMAT = 1
"""The version of the layout."""

BLOCK_BYTES, MOST_IN_BLOCK = 1 << 22, 64
"""About the size of the largest array of a block, and the most fits of one."""

KINDS = (*SUMMARIES, RANKS, HELD_OUT)


class StoreError(BatchnutsError):
    """A store that cannot be made, read or gone on with."""


class Fits(Protocol):
    """Fits that have ended, by their numbers."""

    @property
    def done(self) -> frozenset[int]:
        """The numbers of those that are there."""

    def add(self, fit: Fit) -> None:
        """Take a fit. Raises StoreError."""

    def finish(self) -> None:
        """Nothing is added any more for now."""

    def rows(self) -> list[tuple[int, Row]]:
        """What the table says of each, by number."""

    def get(self, number: int) -> Fit:
        """A fit, with its arrays."""

    def labels(self) -> dict[str, Any]:
        """The labels of axes, by name, as far as draws were kept."""

    def stacked(self, group: str, numbers: Sequence[int]) -> dict[str, Named]:
        """The variables of a group of draws, or of a kind of summary, of these fits side by side: ("fit", ...) and an
        array. What a fit lacks is NaN; in arrays of integers that all fits have, and of booleans, 0."""


def side_by_side(arrays: Sequence[NDArray[Any] | None], example: NDArray[Any]) -> NDArray[Any]:
    """Arrays of fits along a new axis, with room for the largest; None: a fit that has none."""
    there = [np.shape(array) for array in arrays if array is not None]
    inner = tuple(int(n) for n in np.max(there, axis=0)) if example.ndim else ()
    dtype = _with_nan(example.dtype) if any(array is None for array in arrays) else example.dtype
    joined = np.full((len(arrays), *inner), np.nan if dtype.kind == "f" else 0, dtype)
    for number, array in enumerate(arrays):
        if array is not None:
            place: Any = (number, *map(slice, np.shape(array)))
            joined[place] = array
    return joined


def _with_nan(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype, or for integers one of floats."""
    return np.result_type(dtype, np.float32) if dtype.kind in "iu" else dtype


@dataclass
class MemoryFits(Fits):
    """Fits in memory."""

    fits: dict[int, Fit] = field(default_factory=dict)

    @property
    @override
    def done(self) -> frozenset[int]:
        return frozenset(self.fits)

    @override
    def add(self, fit: Fit) -> None:
        self.fits[fit.number] = fit

    @override
    def finish(self) -> None:
        """Everything is there."""

    @override
    def rows(self) -> list[tuple[int, Row]]:
        return [(number, self.fits[number].row) for number in sorted(self.fits)]

    @override
    def get(self, number: int) -> Fit:
        return self.fits[number]

    @override
    def labels(self) -> dict[str, Any]:
        return next((dict(fit.labels) for fit in self.fits.values() if not fit.row.failed), {})

    @override
    def stacked(self, group: str, numbers: Sequence[int]) -> dict[str, Named]:
        of_fits = [_named(self.fits[number], group) for number in numbers]
        found: dict[str, Named] = {}
        for name, (dims, example) in next(filter(None, of_fits), {}).items():
            arrays = [named[name][1] if named else None for named in of_fits]
            found[name] = (("fit", *dims), side_by_side(arrays, example))
        return found


def _named(fit: Fit, group: str) -> dict[str, Named]:
    """The variables of a group of a fit, or of a kind of summary; none where it has failed."""
    if group in fit.groups:
        return {name: (a.dims, np.asarray(a.values)) for name, a in fit.groups[group].arrays.items()}
    return dict(fit.summaries.get(group, {}))


@dataclass(frozen=True)
class _Array:
    """A variable of one fit, and how it is stored: in a group of the store, with the names of axes after `fit`."""

    group: str
    name: str
    dims: tuple[str, ...]
    values: NDArray[Any]


class ZarrFits(Fits):
    """Fits in a Zarr store, the folder `path`.

    described: what the run is, in words by name; a store of another run is refused. attributes: others. replace:
    whether one that is there is deleted; resume: whether it is gone on with.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        described: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
        resume: bool = False,
    ) -> None:
        zarr = require_zarr()
        if is_url(os.fspath(path)):
            raise StoreError(f"path: found the URL {shown(path)}; fits are written to local disks: expected a path.")
        self.path = Path(path).expanduser()
        there = self.path.exists()
        if there and not (replace or resume):
            raise StoreError(
                f"{str(self.path)!r} is there already: give resume=True to go on with its run, replace_store=True to "
                "delete it, or another path."
            )
        if there and not (self.path / "zarr.json").is_file():
            raise StoreError(f"{str(self.path)!r} is there and is no Zarr store: give another path.")
        if there and replace and not resume:
            shutil.rmtree(self.path)
            there = False
        try:
            self.root = zarr.open_group(self.path, mode="r+" if there else "w", zarr_format=3)
        except OSError as error:
            raise StoreError(f"{str(self.path)!r} cannot be written: {error.strerror or error}.") from None
        if there:
            self._require_same(described)
        else:
            self.root.attrs.update({**(attributes or {}), MANY_FITS: FORMAT, "described": dict(described)})
        self.block = int(self.root.attrs.get("block", 0))
        """Fits of a block; 0: not known before the first fit."""
        self._pending: dict[int, dict[int, Fit]] = {}
        self._read: tuple[int, dict[int, Row]] | None = None

    @classmethod
    def opened(cls, path: str | os.PathLike[str]) -> ZarrFits:
        """A store to be read. Raises StoreError."""
        zarr = require_zarr()
        store = object.__new__(cls)
        store.path, store._pending, store._read = Path(path).expanduser(), {}, None
        try:
            store.root = zarr.open_group(store.path, mode="r", zarr_format=3)
            version = store.root.attrs.get(MANY_FITS)
        except (OSError, ValueError) as error:
            raise StoreError(f"{str(store.path)!r} cannot be read: {error}.") from None
        if version != FORMAT:
            raise StoreError(
                f"{str(store.path)!r} is no store of many fits; expected what batchnuts.sample_many wrote."
            )
        store.block = int(store.root.attrs.get("block", 0))
        return store

    def _require_same(self, described: Mapping[str, Any]) -> None:
        if self.root.attrs.get(MANY_FITS) != FORMAT:
            raise StoreError(f"{str(self.path)!r} is no store of many fits: give another path.")
        stored = dict(self.root.attrs["described"])
        for name, value in described.items():
            if stored.get(name) != value:
                raise StoreError(
                    f"{str(self.path)!r} is of another run: its {name} {shown(stored.get(name))} is {shown(value)} "
                    "now. Give replace_store=True, or another path."
                )

    @property
    @override
    def done(self) -> frozenset[int]:
        """The numbers of those that are there, in blocks that were written or not."""
        written = frozenset(self._rows())
        return written | {number for block in self._pending.values() for number in block}

    @override
    def add(self, fit: Fit) -> None:
        """Take a fit; its block is written with the last of it."""
        if not self.block:
            self.block = _block_of(fit)
            if self.block:
                self.root.attrs["block"] = self.block
        number = fit.number // self.block if self.block else -1
        self._pending.setdefault(number, {})[fit.number] = fit
        if self.block and -1 in self._pending:  # fits that failed before the first that did not
            for early in self._pending.pop(-1).values():
                self._pending.setdefault(early.number // self.block, {})[early.number] = early
        for index in [i for i, fits in self._pending.items() if self.block and len(fits) == self.block]:
            self._write(index, self._pending.pop(index))

    @override
    def finish(self) -> None:
        """Write what is left, of blocks that are not full too."""
        if not self.block and self._pending:
            self.block = self.root.attrs["block"] = MOST_IN_BLOCK
            early = self._pending.pop(-1)
            for fit in early.values():
                self._pending.setdefault(fit.number // self.block, {})[fit.number] = fit
        for index in sorted(self._pending):
            self._write(index, self._pending.pop(index))

    @override
    def rows(self) -> list[tuple[int, Row]]:
        rows = self._rows()
        return [(number, rows[number]) for number in sorted(rows)]

    def _rows(self) -> dict[int, Row]:
        if "fits" not in self.root:
            return {}
        fits = self.root["fits"]
        if self._read is None or self._read[0] != fits["done"].nchunks_initialized:
            with _quiet():
                done, rows = fits["done"][:], fits["row"][:]
            found = {int(n): Row(**_numbers(json.loads(str(rows[n])))) for n in np.flatnonzero(done)}
            self._read = fits["done"].nchunks_initialized, found
        return self._read[1]

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _write(self, index: int, fits: Mapping[int, Fit]) -> None:
        """Write a block. Of one that was written before, with fewer fits, the others stay."""
        first = index * self.block
        arrays: dict[tuple[str, str], dict[int, _Array]] = {}
        for number, fit in fits.items():
            for array in _arrays_of(fit):
                arrays.setdefault((array.group, array.name), {})[number] = array
        try:
            for (group, name), of_fits in arrays.items():
                self._put(group, name, first, of_fits)
            rows = {number: json.dumps(asdict(fit.row)) for number, fit in fits.items()}
            self._put_rows(first, rows)
        except OSError as error:
            raise StoreError(f"{str(self.path)!r} cannot be written: {error.strerror or error}.") from None
        self._read = None
        coords = {dim: list(map(_plain, named)) for fit in fits.values() for dim, named in fit.labels.items()}
        known = dict(self.root.attrs.get("coords", {}))
        if coords.keys() - known.keys():
            self.root.attrs["coords"] = {**coords, **known}

    def _put(self, group: str, name: str, first: int, of_fits: Mapping[int, _Array]) -> None:
        example = next(iter(of_fits.values()))
        shapes = [array.values.shape for array in of_fits.values()]
        inner = tuple(int(n) for n in np.max(shapes, axis=0)) if example.dims else ()
        place = f"{group}/{name}"
        there = place in self.root
        if there:
            array = self.root[place]
            inner = tuple(int(n) for n in np.maximum(inner, array.shape[1:])) if inner else ()
        else:
            dtype = example.values.dtype
            chunks = (self.block, *(max(1, n) for n in inner))
            fill = np.nan if dtype.kind == "f" else 0
            array = self.root.require_group(group).create_array(
                name,
                shape=(0, *inner),
                chunks=chunks,
                dtype=dtype,
                fill_value=fill,
                dimension_names=("fit", *example.dims),
                attributes=_attributes(group),
            )
        rows = max(array.shape[0], first + self.block)
        if array.shape != (rows, *inner):
            array.resize((rows, *inner))
        part = (slice(first, first + self.block), *(slice(None) for _ in inner))
        block = array[part] if there else np.full((self.block, *inner), array.fill_value, array.dtype)
        for number, own in of_fits.items():
            block[number - first] = array.fill_value
            place_of_fit: Any = (number - first, *map(slice, own.values.shape))
            block[place_of_fit] = own.values
        array[part] = block

    def _put_rows(self, first: int, rows: Mapping[int, str]) -> None:
        with _quiet():
            fits = self.root.require_group("fits")
            for name, dtype, fill in (("row", str, ""), ("done", np.uint8, 0)):
                if name not in fits:
                    fits.create_array(
                        name, shape=(0,), chunks=(self.block,), dtype=dtype, fill_value=fill, dimension_names=("fit",)
                    )
                array = fits[name]
                if array.shape[0] < first + self.block:
                    array.resize((first + self.block,))
                part = np.asarray(array[first : first + self.block]).copy()
                for number, row in rows.items():
                    part[number - first] = row if name == "row" else 1
                array[first : first + self.block] = part

    # ---- reading -----------------------------------------------------------------------------------------------------

    @override
    def get(self, number: int) -> Fit:
        row = self._rows()[number]
        groups: dict[str, Group] = {}
        summaries: Summaries = {}
        if row.failed:
            return Fit(number, row)
        coords = dict(self.root.attrs.get("coords", {}))
        for name in self.root.group_keys():
            if name == "fits":
                continue
            arrays = {key: array for key, array in self.root[name].arrays() if array.shape[0] > number}
            if name in GROUPS:
                groups[name] = _group(arrays, number, row, coords)
            else:
                summaries[name] = {
                    key: (tuple(array.metadata.dimension_names[1:]), array[number]) for key, array in arrays.items()
                }
        return Fit(number, row, groups, summaries)

    @override
    def labels(self) -> dict[str, Any]:
        return dict(self.root.attrs.get("coords", {}))

    @override
    def stacked(self, group: str, numbers: Sequence[int]) -> dict[str, Named]:
        if group not in self.root:
            return {}
        rows = self._rows()
        failed = np.array([bool(rows[number].failed) for number in numbers])
        found: dict[str, Named] = {}
        for name, array in self.root[group].arrays():
            there = [number for number in numbers if number < array.shape[0]]
            values = np.full((len(numbers), *array.shape[1:]), array.fill_value, array.dtype)
            values[: len(there)] = array[:][there]
            if failed.any() and values.dtype.kind in "iu":
                values = values.astype(_with_nan(values.dtype))
                values[failed] = np.nan
            found[name] = tuple(map(str, array.metadata.dimension_names)), values
        return found


def require_zarr() -> Any:
    """The package zarr. Raises StoreError where it is not installed."""
    try:
        import zarr
    except ImportError:
        raise StoreError("path: fits go to a Zarr store, which needs pip install 'batchnuts[zarr]'.") from None
    return zarr


@contextmanager
def _quiet() -> Iterator[None]:
    """Texts in Zarr's format 3 warn that they are not part of its specification yet; zarr and zarrs read them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have a Zarr V3 specification.*")
        yield


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: np.nan if value is None else value for name, value in row.items()}


def _arrays_of(fit: Fit) -> Iterator[_Array]:
    for group, content in fit.groups.items():
        for name, array in content.arrays.items():
            axes = tuple(dim for dim in array.dims if dim not in ("chain", "draw"))
            yield _Array(group, name, ("chain", "draw", *axes), np.asarray(array.ordered("chain", "draw", *axes)))
    for kind, variables in fit.summaries.items():
        for name, (dims, values) in variables.items():
            yield _Array(kind, name, dims, np.asarray(values))


def _attributes(kind: str) -> dict[str, Any]:
    return {"quantiles": list(QUANTILES)} if kind == "quantiles" else {}


def _block_of(fit: Fit) -> int:
    """How many fits are written together; 0: this one does not say."""
    sizes = [array.values.nbytes for array in _arrays_of(fit)]
    return max(1, min(MOST_IN_BLOCK, BLOCK_BYTES // max(1, *sizes, 1))) if sizes else 0


def _group(arrays: Mapping[str, Any], number: int, row: Row, coords: Mapping[str, Any]) -> Group:
    """A group of draws of a fit."""
    entries = {}
    chains = 0
    for name, array in arrays.items():
        values = array[(number, slice(None), slice(0, row.draws))]
        chains = values.shape[0]
        entries[name] = (tuple(array.metadata.dimension_names[1:]), values)
    used = {dim for dims, _ in entries.values() for dim in dims}
    labels = {dim: named for dim, named in coords.items() if dim in used}
    return Group.of(entries, {**labels, "chain": np.arange(chains), "draw": np.arange(row.draws)}, {})
