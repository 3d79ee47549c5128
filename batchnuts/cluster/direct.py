"""A run whose draws go from the workers of a cluster straight to a Zarr store.

This process makes the arrays, and lets readers see what every group has written; workers write chunks (region.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.cluster.groups import ChainGroup
from batchnuts.cluster.messages import SavedGroup, SegmentReport, StorePlan
from batchnuts.cluster.region import assembled, make_token
from batchnuts.files.sealed_file import CheckpointError, read_arrays, write_arrays
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.output.streaming import ZarrRun
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.statistics.chain_means import ChainMeans
from batchnuts.mcmc.storage.contract import LaneRows, MakeStorage, Storage
from batchnuts.mcmc.storage.draws import Draws, statistics
from batchnuts.mcmc.storage.layout import Layout
from batchnuts.mcmc.storage.logged import PART, LoggedStorage
from batchnuts.mcmc.storage.streamed import StreamedStorage, rows_of_block

if TYPE_CHECKING:
    from batchnuts.mcmc.storage.zarr_sink import ZarrSink

STATE_FILE = "direct.npz"


class DirectStorage(Storage):
    """What this process does for the store of a run; `record` takes what workers send besides.

    sizes: chains of each group. remember: whether records are kept in memory, too, for `first`.
    """

    def __init__(
        self,
        sink: ZarrSink,
        plan: StorePlan,
        layout: Layout,
        like: Record,
        sizes: tuple[int, ...],
        remember: bool,
    ) -> None:
        self.sink = sink
        self.plan = plan
        self.layout = layout
        self.like = like
        self.sizes = sizes
        chains = sum(sizes)
        self.sends = remember
        self.memory: LoggedStorage | None = None
        if remember:
            (plan.folder / "memory").mkdir(exist_ok=True)
            total = plan.transitions + plan.earlier
            self.memory = LoggedStorage(like, chains, total, folder=plan.folder / "memory")
        self.means = ChainMeans(chains, like.position.shape[2], like.position.dtype, like.step_size.dtype)
        """Of what chains had drawn when their group wrote to the store last, or its state was saved."""
        self.recorded: NDArray[np.int64] = np.full(chains, plan.earlier)
        """[chains]: transitions of each that are in the store, or known here."""
        self.written: NDArray[np.int64] = np.zeros(len(sizes), np.int64)
        """[groups]: draws of each that are in the store."""
        self.visible = 0

    def take(self, group: ChainGroup, report: SegmentReport) -> None:
        """Note what the report of a segment says of the store."""
        chains = slice(group.first, group.first + group.chains)
        self.written[group.number] = max(self.written[group.number], report.written)
        for name in report.lost_groups:
            self._drop(name)
        for means in (report.means, _means_of(report.saved)):
            if means is not None and means["count"].sum() >= self.means.count[chains].sum():
                for name, array in vars(self.means).items():
                    array[chains] = means[name]
        self.recorded[chains] = np.maximum(self.recorded[chains], self.written[group.number] + self.plan.earlier)
        if (minimum := int(self.written.min())) > self.visible:
            self.visible = minimum
            try:
                self.sink.commit(minimum)
            except OSError as error:
                raise self.sink.failed(error) from error

    def _drop(self, name: str) -> None:
        """Drop a group, or a variable, that one of the workers does not compute any longer."""
        group, _, variable = name.partition("/")
        if group in self.sink.files.arrays and (not variable or variable in self.sink.files.arrays[group]):
            self.sink.files.drop(group, [variable] if variable else None)

    @override
    def record(self, rows: LaneRows) -> None:
        if self.memory is not None:
            self.memory.record(rows)

    @override
    def flush(self) -> None:
        # workers have made their chunks durable when their states were saved
        self.sink.sync()
        parts: list[str] = []
        if self.memory is not None:
            self.memory.flush()
            parts = self.memory.parts
        state = {f"means_{name}": array for name, array in self.means.saved().items()}
        write_arrays(
            self.plan.folder / STATE_FILE,
            {"rows": np.array(self.plan.rows), "written": self.written, "parts": np.array(parts, np.str_), **state},
        )

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        path = self.plan.folder / STATE_FILE
        state = read_arrays(path, PART)
        if state["written"].shape != self.written.shape:
            raise CheckpointError(f"{path} does not belong to this run; {PART}.")
        self.written = state["written"]
        self.means.restore({n.removeprefix("means_"): state[n] for n in state if n.startswith("means_")})
        if self.memory is not None:
            self.memory.parts = state["parts"].tolist()
            self.memory.resume(recorded)
        self.recorded = np.maximum(recorded, np.repeat(self.written, self.sizes) + self.plan.earlier)

    def recoverable(self, groups: list[ChainGroup]) -> NDArray[np.int64]:
        """[chains]: transitions of each that are in the store, or in what this process knows of its group."""
        counts = self.recorded.copy()
        for group in groups:
            chains = slice(group.first, group.first + group.chains)
            if isinstance(group.start, SavedGroup):
                counts[chains] = np.maximum(counts[chains], group.start.stretch.recorded)
            if self.memory is not None:
                counts[chains] = np.maximum(counts[chains], self.memory.recorded[chains])
        return counts

    def write_rest(self, groups: list[ChainGroup], complete: int) -> None:
        """Write what groups lack of the first `complete` draws, from what is known of them here."""
        from batchnuts.cluster.open_store import OpenStore

        store = OpenStore(self.plan, self.layout)
        for group in groups:
            first, count = int(self.written[group.number]), complete - int(self.written[group.number])
            if count <= 0:
                continue
            start = first + self.plan.earlier
            if self.memory is not None:
                recorded = self.memory.first(complete + self.plan.earlier)
                chains = slice(group.first, group.first + group.chains)
                block: Record = map_leaves(lambda a, c=chains, s=start: a[c, s:], recorded)
            else:
                assert isinstance(group.start, SavedGroup)
                assert group.start.region is not None
                block = assembled(self.like, group.chains, list(group.start.region.rows), start, count)
            store.write(block, np.arange(group.first, group.first + group.chains), first)

    @override
    def first(self, transitions: int) -> Record:
        """The first `transitions` of every chain, where all records are in memory besides."""
        if self.memory is None:
            raise RuntimeError("records that were written are not read back")
        return self.memory.first(transitions)

    @override
    def finalize(self) -> Record:
        """No records: arrays [chains, 0, ...]."""
        chains = sum(self.sizes)
        nothing: Record = map_leaves(lambda a: np.zeros((chains, 0, *a.shape[2:]), a.dtype), self.like)
        return nothing

    def drain(self) -> None:
        """Do nothing: nothing waits here."""

    def close(self) -> None:
        """Do nothing: there is no thread."""


def _means_of(saved: SavedGroup | None) -> dict[str, NDArray[Any]] | None:
    return None if saved is None or saved.region is None else saved.region.means


class DirectZarrRun(ZarrRun):
    """A ZarrRun whose store the workers of a cluster write."""

    ahead = True
    groups: list[ChainGroup]
    """The groups of chains of the stretch of draws."""

    @override
    def begin(self, sampler: SamplerSettings, execution: ExecutionSettings) -> MakeStorage:
        super().begin(sampler, execution)
        return self

    def __call__(self, like: Record, chains: int, transitions: int, room: int | None = None) -> Storage:
        """Raise an error: a runner on a cluster calls `make_direct` instead."""
        raise RuntimeError("draws go from workers to the store")

    def make_direct(
        self, like: Record, position: NDArray[Any], transitions: int, sizes: tuple[int, ...]
    ) -> DirectStorage:
        """The storage of the draws of groups of so many chains; position [dimension]: of some chain."""
        assert self.layout is not None
        self._claim()
        transitions -= self.earlier
        folder = self.place.state
        state_file = folder / STATE_FILE
        thin = self.content.thin
        rows = int(read_arrays(state_file, PART)["rows"]) if state_file.exists() else 0
        rows = rows or rows_of_block(like, sizes[0], transitions, thin)
        chains = sum(sizes)
        sink = self.sink = self._sink(chains, transitions, rows)
        folder.mkdir(parents=True, exist_ok=True)  # after the metadata, by which a folder is known as a store
        example = map_leaves(lambda array: array[:1, :1].copy(), like)
        example.position[...] = position
        fields = {name: array for name, array in example._asdict().items() if not isinstance(array, tuple)}
        stats = statistics(fields, self.sampler.max_tree_depth)
        numbers = np.zeros(1, np.int64)
        groups = self.layout.of_draws(example.position, stats, numbers, numbers + self.earlier)
        sink.chunk = sizes[0], self.content.length(rows)
        sink.begin(groups, np.arange(chains), np.arange(0, transitions, thin) + self.earlier)
        sink.commit(0)  # a process that goes on finds by it that chunks are of this run
        token = uuid.uuid4().hex
        make_token(self.place, token)
        plan = StorePlan(
            self.location,
            token,
            folder,
            dict(sink.files.store.metadata),
            self.content,
            self.sampler.max_tree_depth,
            rows,
            transitions,
            self.earlier,
        )
        remember = self.sampler.until is not None  # interim analyses look at all draws
        storage = DirectStorage(sink, plan, self.layout, like, sizes, remember)
        self.storage = storage  # type: ignore[assignment]
        return storage

    @override
    def discard(self) -> None:
        # a checkpoint may count on what some groups have written: then it stays
        if not (self.place.state / STATE_FILE).exists():
            super().discard()

    def _finish_rows(self, draws: Draws, storage: StreamedStorage, sink: ZarrSink, layout: Layout) -> Mapping[str, int]:
        direct: Any = storage
        try:
            direct.write_rest(self.groups, draws.complete)
        except OSError as error:
            raise sink.failed(error) from error
        return {}

    @override
    def finish(self, draws: Draws, *, keep: bool = False) -> Any:
        # the store has the draws that every chain has: those of faster chains beyond are in the checkpoint alone
        complete = draws.complete
        if (draws.done != complete).any():
            draws = replace(draws, done=np.full_like(draws.done, complete))
        return super().finish(draws, keep=keep)
