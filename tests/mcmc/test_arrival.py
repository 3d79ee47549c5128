"""No draw is made before its chain has arrived: absurd starts, chains that never move, chains on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import batchnuts
from batchnuts.autobatch import ops
from batchnuts.mcmc.diagnostics.diagnose import diagnose
from batchnuts.mcmc.model.declarations import real
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_arviz, to_datasets
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.starts.absurd_starts import absurd_starts
from batchnuts.mcmc.statistics.late_chains import beyond_a_gap, late_by_density, late_by_moments
from batchnuts.mcmc.statistics.window_moments import Moments
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.warmup.arrival import deep, far_away, implausible, late

CHAINS = 16
"""As few as NumPy runs fast."""
SMALL: dict[str, Any] = {"expert": {"executor": "virtual_machine"}, "backend": "numpy", "chains": CHAINS, "draws": 12}


def run(model: Model, **settings: Any) -> Draws:
    return run_chains(model, *split_settings({"max_tree_depth": 4, "superchains": CHAINS} | SMALL | settings))


def starts_at(places: dict[int, float], dtype: str = "float32") -> Any:
    """An initializer: standard normal but for some chains, the same at each attempt."""

    def starts(rng: np.random.Generator, chains: int) -> np.ndarray:
        position = np.random.default_rng(1).normal(size=(chains, 2))
        for chain, place in places.items():
            position[chain] = place
        return position.astype(dtype)

    return starts


@pytest.mark.parametrize(
    ("log_density", "expected"),
    [
        ([-5.0, -7.0, -9.0, -40.0, -3e4], []),  # float32 resolves them
        ([-50.0, -70.0, -90.0, -40.0, -7.5e32], [4]),
        ([-5e3, -7e4, -9e3, -4e5, -3e7], []),  # not that much worse than others
        ([-5e3, -7e4, -9e3, -4e5, -1e13], [4]),
        ([-3.1e8, -3.2e8, -3.3e8, -3.4e8, -4e8], []),  # so large is this density, with all its terms
        ([-1.0, -2.0, -1e20, -1e21, -1e22], []),  # most of them
        ([-1.0], []),
        ([], []),
    ],
    ids=str,
)
def test_absurd_starts(log_density: list[float], expected: list[int]) -> None:
    assert np.flatnonzero(absurd_starts(np.array(log_density, "float32"))).tolist() == expected
    if not expected or log_density[-1] > -1e15:
        assert not absurd_starts(np.array(log_density, "float64")).any()


def moments(seed: int = 0, chains: int = 2 * CHAINS, dimension: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances [chains, 1 + dimension] of chains that have arrived."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(chains, 15, dimension))
    values = np.concatenate([-0.5 * (draws**2).sum(axis=2, keepdims=True), draws], axis=2)
    return values.mean(axis=1), values.var(axis=1)


def made(mean: np.ndarray, variance: np.ndarray) -> Moments:
    return Moments(mean, variance, np.full(len(mean), 15), np.zeros_like(mean))


def test_who_is_implausible_and_who_is_late() -> None:
    mean, variance = moments()
    log_density = mean[:, 0].copy()
    for test in (implausible, late):
        assert not test(made(mean, variance), log_density).any()
    log_density[[3, 4, 5]] = -60.0, -60.0, -2500.0
    mean[[3, 4, 5], 0] = log_density[[3, 4, 5]]
    variance[3, 1:] = 0.0
    # one does not move, one does, and one moves where there cannot be a mode
    assert np.flatnonzero(implausible(made(mean, variance), log_density)).tolist() == [3, 5]
    assert np.flatnonzero(late(made(mean, variance), log_density)).tolist() == [3, 4, 5]
    assert np.flatnonzero(deep(made(mean, variance), log_density)).tolist() == [5]
    # what has come up within the window has arrived
    log_density[4] = -1.0
    assert np.flatnonzero(late(made(mean, variance), log_density)).tolist() == [3, 5]
    # a coordinate apart from all others, at their log-density
    assert not far_away(made(mean, variance)).any()
    mean[7, 2] += 100.0
    assert np.flatnonzero(far_away(made(mean, variance))).tolist() == [7]
    assert np.flatnonzero(late(made(mean, variance), log_density)).tolist() == [3, 5]
    # where most chains are in a low place, none is implausible for being there
    log_density[: CHAINS + 2] = -9000.0
    assert not implausible(made(mean, variance), log_density)[3 : CHAINS + 2].any()


@pytest.mark.parametrize("count", [0, 1, 3, 6, 7, 20])
def test_a_gap_divides_few_chains_from_all_others(count: int) -> None:
    distance = np.random.default_rng(0).exponential(size=32)
    distance[:count] += 60.0
    expected = np.arange(32) < (count if count <= 0.2 * 32 else 0)
    np.testing.assert_array_equal(beyond_a_gap(distance, distance, 3.0, 10.0), expected)
    log_density = np.random.default_rng(1).exponential(size=(32, 30)) * -1.0
    log_density[:count, :3] -= 100.0
    np.testing.assert_array_equal(late_by_density(log_density), expected)
    log_density[:count, :3] += 100.0
    log_density[:count, 20:] -= 100.0  # later, which is not a start
    assert not late_by_density(log_density).any()


@pytest.mark.parametrize("chance", [1e-4, 1e-3, 5e-3, 0.05])
def test_rare_events_are_no_late_chains(chance: float) -> None:
    """Of quantities that most chains never see move, nothing is said."""
    for seed in range(20):
        draws = (np.random.default_rng(seed).random(size=(2, 64, 100)) < chance) * 1.0
        assert not np.isfinite(late_by_moments(draws.mean(axis=2), draws.var(axis=2), 2)).any()


@pytest.mark.parametrize("tails", [stats.norm(), stats.laplace(), stats.t(3)], ids=lambda law: law.dist.name)
@pytest.mark.parametrize("apart", [False, True])
def test_log_densities_tell_a_heavy_tail_from_a_start(tails: Any, apart: bool) -> None:
    """exp(x) of a heavy tail looks like a start that was far away; of what was drawn there the log-density is low."""
    found = []
    for seed in range(10):
        draws = tails.rvs(size=(64, 40, 3), random_state=np.random.default_rng(seed))
        draws[7, :4, 0] += 1e5 * apart
        log_density = tails.logpdf(draws).sum(axis=2)
        values = draws if apart else np.exp(draws)
        diagnosed = diagnose(values, ["a", "b", "c"], log_density=log_density, superchain=np.arange(64) // 4)
        found.append(diagnosed.late)
    assert found == [(7,) if apart else ()] * 10


@pytest.mark.parametrize("chains", [4, 8, 31, 64])
def test_a_late_chain_of_few_is_seen_in_its_log_density(chains: int) -> None:
    rng = np.random.default_rng(chains)
    draws = rng.normal(size=(chains, 200, 5))
    assert not late_by_density(-0.5 * (draws**2).sum(axis=2)).any()
    draws[1, :5] += 100 * np.exp(-np.arange(5) / 2)[:, None]
    assert np.flatnonzero(late_by_density(-0.5 * (draws**2).sum(axis=2))).tolist() == [1]


def plateau(x: Any) -> Any:
    """Beyond 50 there is a narrow peak, far below the rest, which small steps do not leave."""
    return ops.where(ops.abs(x[0]) > 50.0, -3e5 - 1e4 * ops.sum((x - 100.0) ** 2), -0.5 * ops.sum(x * x))


def test_chains_where_no_mode_can_be_start_again_by_default_and_it_is_reported() -> None:
    model = Model.from_function(plateau, dimension=2, initializer=starts_at({5: 100.0, 9: 100.0}))
    small: dict[str, Any] = {"step_size": 0.005, "metric": "unit", "max_tree_depth": 2, "backend": "jax"}
    draws = run(model, warmup=20, **small)
    assert draws.warmup.restarted == (5, 9)
    assert draws.warmup.outliers == draws.warmup.late == ()
    assert np.abs(draws.position).max() < 10
    result = to_arviz(to_datasets(draws, model))
    assert result["posterior"].attrs["restarted_chains"] == "5, 9"
    kept = run(model, warmup={"transitions": 20, "restart": False}, **small)
    assert kept.warmup.restarted == ()
    assert kept.warmup.outliers == (5, 9)
    assert np.abs(kept.position[[5, 9]] - 100).max() < 10
    assert not batchnuts.check(to_arviz(to_datasets(kept, model))).ok


def narrow_peak(x: Any) -> Any:
    """At 3 there is a narrow peak with a twentieth of the probability, where steps that suit the rest diverge."""
    return ops.logaddexp(-0.5 * ops.sum(x * x), 13.4 - 0.5e7 * ops.sum((x - 3.0) ** 2))


def test_a_chain_whose_transitions_diverge_with_the_step_size_of_the_others_keeps_its_own() -> None:
    """It neither stays still nor is it moved away: how much of the posterior is there is not known."""
    model = Model.from_function(narrow_peak, dimension=2, dtype="float64", initializer=starts_at({5: 3.0}, "float64"))
    draws = run(model, warmup=40, draws=40)
    step_size = draws.stats["step_size"][:, 0]
    assert draws.warmup.restarted == ()
    assert step_size[5] < 0.01 * np.median(step_size)
    assert len(np.unique(np.delete(step_size, 5))) == 1
    assert draws.warmup.reason.endswith(
        "; chain 5 has a step size of its own, because transitions diverged there with that of the others"
    )
    assert draws.stats["diverging"][5].mean() < 0.2
    assert 1e-4 < draws.position[5].std(axis=0).max() < 1e-3


def narrow_and_low(x: Any) -> Any:
    """At 20 there is a narrow peak, 45 nats below the rest: not so low that this alone would tell."""
    return ops.logaddexp(-0.5 * ops.sum(x * x), -45.0 - 0.5e7 * ops.sum((x - 20.0) ** 2))


def test_a_chain_in_a_place_that_is_narrow_and_low_starts_again_where_that_is_allowed() -> None:
    starts = starts_at({5: 20.0}, "float64")
    model = Model.from_function(narrow_and_low, dimension=2, dtype="float64", initializer=starts)
    assert run(model, warmup=60).warmup.restarted == (5,)
    kept = run(model, warmup={"transitions": 60, "restart": False})
    assert kept.warmup.restarted == ()
    assert np.abs(kept.position[5] - 20).max() < 1


def two_modes(x: Any) -> Any:
    """The second is 60 nats below the first, and chains move and mix in it."""
    return ops.logaddexp(-0.5 * ops.sum(x * x), -60.0 - 0.5 * ops.sum((x - 100.0) ** 2))


@pytest.mark.slow
def test_a_mode_where_chains_move_is_never_hidden() -> None:
    model = Model.from_function(two_modes, dimension=2, initializer=starts_at({5: 100.0}))
    draws = run(model, warmup=25, max_tree_depth=3)
    assert draws.warmup.restarted == ()
    assert draws.warmup.outliers == (5,)
    assert np.abs(draws.position[5] - 100).max() < 10
    asked = run(model, warmup={"transitions": 25, "restart": True}, max_tree_depth=3)
    assert asked.warmup.restarted == (5,)


def deep_mode(x: Any) -> Any:
    """The same, 200 nats below, where two dimensions cannot hold anything of weight."""
    return ops.logaddexp(-0.5 * ops.sum(x * x), -200.0 - 0.5 * ops.sum((x - 100.0) ** 2))


@pytest.mark.slow
def test_a_chain_too_low_to_matter_starts_again_where_that_is_allowed_and_is_waited_for_else() -> None:
    settings: dict[str, Any] = {"max_tree_depth": 3, "backend": "jax"}  # NumPy takes minutes
    model = Model.from_function(deep_mode, dimension=2, initializer=starts_at({5: 100.0}))
    fixed = run(model, warmup=25, **settings)
    assert fixed.warmup.restarted == (5,)
    assert fixed.warmup.late == fixed.warmup.outliers == ()
    assert np.abs(fixed.position).max() < 10
    check = batchnuts.check(to_arviz(to_datasets(fixed, model)))
    assert "In warmup chain 5 restarted near others, from a log-density too low for any mode of weight." in str(check)
    kept = run(model, warmup={"maximum": 400, "minimum": 20, "restart": False}, **settings)
    assert kept.warmup.restarted == ()
    assert kept.warmup.late == (5,)
    assert kept.warmup.transitions > 300
    assert "of all but chain 5" in kept.warmup.reason
    assert not batchnuts.check(to_arviz(to_datasets(kept, model))).ok
    higher = Model.from_function(two_modes, dimension=2, initializer=starts_at({5: 100.0}))
    in_a_mode = run(higher, warmup={"maximum": 400, "minimum": 20}, **settings)
    assert in_a_mode.warmup.restarted == in_a_mode.warmup.late == ()
    assert in_a_mode.warmup.outliers == (5,)
    assert in_a_mode.warmup.transitions < 300


def slope(x: Any) -> Any:
    return -0.5 * ops.sum(x * x)


@pytest.mark.slow
def test_one_window_tells_who_is_on_the_way() -> None:
    """A warmup of fewer than 20 transitions is one window."""
    model = Model.from_function(slope, dimension=2, dtype="float64", initializer=starts_at({5: 200.0}, "float64"))
    settings: dict[str, Any] = {"step_size": 0.2, "max_tree_depth": 1, "metric": "unit"}
    draws = run(model, warmup={"transitions": 15, "restart": False}, **settings)
    assert draws.warmup.transitions > 15
    assert draws.warmup.late == (5,)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "arrives"), [(20.0, True), (1e5, False)])
def test_draws_begin_when_chains_have_arrived(start: float, arrives: bool) -> None:
    """Short trajectories come down by a few percent each; a fixed warmup goes on for them, at most twice as long."""
    model = Model.from_function(slope, dimension=2, dtype="float64", initializer=starts_at({5: start}, "float64"))
    settings: dict[str, Any] = {"step_size": 0.05, "max_tree_depth": 3, "metric": "unit"}
    asked = run(model, warmup={"transitions": 50, "restart": False}, **settings)
    assert 50 < asked.warmup.transitions <= 100
    more = asked.warmup.transitions - 50
    which = "until all chains had reached the others" if arrives else "in which chain 5 did not reach the others"
    assert asked.warmup.reason == f"as requested, and {more} more, {which}"
    assert asked.warmup.late == (() if arrives else (5,))
    assert bool(asked.stats["lp"][5].min() > -60) is arrives
    calm = run(Model.from_function(slope, dimension=2, dtype="float64"), warmup=50, **settings)
    assert calm.warmup.transitions == 50
    assert calm.warmup.reason == "as requested"


def test_starts_where_the_density_is_not_a_number_are_counted_and_said() -> None:
    """A scale that lacks positive(): its chains stay where it is positive."""
    model = Model.from_function(lambda p: -10 * ops.log(p["x"]) - 5 / p["x"] ** 2 - p["x"], variables={"x": real()})
    draws = run(model, warmup=0, draws=4, step_size=0.01, metric="unit", max_tree_depth=1)
    assert 3 < draws.warmup.not_numbers < 13
    result = to_arviz(to_datasets(draws, model))
    said = (
        f"At {draws.warmup.not_numbers} of 16 proposed initial positions, which were drawn again, the log-density was"
    )
    assert any(line.startswith(said) and "batchnuts.positive()" in line for line in batchnuts.check(result).advice)


def test_an_absurd_start_is_drawn_again() -> None:
    """Of float32, where accepting is decided by rounding; an initializer that gives the same again is left alone."""
    calls = []

    def sometimes(rng: np.random.Generator, chains: int) -> np.ndarray:
        position = rng.normal(size=(chains, 2))
        position[3] *= 1e10 if not calls else 1.0
        calls.append(1)
        return position.astype("float32")

    small: dict[str, Any] = {"draws": 2, "max_tree_depth": 1}
    model = Model.from_function(slope, dimension=2, initializer=sometimes)
    draws = run(model, warmup=0, **small)
    assert np.abs(draws.position).max() < 100
    assert len(calls) == 2
    same = run(Model.from_function(slope, dimension=2, initializer=starts_at({3: 1e10})), warmup=0, **small)
    assert np.abs(same.position[3]).max() > 1e8
