"""Mutants of chunks of chains: how they are divided, advanced, merged and counted; see `mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mutants import around, killed_by, rewrite

from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.cluster import recent, segment
from batchnuts.mcmc.execution import attempt, chunk, chunk_plan, saved_stretch
from batchnuts.mcmc.execution.attempt import Bracket
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.chunk import NO_CHAIN, Chunk, HostState

PLAN = "mcmc/test_chunk_plan.py"
RUNS = "mcmc/test_chunk_runner.py"
RUNNER = "mcmc/test_runner.py"

# ---- how chains are divided -----------------------------------------------------------------------------------------


@killed_by("chunks chunk_plan", f"{RUNS}::test_automatic_chunks", cheap=True)
def the_last_chunk_is_lost(patch: pytest.MonkeyPatch) -> None:
    """chains that fill no whole chunk have none"""
    rewrite(patch, chunk_plan.divide, "chunks = math.ceil(chains / lanes)", "chunks = chains // lanes")


@killed_by("chunks chunk_plan", f"{RUNS}::test_automatic_chunks", cheap=True)
def no_round_number_of_chunks(patch: pytest.MonkeyPatch) -> None:
    """some threads have a chunk more than others"""
    rewrite(patch, chunk_plan.divide, "(max_width * shards)) * shards", "max_width)")


@killed_by("chunks chunk_plan", f"{RUNS}::test_chunks_asked_for", cheap=True)
def threads_without_chunks(patch: pytest.MonkeyPatch) -> None:
    """there are as many threads as asked for, though not so many chunks"""
    rewrite(patch, chunk_plan.divide, "min(shards, chunks))", "shards)")


@killed_by("chunks chunk_plan", f"{PLAN}::test_rows_of_the_buffers", cheap=True)
def no_minimum_number_of_rows(patch: pytest.MonkeyPatch) -> None:
    """of large rows a buffer holds none"""
    rewrite(
        patch,
        chunk_plan.buffer_rows,
        "max(MIN_ROWS, BUFFER_BYTES // (lanes * size))",
        "BUFFER_BYTES // (lanes * size)",
    )


@killed_by("chunks chunk_plan", f"{PLAN}::test_rows_of_the_buffers", cheap=True)
def buffers_shared_by_all_chains(patch: pytest.MonkeyPatch) -> None:
    """rows are counted as if all chains were in one chunk"""
    rewrite(patch, chunk_plan.buffer_rows, "MAX_WIDTH if is_compiled(execution) else chains", "chains")


# ---- lanes that run no chain ----------------------------------------------------------------------------------------


@killed_by("chunks padding", f"{RUNS}::test_chunks_change_no_draw[3-2]")
def padding_is_a_chain(patch: pytest.MonkeyPatch) -> None:
    """what a lane that fills up a chunk has done is noted for the last chain"""
    rewrite(patch, Chunk.occupied, "np.flatnonzero(self.chains != NO_CHAIN)", "np.arange(len(self.chains))")


@killed_by("chunks padding", f"{RUNS}::test_chunks_change_no_draw[2-1]")
def padding_runs(patch: pytest.MonkeyPatch) -> None:
    """lanes that fill up a chunk run its last chain again, and their gradients count as useful"""

    def begin(true: Any, machine: ChainMachine, chains: np.ndarray, inputs: Any) -> Chunk:
        until = np.where(chains == NO_CHAIN, inputs.until.max(), inputs.until)
        return true(machine, chains, inputs._replace(until=until))

    around(patch, Chunk, "begin", begin)


# ---- slices ---------------------------------------------------------------------------------------------------------


@killed_by("chunks slices", f"{RUNNER}::test_a_stretch_that_ends_early_does_not_lengthen_the_slices_of_the_next")
def short_slices_are_measured(patch: pytest.MonkeyPatch) -> None:
    """a slice that ends before its sweeps are made sets how fast these are"""
    rewrite(patch, Chunk.slice, "if not reached_limit:", "if True:")


@killed_by("chunks slices", f"{RUNS}::test_lanes_with_full_buffers_do_not_wait_for_the_others")
def full_lanes_wait(patch: pytest.MonkeyPatch) -> None:
    """a lane whose buffer is full waits until the chunk's others are done"""
    rewrite(patch, Chunk.slice, "self.live() - 1 if may_stop else leave_at", "leave_at")


@killed_by("chunks slices", f"{RUNS}::test_lanes_about_to_halt_are_not_forgotten")
def halting_lanes_get_room(patch: pytest.MonkeyPatch) -> None:
    """lanes that are about to halt get room, as if they would look at their end again"""
    rewrite(patch, Chunk.with_room, "np.where(done < until, room, until)", "room")


@killed_by("chunks slices", f"{RUNS}::test_buffers_of_few_rows_change_no_draw[5-1-1]")
def first_row_stays(patch: pytest.MonkeyPatch) -> None:
    """rows that were taken out make no room for more"""
    rewrite(patch, ChainMachine.make_room, '"run_chain.first_row": first_row, ', "")


