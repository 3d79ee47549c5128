"""The groups of a run as they are written block by block into a Zarr store."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.files.saving import OutputError
from batchnuts.mcmc.model.model import ModelError
from batchnuts.mcmc.storage import streamed
from batchnuts.mcmc.storage.divergent import DIVERGENCES, divergences_of_block, put_divergences
from batchnuts.mcmc.storage.draws import statistics
from batchnuts.mcmc.storage.layout import Entries, Layout
from batchnuts.mcmc.storage.place import STATE, Place, failed_to_write, sizes_there
from batchnuts.mcmc.storage.row_blocks import RowBlock
from batchnuts.mcmc.storage.zarr_files import ZarrFiles

if TYPE_CHECKING:
    import xarray

Coordinates = Callable[[Entries, NDArray[np.int64], NDArray[np.int64]], "xarray.Dataset"]
"""Gives a group without variables from what it will have, the numbers of its chains and those of its draws."""


class ZarrSink(streamed.Sink):
    """Writes blocks into a Zarr store. rows: of a block. transitions: how many each chain makes at most. attributes: of
    all groups while they are written. earlier: draws before the first one that is written.

    Readers see `sample_stats` grow before other groups, so that one who opens these first finds no fewer statistics.
    """

    def __init__(
        self,
        place: Place,
        chains: int,
        layout: Layout,
        coordinates: Coordinates,
        others: Mapping[str, xarray.Dataset],
        *,
        max_tree_depth: int,
        rows: int,
        transitions: int,
        attributes: Mapping[str, Any],
        earlier: int = 0,
    ) -> None:
        self.place = place
        self.earlier = earlier
        self.layout = layout
        self.coordinates = coordinates
        self.max_tree_depth = max_tree_depth
        self.rows = rows
        self.transitions = transitions
        of_chains, self.visible_before = self.visible = sizes_there(place, "posterior")
        """Draws that readers see of what another process, or an earlier attempt, has written: they are written again,
        and are the same."""
        self.files = ZarrFiles(place)
        if of_chains != chains:  # of those that had begun when another process ended
            self.visible_before = 0
            self.files.tidy([STATE])
        for name, dataset in others.items():
            self.files.put(name, dataset.assign_attrs(attributes))
        self.files.set_attributes("", attributes)
        if not self.visible_before:
            self.files.commit({})
        self.attributes = attributes
        self.chunk = 0, 0
        """Chains and saved draws of one, once there are arrays."""

    @override
    def write(self, block: RowBlock, previous: NDArray[Any] | None) -> None:
        try:
            chains = np.arange(len(block.records.lp))
            self.write_rows(block, chains, chains, block.rows)
            self.gather(block, np.full(len(chains), self.transitions), previous)
            self.commit(block.first + block.rows)
        except OSError as error:
            raise self.failed(error) from error

    def write_rows(self, block: RowBlock, chains: NDArray[np.int64], numbers: NDArray[np.int64], rows: int) -> None:
        """Write the first rows of a block, for all groups of draws that every chain has. chains: rows of its arrays, of
        the chains with these numbers."""
        records, draws = _fields(block), np.arange(block.first, block.first + rows)
        stats, length = statistics(records, self.max_tree_depth), self.layout.content.length
        width = self.chunk[0] if self.files.arrays else self._width(records, len(chains))
        for start in range(0, len(chains), width):
            part = chains[start : start + width]
            of_all_chains = len(chains) == len(records["lp"])
            which: Any = slice(start, start + width) if of_all_chains else part
            groups = self.layout.of_draws(
                records["position"][which, :rows],
                {name: array[which, :rows] for name, array in stats.items()},
                numbers[start : start + width],
                draws + self.earlier,
            )
            if not self.files.arrays:
                self.chunk = width, self.layout.content.length(self.rows)
                saved = np.arange(0, self.transitions, self.layout.content.thin)
                self.begin(groups, numbers, saved + self.earlier)
            self._take_out_what_failed(groups)
            place = slice(start, start + len(part)), slice(length(block.first), length(block.first + rows))
            for name, entries in groups.items():
                self.files.write(name, entries, *place)

    def begin(self, groups: Mapping[str, Entries], chains: NDArray[np.int64], draws: NDArray[np.int64]) -> None:
        """Begin groups of draws with these numbers, none of which is there."""
        for name, entries in groups.items():
            group = self.coordinates(entries, chains, draws).assign_attrs(self.attributes)
            self.files.begin(name, group, entries, len(draws), self.chunk)

    def _width(self, records: Mapping[str, NDArray[Any]], chains: int) -> int:
        """Chains of a chunk: equally many in each, but for the last one."""
        size = sum(array.nbytes for array in records.values())
        return -(-chains // max(1, min(chains, round(size / streamed.CHAINS_BYTES))))

    def _take_out_what_failed(self, groups: Mapping[str, Entries]) -> None:
        """Drop groups and variables that are not computed any longer: a function of the model fails for some draws."""
        for name in list(self.files.arrays):
            if name == "unfinished":
                continue
            lost = self.files.arrays[name].keys() - groups.get(name, {}).keys()
            if lost:
                self.files.drop(name, lost)
        if groups["posterior"].keys() - self.files.arrays.get("posterior", {}).keys():
            raise ModelError(
                f"Model {self.layout.model.name!r}: its function generated, which returns all that is reported, "
                "failed for some draws."
            )

    def gather(self, block: RowBlock, done: NDArray[np.int64], previous: NDArray[Any] | None) -> None:
        """Keep both ends of trajectories that diverged, if asked for. done [chains]: how many draws each has made."""
        divergences = divergences_of_block(block.records, block.first, previous, done)
        if divergences is not None:
            put_divergences(self.place, str(block.first), divergences)

    def gathered(self, start: NDArray[Any], draws: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
        """Chain [n], draw [n] and points [n, 2, dimension] of all divergences in the first `draws`, in order.

        start [chains, dimension]: where chains were before draw 0.
        """
        dimension = start.shape[1]
        none = np.zeros(0, np.int64)
        parts = [(none, none, np.zeros((0, 2, dimension), start.dtype))]
        for key in self.place.keys(DIVERGENCES):
            with np.load(io.BytesIO(self.place.read(key) or b""), allow_pickle=False) as file:
                parts.append((file["chain"], file["draw"], file["points"]))
        chain, draw, points = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        first = draw == 0
        points[first, 0] = start[chain[first]]
        order = np.lexsort((draw, chain))
        order = order[draw[order] < draws]
        return chain[order], draw[order], points[order]

    def commit(self, draws: int, **further: int) -> None:
        """Let readers see all that is saved of the first draws; further: the lengths of other groups."""
        length = max(self.layout.content.length(draws), self.visible_before)
        self.files.commit(dict.fromkeys(self.files.arrays, length) | further, first="sample_stats")
        self.visible = 0, length

    @override
    def sync(self) -> None:
        try:
            self.files.sync()
        except OSError as error:
            raise self.failed(error) from error

    def failed(self, error: OSError) -> OutputError:
        """The error to raise for it."""
        return failed_to_write(self.place, error, self.visible[1])


def _fields(block: RowBlock) -> dict[str, NDArray[Any]]:
    """The arrays that are recorded, by the names of their fields."""
    return {name: array for name, array in block.records._asdict().items() if not isinstance(array, tuple)}
