"""Mutants of what becomes of records: in memory, in the groups of the output, and in the file; see `mutants`."""

from __future__ import annotations

import pytest
from mutants import killed_by, rewrite

from batchnuts.autobatch.backends.tensorflow.machine import TracedMachine
from batchnuts.autobatch.language.libraries import tensorflow_graphs, tensorflow_identity
from batchnuts.autobatch.language.libraries.jax import JaxLibrary
from batchnuts.files import saving
from batchnuts.mcmc.diagnostics import kept_diagnostics
from batchnuts.mcmc.execution.chunk import HostState
from batchnuts.mcmc.model import quantities
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.output import datasets as output
from batchnuts.mcmc.statistics.chain_means import ChainMeans
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.layout import Layout
from batchnuts.mcmc.storage.memory import MemoryStorage
from batchnuts.mcmc.storage.row_blocks import RowBlocks
from batchnuts.mcmc.storage.streamed import StreamedStorage
from batchnuts.mcmc.storage.zarr_sink import ZarrSink
from batchnuts.process import atomic

MEMORY = "mcmc/test_memory_storage.py"
OUTPUT = "mcmc/test_output.py"
RUNS = "mcmc/test_chunk_runner.py"
STREAMING = "mcmc/test_streaming.py"
REPORTS = "mcmc/test_kept_diagnostics.py::test_reports_take_what_was_found_before[3]"

# ---- in memory ------------------------------------------------------------------------------------------------------


@killed_by("storage memory", f"{MEMORY}::test_each_chain_has_its_rows_in_order", cheap=True)
def always_from_the_first_row(patch: pytest.MonkeyPatch) -> None:
    """what a chain records later is written over what it recorded first"""
    rewrite(
        patch,
        MemoryStorage.record,
        "target[chains[i], low[i] - start : high[i] - start] = part",
        "target[chains[i], : high[i] - low[i]] = part",
    )


@killed_by("storage memory", f"{MEMORY}::test_room_grows_as_it_is_needed[1]", cheap=True)
def each_array_begins_with_the_first_transition(patch: pytest.MonkeyPatch) -> None:
    """of rows that lie in several arrays, each takes the first ones"""
    rewrite(
        patch,
        MemoryStorage.record,
        "source[lanes[i], low[i] - first[i] : high[i] - first[i]]",
        "source[lanes[i], : high[i] - low[i]]",
    )


@killed_by("storage memory", f"{MEMORY}::test_each_chain_has_its_rows_in_order", cheap=True)
def lanes_are_chains(patch: pytest.MonkeyPatch) -> None:
    """a chain's later rows are looked for on the lane with its number"""
    rewrite(patch, MemoryStorage.record, "source[lanes[i],", "source[chains[i],")


@killed_by("storage memory", f"{MEMORY}::test_each_chain_has_its_rows_in_order", cheap=True)
def lanes_in_order(patch: pytest.MonkeyPatch) -> None:
    """first rows are looked for on as many lanes from the first one on"""
    rewrite(patch, MemoryStorage.record, "source[lanes[from_start], :length]", "source[: from_start.sum(), :length]")


@killed_by("storage memory", f"{MEMORY}::test_each_chain_has_its_rows_in_order", cheap=True)
def the_last_row_is_left(patch: pytest.MonkeyPatch) -> None:
    """of later rows the last one stays in the buffer"""
    rewrite(
        patch,
        MemoryStorage.record,
        "target[chains[i], low[i] - start : high[i] - start] = part",
        "target[chains[i], low[i] - start : high[i] - start - 1] = part[:-1]",
    )


@killed_by("storage memory", f"{MEMORY}::test_rows_after_the_last_transition_overwrite_nothing", cheap=True)
def all_rows_of_the_buffer(patch: pytest.MonkeyPatch) -> None:
    """rows that mean nothing are written after the last transition, where others may be"""
    rewrite(patch, MemoryStorage.record, "(first == 0) if start == 0", "(last >= first) if start == 0")


