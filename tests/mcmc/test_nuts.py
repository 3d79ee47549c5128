"""NUTS against an enumeration of its trajectory, against exact draws, and on every executor."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from mcmc_models import gaussian_primitive, quartic, quartic_alone, stiff, stiff_alone
from nuts_oracle import Expected, Orbit, agree, directions, drawn_state, replay
from scipy import stats

from batchnuts.autobatch import TensorType, VariableAllocation, primitive, random
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.mcmc.kernel.nuts import _DIRECTION, _MOMENTUM, NutsOptions, Transition, event, make_nuts

INVERSE_MASS = np.array([0.7, 1.6])
ALPHA = 1e-3
"""Chance that a statistical test of this file would fail by bad luck; the seeds are fixed."""


QUARTIC, STIFF = (quartic, quartic_alone), (stiff, stiff_alone)


def run(
    options: NutsOptions, position: np.ndarray, step: float, seed: int, target: Any = QUARTIC, **how: Any
) -> tuple[np.ndarray, Transition]:
    """Transitions of a 2-d target from each row of `position`, and the keys they used."""
    density, alone = target
    keys = random.lane_keys(seed, len(position))
    values, gradients = (np.array(x) for x in zip(*map(alone, position), strict=True))
    masses = np.tile(INVERSE_MASS, (len(position), 1))
    nuts_transition = make_nuts(density, options)
    return keys, nuts_transition.run(keys, position, values, gradients, np.full(len(keys), step), masses, **how)


def expected(
    keys: np.ndarray, position: np.ndarray, step: float, options: NutsOptions, target: Any = QUARTIC, kind: Any = Orbit
) -> list[Expected]:
    """What the oracle says of each lane's transition, given the random numbers for momentum and directions."""
    momentum = random.normal(event(keys, _MOMENTUM, 0), (2,), "float64") / np.sqrt(INVERSE_MASS)
    flips = np.stack([random.bernoulli(event(keys, _DIRECTION, depth)) for depth in range(options.max_tree_depth)])
    sliced = options.selection == "slice"
    heights = np.log(random.uniform(event(keys, _MOMENTUM, 1), (), "float64"))
    oracles = []
    for lane in range(len(keys)):
        height = float(heights[lane]) if sliced else None
        threshold = options.divergence_threshold - (height or 0.0)
        start = position[lane], momentum[lane], step
        orbit = kind(target[1], *start, INVERSE_MASS, options.leapfrogs_per_leaf, threshold)
        oracles.append(replay(orbit, directions(flips[:, lane]), options.max_tree_depth, height))
    return oracles


@pytest.mark.parametrize(
    ("max_tree_depth", "step", "leapfrogs", "selection"),
    [
        (1, 0.5, 1, "multinomial"),
        (2, 0.8, 1, "multinomial"),
        (3, 0.3, 1, "slice"),
        (4, 0.2, 1, "multinomial"),
        (6, 0.05, 1, "slice"),
        (4, 0.05, 4, "multinomial"),
    ],
)
def test_transitions_follow_the_enumerated_trajectory(
    max_tree_depth: int, step: float, leapfrogs: int, selection: Any
) -> None:
    options = NutsOptions(max_tree_depth, leapfrogs, dtype="float64", selection=selection)
    position = np.random.default_rng(max_tree_depth).normal(size=(40, 2))
    keys, found = run(options, position, step, seed=max_tree_depth, executor="unbatched")
    numbers = [agree(found, lane, oracle) for lane, oracle in enumerate(expected(keys, position, step, options))]
    assert min(numbers) < 0 < max(numbers)
    assert set(found.n_steps % leapfrogs) == {0}
    # every way for a trajectory to end is among them
    full = found.n_steps == leapfrogs * (2**found.tree_depth - 1)
    assert (full & (found.tree_depth == max_tree_depth)).any(), "none went to the maximum depth"
    if max_tree_depth > 3:
        assert (full & (found.tree_depth < max_tree_depth)).any(), "none turned as a whole"
        assert (~full).any(), "none turned within a subtree"


