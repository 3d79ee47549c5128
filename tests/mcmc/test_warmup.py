"""Warmup: its windows, the moments of a window, outliers, pooling, when it is done; and whole runs of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from chain_runs import inputs, make_program
from mcmc_models import gaussian

from batchnuts.autobatch import BatchnutsError
from batchnuts.mcmc.execution.chain_states import ChainStates
from batchnuts.mcmc.execution.chunk_runner import make_runner
from batchnuts.mcmc.execution.metric_draws import DrawsWithGradients
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.run import Run
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, split_settings
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.statistics.outliers import find_outliers
from batchnuts.mcmc.statistics.window_moments import Moments, moments_of
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.warmup import phase
from batchnuts.mcmc.warmup.agreement import (
    MEMORY,
    STANDARD_ERRORS,
    Agreement,
    change_of_metric,
    change_of_step,
    drift,
    memory,
)
from batchnuts.mcmc.warmup.pooling import groups_of, need_their_own, pooled_metric, pooled_step_sizes
from batchnuts.mcmc.warmup.windows import Window, automatic_windows, fixed_windows, settling_window

LENGTHS = range(2001)


@pytest.mark.parametrize("warmup", [*range(0, 2001, 250), 19, 20, 21])
def test_examples_sum_exactly(warmup: int) -> None:
    assert sum(window.transitions for window in fixed_windows(warmup)) == warmup


def test_windows_sum_exactly_and_none_is_empty() -> None:
    for warmup in LENGTHS:
        windows = fixed_windows(warmup)
        assert sum(window.transitions for window in windows) == warmup
        assert all(window.transitions > 0 for window in windows), warmup


def test_short_warmups_adapt_the_step_size_alone() -> None:
    assert fixed_windows(0) == ()
    for warmup in range(1, 20):
        assert fixed_windows(warmup) == (Window(warmup, False),)


def test_longer_ones_estimate_the_metric_between_two_windows_that_do_not() -> None:
    for warmup in range(20, 2001):
        first, *middle, last = fixed_windows(warmup)
        assert not first.estimates_metric
        assert not last.estimates_metric
        assert middle
        assert all(window.estimates_metric for window in middle)
        assert 0.12 * warmup <= first.transitions <= 0.18 * warmup
        assert 0.07 * warmup <= last.transitions <= 0.13 * warmup


def test_metric_windows_grow() -> None:
    """Each is at least twice the one before, so that the last estimate has the most draws; it is never a short rest."""
    for warmup in range(20, 2001):
        lengths = [window.transitions for window in fixed_windows(warmup) if window.estimates_metric]
        assert all(after >= 2 * before for before, after in pairwise(lengths)), warmup
        assert lengths[0] >= 5
        assert lengths[-1] >= sum(lengths) / 2


@pytest.mark.parametrize("chains", [1, 4, 30, 256, 10_000])
def test_automatic_windows_grow_to_the_maximum(chains: int) -> None:
    for maximum in (30, 200, 1000, 5000):
        windows, last = automatic_windows(chains, maximum), settling_window(chains)
        lengths = [window.transitions for window in windows]
        if maximum > last.transitions:
            assert sum(lengths) + last.transitions == maximum
            assert all(after >= 1.3 * before for before, after in pairwise(lengths))
            assert lengths[0] * chains >= min(100, sum(lengths) * chains)
        else:
            assert not windows
        assert all(window.estimates_metric and 0 < window.leave < 1 for window in windows)
        assert last.leave == 0
        assert not last.estimates_metric


# ---- moments -----------------------------------------------------------------------------------------------------


def test_moments_are_those_of_what_each_chain_has_drawn() -> None:
    rng = np.random.default_rng(0)
    position = (1e4 + rng.normal(size=(5, 9, 70))).astype("float32")
    log_density = rng.normal(size=(5, 9))
    done = np.array([9, 4, 1, 0, 7])
    position[1, 4:] = np.nan
    for second_half in (False, True):
        found = moments_of(position, log_density, done, second_half=second_half)
        for chain, n in enumerate(done):
            first = n // 2 if second_half else 0
            assert found.count[chain] == n - first
            if n:
                both = np.column_stack([log_density[chain], position[chain].astype(float)])[first:n]
                np.testing.assert_allclose(found.mean[chain], both.mean(axis=0), rtol=1e-12)
                np.testing.assert_allclose(found.variance[chain], both.var(axis=0), rtol=1e-9, atol=1e-12)


def of_draws(position: np.ndarray, *, errors: bool = False) -> Moments:
    """Of draws [chains, draws, dimension], with a log-density that varies as a normal density's."""
    log_density = -0.5 * (position**2).sum(axis=2)
    done = np.full(len(position), position.shape[1])
    return moments_of(position, log_density, done, second_half=False, errors=errors)


