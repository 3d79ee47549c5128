"""Gradients of whole densities in machine code: JAX's, and finite differences'; what goes to a library says so."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import batchnuts
from batchnuts.autobatch import ops, random
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.language.arrays import tensor_library
from batchnuts.autobatch.native.outlined import outlined
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.model import library_choice
from batchnuts.mcmc.model.density_expression import NotEmitted, density_expression, input_types
from batchnuts.mcmc.model.library_choice import choose_density_library
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, split_settings
from batchnuts.models.registry import REGISTRY
from tests.helpers.moments import ALPHA

jax = pytest.importorskip("jax")
jnp = jax.numpy
POINTS = 10


def machine_code(expression: Expression) -> Callable[[np.ndarray], tuple[Any, np.ndarray]]:
    """The function of a position that LLVM has made of a value and gradient."""
    made = outlined(expression)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(made.address)
    memory = np.zeros(made.scratch_bytes + 128, np.uint8)

    def compute(x: np.ndarray) -> tuple[Any, np.ndarray]:
        value, gradient = np.zeros((), x.dtype), np.zeros_like(x)
        end = (memory.ctypes.data + len(memory)) // 64 * 64
        call(x.ctypes.data, value.ctypes.data, gradient.ctypes.data, end)
        return value, gradient

    return compute


def packaged(name: str, dtype: str) -> Model:
    entry = REGISTRY[name]
    smaller = {"rows": 100, "columns": 5} if name == "logistic_regression" else {}
    return entry.build(entry.options.model_validate({"dtype": dtype, **smaller}))


def numpyro_model() -> Model:
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions
    groups, y = np.arange(40) % 5, np.sin(np.arange(40.0))

    def program() -> None:
        centre = numpyro.sample("centre", dist.Normal(0, 1))
        scale, noise = numpyro.sample("scale", dist.HalfCauchy(1)), numpyro.sample("noise", dist.Exponential(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
        weights = numpyro.sample("weights", dist.Dirichlet(np.ones(3)))
        with numpyro.plate("groups", 5):
            effects = numpyro.sample("effects", dist.Normal(centre, scale))
        numpyro.sample("y", dist.StudentT(4.0, effects[groups] * weights[0] + factor[1, 0], noise), obs=y)

    return Model.from_numpyro(program)


def pymc_model() -> Model:
    pm = pytest.importorskip("pymc")
    x, y = np.linspace(-1, 1, 30), np.arange(30) % 3
    with pm.Model() as program:
        slope, shape = pm.Normal("slope", 0, 2), pm.Gamma("shape", 2, 1)
        levels = pm.Normal("levels", 0, pm.HalfNormal("spread", 1), shape=3)
        pm.NegativeBinomial("y", pm.math.exp(slope * x + levels[np.arange(30) % 3]), shape, observed=y)
    return Model.from_pymc(program)


def jax_model() -> Model:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    return Model.from_jax(
        lambda p: jnp.sum(jax.nn.log_sigmoid(rows @ p["slopes"])) - 0.5 * jnp.sum(p["slopes"] ** 2) / p["scale"]
        - p["scale"],
        {"slopes": np.zeros(4), "scale": 1.0},
        supports={"scale": batchnuts.positive()},
    )  # fmt: skip


OF_LIBRARIES = {"jax": jax_model, "numpyro": numpyro_model, "pymc": pymc_model}


def compare(model: Model, tolerance: float) -> None:
    """Machine code beside JAX, at points near the start; where neither overflows."""
    library = tensor_library("jax")
    by_hand = model.batched_value_and_gradient is not None
    compute = machine_code(density_expression(model, input_types(model), 4, None if by_hand else library))
    of_jax = library.differentiated(model.flat_log_density)
    rng = np.random.default_rng(0)
    for x in model.initial_positions(rng, POINTS):
        x = np.ascontiguousarray(x, model.dtype)
        value, gradient = map(np.asarray, of_jax(library.tensor(x)))
        found, slope = compute(x)
        scale = float(np.abs(gradient).max())
        assert abs(found - value) <= tolerance * max(1.0, abs(float(value)))
        np.testing.assert_allclose(slope, gradient, rtol=0, atol=tolerance * scale)


TOO_LARGE = {"hidden_markov", "gaussian_process", "lotka_volterra"}
"""Loops, decompositions, a differential equation: not of the functions that machine code is made of."""


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 1e-3)])
@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - TOO_LARGE))
def test_packaged_models_have_the_gradients_of_jax(name: str, dtype: str, tolerance: float) -> None:
    compare(packaged(name, dtype), tolerance)


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_models_of_jax_libraries_have_the_gradients_of_jax(name: str) -> None:
    model = OF_LIBRARIES[name]()
    compare(model, 1e-3 if model.dtype == "float32" else 1e-10)


@pytest.mark.parametrize("name", sorted(TOO_LARGE))
def test_other_packaged_models_go_to_a_library_and_say_why(name: str) -> None:
    model = packaged(name, "float32")
    with pytest.raises(NotEmitted, match=r"a matrix of 40 rows|more than 4,000 calls"):
        density_expression(model, input_types(model), 64, tensor_library("jax"))
    found, execution = choose_density_library(
        model, ExecutionSettings(), model.initial_positions(np.random.default_rng(0), 1)[0], 64
    )
    assert execution.backend == "native"
    assert "with gradients by JAX" in found.reason
    assert "not in machine code, because of " in found.reason


@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - TOO_LARGE))
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    model = packaged(name, "float64")
    compute = machine_code(density_expression(model, input_types(model), 4))
    x = np.ascontiguousarray(model.initial_positions(np.random.default_rng(1), 1)[0], "float64")
    direction = np.random.default_rng(2).normal(size=x.size)
    step = 1e-5 / np.linalg.norm(direction)
    after, before = (float(compute(x + sign * step * direction)[0]) for sign in (1, -1))
    assert float(compute(x)[1] @ direction) == pytest.approx((after - before) / (2 * step), rel=1e-5, abs=1e-5)


def test_functions_of_ops_and_of_jax_in_one_density() -> None:
    model = Model.from_function(lambda q: -0.5 * ops.sum(q * q) + jnp.sum(jnp.tanh(ops.exp(-q))), dimension=3)
    compare(model, 1e-4)
    found, execution = choose_density_library(model, ExecutionSettings(), np.ones(3), 4)
    assert (found.backend, execution.backend, found.in_machine_code) == ("jax", "native", True)


@pytest.mark.parametrize(
    ("density", "why"),
    [
        (lambda q: -jnp.sum(q**2) + jnp.sort(q)[0] + ops.sum(q), "not in machine code, because of JAX's sort"),
        (
            lambda q: -0.5 * jnp.sum((jnp.tile(q, 200) @ jnp.eye(400)) ** 2),
            "because of products of matrices, 320,000 multiplications",
        ),
    ],
)
def test_what_is_no_machine_code_is_sampled_by_the_library_and_said(density: Any, why: str) -> None:
    model = Model.from_function(density, dimension=2)
    draws = run_chains(model, *split_settings({"chains": 32, "warmup": 10, "draws": 5}))
    reason = draws.backend_reason
    assert reason.startswith("with gradients by JAX, because the log-density is written in JAX; not in machine code")
    assert why in reason


def test_a_twin_is_not_called_for_chains_in_machine_code() -> None:
    calls: list[int] = []

    def by_hand(q: Any) -> Any:
        calls.append(len(q))
        return -0.5 * ops.sum(q * q, axis=1), -q

    model = Model(
        name="twin",
        log_density=lambda q: -0.5 * ops.sum(q * q),
        dimension=3,
        batched_value_and_gradient=by_hand,
    )
    draws = run_chains(model, *split_settings({"chains": 4, "warmup": 10, "draws": 5}))
    assert draws.execution.backend == "native_numpy"
    assert not {2, 4} & set(calls), "chunks of chains; of other numbers it was checked and traced"


def test_a_wrong_recording_is_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code whose values differ from JAX's is not run."""
    model = Model.from_function(lambda q: -0.5 * jnp.sum((q - 2.0) ** 2), dimension=2)
    wrong = density_expression(
        Model.from_function(lambda q: -0.5 * jnp.sum((q - 3.0) ** 2), dimension=2), input_types(model), 4,
        tensor_library("jax"),
    )  # fmt: skip
    monkeypatch.setattr(library_choice, "density_expression", lambda *_: wrong)
    draws = run_chains(model, *split_settings({"chains": 4, "warmup": 100, "draws": 200, "seed": 1}))
    assert "what it records for machine code differs" in draws.backend_reason
    assert float(draws.position.mean()) == pytest.approx(2.0, abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["ops", "jax"])