def test_each_chain_has_its_own_maximum_tree_depth() -> None:
    """It is an input of the program, as the key is: the same as programs made with that number."""
    position = np.random.default_rng(2).normal(size=(9, 2))
    depths = np.arange(9) % 3 + 1
    keys, values = random.lane_keys(2, 9), [quartic_alone(q) for q in position]
    arguments = (keys, position, *(np.array(x) for x in zip(*values, strict=True)), np.full(9, 0.02))
    program = make_nuts(quartic, NutsOptions(dtype="float64"))
    found = program.run(*arguments, np.tile(INVERSE_MASS, (9, 1)), depths, backend="numpy")
    np.testing.assert_array_equal(found.tree_depth, depths)
    for lane, depth in enumerate(depths):
        _, alone = run(NutsOptions(int(depth), dtype="float64"), position, 0.02, seed=2, backend="numpy")
        np.testing.assert_array_equal(alone.position[lane], found.position[lane])


class _Omitting(Orbit):
    """An orbit whose criterion lacks one of the extra checks, within subtrees or for the whole trajectory."""

    check, within = 0, True

    def has_turned(self, low: int, middle: int, high: int) -> bool:
        left, right = range(low, middle), range(middle, high)
        checks = [([*left, *right], (low, high - 1)), ([*left, middle], (low, middle))]
        checks += [([middle - 1, *right], (middle - 1, high - 1))]
        if (low <= 0 < high) != self.within:  # only the whole has the start in it
            del checks[self.check]
        return not all(self.moves_apart(*given) for given in checks)


def test_the_checks_across_subtrees_decide_some_trajectories() -> None:
    """The lengths of many trajectories are right, and some would be longer for want of any one of the checks."""
    options = NutsOptions(6, dtype="float64")
    position = np.random.default_rng(0).normal(size=(400, 2)) / np.sqrt([1, 60])
    step = 0.155
    keys, found = run(options, position, step, seed=5, target=STIFF, backend="numpy")
    n_steps = np.array([oracle.n_steps for oracle in expected(keys, position, step, options, STIFF)])
    np.testing.assert_array_equal(found.n_steps, n_steps)
    for check in (1, 2):
        for within in (True, False):
            kind = type("Omitting", (_Omitting,), {"check": check, "within": within})
            others = expected(keys, position, step, options, STIFF, kind)
            without = np.array([oracle.n_steps for oracle in others])
            assert (without >= n_steps).all()
            assert (without > n_steps).sum() >= 2, (check, within)


@pytest.mark.parametrize(("selection", "threshold"), [("multinomial", 0.4), ("slice", 0.1)])
def test_divergences_are_those_above_the_threshold(selection: Any, threshold: float) -> None:
    """With a low threshold and a long step some lanes diverge, early or late; nothing of them is drawn."""
    options = NutsOptions(5, divergence_threshold=threshold, dtype="float64", selection=selection)
    position = np.random.default_rng(1).normal(size=(60, 2)) * 1.5
    keys, found = run(options, position, 0.5, seed=2, executor="unbatched")
    for lane, oracle in enumerate(expected(keys, position, 0.5, options)):
        agree(found, lane, oracle)
    assert 5 < found.diverging.sum() < 55
    assert found.n_steps[found.diverging].min() == 1
    assert found.n_steps[found.diverging].max() > 1
    at_once = found.diverging & (found.n_steps == 1)
    np.testing.assert_array_equal(found.position[at_once], position[at_once])
    assert (found.tree_depth[at_once] == 0).all()


@pytest.mark.parametrize("how", [{"executor": "unbatched"}, {"backend": "numpy"}], ids=["unbatched", "numpy"])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_a_density_that_is_not_finite_ends_the_trajectory(value: float, how: dict[str, Any]) -> None:
    @primitive(costly=True)
    def cliff(position, data=()):
        return np.where(position[0] > 0, value, -0.5 * np.sum(position**2)), -position

    start = np.array([[-0.1, 0.3]])
    arguments = (-0.5 * (start**2).sum(1), -start, np.array([0.4]), np.ones((1, 2)))
    nuts_transition = make_nuts(cliff, NutsOptions(8, dtype="float64"))
    ended = 0
    for seed in range(8):
        found = nuts_transition.run(random.lane_keys(seed, 1), start, *arguments, **how)
        assert np.isfinite(found.position).all()
        if np.isposinf(found.log_density[0]):  # the model's fault: the place is reported, and nothing is drawn
            assert value == np.inf
            assert found.position[0, 0] > 0
        else:
            assert np.isfinite(found.acceptance_rate).all()
            assert found.position[0, 0] <= 0
        ended += int(found.diverging[0])
    assert ended