def test_pooled_moments_are_those_of_all_draws_together() -> None:
    rng = np.random.default_rng(0)
    position = rng.normal(size=(6, 8, 3)) * [1.0, 10.0, 0.1] + rng.normal(size=(6, 1, 3))
    flat = position.reshape(48, 3)
    found = of_draws(position)
    np.testing.assert_allclose(found.pooled_mean[1:], flat.mean(axis=0))
    np.testing.assert_allclose(found.pooled_variance[1:], flat.var(axis=0))


def test_joined_moments_are_those_of_both_windows() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(6, draws, 3)) + rng.normal(size=(6, 1, 3)) for draws in (8, 24))
    joined, both = of_draws(first).joined(of_draws(second)), of_draws(np.concatenate([first, second], axis=1))
    np.testing.assert_allclose(joined.mean, both.mean)
    np.testing.assert_allclose(joined.variance, both.variance)
    assert (joined.count == 32).all()
    independent = of_draws(rng.normal(size=(2000, 8, 1)), errors=True)
    joined = independent.joined(of_draws(rng.normal(size=(2000, 24, 1)), errors=True))
    np.testing.assert_allclose(joined.squared_error.mean(axis=0)[1], 1 / 32, rtol=0.1)

    again = of_draws(first).without(np.arange(6) == 2).joined(of_draws(second))
    np.testing.assert_allclose(again.mean[2], of_draws(second).mean[2])
    np.testing.assert_allclose(again.variance[2], of_draws(second).variance[2])
    np.testing.assert_allclose(np.delete(again.mean, 2, axis=0), np.delete(both.mean, 2, axis=0))


# ---- outliers ----------------------------------------------------------------------------------------------------


def outliers(position: np.ndarray) -> list[int]:
    return [int(chain) for chain in np.flatnonzero(find_outliers(of_draws(position)))]


def test_chains_that_are_far_and_stay_there_are_outliers() -> None:
    rng = np.random.default_rng(0)
    position = rng.normal(size=(64, 10, 4))
    assert outliers(position) == []
    stuck = position.copy()
    stuck[7] += 1000.0
    stuck[9, :, 2] = -40.0
    assert outliers(stuck) == [7, 9]
    unbounded = position.copy()
    unbounded[3] = np.nan
    assert outliers(unbounded) == [3]


def test_heavy_tails_many_far_chains_and_few_chains_are_none() -> None:
    rng = np.random.default_rng(0)
    tails = rng.standard_cauchy(size=(256, 20, 3))
    assert outliers(tails) == []
    halves = rng.normal(size=(64, 10, 4))
    halves[:30] += 1000.0
    assert outliers(halves) == []
    few = rng.normal(size=(4, 10, 4))
    few[0] += 1000.0
    assert outliers(few) == []


# ---- pooling -----------------------------------------------------------------------------------------------------

EVERY = np.ones(31, bool)


def test_a_stuck_chain_does_not_move_the_pooled_step_size() -> None:
    rng = np.random.default_rng(0)
    log_steps = np.log(0.25) + 0.05 * rng.normal(size=31)
    together = groups_of("all", superchain_of(31, 4))
    calm = pooled_step_sizes(log_steps, together, EVERY)
    np.testing.assert_allclose(calm, 0.25, rtol=0.05)
    assert len(np.unique(calm)) == 1
    for stuck in (-80.0, 80.0, np.inf, np.nan):
        disturbed = log_steps.copy()
        disturbed[3] = stuck
        np.testing.assert_allclose(pooled_step_sizes(disturbed, together, EVERY), calm, rtol=0.02)