def test_the_target_is_invariant_at_20000_chains(library: str) -> None:
    """Exact draws of a funnel are exact draws after a transition, gradients in machine code."""
    functions = ops if library == "ops" else jnp

    def density(q: Any) -> Any:
        return -0.5 * (q[0] / 3) ** 2 - 1.5 * q[0] - 0.5 * functions.exp(-q[0]) * functions.sum(functions.square(q[1:]))

    model = Model.from_function(density, dimension=4, dtype="float64")
    found, execution = choose_density_library(model, ExecutionSettings(), np.ones(4), 20_000)
    assert found.in_machine_code
    lanes, rng = 20_000, np.random.default_rng(5)
    first = 3 * rng.normal(size=lanes)
    position = np.concatenate([first[:, None], np.exp(first / 2)[:, None] * rng.normal(size=(lanes, 3))], axis=1)
    energy = -0.5 * (first / 3) ** 2 - 1.5 * first - 0.5 * np.exp(-first) * (position[:, 1:] ** 2).sum(1)
    slope = -first / 9 - 1.5 + 0.5 * np.exp(-first) * (position[:, 1:] ** 2).sum(1)
    gradient = np.concatenate([slope[:, None], -np.exp(-first)[:, None] * position[:, 1:]], axis=1)
    transition = make_nuts(value_and_gradient(model, found), NutsOptions(6, dtype="float64"))
    ends = transition.run(
        random.lane_keys(2, lanes), position, energy, gradient, np.full(lanes, 0.4), np.ones((lanes, 4)),
        backend=execution.backend,
    )  # fmt: skip
    assert (ends.position != position).any(axis=1).mean() > 0.8
    assert len(set(ends.tree_depth)) >= 3
    scaled = ends.position[:, 1:] * np.exp(-ends.position[:, :1] / 2)
    tests = [stats.kstest(ends.position[:, 0] / 3, stats.norm.cdf).pvalue]
    tests += [stats.kstest(scaled[:, i], stats.norm.cdf).pvalue for i in range(3)]
    tests += [stats.kstest((scaled**2).sum(1), stats.chi2(3).cdf).pvalue]
    tests += [stats.ttest_1samp(ends.position[:, 0] * scaled[:, i], 0).pvalue for i in range(3)]
    assert min(tests) > ALPHA / len(tests), tests