@pytest.mark.parametrize("selection", ["multinomial", pytest.param("slice", marks=pytest.mark.slow)])
def test_states_are_drawn_with_their_weights(selection: Any) -> None:
    """The rank of the drawn state in its own predicted distribution is uniform, in two orders of the states.

    For each transition the oracle gives the exact probability of each state; summed up to the drawn one (which counts
    a random part of its own) this is uniform on (0, 1) if, and only if, the drawing follows the prediction.
    """
    options = NutsOptions(4, dtype="float64", selection=selection)
    lanes, step = 2000, 0.55
    rng = np.random.default_rng(7)
    position = rng.normal(size=(lanes, 2)) * 0.6
    keys, found = run(options, position, step, seed=11)
    by_time, by_age, by_weight = [], [], []
    for lane, oracle in enumerate(expected(keys, position, step, options)):
        drawn = drawn_state(found, lane, oracle)
        part = rng.uniform()
        orders = (
            sorted(oracle.probabilities),
            oracle.probabilities,
            sorted(
                oracle.probabilities,
                key=lambda k: oracle.orbit[k][3],
            ),
        )
        for order, ranks in zip(orders, (by_time, by_age, by_weight), strict=True):
            order = list(order)
            before = sum(oracle.probabilities[k] for k in order[: order.index(drawn)])
            ranks.append(before + part * oracle.probabilities[drawn])
    for ranks in (by_time, by_age, by_weight):
        counts = np.histogram(ranks, bins=20, range=(0, 1))[0]
        assert counts.sum() == lanes
        assert stats.chisquare(counts).pvalue > ALPHA / 3, counts


@pytest.mark.parametrize(
    ("selection", "backend"),
    [
        ("multinomial", "native"),
        pytest.param("slice", "native", marks=pytest.mark.slow),
        pytest.param("multinomial", "jax", marks=pytest.mark.slow),
    ],
)
def test_the_target_is_invariant(selection: Any, backend: str) -> None:
    """Exact draws of a correlated Gaussian are still exact draws after a transition with a long step."""
    value_and_gradient, covariance = gaussian_primitive(3)
    lanes = 20_000
    rng = np.random.default_rng(3)
    position = rng.multivariate_normal(np.zeros(3), covariance, size=lanes)
    gradient = -position @ np.linalg.inv(covariance)
    nuts_transition = make_nuts(value_and_gradient, NutsOptions(4, dtype="float64", selection=selection))
    found = nuts_transition.run(
        random.lane_keys(1, lanes), position, 0.5 * (position * gradient).sum(1), gradient, np.full(lanes, 0.45),
        np.tile([0.5, 1.0, 2.0], (lanes, 1)), backend=backend,
    )  # fmt: skip
    assert 0.3 < found.acceptance_rate.mean() < 0.9, "the step is to be so long that weights differ"
    assert len(set(found.tree_depth)) >= 3
    assert (found.position != position).any(axis=1).mean() > (0.8 if selection == "multinomial" else 0.7)
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    white = found.position @ root.T
    tests = [stats.kstest(white[:, i], stats.norm.cdf).pvalue for i in range(3)]
    tests += [stats.kstest(found.position[:, i] / np.sqrt(covariance[i, i]), stats.norm.cdf).pvalue for i in range(3)]
    tests += [stats.kstest((white**2).sum(1), stats.chi2(3).cdf).pvalue]
    products = np.stack([white[:, i] * white[:, j] for i, j in ((0, 1), (0, 2), (1, 2))])
    tests += [stats.ttest_1samp(product, 0).pvalue for product in products]
    assert min(tests) > ALPHA / len(tests), tests