@killed_by("chunks slices", f"{RUNS}::test_what_is_carried_when_a_buffer_is_full")
def divergences_forgotten(patch: pytest.MonkeyPatch) -> None:
    """a lane that begins again has not diverged yet"""
    rewrite(patch, Chunk.go_on, "for name in CARRIED}", 'for name in CARRIED if name != "divergences"}')


@killed_by("chunks slices", f"{RUNS}::test_what_is_carried_when_a_buffer_is_full")
def adaptation_forgotten(patch: pytest.MonkeyPatch) -> None:
    """a lane that begins again adapts its step size from the start"""
    rewrite(patch, Chunk.go_on, "for name in CARRIED}", 'for name in CARRIED if name != "adaptation"}')


@killed_by("chunks slices", f"{RUNS}::test_what_is_carried_when_a_buffer_is_full")
def divergences_not_reported(patch: pytest.MonkeyPatch) -> None:
    """progress reports no divergences before the end"""
    rewrite(patch, HostState.count, "in COUNTED:", 'in ("done",):')


@killed_by("chunks slices", f"{RUNNER}::test_gradients_are_counted[{{}}]")
def idle_lanes_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """a gradient costs as much as one lane's, however many lanes compute it"""
    rewrite(patch, VirtualMachine.counts, ".sum()) * self.lanes", ".sum())")


@killed_by("chunks watched", f"{RUNNER}::test_what_is_watched_is_brought_while_the_chunk_waits_for_its_turn")
def owed_until_its_turn(patch: pytest.MonkeyPatch) -> None:
    """records that someone waits for stay in a chunk's buffers until they are full"""
    rewrite(patch, HostState.owes, "if not self.wanted or", "if True or")


@killed_by("chunks watched", f"{RUNNER}::test_a_chunk_with_few_chains_does_not_wait_while_records_are_watched")
def waits_for_its_partner(patch: pytest.MonkeyPatch) -> None:
    """a chunk with few chains waits for others to end, and all records with it"""
    rewrite(patch, Bracket.leave_at, " or not self.merges", "")


# ---- merging --------------------------------------------------------------------------------------------------------

MERGED = f"{RUNS}::test_chunks_that_are_half_done_merge[1]"


@killed_by("chunks merging", f"{RUNS}::test_neighbours_merge_and_the_last_of_an_odd_number_waits_for_a_later_round")
def the_odd_one_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """of an odd number of chunks, the last one goes to no later round"""
    rewrite(patch, Bracket._entrants, "-(-self.chunks >> number)", "self.chunks >> number")


@killed_by("chunks merging", MERGED)
def rows_of_the_other_are_lost(patch: pytest.MonkeyPatch) -> None:
    """what the chunk that is dissolved has recorded is not kept"""
    rewrite(patch, chunk.merge, "host_state.take(second).done", "second.machine.partial_result(second.state).done")


@killed_by("chunks merging", MERGED)
def gradients_of_the_other_are_lost(patch: pytest.MonkeyPatch) -> None:
    """gradients of the chunk that is dissolved are not counted"""
    rewrite(patch, chunk.merge, "first.merged + second.counts", "first.merged")


@killed_by("chunks merging", MERGED)
def inputs_stay(patch: pytest.MonkeyPatch) -> None:
    """a chain that moves ends where the one before it on that lane ended"""
    rewrite(patch, chunk.merge, "map_leaves(moved, first.inputs, second.inputs)", "first.inputs")


@killed_by("chunks merging", MERGED)
def moved_chains_keep_their_numbers(patch: pytest.MonkeyPatch) -> None:
    """a chain that moves is taken for the one before it on that lane"""

    def merge(true: Any, one: Chunk, other: Chunk, host_state: HostState) -> Chunk:
        made = true(one, other, host_state)
        return replace(made, chains=np.where(made.chains == NO_CHAIN, NO_CHAIN, one.chains))

    around(patch, attempt, "merge", merge)


# ---- groups of chunks on a cluster ----------------------------------------------------------------------------------

UNHEARD = "test_cluster.py::test_a_report_that_never_comes_costs_no_draw"


@killed_by("chunks clusters", f"{UNHEARD}[saved]")
def a_worker_knows_better(patch: pytest.MonkeyPatch) -> None:
    """a worker that has a group goes on from there, though it is given a state to begin from"""
    known = "(live is None or live.place != (order.stretch.number, order.segment))"
    rewrite(patch, segment.advance, "if order.start is not None:", f"if order.start is not None and {known}:")


@killed_by("chunks clusters", f"{UNHEARD}[saved]")
def saved_states_go_on(patch: pytest.MonkeyPatch) -> None:
    """what is saved of an attempt changes as it goes on"""
    rewrite(patch, saved_stretch.saved_attempt, "recorded=host_state.recorded.copy()", "recorded=host_state.recorded")


@killed_by("chunks clusters", f"{UNHEARD}[not saved]")
def all_reports_count(patch: pytest.MonkeyPatch) -> None:
    """rows that were recorded before are recorded again"""
    rewrite(patch, recent.new_rows, "np.maximum(rows.first, recorded[rows.chains])", "rows.first")