@pytest.mark.parametrize(
    ("step", "diverged", "before", "expected"),
    [
        ([0.1, 1.0, 1.0, 1.0, 0.1], [0.3, 0.3, 0.0, 0.0, 0.0], None, [True, False, False, False, False]),
        ([0.1, 1.0, 1.0, 0.1], [0.0, 0.0, 0.0, 0.0], [False, True, False, True], [False, False, False, True]),
        ([0.1, 1.0, 1.0, 0.1], [0.3, 0.3, 0.3, 0.3], None, [False] * 4),  # the pooled step size suits none
        ([np.nan, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], None, [False] * 4),
    ],
)
def test_chains_that_need_step_sizes_of_their_own(
    step: list[float], diverged: list[float], before: list[bool] | None, expected: list[bool]
) -> None:
    earlier = None if before is None else np.array(before)
    found = need_their_own(np.log(step), np.ones(len(step)), np.array(diverged), earlier)
    assert found.tolist() == expected


def test_groups_pool_among_themselves() -> None:
    superchain = superchain_of(6, 2)
    np.testing.assert_array_equal(superchain, [0, 1, 0, 1, 0, 1])
    log_steps = np.log(np.array([1.0, 10.0, 2.0, 20.0, 3.0, 30.0]))
    counts = np.array([True, True, True, True, True, False])
    pool = {
        name: pooled_step_sizes(log_steps, groups_of(name, superchain), counts) for name in ("all", "groups", "none")
    }
    np.testing.assert_allclose(pool["all"], 3.0)
    np.testing.assert_allclose(pool["groups"], [2, np.sqrt(200), 2, np.sqrt(200), 2, np.sqrt(200)])
    np.testing.assert_allclose(pool["none"][:5], np.exp(log_steps)[:5])
    assert pool["none"][5] == pytest.approx(3.0), "one that does not count takes the median of those that do"


def test_no_finite_step_size_at_all_is_an_error() -> None:
    with pytest.raises(BatchnutsError, match="No chain has a finite step size"):
        pooled_step_sizes(np.full(31, -np.inf), np.zeros(31, int), EVERY)


def test_pooled_metrics_are_those_of_a_groups_chains_that_count() -> None:
    """Of Gaussians, of which three draws show the scales; each chain is of another one."""
    scales = np.array([1.0, 1.0, 100.0, 4.0, 4.0, 4.0])
    position = np.random.default_rng(0).normal(size=(6, 7, 3)) * scales[:, None, None]
    gradient = -position / scales[:, None, None] ** 2
    drawn = DrawsWithGradients(position, gradient, np.ones((6, 7), bool), 0, 0)
    counts = np.arange(6) != 2
    pair = pooled_metric("diag", 1, drawn, np.array([0, 0, 0, 1, 1, 1]), counts)
    np.testing.assert_allclose(pair.inverse_mass, np.tile(np.where(np.arange(6) < 3, 1, 16)[:, None], 3))
    np.testing.assert_allclose(pair.scales(), [pair.inverse_mass] * 2)
    every = pooled_metric("diag", 1, drawn, np.arange(6), counts).inverse_mass
    np.testing.assert_allclose(every[[0, 3]], [[1] * 3, [16] * 3])
    one = pooled_metric("dense", 1, drawn, np.zeros(6, int), np.arange(6) < 2)
    assert one.kind == "dense"
    np.testing.assert_allclose(one.covariance(), np.eye(3), atol=1e-9)


# ---- agreement ---------------------------------------------------------------------------------------------------


