"""Records that leave memory while chains run: complete blocks go to a thread of its own, which writes them.

    chunks' threads: record -> incomplete blocks -> queue -> the writer's thread: sink.write

The queue is short. When it is full, `record` waits, and so does the chunk that records: chains run no faster than
draws can be written, and memory does not grow with their number.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.saving import OutputError, reason_of
from batchnuts.files.sealed_file import CheckpointError, read_arrays, write_arrays
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.statistics.chain_means import ChainMeans
from batchnuts.mcmc.storage.contract import LaneRows, Storage
from batchnuts.mcmc.storage.logged import PART, LoggedStorage
from batchnuts.mcmc.storage.row_blocks import RowBlock, RowBlocks
from batchnuts.process.atomic import synchronize
from batchnuts.process.freed_memory import give_back_freed

BLOCK_BYTES = 32_000_000
"""Bytes of one block, about: large writes, and a small part of a process that has an array library in it."""

CHAINS_BYTES = 8_000_000
"""Bytes of the records of a block that are laid out, and form chunks, together: all draws of some chains."""

IN_MEMORY = 5
"""Incomplete blocks in memory: chains may differ by four times a block's draws before files are needed."""

QUEUE = 2
"""Complete blocks that are written or wait for it."""

SHARE = 20
"""A block has at most one in so many draws of the run, so that a run can be looked at on its way."""

SMALL_SHARE, SMALL_BLOCK = 4, 250_000
"""The share and bytes of a small run, whose blocks would have fewer bytes: each is a file for each variable, and
these take longer than what is in them."""


class Sink(Protocol):
    """Where complete blocks go. It is called by one thread at a time."""

    def write(self, block: RowBlock, previous: NDArray[np.floating] | None) -> None:
        """Write a block; blocks come in order. previous [chains, dimension]: where chains were before its first
        row, None for the first block."""

    def sync(self) -> None:
        """Make what was written durable."""