@killed_by("storage memory", f"{MEMORY}::test_records_keep_their_dtypes", cheap=True)
def records_in_double_precision(patch: pytest.MonkeyPatch) -> None:
    """all that is recorded is kept in double precision"""
    rewrite(patch, MemoryStorage._add, ", a.dtype)", ")")


@killed_by("storage kept", "mcmc/test_runner.py::test_the_result_is_the_last_record")
def rows_stay_in_the_machine(patch: pytest.MonkeyPatch) -> None:
    """of an interrupted run the present places of chains are known, and not their earlier ones"""
    rewrite(patch, HostState.take, "self.storage.record(LaneRows(chains, lanes, first, last, result.records))", "pass")


@killed_by("storage kept", f"{RUNS}::test_buffers_of_few_rows_change_no_draw[5-1-1]")
def first_rows_unknown(patch: pytest.MonkeyPatch) -> None:
    """rows are taken as if the buffer began with the first transition"""
    rewrite(
        patch,
        HostState.take,
        'chunk.machine.working(chunk.state, "first_row")[lanes]',
        "np.zeros(len(lanes), np.int64)",
    )


# ---- groups of the output -------------------------------------------------------------------------------------------


@killed_by("storage output", f"{OUTPUT}::test_interrupted_run_keeps_every_draw")
def as_many_as_the_fastest(patch: pytest.MonkeyPatch) -> None:
    """the posterior of a run that ended early has as many draws as the fastest chain"""
    rewrite(patch, Draws.complete.fget, ".min()", ".max()")


@killed_by("storage output", f"{OUTPUT}::test_chains_that_had_not_begun_take_no_draw_from_the_others")
def the_first_chains(patch: pytest.MonkeyPatch) -> None:
    """in place of the chains that had begun, as many from the first one on"""
    rewrite(patch, Draws.rectangle, "array[self.chains, :", "array[: len(self.chains), :")


@killed_by("storage output", f"{OUTPUT}::test_interrupted_run_keeps_every_draw")
def one_draw_too_many(patch: pytest.MonkeyPatch) -> None:
    """a row that a chain has not come to counts as one of its draws"""
    rewrite(patch, Layout.of_unfinished, "draws[None, saved] >= done[:, None]", "draws[None, saved] > done[:, None]")


@killed_by("storage output", f"{OUTPUT}::test_interrupted_run_keeps_every_draw")
def numbered_from_zero_again(patch: pytest.MonkeyPatch) -> None:
    """draws of faster chains are numbered from zero"""
    rewrite(patch, output.unfinished, '"draw": numbers[', '"draw": (numbers - numbers[0])[')


@killed_by("storage output", f"{OUTPUT}::test_chains_that_had_not_begun_take_no_draw_from_the_others")
def draws_of_other_chains(patch: pytest.MonkeyPatch) -> None:
    """further draws are those of the first chains, not of those that had begun"""
    rewrite(patch, output.to_groups, "array[chains, complete:last]", "array[: len(chains), complete:last]")


# ---- the file -------------------------------------------------------------------------------------------------------


@killed_by("storage saving", f"{OUTPUT}::test_file_made_during_the_run_is_not_lost")
def replaces_what_came_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """a file that was created during the run is replaced"""
    rewrite(patch, saving._place, "os.link(temporary, candidate)", "os.replace(temporary, candidate)")


@killed_by("storage saving", f"{OUTPUT}::test_failed_write_leaves_nothing_and_names_the_cause")
def leaves_half_a_file(patch: pytest.MonkeyPatch) -> None:
    """a write that failed leaves its temporary file"""
    rewrite(patch, atomic.replacing, "temporary.unlink(missing_ok=True)", "pass")


@killed_by("storage saving", f"{OUTPUT}::test_draws_go_to_the_first_folder_that_takes_them")
def replaces_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """draws that go to another folder replace a file there"""
    rewrite(patch, saving.save, "target.name, False,", "target.name, True,")