def test_memory_is_nested_rhat_less_what_chance_gives() -> None:
    """By the definition, written with loops: Margossian et al. 2024, equations (4) to (6)."""
    rng = np.random.default_rng(0)
    position = rng.normal(size=(12, 5, 1))
    superchain = superchain_of(12, 3)
    means = [position[superchain == k].mean() for k in range(3)]
    of_chains = [[chain.mean() for chain in position[superchain == k]] for k in range(3)]
    among = np.mean([np.var(chains, ddof=1) for chains in of_chains])
    within = np.mean([chain.var() for chain in position])
    expected = max(np.var(means, ddof=1) - among / 4, 0.0) / (among + within)
    moments = of_draws(position)
    only = Moments(moments.mean[:, 1:], moments.variance[:, 1:], moments.count, moments.squared_error[:, 1:])
    assert memory(only, superchain) == pytest.approx(expected)


def test_superchains_that_remember_their_start_are_told_from_those_that_have_forgotten() -> None:
    rng = np.random.default_rng(0)
    superchain = superchain_of(256, 16)
    position = rng.normal(size=(256, 10, 30))
    assert memory(of_draws(position), superchain) < 0.01
    starts = rng.normal(size=(16, 30))[superchain]
    assert memory(of_draws(position + 0.5 * starts[:, None]), superchain) > 0.1
    assert memory(of_draws(position[:1]), superchain[:1]) == math.inf
    few = of_draws(rng.normal(size=(64, 8, 30)))
    assert memory(few, superchain[:64]) > MEMORY > memory(few, superchain[:64], STANDARD_ERRORS)
    assert memory(of_draws(position + 0.5 * starts[:, None]), superchain, STANDARD_ERRORS) > 0.1


def autoregressive(rng: np.random.Generator, shape: tuple[int, int, int], correlation: float) -> np.ndarray:
    """Of unit variance, [chains, draws, columns]."""
    draws = rng.normal(size=shape)
    for i in range(1, shape[1]):
        draws[:, i] = correlation * draws[:, i - 1] + np.sqrt(1 - correlation**2) * draws[:, i]
    return draws


def test_the_error_of_a_mean_takes_autocorrelation_into_account() -> None:
    """Batches of 100 draws with a correlation of 0.5: a draw is worth a third of one, within 3 standard errors."""
    draws = autoregressive(np.random.default_rng(0), (200, 400, 5), 0.5)
    found = moments_of(draws, draws[:, :, 0], np.full(200, 400), second_half=False, errors=True).squared_error
    assert found.mean(axis=0) == pytest.approx(3 / 400, abs=3 * 3 / 400 * np.sqrt(2 / (3 * 200)))
    skipped = moments_of(draws[:, :14], draws[:, :14, 0], np.full(200, 14), second_half=True, errors=True)
    assert not skipped.squared_error.any(), "seven draws are no four batches of two"


@pytest.mark.parametrize("chains", [4, 8, 16])
def test_few_chains_may_differ_as_far_as_their_own_draws_let_expect(chains: int) -> None:
    """Each chain is a superchain of its own: nine in ten windows of thirty columns are enough, and starts that are half
    a standard deviation apart are seen."""
    rng, superchain = np.random.default_rng(1), np.arange(chains)
    enough, seen = 0, 0
    for _ in range(50):
        draws = autoregressive(rng, (chains, 60, 30), 0.5)
        enough += memory(of_draws(draws, errors=True), superchain) <= MEMORY
        starts = 0.5 * rng.normal(size=(chains, 1, 30))
        seen += memory(of_draws(draws + starts, errors=True), superchain) > MEMORY
    assert enough >= 45
    assert seen >= 48


def moved(before: Moments, now: Moments) -> float:
    return drift(before.centre, now.centre, now.pooled_variance)


def test_drift_is_in_standard_deviations_and_forgives_chance() -> None:
    rng = np.random.default_rng(0)
    one, other = (of_draws(3.0 * rng.normal(size=(64, 10, 20))) for _ in range(2))
    assert moved(one, other) == 0
    assert 0.8 < moved(one, of_draws(3.0 * rng.normal(size=(64, 10, 20)) + 3.0)) < 2.0


