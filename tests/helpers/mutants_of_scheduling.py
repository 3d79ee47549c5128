"""Mutants of schedules: which blocks are due, what policies make; see `mutants`."""

from __future__ import annotations

import pytest
from mutants import killed_by, rewrite

from batchnuts.autobatch.backends.backend import SweepPlan
from batchnuts.autobatch.scheduling import policies, schedule
from batchnuts.autobatch.scheduling.dispatch import Rule
from batchnuts.autobatch.scheduling.schedule import Schedule

RULES = "runtime/test_schedules.py"
POLICIES = "compiler/test_schedule.py"
STARVATION = "runtime/test_starvation.py"

# ---- which blocks are due -------------------------------------------------------------------------------------------


@killed_by("scheduling dispatch", f"{RULES}::test_which_gates_are_open", cheap=True)
def halted_lanes_count(patch: pytest.MonkeyPatch) -> None:
    """a gate asks for a share of all lanes, not of those that are live"""
    rewrite(patch, Rule.open, "self.lanes - waiting[-1]", "self.lanes")


@killed_by("scheduling dispatch", f"{RULES}::test_which_gates_are_open", cheap=True)
def more_than_the_share(patch: pytest.MonkeyPatch) -> None:
    """a gate opens for more than its share of the lanes only"""
    rewrite(patch, Rule.open, "denominators >= live", "denominators > live")


@killed_by("scheduling dispatch", f"{RULES}::test_all_live_lanes_at_closed_gates_opens_them", cheap=True)
def closed_gates_stay_closed(patch: pytest.MonkeyPatch) -> None:
    """where all live lanes wait at closed gates, these stay closed"""
    rewrite(patch, Rule.open, "(enough | (reductions.count(some & enough) == 0))", "enough")


@killed_by("scheduling dispatch", f"{RULES}::test_earlier_groups_come_first", cheap=True)
def closed_gates_come_first(patch: pytest.MonkeyPatch) -> None:
    """lanes at a closed gate of an earlier group keep later groups waiting"""
    rewrite(patch, Rule.is_due, "count(is_open[:group_start])", "count((waiting[:-1] > 0)[:group_start])")


@killed_by("scheduling dispatch", f"{RULES}::test_the_most_active_block", cheap=True)
def lanes_before_groups(patch: pytest.MonkeyPatch) -> None:
    """the most active block is chosen by its lanes first, and then by its group"""
    rewrite(patch, Rule.most_active, "self.ranks * (self.lanes + 1)", "self.ranks")


@killed_by("scheduling patience", f"{STARVATION}::test_every_live_lane_takes_a_step_within_patience")
def patience_from_the_second_time_on(patch: pytest.MonkeyPatch) -> None:
    """the first sweep for all lanes is the one after twice the patience"""
    rewrite(patch, SweepPlan.is_for_all, "sweeps % self.patience", "sweeps % (2 * self.patience)")


# ---- schedules as data ----------------------------------------------------------------------------------------------


@killed_by("scheduling schedule", f"{POLICIES}::test_gates_are_the_fractions_that_were_meant", cheap=True)
def gates_as_floats_are(patch: pytest.MonkeyPatch) -> None:
    """a gate of 0.07 is the binary fraction next to it: seven of a hundred lanes are too few"""
    rewrite(patch, schedule._exact, ".limit_denominator(1_000_000)", "")


@killed_by("scheduling schedule", f"{POLICIES}::test_group_starts_count_each_block_once", cheap=True)
def starts_count_slots(patch: pytest.MonkeyPatch) -> None:
    """a block that stands twice shifts where later groups begin"""
    rewrite(patch, Schedule.group_starts.fget, "enumerate(self.order)", "enumerate(s.label for s in self.slots)")


# ---- policies -------------------------------------------------------------------------------------------------------


@killed_by("scheduling policies", f"{RULES}::test_a_schedule_of_ones_own_may_set_and_lift_gates")
def gates_cannot_be_lifted(patch: pytest.MonkeyPatch) -> None:
    """a slot's gate of zero does not lift the program's"""
    rewrite(patch, policies._fitted, "if s.gate is None", "if not s.gate")


# not cheap: functions of that test keep the machines that they were compiled to
@killed_by("scheduling policies", f"{RULES}::test_a_full_gate_runs_once_for_all_lanes_that_are_live")
def own_gates_overruled(patch: pytest.MonkeyPatch) -> None:
    """blocks that compute have gates of the schedule beside those of the program"""
    rewrite(patch, policies._sweep, "frozenset() if own else on_cycles(program.graph)", "on_cycles(program.graph)")


@killed_by(
    "scheduling policies", f"{POLICIES}::test_lanes_that_have_come_to_their_end_need_not_wait_for_all", cheap=True
)
def ends_have_gates(patch: pytest.MonkeyPatch) -> None:
    """what runs once waits for a third of the lanes in a sweep"""
    rewrite(patch, policies._sweep, "on_cycles(program.graph)", "frozenset(program.graph.labels)")


@killed_by("scheduling policies", f"{POLICIES}::test_a_sweep_follows_lanes_through_calls_and_returns", cheap=True)
def order_of_the_program(patch: pytest.MonkeyPatch) -> None:
    """a sweep serves blocks in the order in which they are written"""
    rewrite(patch, policies._sweep, "depth_first(program.graph)", "program.graph.labels")


@killed_by("scheduling policies", f"{POLICIES}::test_how_often_the_end_runs", cheap=True)
def ends_without_gates(patch: pytest.MonkeyPatch) -> None:
    """what runs once runs for each lane by itself where lanes that halt are waited for"""
    rewrite(patch, policies.ending_early, "slot.gate or ENDING", "slot.gate")


@killed_by("scheduling policies", f"{STARVATION}::test_lanes_at_three_gates_do_not_wait_for_many_in_a_loop")
def the_usual_patience(patch: pytest.MonkeyPatch) -> None:
    """a sweep, which has gates, has the patience of schedules without"""
    rewrite(patch, policies._sweep, "PATIENCE if own else GATED_PATIENCE", "PATIENCE")


@killed_by("scheduling policies", f"{POLICIES}::test_what_costs_much_or_an_unknown_amount_is_waited_for", cheap=True)
def cheap_ones_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    """of sweep and drain, `auto` takes the one that suits the other kind of gradient"""
    rewrite(patch, policies.make_schedule, "known > COSTLY_WORK", "known < COSTLY_WORK")
