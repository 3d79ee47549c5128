"""An ensemble start: how its step size and metric follow all chains, when it ends, which chains are redrawn, and whole
runs that begin with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mcmc_models import gaussian

from batchnuts.autobatch import ops
from batchnuts.mcmc.kernel.isokinetic import IsokineticSteps
from batchnuts.mcmc.kernel.metric_estimates import unit_metric
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.mcmc.warmup import ensemble
from batchnuts.mcmc.warmup.ensemble import CHANGE, GOAL, Ensemble, controlled, departure
from batchnuts.mcmc.warmup.pooling import corrected_step_size

CHAINS, DIMENSION = 64, 4
SCALES = np.geomspace(1e-3, 1e3, 6)


def drawn(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(CHAINS, DIMENSION))


def ensemble_of(position: np.ndarray, step: float = 0.5) -> Ensemble:
    """Of a standard normal density."""
    metric = unit_metric(position.shape[1], "diag")
    return Ensemble(position, position, -0.5 * np.sum(position**2, axis=1), -position, metric, step)


def stepped(position: np.ndarray, error: np.ndarray, count: int = 3, made: int = 3) -> IsokineticSteps:
    """Of chains that each had this error in every step."""
    squares, steps = count * error**2, np.full(CHAINS, made)
    return IsokineticSteps(position, position, position[:, 0], -position, count * error, squares, steps)


@pytest.mark.parametrize(
    ("excess", "factor"), [(1.0, 1.0), (64.0, 0.5), (1 / 64, 2.0), (1e9, CHANGE[0]), (0, CHANGE[1])]
)
def test_the_step_size_follows_the_variance_of_the_energy_error(excess: float, factor: float) -> None:
    """Towards GOAL for each dimension, less where equipartition is nearly reached; by the sixth root."""
    position = drawn()
    wanted = GOAL * departure(position, -position) ** (3 / 8) * DIMENSION
    signs = np.where(np.arange(CHAINS) % 2, 1.0, -1.0)
    after = controlled(ensemble_of(position), stepped(position, signs * np.sqrt(excess * wanted)), 3)
    np.testing.assert_allclose(after.step, 0.5 * factor, rtol=1e-6)
    assert after.done == 3


def test_a_common_energy_error_is_no_reason_for_a_shorter_step() -> None:
    """It is how far all chains are from the typical set, not how wrong a step is."""
    position = drawn()
    assert controlled(ensemble_of(position), stepped(position, np.full(CHAINS, 50.0)), 3).step == 0.5 * CHANGE[1]


def test_the_step_size_is_halved_where_many_steps_diverge() -> None:
    position = drawn()
    assert controlled(ensemble_of(position), stepped(position, np.zeros(CHAINS), made=2), 3).step == 0.25


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_scales_are_between_chains_and_posterior_and_correlations_stay(spread: float) -> None:
    """Of a normal posterior, over a tenth of which chains have spread, or all of it, or that are too far."""
    scales = np.array([1.0, 10.0, 0.1, 1.0])
    position = spread * drawn() * scales + 5.0
    result = stepped(position, np.zeros(CHAINS))._replace(gradient=-position / scales**2)
    expected = scales * position.std(axis=0)
    after = controlled(ensemble_of(position), result, 3)
    np.testing.assert_allclose(after.metric.scales()[0], expected, rtol=1e-6)
    vectors = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 2)))[0]
    metric = replace(unit_metric(4, "low_rank"), eigenvectors=vectors, eigenvalues=np.array([30.0, 0.2]))
    after = controlled(replace(ensemble_of(position), metric=metric), result, 3)
    np.testing.assert_allclose(after.metric.scales()[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(after.metric.eigenvalues, metric.eigenvalues)


def test_departure_from_equipartition() -> None:
    """None for draws, whatever their scales and their mean; much where chains are too near or too far."""
    position = np.random.default_rng(0).normal(size=(4000, 6)) * SCALES + 5.0
    force = -(position - 5.0) / SCALES**2
    assert departure(position, force) < 0.01
    assert departure(5.0 + 3 * (position - 5.0), 3 * force) > 30
    assert departure(5.0 + (position - 5.0) / 3, force / 3) > 0.5
    assert departure(position, np.full_like(force, np.inf)) == np.inf


# ---- runs -----------------------------------------------------------------------------------------------------------

SCALED = Model.from_function(
    lambda x: -0.5 * ops.sum((x - 5.0) * (x - 5.0) / SCALES**2), dimension=6, dtype="float64", name="scaled"
)
"""Starts are 5,000 standard deviations away in its narrowest coordinate, and much too near in its widest."""


def run(model: Model, **settings: Any) -> Draws:
    return run_chains(model, *split_settings({"chains": 64, "draws": 20, "seed": 1, "start": "ensemble", **settings}))


def gradients(draws: Draws) -> float:
    """Of warmup, for each chain."""
    columns = draws.history.columns
    return float(columns["useful_gradients"][columns["phase"] == "warmup"][-1]) / len(draws.done)


def largest_z(draws: Draws, mean: np.ndarray, scales: np.ndarray) -> float:
    """Of the means of all draws, which are worth at least one for each chain."""
    found = draws.position.mean(axis=(0, 1))
    return float(np.abs((found - mean) / (scales / np.sqrt(len(draws.done)))).max())


@pytest.mark.parametrize("metric", ["diag", "low_rank", "dense", "unit"])
def test_scales_over_six_decades_are_found(metric: str) -> None:
    """From starts 5,000 standard deviations away, with not many more gradients than by windows, which are right at
    once about a normal posterior; the identity, which is not adapted, has nothing to find."""
    if metric == "unit":
        draws = run(gaussian(3, covariance="diagonal"), metric=metric)
    else:
        draws = run(SCALED, metric=metric)
        np.testing.assert_allclose(draws.metric.scales()[0], SCALES**2, rtol=0.5)
        assert largest_z(draws, np.full(6, 5.0), SCALES) < 4.0
        assert gradients(draws) < 2 * gradients(run(SCALED, metric=metric, start="windows"))
    assert draws.warmup.agreed
    assert 20 < draws.warmup.burn_in < 500
    assert "the ensemble had not settled" not in draws.warmup.reason


@pytest.mark.parametrize("chains", [16, 30, 64])
def test_draws_are_right_with_few_chains_and_with_superchains(chains: int) -> None:
    model = gaussian(5, covariance="ar1", correlation=0.8)
    draws = run(model, chains=chains, draws=200, backend="native")
    assert draws.warmup.agreed
    z = draws.position.mean(axis=(0, 1)) / np.sqrt(1.0 / (chains * 200 / 5))
    assert np.abs(z).max() < 4.0
    correlation = np.corrcoef(draws.position.reshape(-1, 5)[:, :2].T)[0, 1]
    assert abs(correlation - 0.8) < 0.05


@pytest.mark.parametrize("chains", [64, 256])
def test_it_takes_fewer_gradients_than_windows(chains: int) -> None:
    """With 64 chains a superchain has four: whether these agree is assessed from all windows together."""
    model = gaussian(20, covariance="ar1", correlation=0.5)
    settings = {"chains": chains, "draws": 1, "backend": "native"}
    draws = [[run(model, seed=seed, start=start, **settings) for seed in range(3)] for start in ("ensemble", "windows")]
    ensemble, windows = (sum(gradients(each) for each in runs) for runs in draws)
    assert all(each.warmup.agreed for runs in draws for each in runs)
    assert ensemble < 0.4 * windows


def test_it_is_reproducible_and_depends_on_the_seed() -> None:
    model = gaussian(3)
    one, again, other = (run(model, seed=seed) for seed in (4, 4, 5))
    np.testing.assert_array_equal(one.position, again.position)
    assert one.warmup == again.warmup
    assert np.abs(one.position - other.position).max() > 0.1


def far_well(x: Any) -> Any:
    """A normal distribution; where a start of the first superchain is, a cliff of 1e12 for each unit."""
    return -0.5 * ops.sum(x * x) - 1e12 * ops.maximum(x[0] - 100.0, 0.0)


def test_chains_on_a_cliff_are_put_where_others_are() -> None:
    """Without them, chains that cannot move at any step size would keep that of the others short."""
    model = Model.from_function(far_well, dimension=3, dtype="float64")
    values = np.random.default_rng(0).normal(size=(16, 3))
    values[3, 0] = 1000.0
    init = {"values": {"position": values}, "jitter": 0.0}
    draws = run(model, init=init)
    assert draws.warmup.agreed
    assert draws.warmup.restarted == (3, 19, 35, 51)
    assert np.abs(draws.position).max() < 6
    assert gradients(draws) < 400
    kept = run(model, init=init, warmup={"restart": False, "maximum": 50})
    assert kept.warmup.restarted == ()
    assert (np.abs(kept.position[[3, 19, 35, 51], :, 0]) > 100).all()
    assert {*kept.warmup.outliers, *kept.warmup.late} == {3, 19, 35, 51}


def two_wells(x: Any) -> Any:
    """Two modes, 40 standard deviations apart."""
    return ops.logaddexp(-0.5 * ops.sum((x - 20.0) * (x - 20.0)), -0.5 * ops.sum((x + 20.0) * (x + 20.0)))


def test_modes_that_no_chain_leaves_end_as_with_windows() -> None:
    """The ensemble gives up at its maximum, says what is missing, and windows do the same at theirs."""
    model = Model.from_function(two_wells, dimension=2, dtype="float64")
    values = np.where(np.arange(16)[:, None] % 2, 20.0, -20.0) + np.zeros((16, 2))
    settings: dict[str, Any] = {"init": {"values": {"position": values}, "jitter": 1.0}, "warmup": {"maximum": 60}}
    draws, expected = run(model, **settings), run(model, **settings, start="windows")
    assert draws.warmup.agreed is expected.warmup.agreed is False
    assert draws.warmup.transitions == expected.warmup.transitions == 60
    missing = "groups of chains with the same start still differ"
    assert missing in expected.warmup.reason
    assert draws.warmup.burn_in == 500
    before, after = draws.warmup.reason.split("; the ensemble had not settled: ")
    assert missing in before
    assert missing in after
    signs = np.sign(draws.position[:, -1, 0])
    np.testing.assert_array_equal(signs, np.sign(values[np.arange(64) % 16, 0]))


def test_a_warmup_of_a_given_length_follows_it() -> None:
    draws = run(SCALED, warmup=40)
    assert draws.warmup.transitions == 40
    assert draws.warmup.reason.startswith("as requested")
    assert draws.warmup.burn_in > 20
    np.testing.assert_allclose(draws.metric.scales()[0], SCALES**2, rtol=0.5)


def test_a_fixed_step_size_stays() -> None:
    draws = run(gaussian(3), step_size=0.5)
    assert draws.warmup.agreed
    assert (draws.stats["step_size"] == 0.5).all()


def test_one_coordinate_has_windows_and_says_so() -> None:
    draws = run(Model.from_function(lambda x: -0.5 * ops.sum(x * x), dimension=1, dtype="float64"))
    assert draws.warmup.agreed
    assert "it began with windows: one coordinate has no directions to turn to" in draws.warmup.reason


@pytest.mark.parametrize(
    ("settings", "is_ensemble"),
    [
        ({}, True),
        ({"chains": 16}, True),
        ({"chains": 15}, False),
        ({"warmup": 100}, False),
        ({"warmup": {"pool": "none"}}, False),
        ({"warmup": {"from": "run.nc"}}, False),
        ({"warmup": {"maximum": 39}}, False),
        ({"start": "windows"}, False),
        ({"start": "ensemble", "warmup": 100}, True),
    ],
)
def test_auto_is_an_ensemble_of_enough_chains(settings: dict[str, Any], is_ensemble: bool) -> None:
    sampler, _ = split_settings(settings)
    assert sampler.begins_with_ensemble(2) is is_ensemble
    assert not sampler.begins_with_ensemble(1)


@pytest.mark.parametrize("target", [0.6, 0.8, 0.95, 0.995])
def test_the_step_size_suits_the_target(target: float) -> None:
    """A mean of 12,800 acceptance rates, whose expectation the step size may miss by a tenth of what is refused."""
    model = gaussian(20, covariance="ar1", correlation=0.5)
    draws = run(model, target_acceptance=target, chains=256, draws=50, backend="native")
    refused = 1.0 - float(draws.stats["acceptance_rate"].mean())
    assert draws.warmup.agreed
    assert 0.5 < refused / (1.0 - target) < 1.4
    assert draws.warmup.transitions < 40


@pytest.mark.parametrize(
    ("acceptance", "target", "factor"),
    [(0.8, 0.8, 1.0), (0.8, 0.95, 0.5), (0.991, 0.999, 1 / 3), (0.9, 0.6, 2.0), (1.0, 0.8, 4.0), (0.0, 0.999, 0.25)],
)
def test_one_window_corrects_the_step_size(acceptance: float, target: float, factor: float) -> None:
    """What is refused is quadratic in the step size; chains that diverge all the time do not count, nor do outliers."""
    log_step, rates, diverged = np.full(20, np.log(0.1)), np.full(20, acceptance), np.zeros(20)
    rates[3], diverged[3], rates[4], counts = 0.0, 1.0, 0.0, np.arange(20) != 4
    corrected = corrected_step_size(log_step, rates, diverged, counts, target)
    assert corrected == pytest.approx(0.1 * factor)


def test_where_most_chains_diverge_they_count() -> None:
    diverged = np.where(np.arange(20) < 15, 1.0, 0.0)
    corrected = corrected_step_size(np.zeros(20), 1.0 - diverged, diverged, np.ones(20, bool), 0.97)
    assert corrected == pytest.approx(0.25)
    corrected = corrected_step_size(np.zeros(20), 1.0 - diverged, diverged, np.zeros(20, bool), 0.97)
    assert corrected == pytest.approx(0.25)


def test_a_signal_ends_it_at_the_next_call() -> None:
    seen = []

    def progress(now: Progress) -> None:
        seen.append(now)
        if now.phase == "warmup" and now.useful_gradients >= 64 * 30:
            raise KeyboardInterrupt

    settings = split_settings({"chains": 64, "draws": 20, "start": "ensemble"})
    draws = run_chains(SCALED, *settings, progress)
    assert draws.interrupted
    assert draws.done.max() == 0
    assert seen[-1].useful_gradients < 64 * 60
    assert all(0 <= now.utilization <= 1 for now in seen)


def test_it_gives_up_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its maximum, from where windows go on."""
    monkeypatch.setattr(ensemble, "MAXIMUM", 15)
    draws = run(SCALED)
    assert draws.warmup.burn_in == 15
    assert "; the ensemble had not settled: there was one window only" in draws.warmup.reason
    assert draws.warmup.agreed
    assert largest_z(draws, np.full(6, 5.0), SCALES) < 4.0