def test_changes_are_relative() -> None:
    assert change_of_step(np.array([1.0, 2.0, 4.0]), np.array([1.1, 2.2, 9.0])) == pytest.approx(np.log(1.1))
    assert change_of_metric(np.ones((2, 3)), np.full((2, 3), 4.0)) == pytest.approx(np.log(2))


def test_what_is_missing_is_said() -> None:
    assert Agreement(0.1, 0.05, 0.0, 0.01, single=False).reached
    assert Agreement(0.1, 0.05, 0.0, 0.01, single=True).reached
    assert Agreement(0.1, 0.05, 0.0, 0.05, single=True).missing() == (
        "the chains still differ, by 0.22 standard deviations",
    )
    bad = Agreement(np.log(2), np.log(3), 0.5, 0.25, single=False)
    assert not bad.reached
    assert bad.missing() == (
        "the step size still changes by 100%",
        "the metric's scales still change by 200%",
        "the mean of all chains still moves, by 0.5 standard deviations",
        "groups of chains with the same start still differ, by 0.5 standard deviations",
    )
    assert len(Agreement(math.nan, math.nan, math.nan, math.nan, single=True).missing()) == 4


# ---- a window that leaves slow chains behind -----------------------------------------------------------------------


def test_a_stretch_may_leave_the_slowest_chains_behind() -> None:
    """What the others draw is the same, what the slow have drawn too; which they are depends on the chunks alone."""
    program = make_program()
    settings = ExecutionSettings(backend="numpy", chunk_lanes=2)
    runner = make_runner(program, inputs(0), settings, 8)
    *_, (_, whole) = runner.run(inputs(6), 6)
    found = [list(runner.run(inputs(6), 6, leave=0.5))[-1][1] for _ in range(2)]
    assert whole is not None
    for result in found:
        assert result is not None
        done = np.asarray(result.done)
        assert 0 < (done < 6).sum() <= 5 * 0.5
        np.testing.assert_array_equal(done, found[0].done)
        for chain, n in enumerate(done):
            for name, array in result.records._asdict().items():
                if name != "last_position":  # it is recorded only where asked for
                    np.testing.assert_array_equal(array[chain, :n], getattr(whole.records, name)[chain, :n])


def test_the_adaptation_of_chains_left_behind_is_that_of_their_last_transition() -> None:
    adapting = inputs(6)._replace(adapting=np.ones(5, bool))
    runner = make_runner(make_program(), inputs(0), ExecutionSettings(backend="numpy"), 8)
    *_, (_, result) = runner.run(adapting, 6, leave=0.5)
    assert result is not None
    for chain, n in enumerate(result.done):
        only = adapting._replace(until=np.where(np.arange(5) == chain, n, 0))
        *_, (_, again) = runner.run(only, 6)
        for name, value in result.adaptation._asdict().items():
            assert value[chain] == getattr(again.adaptation, name)[chain], name


# ---- whole runs --------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "chains": 16, "superchains": 4, "draws": 5, "seed": 3, "backend": "numpy", "max_tree_depth": 4
}  # fmt: skip


def run(model: Model, **settings: Any) -> Draws:
    return run_chains(model, *split_settings(SMALL | settings))


@pytest.mark.slow
def test_an_automatic_warmup_ends_by_itself_and_is_reproducible() -> None:
    model = gaussian(2, covariance="diagonal", condition_number=9.0)
    one, other = (run(model, backend="auto", chains=64, superchains=None) for _ in range(2))
    assert one.warmup == other.warmup
    np.testing.assert_array_equal(one.position, other.position)
    assert one.warmup.agreed
    assert 15 <= one.warmup.transitions < 100
    assert 25 <= one.warmup.burn_in < 200
    np.testing.assert_allclose(one.metric.inverse_mass, [1.0, 9.0], rtol=1e-4)
    assert one.done.min() == 5


ROUND = gaussian(2)
"""One object, whose program is compiled once."""