def most_rows(row: int, transitions: int) -> int:
    """Draws of all chains that a block has at most; row: bytes of one."""
    share = max(min(SHARE, SMALL_SHARE), min(SHARE, row * transitions // max(1, SMALL_BLOCK)))
    return min(BLOCK_BYTES // row, -(-transitions // share))


def rows_of_block(like: Record, chains: int, transitions: int, multiple: int = 1) -> int:
    """Draws of a block: a multiple of this number."""
    row: list[int] = []
    map_leaves(lambda a: row.append(a[0, 0].nbytes), like)
    rows = most_rows(chains * sum(row), transitions)
    blocks = -(-transitions // max(1, rows))
    rows = -(-transitions // blocks)  # about equally many in each, since the last chunk is stored whole
    return -(-rows // multiple) * multiple


class StreamedStorage(Storage):
    """A Storage that passes blocks on to a sink. rows: of a block. folder: for blocks that do not fit into memory, and
    for what `flush` saves.

    remember: whether all records are kept in memory besides, for `first`. room: for that, see MakeStorage.
    """

    def __init__(
        self,
        like: Record,
        chains: int,
        transitions: int,
        sink: Sink,
        rows: int,
        folder: Path,
        *,
        remember: bool = False,
        room: int | None = None,
    ) -> None:
        self.like = like
        self.chains = chains
        self.rows = rows
        self.sink = sink
        self.folder = folder
        shutil.rmtree(self._pages, ignore_errors=True)
        self._pages.mkdir(parents=True)
        self.blocks = RowBlocks(like, chains, transitions, rows, IN_MEMORY, self._pages)
        self.means = ChainMeans(chains, like.position.shape[2], like.position.dtype, like.step_size.dtype)
        """The means of everything that was recorded."""
        self.memory = None
        if remember:
            (folder / "memory").mkdir(exist_ok=True)
            self.memory = LoggedStorage(like, chains, transitions, room, folder=folder / "memory")
        self.recorded: NDArray[np.int64] = np.zeros(chains, np.int64)
        """[chains]: transitions of each."""
        self.written = 0
        """The number of blocks that were written, all complete."""
        self.waiting: deque[RowBlock] = deque()
        """The first one is being written."""
        self.previous: NDArray[np.floating] | None = None
        """[chains, dimension]: the last positions that were written."""
        self.failure: BaseException | None = None
        """The error of the writer's thread."""
        self.closed = False
        self.changed = threading.Condition()
        """Guards all of the above; notified when the queue or what is written changes."""
        self.thread = threading.Thread(
            target=copy_context().run, args=(self._serve,), name="batchnuts-writer", daemon=True
        )
        self.thread.start()

    @property
    def _pages(self) -> Path:
        return self.folder / "pages"

    # ---- chunks' threads ---------------------------------------------------------------------------------------------

    @override
    def record(self, rows: LaneRows) -> None:
        """Waits while the queue is full; raises what the writer has failed with, and OutputError where a block cannot
        be written to a file."""
        if self.memory is not None:
            self.memory.record(rows)
        try:
            self._record(rows)
        except OSError as error:
            with self.changed:
                self.failure = OutputError(f"Cannot write {self.folder}: {reason_of(error)}.")
                self.changed.notify_all()
                raise self.failure from error

    def _record(self, rows: LaneRows) -> None:
        with self.changed:
            self._raise_failure()
            # when a run is interrupted, rows may come a second time
            low = np.maximum(rows.first, self.recorded[rows.chains])
            some = low < rows.last
            if not some.any():
                return
            rows, low = rows.where(some), low[some]
            chains, lanes, first, last = rows.chains, rows.lanes, rows.first, rows.last
            self._add_to_means(rows, low - first)
            for number in range(int(low.min()) // self.rows, -(-int(last.max()) // self.rows)):
                start = number * self.rows
                begin, end = np.maximum(low, start), np.minimum(last, start + self.rows)
                count = np.maximum(end - begin, 0)
                if not count.any():
                    continue
                block = self.blocks.get(number)
                offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
                source_rows, target_rows = (
                    np.repeat(begin - first, count) + offset,
                    np.repeat(begin - start, count) + offset,
                )
                source_lanes, target_chains = np.repeat(lanes, count), np.repeat(chains, count)
                for target, source in zip(block.records, rows.records):
                    if not isinstance(target, tuple):  # asked for
                        target[target_chains, target_rows] = source[source_lanes, source_rows]
                block.filled += int(count.sum())
                if block.complete:
                    self._enqueue(self.blocks.take(number))
            self.recorded[chains] = last

    def _add_to_means(self, rows: LaneRows, low: NDArray[np.int64]) -> None:
        """Add the rows of the buffers from number `low` [n] on to the means."""
        chains, lanes, high, records = rows.chains, rows.lanes, rows.last - rows.first, rows.records
        fresh = low == 0
        if fresh.any():
            position, step_size = records.position[lanes[fresh]], records.step_size[lanes[fresh]]
            self.means.add(chains[fresh], position, step_size, high[fresh])
        for i in np.flatnonzero(~fresh):
            new = np.s_[lanes[i : i + 1], low[i] : high[i]]
            self.means.add(chains[i : i + 1], records.position[new], records.step_size[new], high[i : i + 1] - low[i])

    def _enqueue(self, block: RowBlock) -> None:
        while len(self.waiting) >= QUEUE and self.failure is None:
            self.changed.wait()
        self._raise_failure()
        self.waiting.append(block)
        self.changed.notify_all()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    # ---- the writer's thread -----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self.changed:
                while not self.waiting and not self.closed:
                    self.changed.wait()
                if self.closed:
                    return
                block = self.waiting[0]
            try:
                self.sink.write(block, self.previous)
            except BaseException as error:
                with self.changed:
                    self.failure = error
                    self.changed.notify_all()
                return
            with self.changed:
                self.previous = block.records.position[:, -1].copy()
                self.waiting.popleft()
                self.written += 1
                self.changed.notify_all()
            del block
            give_back_freed()

    # ---- between stretches of work, when no chunk records ------------------------------------------------------------

    def drain(self) -> None:
        """Wait until every complete block is written; raises what the writer has failed with."""
        with self.changed:
            while self.waiting and self.failure is None:
                self.changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """End the writer's thread, after the block that it is writing. Nothing can be recorded after it."""
        with self.changed:
            self.closed = True
            if self.failure is None:
                self.failure = RuntimeError("this storage is closed")
            self.changed.notify_all()
        self.thread.join()

    @override
    def flush(self) -> None:
        # what is in incomplete blocks is saved too, in files of their own; those of the flush before this one stay,
        # since what is to be resumed may still refer to it
        self.drain()
        self.sink.sync()
        with self.changed:
            saved = self._saved()
            number = 1 + max(saved, default=-1)
            making = self.folder / f".saved-{number}"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            files = self.blocks.save(making)
            state = {f"means_{name}": array for name, array in self.means.saved().items()}
            if self.previous is not None:
                state["previous"] = self.previous
            if self.memory is not None:
                self.memory.flush()
                state["parts"] = np.array(self.memory.parts, np.str_)
            write_arrays(making / "state.npz", {"recorded": self.recorded, "rows": np.array(self.rows), **state})
            for path in (*files, making):
                synchronize(path)
            os.replace(making, self.folder / f"saved-{number}")
            synchronize(self.folder)
            for old in saved[:-1]:
                shutil.rmtree(self.folder / f"saved-{old}", ignore_errors=True)

    def _saved(self) -> list[int]:
        """Numbers of what flushes have saved, in order."""
        return sorted(int(path.name.split("-")[1]) for path in self.folder.glob("saved-*"))

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        """Raises CheckpointError where no flush has left this, or what it left is damaged."""
        for number in reversed(self._saved()):
            folder = self.folder / f"saved-{number}"
            state = read_arrays(folder / "state.npz", PART)
            if not np.array_equal(state["recorded"], recorded) or int(state["rows"]) != self.rows:
                continue
            with self.changed:
                self.means.restore({n.removeprefix("means_"): state[n] for n in state if n.startswith("means_")})
                self.previous = state.get("previous")
                self.blocks.load(folder, recorded)
                if self.memory is not None:
                    self.memory.parts = state["parts"].tolist()
                    self.memory.resume(recorded)
                self.recorded[:] = recorded
                self.written = int(recorded.min()) // self.rows
            return
        raise CheckpointError(f"{self.folder} does not have the draws that the checkpoint names.")

    @override
    def first(self, transitions: int) -> Record:
        """Raises RuntimeError unless all records are kept in memory besides."""
        if self.memory is None:
            raise RuntimeError("records that were written are not read back")
        return self.memory.first(transitions)

    @override
    def finalize(self) -> Record:
        """Gives no records, arrays [chains, 0, ...]: they are where the sink has written them."""
        self.drain()
        nothing: Record = map_leaves(lambda a: np.zeros((self.chains, 0, *a.shape[2:]), a.dtype), self.like)
        return nothing

    def rest(self) -> Iterator[RowBlock]:
        """The incomplete blocks, in order, one at a time in memory besides those that are there; they stay."""
        for number in self.blocks.numbers():
            yield self.blocks.get(number)