# ---- executors --------------------------------------------------------------------------------------------------

EXECUTORS: dict[str, dict[str, Any]] = {
    "numpy": {"backend": "numpy"},
    "numpy-drain": {"backend": "numpy", "schedule": "drain"},
    "numpy-earliest": {"backend": "numpy", "schedule": "earliest"},
    "stackless-numpy": {"executor": "stackless", "backend": "numpy"},
    "stackless-tensorflow": {"executor": "stackless", "backend": "tensorflow"},
    "eager": {"backend": "tensorflow", "mode": "eager"},
    "graph": {"mode": "graph"},
    "xla": {"backend": "tensorflow", "mode": "xla"},
    "native": {"backend": "native"},
    "native_tensorflow": {"backend": "native_tensorflow"},
}


@pytest.fixture(scope="module")
def ten_dimensional() -> tuple[Any, tuple[Any, ...], Transition]:
    """The program for a 10-d Gaussian, inputs of 8 lanes, and what plain Python makes of them."""
    value_and_gradient, covariance = gaussian_primitive(10)
    lanes = 8
    position = np.random.default_rng(0).normal(size=(lanes, 10))
    gradient = -position @ np.linalg.inv(covariance)
    density = 0.5 * (position * gradient).sum(1)
    steps = np.geomspace(0.05, 0.6, lanes)
    inputs = (random.lane_keys(3, lanes), position, density, gradient, steps, np.ones((lanes, 10)))
    nuts_transition = make_nuts(value_and_gradient, NutsOptions(dtype="float64"))
    return nuts_transition, inputs, nuts_transition.run(*inputs, executor="unbatched")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, id=name, marks=pytest.mark.slow if name in ("eager", "graph", "numpy-earliest") else ())
        for name, how in EXECUTORS.items()
    ],
)
def test_executors_agree_with_plain_python(ten_dimensional: Any, how: dict[str, Any]) -> None:
    nuts_transition, inputs, alone = ten_dimensional
    found = nuts_transition.run(*inputs, **how)
    assert isinstance(found, Transition)
    for name in ("tree_depth", "n_steps", "diverging"):
        np.testing.assert_array_equal(getattr(found, name), getattr(alone, name), err_msg=name)
    for name in ("position", "gradient", "log_density", "energy", "acceptance_rate"):
        np.testing.assert_allclose(getattr(found, name), getattr(alone, name), atol=1e-9, err_msg=name)
    assert len(Counter(alone.tree_depth.tolist())) >= 4, "the lanes are to be out of step"


@pytest.mark.parametrize("backend", ["tensorflow", "numpy"])
@pytest.mark.parametrize("leapfrogs", [1, 4])
def test_what_is_stacked(backend: str, leapfrogs: int) -> None:
    """The five vectors of a finished first half that wait for the second, its scalars, and the depth to reach."""
    nuts_transition = make_nuts(gaussian_primitive(10)[0], NutsOptions(10, leapfrogs, dtype="float64"))
    vector, scalar = TensorType("float64", (10,)), TensorType("float64", ())
    types = (TensorType("uint32", (2,)), vector, scalar, vector, scalar, vector, TensorType("int64"), ())
    program = nuts_transition.compiled(types, get_backend(backend, "eager")).lowered
    stacked = {v for v, allocation in program.var_alloc.items() if allocation is VariableAllocation.FULL}
    vectors = {v for v in stacked if program.var_defs[v].shape == (10,)}
    assert vectors == {
        "build_subtree.between",
        "build_subtree.inner.first_momentum",
        "build_subtree.inner.momentum_sum",
        "build_subtree.inner.proposal.position",
        "build_subtree.inner.proposal.gradient",
    }
    scalars = {
        "build_subtree.inner.log_weight",
        "build_subtree.inner.proposal.scalars",
        "build_subtree.tree_depth",
    }
    # NumPy's program shows two more, of which the second half's are always taken
    unread = {"build_subtree.inner.valid", "build_subtree.inner.tree_depth"}
    assert stacked - vectors == (scalars | unread if backend == "numpy" else scalars)