@killed_by("storage saving", f"{OUTPUT}::test_the_file_has_the_permissions_of_an_ordinary_one")
def for_the_owner_alone(patch: pytest.MonkeyPatch) -> None:
    """only its owner may read the file"""
    rewrite(patch, atomic.replacing, "0o600 if private else 0o666", "0o600")


@killed_by("storage saving", f"{OUTPUT}::test_hdf5_reads_back_what_it_wrote_after_the_disk_filled_up")
def writes_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """what HDF5 writes after the disk filled up is not kept for it to read"""
    rewrite(patch, saving._Disk.write, "self._tables.append((place, bytes(remaining)))", "pass")


# ---- streamed to a store --------------------------------------------------------------------------------------------


@killed_by("storage streamed", f"{STREAMING}::test_a_store_holds_what_a_netcdf_file_holds[interrupted]")
def rows_count_twice(patch: pytest.MonkeyPatch) -> None:
    """rows that come a second time are counted as new ones"""
    rewrite(patch, StreamedStorage._record, "np.maximum(rows.first, self.recorded[rows.chains])", "rows.first")


@killed_by("storage streamed", f"{STREAMING}::test_chains_wait_while_the_queue_is_full")
def nothing_waits(patch: pytest.MonkeyPatch) -> None:
    """chains go on while the queue is full"""
    rewrite(patch, StreamedStorage._enqueue, "len(self.waiting) >= QUEUE", "len(self.waiting) >= 10 * QUEUE")


@killed_by("storage streamed", f"{STREAMING}::test_closing_waits_for_the_block_that_is_being_written")
def closing_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """a closed storage may still be writing"""
    rewrite(patch, StreamedStorage.close, "    self.thread.join()", "")


@killed_by("storage streamed", f"{STREAMING}::test_a_slow_chain_does_not_fill_memory")
def all_blocks_stay_in_memory(patch: pytest.MonkeyPatch) -> None:
    """blocks that wait for a slow chain stay in memory"""
    rewrite(patch, RowBlocks.get, "len(self.in_memory) >= self.most", "len(self.in_memory) >= 10 * self.most")


@killed_by("storage streamed", f"{STREAMING}::test_a_slow_chain_does_not_fill_memory")
def a_block_that_comes_back_is_empty(patch: pytest.MonkeyPatch) -> None:
    """what is read back from a file counts as not recorded"""
    rewrite(patch, RowBlocks._read, "block.filled = self.filed.pop(number)", "self.filed.pop(number)")


@killed_by("storage streamed", f"{STREAMING}::test_readers_find_whole_draws_at_any_moment")
def seen_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """readers see the draws of a block that is not there yet"""
    rewrite(patch, ZarrSink.write, "self.commit(block.first + block.rows)", "self.commit(block.first + 2 * block.rows)")


@killed_by("storage streamed", f"{STREAMING}::test_a_run_goes_on_from_what_was_flushed[1]")
def readers_lose_draws(patch: pytest.MonkeyPatch) -> None:
    """a run that goes on shows only what it has written again"""
    rewrite(
        patch,
        ZarrSink.commit,
        "max(self.layout.content.length(draws), self.visible_before)",
        "self.layout.content.length(draws)",
    )


@killed_by("storage streamed", f"{STREAMING}::test_a_run_goes_on_from_what_was_flushed[2]")
def only_the_last_flush_stays(patch: pytest.MonkeyPatch) -> None:
    """a flush deletes what the one before it has saved"""
    rewrite(patch, StreamedStorage.flush, "saved[:-1]", "saved")


@killed_by("storage streamed", f"{STREAMING}::test_a_run_goes_on_from_what_was_flushed[1]")
def means_begin_again(patch: pytest.MonkeyPatch) -> None:
    """chains' means are of the draws since a run went on alone"""
    rewrite(patch, ChainMeans.restore, "array[...] = saved[name]", "pass")


