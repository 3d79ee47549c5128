"""Mutants of the virtual machine: masks, stacks, regions, the schedule; see `mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mutants import around, everyone, mutant, replace_everywhere

from batchnuts.autobatch.backends.numpy import NumpyBackend
from batchnuts.autobatch.ir.program import Program
from batchnuts.autobatch.runtime import block_code, lane_storage, regions, stackless
from batchnuts.autobatch.scheduling import policies, schedule


@mutant("masking")
def where_swapped(patch: pytest.MonkeyPatch) -> None:
    """`where` takes the new rows where the mask does not hold"""
    around(patch, NumpyBackend, "where", lambda true, self, mask, new, old: true(self, mask, old, new))


@mutant("masking")
def merge_not_masked(patch: pytest.MonkeyPatch) -> None:
    """a block's values are kept on waiting lanes too"""
    patch.setattr(lane_storage.LaneValues, "for_all_lanes", lambda self, variable: self[variable])


@mutant("masking")
def jump_not_masked(patch: pytest.MonkeyPatch) -> None:
    """a block moves the counters of waiting lanes too"""

    def change(true: Any, self: Any, state: Any, mask: Any, *rest: Any) -> None:
        true(self, state, mask | (state["pc"] < self.halted), *rest)

    around(patch, block_code.MachineBlocks, "_jump", change)


@mutant("masking")
def push_not_masked(patch: pytest.MonkeyPatch) -> None:
    """a push raises the height of waiting lanes' stacks too"""
    around(
        patch,
        lane_storage.LaneStorage,
        "push",
        lambda true, s, state, mask, *rest: true(s, state, everyone(mask), *rest),
    )


@mutant("masking")
def pop_not_masked(patch: pytest.MonkeyPatch) -> None:
    """a pop lowers the height of waiting lanes' stacks too"""
    around(
        patch,
        lane_storage.LaneStorage,
        "pop",
        lambda true, s, state, mask, *rest: true(s, state, everyone(mask), *rest),
    )


@mutant("masking")
def write_not_masked(patch: pytest.MonkeyPatch) -> None:
    """a write changes the buffers of waiting lanes too"""
    around(
        patch,
        lane_storage.LaneStorage,
        "write_row",
        lambda true, s, state, mask, *rest: true(s, state, everyone(mask), *rest),
    )


@mutant("masking")
def calls_not_masked(patch: pytest.MonkeyPatch) -> None:
    """a stackless call's results are kept on waiting lanes too"""
    around(
        patch, stackless._Run, "merge", lambda true, s, values, v, new, lanes: true(s, values, v, new, everyone(lanes))
    )


@mutant("storage")
def stacks_overlap(patch: pytest.MonkeyPatch) -> None:
    """a lane's rows begin where its neighbour's second row is"""
    patch.setattr(
        lane_storage.LaneStorage, "_slots", lambda self, heights: np.arange(self.lanes, dtype="int32") + heights
    )


@mutant("storage")
def overflow_unseen(patch: pytest.MonkeyPatch) -> None:
    """a push onto a full stack is no fault"""
    patch.setattr(lane_storage.LaneStorage, "record_fault", lambda *args: None)


@mutant("regions")
def lost_output(patch: pytest.MonkeyPatch) -> None:
    """a block does not hand on one of the variables that live on"""
    true = regions.plan_block
    replace_everywhere(patch, true, lambda block, live, *rest: true(block, live - set(sorted(live)[-1:]), *rest))


@mutant("regions")
def neighbours_inputs(patch: pytest.MonkeyPatch) -> None:
    """a region computes from the inputs of the next lane"""
    around(patch, NumpyBackend, "rows_to_compute", lambda true, self, mask: (true(self, mask) + 1) % len(mask))


# ---- schedules ------------------------------------------------------------------------------------------------------


@mutant("schedule", costs=True)
def groups_ignored(patch: pytest.MonkeyPatch) -> None:
    """blocks run whether or not a lane waits in an earlier group"""
    patch.setattr(schedule.Schedule, "group_starts", property(lambda self: dict.fromkeys(self.order, 0)))


@mutant("schedule", costs=True)
def latest_first(patch: pytest.MonkeyPatch) -> None:
    """`earliest` serves the latest block first"""

    def change(program: Program, policy: Any = "auto", *more: Any) -> Any:
        made = true(program, policy, *more)
        return replace(made, groups=made.groups[::-1]) if policy == "earliest" else made

    true = policies.make_schedule
    replace_everywhere(patch, true, change)


@mutant("schedule", costs=True)
def costly_ignored(patch: pytest.MonkeyPatch) -> None:
    """`drain` does not wait at costly primitives"""
    replace_everywhere(patch, policies.costly_blocks, lambda program: ())