@pytest.mark.parametrize("always", [0.02, None], ids=["another", "the same"])
def test_a_step_size_that_was_searched_for_agrees_with_nothing(
    monkeypatch: pytest.MonkeyPatch, always: float | None
) -> None:
    """Where each window changes the metric much, each begins with the same step size, and none comes to it. Where the
    search finds the one that was there, windows agree, and no search follows."""
    searches: list[int] = []

    def found(self: Run, states: ChainStates) -> ChainStates:
        searches.append(states.transitions_done)
        return states if always is None else replace(states, step_size=np.full_like(states.step_size, always))

    monkeypatch.setattr(Run, "with_searched_step_size", found)
    monkeypatch.setattr(phase, "LARGE_CHANGE", 1.0)
    size: dict[str, Any] = {"chains": 64, "superchains": None, "backend": "auto", "start": "windows"}
    draws = run(ROUND, warmup={"maximum": 40 if always else 200}, draws=1, **size)
    windows = [window.transitions for window in draws.warmup.windows]
    assert draws.warmup.agreed is (always is None)
    if always:
        assert "the step size still changes by" in draws.warmup.reason
    assert len(windows) > 2
    followed = windows[:-1] if always else windows[:-2]  # after the one that agreed, the last has the step size alone
    assert searches == [0, *followed], "at the start and after each window whose metric does not agree"


def test_it_ends_at_its_maximum_and_says_what_is_missing() -> None:
    draws = run(gaussian(2, covariance="diagonal"), warmup={"maximum": 20}, chains=10, draws=1, max_tree_depth=1)
    assert draws.warmup.transitions == 20
    assert draws.warmup.agreed is False
    assert draws.warmup.reason == "at its maximum of 20 transitions; there was one window only"


@pytest.mark.parametrize("pool", ["all", "none"])
@pytest.mark.parametrize("warmup", [{"maximum": 50}, {"transitions": 50}])
def test_what_each_window_came_to_is_known(pool: str, warmup: dict[str, int]) -> None:
    settings: dict[str, Any] = {"start": "windows", "draws": 1, "max_tree_depth": 2}
    draws = run(gaussian(2, covariance="diagonal"), warmup={**warmup, "pool": pool}, **settings)
    *_, before, last = draws.warmup.windows
    assert np.all(np.diff([window.transitions for window in draws.warmup.windows]) > 0)
    assert last.transitions == draws.warmup.transitions == 50
    assert draws.step_size is not None
    np.testing.assert_array_equal(last.step_size, np.quantile(draws.step_size, (0.0, 0.5, 1.0)))
    assert (last.step_size[0] < last.step_size[2]) == (pool == "none")
    variance = draws.metric.inverse_mass.reshape(-1, 2)
    np.testing.assert_allclose(last.variance, np.exp(np.log(variance).mean(axis=0)))
    assert before.step_size[1] != last.step_size[1]


@pytest.mark.slow
def test_a_stuck_chain_is_left_out_listed_and_started_again_only_where_that_is_allowed() -> None:
    """On a ledge far away, which it cannot leave: the others are as fast as without it."""

    def density(x: Any) -> Any:
        from batchnuts.autobatch import ops

        return ops.where(x[0] > 500.0, -5e5 - 1e6 * ops.sum((x - 1000.0) ** 2), -0.5 * ops.sum(x * x))

    def starts(rng: np.random.Generator, chains: int) -> np.ndarray:
        position = rng.normal(size=(chains, 10))
        position[5] = 1000.0
        return position

    model = Model.from_function(density, dimension=10, dtype="float64", initializer=starts)
    settings: dict[str, Any] = {"chains": 64, "superchains": 64, "draws": 20, "backend": "auto", "max_tree_depth": 8}
    stuck = run(model, **settings, warmup={"restart": False})
    calm = run(Model.from_function(density, dimension=10, dtype="float64"), **settings)
    assert stuck.warmup.outliers == (5,)
    others = np.arange(64) != 5
    ratio = stuck.stats["n_steps"][others].mean() / calm.stats["n_steps"].mean()
    assert ratio < 1.1
    again = run(model, **settings)
    assert again.warmup.restarted == (5,)
    assert again.warmup.outliers == ()
    assert np.abs(again.position[5]).max() < 10
