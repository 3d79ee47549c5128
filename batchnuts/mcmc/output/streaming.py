"""A run whose draws go to a Zarr store while it is made: what is put where, when, and what remains for its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.saving import OutputError
from batchnuts.files.sealed_file import read_arrays
from batchnuts.files.url import OutputLocation
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import DATA_GROUPS, Model
from batchnuts.mcmc.output.datasets import (
    adaptation,
    attributes_of,
    data_group,
    divergences,
    group_of,
    other_groups,
    settings_attributes,
    statistics_attributes,
)
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.statistics.chain_means import ChainMeans, chain_means
from batchnuts.mcmc.statistics.draw_blocks import VariableBlock
from batchnuts.mcmc.storage.contract import LaneRows, MakeStorage, Storage, Stream
from batchnuts.mcmc.storage.draws import Draws, statistics
from batchnuts.mcmc.storage.layout import Entries, Layout
from batchnuts.mcmc.storage.logged import PART
from batchnuts.mcmc.storage.place import STATE, failed_to_write
from batchnuts.mcmc.storage.row_blocks import RowBlock
from batchnuts.mcmc.storage.stored_run import INSTALL, has_zarr, open_zarr
from batchnuts.mcmc.storage.streamed import StreamedStorage, rows_of_block
from batchnuts.mcmc.storage.url_place import place_of

if TYPE_CHECKING:
    import xarray

    from batchnuts.mcmc.storage.zarr_sink import ZarrSink


def require_zarr() -> None:
    """Raise OutputError unless it is installed."""
    if not has_zarr():
        raise OutputError(
            f"output.format: zarr needs {INSTALL}, or set output.format: netcdf, which keeps all draws in memory."
        )


class ZarrRun(Stream):
    """Draws go to a Zarr store, which is made when the first ones are: at `location`. config: as for `to_datasets`.

    replace: whether a store that is there is deleted then. resumed: whether one is gone on with that an earlier process
    has left. earlier: draws of each chain that are elsewhere; the store has those that follow.
    """

    def __init__(
        self,
        location: OutputLocation,
        model: Model,
        content: Content,
        config: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
        resumed: bool = False,
        earlier: int = 0,
    ) -> None:
        self.location = location
        self.place = place_of(location)
        self.earlier = earlier
        self.model = model
        self.content = content
        self.config = config
        self.replace = replace
        self.claimed = resumed and self.place.is_own()
        """Whether the store that is there is this run's own."""
        self.storage: StreamedStorage | None = None
        self.sink: ZarrSink | None = None
        self.layout: Layout | None = None
        self.sampler, self.execution = split_settings({})

    ahead = False
    """Whether some chains may have draws in the store that others have not made."""

    @override
    def begin(self, sampler: SamplerSettings, execution: ExecutionSettings) -> MakeStorage:
        self.sampler, self.execution = sampler, execution
        self.layout = Layout(self.model, self.content, execution, sampler.seed)
        return self.make

    def make(self, like: Record, chains: int, transitions: int, room: int | None = None) -> Storage:
        """Make the storage of the run's draws: a MakeStorage."""
        self.close()
        self._claim()
        transitions -= self.earlier
        folder = self.place.state
        rows = saved_rows(folder) or rows_of_block(like, chains, transitions, self.content.thin)
        try:
            self.sink = self._sink(chains, transitions, rows)
        except OSError as error:
            raise failed_to_write(self.place, error) from error
        remember = self.sampler.until is not None  # interim analyses look at all draws
        self.storage = StreamedStorage(like, chains, transitions, self.sink, rows, folder, remember=remember, room=room)
        return Following(self.storage, self.earlier) if self.earlier else self.storage

    def _sink(self, chains: int, transitions: int, rows: int) -> ZarrSink:
        """The sink for blocks of so many rows."""
        from batchnuts.mcmc.storage.zarr_sink import ZarrSink

        assert self.layout is not None
        attributes = settings_attributes(self.model, self.sampler, self.execution, self.config)
        labels = self.model.labels()
        data = {name: getattr(self.model, name) for name in DATA_GROUPS}
        return ZarrSink(
            self.place,
            chains,
            self.layout,
            self._coordinates,
            {name: data_group(arrays, labels, {}).dataset() for name, arrays in data.items() if arrays},
            max_tree_depth=self.sampler.max_tree_depth,
            rows=rows,
            transitions=transitions,
            attributes={**attributes, "interrupted": 1, "being_written": 1},
            earlier=self.earlier,
        )

    def _coordinates(self, entries: Entries, chains: NDArray[np.int64], draws: NDArray[np.int64]) -> xarray.Dataset:
        group = group_of(entries, {}, self.model.labels(), {}).dataset()
        return group.drop_vars(list(entries)).assign_coords(chain=chains, draw=draws)

    def _claim(self) -> None:
        """Make the store, in place of what may be replaced."""
        if self.claimed:
            return
        try:
            if self.replace:
                self.place.remove_store()
            self.place.make()
        except FileExistsError:
            raise OutputError(
                f"{self.place} was created in the meantime and is not overwritten; no draws were made."
            ) from None
        except OSError as error:
            raise OutputError(f"Cannot write {self.place}: {error.strerror or error}; no draws were made.") from error
        self.claimed = True

    def close(self) -> None:
        """End the writer's thread."""
        if self.storage is not None:
            self.storage.close()

    def discard(self) -> None:
        """Remove the store: no draw was made."""
        self.close()
        if self.claimed and self.storage is not None:
            self.place.discard()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self, draws: Draws, *, keep: bool = False) -> dict[str, xarray.Dataset]:
        """Write what only the end of the run can tell, and give all groups, to be read when they are used.

        keep: whether the run may go on from what was flushed.
        The groups are those of `to_datasets`. Raises OutputError where something cannot be written.
        """
        storage, sink, layout = self.storage, self.sink, self.layout
        assert storage is not None, "it has draws"
        assert sink is not None
        assert layout is not None
        storage.drain()
        try:
            further = self._finish_rows(draws, storage, sink, layout)
            self._finish_groups(draws, storage, sink, layout, further)
            sink.files.sync()
            if not (keep and self.ahead):
                for name in set(sink.files.arrays) - {"unfinished"}:
                    sink.files.trim(name, self.content.length(draws.complete))
            storage.close()
            sink.files.tidy([STATE] if keep else [])
            if not keep:
                self.place.sweep()
                self.place.forget_state()
        except OSError as error:
            raise sink.failed(error) from error
        return open_zarr(self.location)

    def _finish_rows(self, draws: Draws, storage: StreamedStorage, sink: ZarrSink, layout: Layout) -> Mapping[str, int]:
        """Write the rows of blocks that are not complete; gives the lengths of further groups."""
        chains, complete, last = draws.chains, draws.complete, int(draws.done.max())
        numbers = np.arange(complete, last)
        numbers = numbers[self.content.kept(numbers)]
        previous = storage.previous
        for block in storage.rest():
            rows = min(max(complete - block.first, 0), block.rows)
            if rows:
                sink.write_rows(block, chains, chains, rows)
            sink.gather(block, draws.done, previous)
            previous = block.records.position[:, -1].copy()
        if not sink.files.arrays:
            sink.chunk = len(chains), 1
            none = _no_rows(storage.like, len(chains))
            sink.write_rows(RowBlock(0, none), np.arange(len(chains)), chains, 0)
        if not len(numbers) and last == complete:
            return {}
        self._write_unfinished(draws, storage, sink, layout, numbers)
        return {"unfinished": len(numbers)}

    def _write_unfinished(
        self,
        draws: Draws,
        storage: StreamedStorage,
        sink: ZarrSink,
        layout: Layout,
        numbers: NDArray[np.int64],
    ) -> None:
        """The draws with these numbers, which only some chains have made."""
        chains, complete, last = draws.chains, draws.complete, int(draws.done.max())
        length = self.content.length
        for block in storage.rest():
            part = slice(max(complete - block.first, 0), min(block.rows, last - block.first))
            if part.start >= part.stop:
                continue
            records = block.records._asdict()
            stats = {name: array[chains, part] for name, array in statistics(records, sink.max_tree_depth).items()}
            block_numbers = np.arange(block.first, block.first + block.rows)[part]
            entries = layout.of_unfinished(records["position"][chains, part], stats, draws.done[chains], block_numbers)
            if "unfinished" not in sink.files.arrays:
                sink.files.clear("unfinished")
                sink.begin({"unfinished": entries}, chains, numbers + self.earlier)
            place = slice(
                length(int(block_numbers[0])) - length(complete), length(int(block_numbers[-1]) + 1) - length(complete)
            )
            sink.files.write("unfinished", entries, slice(0, len(chains)), place)

    def _finish_groups(
        self, draws: Draws, storage: StreamedStorage, sink: ZarrSink, layout: Layout, further: Mapping[str, int]
    ) -> None:
        files = sink.files
        sink.visible_before = 0  # the length is that of the run now
        sink.commit(draws.complete, **further)
        log_density = VariableBlock(open_zarr(self.location)["sample_stats"]["lp"].variable)
        attributes = attributes_of(draws, self.model, self.config, log_density)
        groups = other_groups(draws, self.model, layout, attributes)
        groups["adaptation"] = adaptation(draws, self.model, self._means(draws, storage), attributes)
        if draws.start is not None:
            chain, draw, points = sink.gathered(draws.start, int(draws.done.max()))
            groups["divergences"] = divergences(chain, draw + self.earlier, points, layout, attributes)
        if further:
            draws_done = group_of({"draws_done": (("chain",), draws.first + draws.done[draws.chains])}, {}, {}, {})
            files.put("unfinished", draws_done.dataset())
        if layout.left_out is not None:
            attributes |= {"left_out": layout.left_out}
        for name, group in groups.items():
            if name not in DATA_GROUPS:
                files.put(name, group.with_attrs(**attributes).dataset())
        own = {"sample_stats": statistics_attributes(draws)}
        for name in ("", *files.arrays, *(name for name in groups if name in DATA_GROUPS)):
            files.set_attributes(name, {**attributes, **own.get(name, {})})
        sink.commit(draws.complete, **further)

    def _means(self, draws: Draws, storage: StreamedStorage) -> ChainMeans:
        """Means of the draws that count: where an interim analysis has ended the run, chains had made more."""
        if (storage.recorded == draws.done).all() or storage.memory is None:
            return storage.means
        records = storage.memory.first(int(draws.done.max()))
        return chain_means(records.position, records.step_size, draws.done)


class Following(Storage):
    """Stores the transitions that follow `earlier` others, which `storage` does not have."""

    def __init__(self, storage: Storage, earlier: int) -> None:
        self.storage = storage
        self.earlier = earlier

    @override
    def record(self, rows: LaneRows) -> None:
        first, last = rows.first - self.earlier, rows.last - self.earlier
        self.storage.record(LaneRows(rows.chains, rows.lanes, first, last, rows.records))

    @override
    def flush(self) -> None:
        self.storage.flush()

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        self.storage.resume(recorded - self.earlier)

    @override
    def first(self, transitions: int) -> Record:
        """The first of the transitions that follow."""
        return self.storage.first(transitions - self.earlier)

    @override
    def finalize(self) -> Record:
        return self.storage.finalize()


def _no_rows(like: Record, chains: int) -> Record:
    none: Record = map_leaves(lambda a: np.zeros((chains, 0, *a.shape[2:]), a.dtype), like)
    return none


def saved_rows(folder: Path) -> int:
    """Draws of a block in what an earlier process has left; 0 where there is nothing."""
    for path in folder.glob("saved-*/state.npz"):
        return int(read_arrays(path, PART)["rows"])
    return 0
