"""Mutants of schedules: which blocks are due, what policies make, where lanes go, what a sweep costs; see `mutants`."""

from __future__ import annotations

import pytest
from mutants import killed_by, rewrite

from batchnuts.autobatch.backends.backend import SweepPlan
from batchnuts.autobatch.scheduling import lane_flow, policies, schedule, sweep_search
from batchnuts.autobatch.scheduling.dispatch import Rule
from batchnuts.autobatch.scheduling.schedule import Schedule

RULES = "runtime/test_schedules.py"
POLICIES = "compiler/test_schedule.py"
SEARCH = "compiler/test_sweep_search.py"
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


@killed_by(
    "scheduling policies", f"{POLICIES}::test_an_expensive_block_keeps_the_gate_that_the_program_gave_it", cheap=True
)
def own_gates_overruled(patch: pytest.MonkeyPatch) -> None:
    """an expensive block loses the gate that the program gave it"""
    rewrite(patch, policies._sweep, "if gate and label not in own", "if gate")


@killed_by(
    "scheduling policies",
    f"{POLICIES}::test_an_expensive_block_that_runs_once_does_not_wait_for_lanes_when_lanes_end_early",
    cheap=True,
)
def ends_keep_their_gates(patch: pytest.MonkeyPatch) -> None:
    """what runs once keeps the gate of a sweep where lanes that halt are waited for"""
    rewrite(patch, policies.ending_early, "replace(s, gate=own.get(s.label, s.gate))", "s")


@killed_by("scheduling policies", f"{POLICIES}::test_how_often_the_end_runs", cheap=True)
def ends_without_gates(patch: pytest.MonkeyPatch) -> None:
    """what runs once runs for each lane by itself where lanes that halt are waited for"""
    rewrite(patch, policies.ending_early, "slot.gate or ENDING", "slot.gate")


@killed_by(
    "scheduling policies", f"{STARVATION}::test_lanes_at_three_expensive_blocks_do_not_wait_for_one_in_a_cheap_loop"
)
def the_usual_patience(patch: pytest.MonkeyPatch) -> None:
    """a sweep with gates has the patience of one without"""
    rewrite(patch, policies._sweep, "GATED_PATIENCE if gate_of else PATIENCE", "PATIENCE")


@killed_by("scheduling policies", "mcmc/test_chunk_plan.py::test_a_cheap_gradient_is_swept_and_a_costly_one_waited_for")
def the_more_expensive_one(patch: pytest.MonkeyPatch) -> None:
    """of sweep and drain, `auto` takes the one that costs more"""
    rewrite(patch, policies._cheaper, "price < drain_price", "price > drain_price")


# ---- where lanes go -------------------------------------------------------------------------------------------------


@killed_by("scheduling lane_flow", f"{SEARCH}::test_a_return_goes_where_calls_come_from", cheap=True)
def returns_go_anywhere(patch: pytest.MonkeyPatch) -> None:
    """a return goes to all places where calls come back alike, however often these are made"""
    rewrite(patch, lane_flow._fill_in_returns, "calls[resume] / total if total else", "")


@killed_by("scheduling lane_flow", f"{SEARCH}::test_a_loop_that_calls_its_own_function_ends_sooner", cheap=True)
def recursion_stays(patch: pytest.MonkeyPatch) -> None:
    """a loop that calls its own function is left as seldom as others"""
    rewrite(patch, lane_flow.estimated_flow, "STAYS_RECURSIVE if recursive.get(block.label) else STAYS", "STAYS")


@killed_by("scheduling lane_flow", f"{SEARCH}::test_a_lane_stays_on_either_branch_that_stays", cheap=True)
def the_first_target_stays(patch: pytest.MonkeyPatch) -> None:
    """of a branch in a loop, the first target counts as the one that stays"""
    rewrite(patch, lane_flow._chance_of, "stays if yes in loop else 1.0 - stays", "stays")


@killed_by("scheduling lane_flow", f"{SEARCH}::test_counts_show_where_lanes_went")
def balanced_one_way(patch: pytest.MonkeyPatch) -> None:
    """counts of a run give where lanes come from, and not where they go"""
    rewrite(patch, lane_flow.counted_flow, "moves *= (visits / moves.sum(0))[None, :]", "pass")


# ---- what a sweep costs ---------------------------------------------------------------------------------------------


@killed_by("scheduling sweep_search", f"{SEARCH}::test_the_price_is_what_lanes_pay")
def empty_slots_cost(patch: pytest.MonkeyPatch) -> None:
    """a slot costs a dispatch whether or not a lane waits there"""
    rewrite(patch, sweep_search.forecast, "costs[b] * -np.expm1(-LANES * leaving * k) / k", "costs[b] / k")


@killed_by(
    "scheduling sweep_search", f"{SEARCH}::test_a_gated_block_gathers_as_many_lanes_as_the_model_says", cheap=True
)
def gates_move_too_few(patch: pytest.MonkeyPatch) -> None:
    """a slot that runs every k-th sweep moves a k-th of those who wait there on average"""
    rewrite(patch, sweep_search._moved, "2.0 / (period + 1.0)", "1.0 / period")


@killed_by("scheduling sweep_search", f"{SEARCH}::test_a_gate_for_nearly_all_lanes_has_no_price", cheap=True)
def crowded_gates(patch: pytest.MonkeyPatch) -> None:
    """a gate may ask for nearly all lanes"""
    rewrite(patch, sweep_search.forecast, "np.where(crowded, np.inf, prices)", "prices")


@killed_by("scheduling sweep_search", f"{SEARCH}::test_draining_pays_where_one_block_costs_nearly_all", cheap=True)
def half_drained(patch: pytest.MonkeyPatch) -> None:
    """control counts as drained when half of the lanes wait at costly blocks"""
    rewrite(patch, sweep_search.drain_price, "shares[cheap].sum() <= DRAINED", "shares[cheap].sum() <= 0.5")


@killed_by(
    "scheduling sweep_search",
    f"{SEARCH}::test_expensive_blocks_wait_for_a_third_of_the_lanes_and_rare_ones_for_as_many_as_come",
    cheap=True,
)
def expensive_relative_to_the_mean(patch: pytest.MonkeyPatch) -> None:
    """a block is expensive beside the mean, not beside the cheapest"""
    rewrite(patch, sweep_search.sweep_gates, "costs.min()", "costs.mean()")


@killed_by("scheduling sweep_search", f"{SEARCH}::test_rounding_does_not_decide_the_schedule")
def rounding_decides(patch: pytest.MonkeyPatch) -> None:
    """of two changes that gain the same, the one that rounding prefers is made"""
    rewrite(patch, sweep_search._first_minimum, "np.argmax(prices <= prices.min() * (1.0 + TIE))", "np.argmin(prices)")
