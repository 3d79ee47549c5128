"""A run that keeps no draws: complete blocks of them are reduced while chains run (running_summary.py).

What a checkpoint needs besides (storage/streamed.py) is what the blocks so far were reduced to: a file for each flush.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.files.groups import datasets_of
from batchnuts.files.saving import OutputError
from batchnuts.files.sealed_file import read_arrays, write_arrays
from batchnuts.mcmc.diagnostics.summary_without_draws import summary_group
from batchnuts.mcmc.diagnostics.verdict import labelled_elements
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.supports import elements_that_vary
from batchnuts.mcmc.output.datasets import adaptation, attributes_of, other_groups, statistics_attributes
from batchnuts.mcmc.output.streaming import saved_rows
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.settings.superchains import count_superchains
from batchnuts.mcmc.statistics.running_summary import RunningSummary, StatisticsTotals
from batchnuts.mcmc.storage.contract import MakeStorage, Storage, Stream
from batchnuts.mcmc.storage.draws import Draws, statistics
from batchnuts.mcmc.storage.layout import Entries, Layout
from batchnuts.mcmc.storage.row_blocks import RowBlock
from batchnuts.mcmc.storage.streamed import Sink, StreamedStorage, rows_of_block

if TYPE_CHECKING:
    import xarray

AT_ONCE = 2**20
"""Numbers of positions that are laid out together."""


def require_sketches() -> None:
    """Raise OutputError unless what makes the sketches of quantiles is installed."""
    if find_spec("datasketches") is None:
        raise OutputError(
            "output.draws: false needs the package datasketches, which is not installed; install it (pip install "
            "'batchnuts[summaries]'), or keep the draws."
        )


class Coefficients:
    """What of a group of draws is summarized, found from its first part: variables one after another, flat."""

    def __init__(self, entries: Entries, labels: Mapping[str, list[Any]]) -> None:
        self.names: list[str] = []
        self.places: dict[str, slice] = {}
        """The places of each variable's elements among the coefficients."""
        self.varying: dict[str, NDArray[np.bool_]] = {}
        """[elements] by variable: which are not the same for all positions."""
        may_be_constant: list[bool] = []
        for name, (dims, array, attributes) in entries.items():
            shape = array.shape[2:]
            axis_labels = [labels.get(dim, list(range(n))) for dim, n in zip(dims[2:], shape, strict=True)]
            self.varying[name] = elements_that_vary(attributes.get("support", ""), shape).reshape(-1)
            names = list(compress(labelled_elements(name, axis_labels), self.varying[name]))
            self.places[name] = slice(len(self.names), len(self.names) + len(names))
            self.names += names
            may_be_constant += [bool(attributes.get("generated"))] * len(names)
        self.may_be_constant = np.array(may_be_constant, bool)
        """[coefficients]: those of generated quantities."""
        floats = {array.dtype for _, array, _ in entries.values()}
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if floats == {np.dtype(np.float32)} else np.float64)

    def put(self, entries: Entries, values: NDArray[Any]) -> None:
        """Write their values [chains, draws, coefficients]; NaN where a function of the model has failed."""
        for name, place in self.places.items():
            if name in entries:
                array = entries[name][1]
                values[:, :, place] = array.reshape(*array.shape[:2], -1)[:, :, self.varying[name]]
            else:
                values[:, :, place] = np.nan