@killed_by("storage streamed", f"{STREAMING}::test_a_store_holds_what_a_netcdf_file_holds[some of it]")
def every_draw(patch: pytest.MonkeyPatch) -> None:
    """thinned draws begin with another one"""
    rewrite(patch, Content.kept, "draws % self.thin == 0", "draws % self.thin == self.thin - 1")


# ---- diagnostics that are kept --------------------------------------------------------------------------------------


@killed_by("storage diagnostics", REPORTS)
def of_any_code(patch: pytest.MonkeyPatch) -> None:
    """what another version of the estimators found is taken"""
    taken = kept_diagnostics.kept_diagnostics
    rewrite(patch, taken, "attributes[ESTIMATORS] != _estimators() or attributes", "attributes")


@killed_by("storage diagnostics", REPORTS)
def damaged_ones(patch: pytest.MonkeyPatch) -> None:
    """arrays that lost a chunk are taken as they are read"""
    taken = kept_diagnostics.kept_diagnostics
    rewrite(patch, taken, " or attributes[DIGEST] != _digest(group)", "")


@killed_by("storage diagnostics", REPORTS)
def of_other_draws(patch: pytest.MonkeyPatch) -> None:
    """what was found of fewer draws or other chains is taken"""
    rewrite(patch, kept_diagnostics.kept_diagnostics, '!= (sizes["chain"], sizes["draw"])', "== ()")


# ---- what a density of TensorFlow's is known by ---------------------------------------------------------------------


IDENTITY = "runtime/test_tensorflow_identity.py::test_the_same_function_has_the_same_identity_and_others_have_not"


@killed_by("storage identity", f"{IDENTITY}[constant]", cheap=True)
def without_constants(patch: pytest.MonkeyPatch) -> None:
    """densities of other data are the same"""
    rewrite(patch, tensorflow_graphs._Description._of_attributes, "attributes.keys() - _NAMES", '{"dtype", "f"}')


@killed_by("storage identity", f"{IDENTITY}[captured]", cheap=True)
def without_captured_tensors(patch: pytest.MonkeyPatch) -> None:
    """densities of other tensors are the same"""
    rewrite(patch, tensorflow_identity.identity_of, "*captured, ", "")


@killed_by("storage identity", f"{IDENTITY}[order of operands]", cheap=True)
def operands_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """a - b is b - a"""
    inputs = "[_with_place(name, places) for name in node.input]"
    rewrite(patch, tensorflow_graphs._Description._of_nodes, inputs, f"sorted({inputs})")


@killed_by("storage identity", f"{IDENTITY}[gradient of a loop]", cheap=True)
def functions_by_name(patch: pytest.MonkeyPatch) -> None:
    """names of functions, which have counters, are part of an identity"""
    numbered = 'f"function {self._numbers.setdefault(name, len(self._numbers))}"'
    rewrite(patch, tensorflow_graphs._Description._number, numbered, f"(name, {numbered})[0]")


@killed_by(
    "storage identity", "runtime/test_cached_tensorflow_programs.py::test_a_machine_that_does_not_run_is_not_kept"
)
def before_it_has_run(patch: pytest.MonkeyPatch) -> None:
    """a machine is kept when it is traced"""
    rewrite(patch, TracedMachine._make, "program.once_run = lambda: ", "_ = ")


# ---- what is computed from draws, by programs on disk ---------------------------------------------------------------


QUANTITIES = "mcmc/test_cached_quantities.py"


@killed_by("storage identity", f"{QUANTITIES}::test_what_is_kept_of_other_functions_is_not_used[number]")
def of_any_functions(patch: pytest.MonkeyPatch) -> None:
    """programs of other functions are taken"""
    rewrite(patch, JaxLibrary.traced, "identity_of_jaxpr(closed, results)", '"0" * 64')


@killed_by("storage identity", f"{QUANTITIES}::test_a_change_after_the_check_is_seen[array]")
def as_they_were_checked(patch: pytest.MonkeyPatch) -> None:
    """functions that have changed since the check are not traced again"""
    rewrite(patch, quantities._cached_or_traced, "cache.reached == _reached_by(model)", "True")
