"""A log-density of +inf is a fault of the model, named with the chain and the place; NaN and -inf are divergences."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ways import rotating

from batchnuts import sample_chains
from batchnuts.autobatch import ops, random
from batchnuts.mcmc.execution.chunk import Chunk
from batchnuts.mcmc.execution.runner import UnboundedDensity
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.kernel.step_size import make_first_step_size
from batchnuts.mcmc.model.check_model import UnboundedDensityError
from batchnuts.mcmc.model.model import Model, Variable
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings

CHAINS = 6
LIMIT = 1.6
"""Where the densities end: some chain gets there within some dozen transitions."""


def ending_with(value: float) -> Any:
    """A Gaussian log-density that has another value beyond LIMIT."""

    def log_density(q: Any) -> Any:
        return ops.where(q[0] > LIMIT, np.float32(value), -0.5 * ops.sum(q * q))

    return log_density


def model_ending_with(value: float) -> Model:
    start = np.random.default_rng(0).uniform(-0.5, 0.5, size=(CHAINS, 2)).astype("float32")
    variables = (Variable("mu"), Variable("tau", (1,)))
    log_density = ending_with(value)
    return Model(
        name="ends", log_density=log_density, dimension=2, variables=variables, initializer=lambda rng, chains: start
    )


WAYS = {
    "machine": {"backend": "numpy"},
    "buffers that fill": {"backend": "numpy", "chunk_lanes": 2, "expert": {"shards": 1}},
    "stackless": {"backend": "numpy", "expert": {"executor": "stackless"}},
    "unbatched": {"backend": "numpy", "expert": {"executor": "unbatched"}},
    "xla": {},
}


@pytest.mark.parametrize(("way", "leapfrogs"), rotating({way: way for way in WAYS}, {"1": 1, "3": 3}, always=0))
def test_met_while_drawing_it_is_named_and_no_draw_is_lost(
    way: str, leapfrogs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (way == "xla") > (leapfrogs == 1):
        pytest.skip("one is enough to be compiled")
    if way == "buffers that fill":
        monkeypatch.setattr("batchnuts.mcmc.execution.chunk_plan.BUFFER_BYTES", 1)
        monkeypatch.setattr("batchnuts.mcmc.execution.chunk_plan.MIN_ROWS", 3)
    settings = {"chains": CHAINS, "warmup": 0, "draws": 60, "step_size": 0.5, "leapfrogs_per_leaf": leapfrogs}
    with pytest.raises(UnboundedDensityError) as caught:
        sample_chains(model_ending_with(np.inf), **settings, **WAYS[way], seed=5)
    error = caught.value
    assert error.position.shape == (2,)
    assert error.position[0] > LIMIT
    assert 0 <= error.chain < CHAINS
    mu, tau = error.position
    assert f"is +inf at a position of chain {error.chain} (sampling): mu = {mu}, tau[0] = {tau}." in str(error)
    kept = error.result
    assert kept["posterior"].attrs["draws_made"] > 0
    assert kept["posterior"].attrs["interrupted"] == 1
    for group in ("posterior", "unfinished"):
        assert not (kept[group]["mu"].values > LIMIT).any()
        assert not np.isinf(kept[group]["acceptance_rate" if group == "unfinished" else "tau"].values).any()


@pytest.mark.slow
def test_the_draws_made_before_are_those_of_a_run_that_meets_none() -> None:
    settings = {"chains": CHAINS, "warmup": 0, "draws": 25, "step_size": 0.5, "backend": "numpy", "seed": 5}
    with pytest.raises(UnboundedDensityError) as caught:
        sample_chains(model_ending_with(np.inf), **settings)
    whole = sample_chains(model_ending_with(np.nan), **settings)
    made = caught.value.result["unfinished"]
    count = made["draws_done"].values
    first = int(made["draw"].values[0])
    assert count.min() < count.max()
    for chain in range(CHAINS):
        rows = slice(0, count[chain] - first)
        expected = whole["posterior"]["mu"].values[chain, first : count[chain]]
        np.testing.assert_array_equal(made["mu"].values[chain, rows], expected)


@pytest.mark.parametrize("value", [np.nan, pytest.param(-np.inf, marks=pytest.mark.slow)])
def test_nan_and_minus_infinity_are_divergences_and_never_drawn(value: float) -> None:
    draws = run_chains(
        model_ending_with(value),
        SamplerSettings(chains=CHAINS, warmup=20, draws=10, max_tree_depth=4),
        ExecutionSettings(backend="numpy"),
    )
    assert np.isfinite(draws.stats["step_size"]).all()
    assert np.isfinite(draws.stats["lp"]).all()
    assert draws.position[..., 0].max() <= LIMIT
    assert draws.stats["diverging"].any()
    assert not draws.stats["diverging"].all()


@pytest.mark.parametrize("transition", ["nuts", pytest.param("walnuts", marks=pytest.mark.slow)])
def test_plus_infinity_without_a_gradient_is_an_overflow_and_a_divergence(transition: str) -> None:
    """In trajectories, in the search for a step size, and at starts, which are drawn again."""

    def log_density(q: Any) -> Any:
        tiny = ops.exp(-1e6 * ops.maximum(ops.abs(q[0]) - LIMIT, 0.0))  # 0 beyond: the gradient is 0 / 0
        return -ops.log(tiny) - 0.5 * ops.sum(q * q)

    calls = []

    def starts(rng: np.random.Generator, chains: int) -> np.ndarray:
        calls.append(chains)
        position = rng.uniform(-0.5, 0.5, size=(chains, 2))
        position[2, 0] = LIMIT + 1.0 if len(calls) == 1 else 0.0
        return position.astype("float32")

    model = Model.from_function(log_density, dimension=2, initializer=starts)
    settings = {"chains": CHAINS, "warmup": 0, "draws": 6, "max_tree_depth": 2, "transition": transition}
    draws = run_chains(model, SamplerSettings.model_validate(settings), ExecutionSettings(backend="numpy"))
    assert len(calls) > 1
    assert np.abs(draws.position[..., 0]).max() <= LIMIT
    assert draws.stats["diverging"].any()


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_met_in_warmup_it_is_named(executor: str) -> None:
    settings = {"chains": CHAINS, "warmup": 200, "draws": 1, "step_size": 0.5, "expert": {"executor": executor}}
    with pytest.raises(UnboundedDensityError, match=r"\(warmup\): mu = ") as caught:
        sample_chains(model_ending_with(np.inf), **settings, backend="numpy")
    assert not hasattr(caught.value, "result")


def test_met_in_the_search_for_a_first_step_size_it_is_named() -> None:
    """Which would have aimed at it: where the gradient is small, the step doubles."""

    def log_density(q: Any) -> Any:
        return ops.where(ops.abs(q[0]) > 1e4, np.float32(np.inf), -1e-20 * ops.sum(q * q))

    with pytest.raises(
        UnboundedDensityError, match=r"\(the search for a first step size\): position\[0\] = "
    ) as caught:
        sample_chains(Model.from_function(log_density, dimension=2), chains=4, warmup=0, draws=1, backend="numpy")
    assert abs(caught.value.position[0]) > 1e4


def test_no_first_step_size_aims_at_an_infinite_density() -> None:
    def log_density(q: Any) -> Any:
        return ops.where(ops.abs(q[0]) > 2.0, np.float32(np.nan), -0.5 * ops.sum(q * q))

    search = make_first_step_size(value_and_gradient(Model.from_function(log_density, dimension=2)), "float32")
    chains, start = 16, np.zeros((16, 2), "float32")
    one = np.ones_like(start)
    keys = random.lane_keys(0, chains)
    found, _, _ = search.run(keys, start, np.zeros(chains, "float32"), -start, one, one[:, 0], mode="eager")
    assert (found > 0.01).all()
    assert (found < 100).all()


def test_met_at_a_start_it_is_named_and_not_drawn_again() -> None:
    starts = np.array([[0.0, 0.5], [2.0, 0.25], [0.0, 0.0]])
    model = Model(
        name="ends", log_density=ending_with(np.inf), dimension=2, initializer=lambda rng, chains: starts + rng.normal()
    )
    with pytest.raises(UnboundedDensityError, match=r"chain \d \(its start\): position\[0\] = ") as caught:
        sample_chains(model, chains=3, warmup=0, draws=1, backend="numpy", seed=1)
    assert caught.value.position[0] > LIMIT


def test_many_numbers_are_not_all_shown() -> None:
    model = Model.from_function(lambda q: q, dimension=100)
    error = UnboundedDensityError(model, 3, np.arange(100.0), "sampling")
    assert "position[19] = 19.0 and 80 more." in str(error)
    assert len(error.position) == 100


def test_a_chain_that_ended_at_nan_is_named() -> None:
    """The same number is rounded in two ways where it overflows: a state may be accepted that is NaN in the end."""
    working = {"log_density": np.array([np.nan, 0.0, np.nan]), "position": np.array([[np.inf], [0.0], [1.0]])}
    machine = SimpleNamespace(
        machine=SimpleNamespace(live=lambda state: np.array([False, False, True])),
        working=lambda state, name: working[name],
        sweeps_per_second=1.0,
    )
    chunk = Chunk(machine, np.array([4, 5, 6]), None, None, 1.0)  # type: ignore[arg-type]
    with pytest.raises(UnboundedDensity) as met:
        chunk.check_bounded()
    assert met.value.chain == 4
    model = Model.from_function(lambda x: 0.0 * ops.sum(x), dimension=1)
    said = str(UnboundedDensityError(model, met.value.chain, met.value.position, "sampling"))
    assert re.search(
        r"chain 4 has gone to infinity \(sampling\): position\[0\] = inf\..* its integral is infinite", said
    )