class SummarySink(Sink):
    """Reduces blocks to a summary. transitions: how many draws each chain is to make. folder: for what `sync` saves."""

    def __init__(self, layout: Layout, max_tree_depth: int, transitions: int, folder: Path) -> None:
        self.layout = layout
        self.max_tree_depth = max_tree_depth
        self.transitions = transitions
        self.folder = folder
        self.blocks = 0
        """The number of complete blocks that were written."""
        self.coefficients: Coefficients | None = None
        """This and the next two are None before the first draw."""
        self.running: RunningSummary | None = None
        self.totals: StatisticsTotals | None = None
        self.saved: dict[str, NDArray[Any]] | None = None
        """The arrays to which the first draws that come are added."""

    @override
    def write(self, block: RowBlock, previous: NDArray[Any] | None) -> None:
        self.add(block, np.arange(len(block.records.lp)), block.rows)
        self.blocks += 1

    def add(self, block: RowBlock, chains: NDArray[np.int64], rows: int) -> None:
        """Add the first rows of a block, of the chains with these numbers, the same ones each time."""
        records = {name: array for name, array in block.records._asdict().items() if not isinstance(array, tuple)}
        stats = statistics(records, self.max_tree_depth)
        draws = np.arange(block.first, block.first + rows)
        step = max(1, AT_ONCE // max(1, rows * records["position"].shape[2]))
        values: NDArray[Any] = np.empty(0)
        for start in range(0, len(chains), step):
            part = slice(start, min(start + step, len(chains)))
            groups = self.layout.of_draws(records["position"][chains[part], :rows], {}, chains[part], draws)
            entries = groups["posterior"]
            if self.coefficients is None:
                self.coefficients = Coefficients(entries, self.layout.model.labels())
            coefficients = self.coefficients
            if entries.keys() - coefficients.places.keys():
                raise ModelError(
                    f"Model {self.layout.model.name!r}: its function generated, which returns all that is "
                    "reported, failed for some draws."
                )
            if not start:
                values = np.empty((len(chains), rows, len(coefficients.names)), coefficients.dtype)
            coefficients.put(entries, values[part])
        if self.running is None or self.totals is None:
            self.running = RunningSummary(len(chains), self.transitions, values.shape[2], values.dtype)
            self.totals = StatisticsTotals(len(chains))
            if self.saved is not None:
                self.running.restore(_under("running", self.saved))
                self.totals.restore(_under("totals", self.saved))
                self.saved = None
        self.running.add(values)
        self.totals.add({name: array[chains, :rows] for name, array in stats.items()})

    def sync(self) -> None:
        """Save what the blocks so far were reduced to. The file before stays, since a checkpoint may refer to it."""
        if self.running is None or self.totals is None:
            return
        arrays = {f"running_{name}": array for name, array in self.running.saved().items()}
        arrays |= {f"totals_{name}": array for name, array in self.totals.saved().items()}
        write_arrays(self._file(self.blocks), arrays)
        numbers = sorted(int(path.stem.split("-")[1]) for path in self.folder.glob("blocks-*.npz"))
        for number in numbers[:-2]:
            self._file(number).unlink(missing_ok=True)

    def resume(self, blocks: int) -> None:
        """Go on from what so many blocks were reduced to. Raises CheckpointError where no file has that."""
        self.blocks = blocks
        if blocks:
            self.saved = read_arrays(self._file(blocks), "expected a part of a checkpoint of batchnuts")

    def _file(self, blocks: int) -> Path:
        return self.folder / f"blocks-{blocks}.npz"


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{prefix}_"): array for name, array in arrays.items() if name.startswith(f"{prefix}_")}


class SummarizedStorage(StreamedStorage):
    """Reduces blocks of draws, and goes on from what earlier ones were reduced to."""

    sink: SummarySink

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        super().resume(recorded)
        self.sink.resume(self.written)


class SummaryRun(Stream):
    """Draws are summarized while they are made, and not kept.

    folder: for blocks that do not fit into memory, and what checkpoints need. config: as for `to_datasets`. resumed:
    whether the run goes on that an earlier process has left.
    """

    def __init__(
        self,
        folder: Path,
        model: Model,
        content: Content,
        config: Mapping[str, Any] | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        self.folder = folder
        self.model = model
        self.content = content
        self.config = config
        self.storage: SummarizedStorage | None = None
        self.sampler, self.execution = split_settings({})
        if not resumed:
            shutil.rmtree(folder, ignore_errors=True)

    @override
    def begin(self, sampler: SamplerSettings, execution: ExecutionSettings) -> MakeStorage:
        self.sampler, self.execution = sampler, execution
        return self.make

    def make(self, like: Record, chains: int, transitions: int, room: int | None = None) -> Storage:
        """Make the storage that summarizes the run's draws: a MakeStorage."""
        self.close()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"Cannot write {self.folder}: {error.strerror or error}; no draws were made.") from error
        of_draws = self.model.without(("log_likelihood", "predictive"))  # as large as draws
        layout = Layout(of_draws, self.content, self.execution, self.sampler.seed)
        sink = SummarySink(layout, self.sampler.max_tree_depth, transitions, self.folder)
        rows = saved_rows(self.folder) or rows_of_block(like, chains, transitions)
        self.storage = SummarizedStorage(like, chains, transitions, sink, rows, self.folder)
        return self.storage

    def close(self) -> None:
        """End the thread that reduces blocks."""
        if self.storage is not None:
            self.storage.close()

    def discard(self) -> None:
        """Remove what was written: no draw was made."""
        self.close()
        if self.storage is not None:  # else what an earlier process has left is still needed
            shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self, draws: Draws, *, keep: bool = False) -> dict[str, xarray.Dataset]:
        """All groups, in memory: those of `to_datasets` without draws, and `summary` if every chain has a draw.

        keep: whether the run may go on from what was flushed.
        """
        storage = self.storage
        assert storage is not None, "it has draws"
        sink = storage.sink
        storage.drain()
        for block in storage.rest():
            rows = min(max(draws.complete - block.first, 0), block.rows)
            if rows:
                sink.add(block, draws.chains, rows)
        storage.close()
        running, totals, coefficients = sink.running, sink.totals, sink.coefficients
        log_density = np.zeros((1, 1)) if totals is None else totals.log_density[:, None]
        attributes = attributes_of(draws, self.model, self.config, log_density)
        layout = Layout(self.model, self.content, draws.execution, draws.settings.seed)
        groups = datasets_of(other_groups(draws, self.model, layout, attributes))
        if running is not None and totals is not None and coefficients is not None:
            groups["summary"] = summary_group(
                running,
                totals,
                coefficients.names,
                draws.chains,
                count_superchains(draws.settings),
                {**attributes, **statistics_attributes(draws)},
                coefficients.may_be_constant,
            )
        groups["adaptation"] = adaptation(draws, self.model, storage.means, attributes).dataset()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        return groups
