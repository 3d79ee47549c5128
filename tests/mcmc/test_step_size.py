"""Dual averaging on a known acceptance curve, the pooled estimates, and what a warmup arrives at."""

from __future__ import annotations

import numpy as np
import pytest
from mcmc_models import gaussian

from batchnuts.autobatch import batch
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, adapt, changed_if, start_adaptation
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, WarmupSettings

NUMPY = ExecutionSettings(backend="numpy")
LONG, SHORT = WarmupSettings(transitions=150), WarmupSettings(transitions=21)


def acceptance(log_step: np.ndarray, best: float) -> np.ndarray:
    """A smooth curve from 1 to 0 that is 0.8 where the step size is `best`."""
    return 1 / (1 + np.exp(2 * (log_step - np.log(best))) / 4)


@pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("initial", [1e-3, 0.3, 50.0])
def test_dual_averaging_finds_the_step_size_of_the_target(target: float, initial: float) -> None:
    rng = np.random.default_rng(0)
    state = start_adaptation(np.log(initial) + np.zeros(()))
    for _ in range(2000):
        rate = acceptance(state.log_step, 0.2)
        noise = rng.uniform(-1, 1) * min(rate, 1 - rate)  # leaves its mean as it is
        state = adapt(state, rate + noise, target)
    assert state.count == 2000
    assert abs(acceptance(state.log_step_mean, 0.2) - target) < 0.04


def test_many_settled_chains_pool_to_the_target_within_a_few_transitions() -> None:
    """Each chain hears a very noisy acceptance rate; their median is near the target all the same."""
    rng = np.random.default_rng(0)
    state = start_adaptation(np.full(256, np.log(0.3)), settled=True)
    for _ in range(25):
        rate = acceptance(state.log_step, 0.2)
        state = adapt(state, rate + rng.uniform(-1, 1, 256) * np.minimum(rate, 1 - rate), 0.8)
    pooled = np.exp(np.median(state.log_step_mean))
    assert abs(acceptance(np.log(pooled), 0.2) - 0.8) < 0.03


def test_one_update_by_hand() -> None:
    """[H] Algorithm 5 with gamma 0.05, t0 10, kappa 0.75, written out for the first two transitions."""
    state = start_adaptation(np.log(np.float64(0.5)))
    mu = np.log(10 * 0.5)
    assert state.center == pytest.approx(mu)
    first = adapt(state, np.float64(0.3), 0.8)
    error = (1 - 1 / 11) * 0 + 1 / 11 * 0.5
    assert first.log_step == pytest.approx(mu - 1 / 0.05 * error)
    assert first.log_step_mean == pytest.approx(float(first.log_step))
    second = adapt(first, np.float64(0.9), 0.8)
    error = (1 - 1 / 12) * error + 1 / 12 * -0.1
    x = mu - np.sqrt(2) / 0.05 * error
    assert second.log_step == pytest.approx(x)
    mix = 2**-0.75
    assert second.log_step_mean == pytest.approx(mix * x + (1 - mix) * float(first.log_step))
    assert second.center == state.center


def test_it_runs_in_the_language_and_stands_still_where_not_adapting() -> None:
    @batch
    def some_updates(log_step, rate, adapting):
        state = start_adaptation(log_step)
        for _ in range(3):
            state = changed_if(adapting, DualAveragingAdaptation(0.8).after(state, rate), state)
        return state

    log_step, rate = np.log(np.array([0.1, 0.2, 0.3])), np.array([0.2, 0.99, 0.5])
    found = some_updates.run(log_step, rate, np.array([True, True, False]), backend="numpy")
    for lane in range(2):
        state = start_adaptation(log_step[lane])
        for _ in range(3):
            state = adapt(state, rate[lane], 0.8)
        np.testing.assert_allclose([part[lane] for part in found], state)
    assert found.log_step[2] == log_step[2]
    assert found.count[2] == 0


def test_no_dtype_is_widened() -> None:
    state = start_adaptation(np.float32(-1.0))
    state = adapt(state, np.float32(0.5), 0.8)
    assert {np.asarray(part).dtype for part in state} == {np.dtype("float32")}


def wide() -> Model:
    """A Gaussian of variances from 1 to 400."""
    return gaussian(8, covariance="diagonal", condition_number=400.0)


@pytest.fixture(scope="module")
def warmed_up():
    return run_chains(
        wide(),
        SamplerSettings(chains=64, warmup=LONG, draws=60, seed=2),
        ExecutionSettings(),
    )


def test_warmup_arrives_at_the_target_acceptance(warmed_up) -> None:
    assert abs(warmed_up.stats["acceptance_rate"].mean() - 0.8) < 0.05


def test_warmup_finds_the_metric(warmed_up) -> None:
    np.testing.assert_allclose(warmed_up.metric.inverse_mass, np.geomspace(1.0, 400.0, 8), rtol=1e-4)


def test_with_the_metric_trajectories_are_short(warmed_up) -> None:
    """Without it, a trajectory along the widest coordinate would take some 60 steps or more."""
    assert warmed_up.stats["n_steps"].mean() < 12
    assert not warmed_up.stats["diverging"].any()


def test_the_step_size_is_one_for_all_chains_and_draws(warmed_up) -> None:
    assert len(np.unique(warmed_up.stats["step_size"])) == 1


@pytest.mark.slow
def test_the_target_acceptance_is_reached(warmed_up) -> None:
    sampler = SamplerSettings(chains=32, warmup=LONG, draws=20, seed=2, target_acceptance=0.95)
    careful = run_chains(wide(), sampler, ExecutionSettings())
    assert abs(careful.stats["acceptance_rate"].mean() - 0.95) < 0.03
    assert warmed_up.stats["step_size"][0, 0] > 1.3 * careful.stats["step_size"][0, 0]


@pytest.mark.slow
def test_the_identity_metric_is_kept_when_asked() -> None:
    model = gaussian(4, covariance="diagonal")
    sampler = SamplerSettings(chains=6, warmup=SHORT, draws=2, metric="unit", max_tree_depth=3)
    np.testing.assert_array_equal(run_chains(model, sampler, NUMPY).metric.inverse_mass, np.ones(4))
