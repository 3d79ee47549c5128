"""The windows of warmup, for every length that is likely."""

from __future__ import annotations

from itertools import pairwise

import pytest

from batchnuts.mcmc.warmup import Window, warmup_windows

LENGTHS = range(2001)


@pytest.mark.parametrize("warmup", [*range(0, 2001, 250), 19, 20, 21])
def test_examples_sum_exactly(warmup: int) -> None:
    assert sum(window.transitions for window in warmup_windows(warmup)) == warmup


def test_windows_sum_exactly_and_none_is_empty() -> None:
    for warmup in LENGTHS:
        windows = warmup_windows(warmup)
        assert sum(window.transitions for window in windows) == warmup
        assert all(window.transitions > 0 for window in windows), warmup


def test_short_warmups_adapt_the_step_size_alone() -> None:
    assert warmup_windows(0) == ()
    for warmup in range(1, 20):
        assert warmup_windows(warmup) == (Window(warmup, False),)


def test_longer_ones_estimate_the_metric_between_two_windows_that_do_not() -> None:
    for warmup in range(20, 2001):
        first, *middle, last = warmup_windows(warmup)
        assert not first.estimates_metric
        assert not last.estimates_metric
        assert middle
        assert all(window.estimates_metric for window in middle)
        assert 0.12 * warmup <= first.transitions <= 0.18 * warmup
        assert 0.07 * warmup <= last.transitions <= 0.13 * warmup


def test_metric_windows_grow() -> None:
    """Each is at least twice the one before, so that the last estimate has the most draws; it is never a short rest."""
    for warmup in range(20, 2001):
        lengths = [window.transitions for window in warmup_windows(warmup) if window.estimates_metric]
        assert all(after >= 2 * before for before, after in pairwise(lengths)), warmup
        assert lengths[0] >= 5
        assert lengths[-1] >= sum(lengths) / 2
