"""Mutants of warmup: which chains count, what agrees, when it ends; see `mutants`."""

from __future__ import annotations

import pytest
from mutants import killed_by, rewrite

from batchnuts.mcmc.warmup import phase, restarts

WARMUP = "mcmc/test_warmup.py"
SEARCHED = f"{WARMUP}::test_a_step_size_that_was_searched_for_agrees_with_nothing"
ARRIVAL = "mcmc/test_arrival.py"
STUCK = f"{WARMUP}::test_a_stuck_chain_is_left_out_listed_and_started_again_only_where_that_is_allowed"


@killed_by("warmup phase", SEARCHED)
def a_search_follows_once_all_agrees(patch: pytest.MonkeyPatch) -> None:
    """the step size that a search found takes the place of the one that agreed"""
    rewrite(patch, phase._pooled, "if missing:", "if window:")


@killed_by("warmup phase", SEARCHED)
def a_searched_step_size_is_compared(patch: pytest.MonkeyPatch) -> None:
    """what is compared with the window's start is the step size that a search found after it"""
    rewrite(
        patch,
        phase._pooled,
        "missing = place.missing\n",
        "missing = place.missing\n    pooled = _with_search(run, place.states.metric, pooled, window)\n",
    )


@killed_by("warmup phase", SEARCHED)
def no_search(patch: pytest.MonkeyPatch) -> None:
    """after a metric that changed much, the step size of the old one stays"""
    rewrite(patch, phase._with_search, "if large or not window.compared:", "if not window.compared:")


@killed_by("warmup phase", STUCK)
def outliers_count(patch: pytest.MonkeyPatch) -> None:
    """a chain that is far from all others has its part in the pooled step size"""
    rewrite(patch, phase._with_step_sizes, "counts = ~outliers & (moments.count > 0)", "counts = moments.count > 0")


@killed_by("warmup phase", f"{ARRIVAL}::test_a_mode_where_chains_move_is_never_hidden")
def outliers_start_again_unasked(patch: pytest.MonkeyPatch) -> None:
    """chains far from others are moved to them, though nobody asked for that"""
    rewrite(patch, restarts.with_restarts, "_nowhere_for_long(previous, pooled)", "pooled.outliers")


@killed_by("warmup phase", f"{ARRIVAL}::test_chains_where_no_mode_can_be_start_again_by_default_and_it_is_reported")
def chains_stay_where_no_mode_can_be(patch: pytest.MonkeyPatch) -> None:
    """chains that never move, or lie thousands of nats below all others, keep their places"""
    rewrite(patch, restarts.with_restarts, "_nowhere_for_long(previous, pooled)", "restarted")


@killed_by("warmup phase", f"{ARRIVAL}::test_draws_begin_when_chains_have_arrived[20.0-True]")
def draws_begin_while_chains_are_on_their_way(patch: pytest.MonkeyPatch) -> None:
    """the last window is the last one, wherever chains are"""
    rewrite(
        patch,
        phase._until_arrived,
        "(previous.late | previous.restarted | (waited_for & few)).any()",
        "previous.restarted.any()",
    )
