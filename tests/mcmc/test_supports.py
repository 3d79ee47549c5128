"""Supports: the way there and back, the Jacobians, the same on every library and as others have them."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_libraries import HAS_JAX, as_jax, in_jax, needs_jax
from fake_run import make_draws
from moments import assert_expectations

import batchnuts
from batchnuts import (
    Model,
    bijector,
    correlation_cholesky,
    covariance_cholesky,
    interval,
    lower,
    ordered,
    positive,
    positive_ordered,
    real,
    simplex,
    unit_interval,
    unit_vector,
    upper,
)
from batchnuts.autobatch import ops
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.declarations import Parameter
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import ModelError
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings

BOUNDS = np.array([0.0, 1.5, -2.0])
ALL: dict[str, Parameter] = {
    "real": real(2, 3),
    "positive": positive(),
    "lower": lower(2.5, 3),
    "lower-of-each": lower(BOUNDS, 2, 3),
    "upper": upper(-1.0, 2),
    "interval": interval(-1, 4, 2, 2),
    "interval-of-each": interval(BOUNDS, np.array([1.0, 3.5, 28.0]), 3),
    "unit_interval": unit_interval(),
    "ordered": ordered(4),
    "ordered-rows": ordered(2, 3),
    "positive_ordered": positive_ordered(4),
    "simplex": simplex(5),
    "simplex-rows": simplex(2, 3),
    "unit_vector": unit_vector(3),
    "correlation_cholesky": correlation_cholesky(4),
    "correlation_cholesky-batch": correlation_cholesky(3, batch=[2]),
    "covariance_cholesky": covariance_cholesky(3),
    "covariance_cholesky-batch": covariance_cholesky(2, batch=[2]),
}


def constrained(parameter: Parameter, x: Any) -> tuple[Any, Any]:
    return parameter.support.constrain(x, parameter.shape)


def free_numbers(parameter: Parameter, *lead: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(0).normal(size=(*lead, parameter.support.free(parameter.shape)))


@pytest.mark.parametrize("name", ALL)
def test_the_way_back_is_that_of_the_way_there(name: str) -> None:
    parameter = ALL[name]
    x = free_numbers(parameter, 2, 5)
    value, _ = constrained(parameter, x)
    assert value.shape == (2, 5, *parameter.shape)
    back = parameter.support.unconstrain(value, parameter.shape)
    if name == "unit_vector":
        x = x / np.linalg.norm(x, axis=-1, keepdims=True) * math.sqrt(3)
    np.testing.assert_allclose(back, x, rtol=1e-7, atol=1e-9)


LIES: dict[str, Callable[[np.ndarray], Any]] = {
    "positive": lambda v: v > 0,
    "lower": lambda v: v > 2.5,
    "lower-of-each": lambda v: v > BOUNDS,
    "upper": lambda v: v < -1,
    "interval": lambda v: (v > -1) & (v < 4),
    "unit_interval": lambda v: (v > 0) & (v < 1),
    "ordered": lambda v: np.diff(v, axis=-1) > 0,
    "positive_ordered": lambda v: np.diff(v, axis=-1, prepend=0) > 0,
    "simplex-rows": lambda v: (v > 0).all(axis=-1) & (np.abs(v.sum(axis=-1) - 1) < 1e-12),
    "unit_vector": lambda v: np.abs((v**2).sum(axis=-1) - 1) < 1e-12,
    "correlation_cholesky": lambda v: (np.abs((v**2).sum(axis=-1) - 1) < 1e-12) & (np.triu(v, 1) == 0).all(axis=-1),
    "covariance_cholesky": lambda v: (np.triu(v, 1) == 0).all(axis=-1),
}


@pytest.mark.parametrize("name", LIES)
def test_values_lie_in_their_support(name: str) -> None:
    value, _ = constrained(ALL[name], free_numbers(ALL[name], 50, scale=3.0))
    assert np.all(LIES[name](value))


@needs_jax
@pytest.mark.parametrize("name", [name for name in ALL if name != "unit_vector"])
def test_the_jacobian_is_that_of_automatic_differentiation(name: str) -> None:
    import jax

    from batchnuts.autobatch.language.libraries.jax_flags import enable_x64

    parameter = ALL[name]
    x = free_numbers(parameter)
    with enable_x64():
        matrix = np.asarray(jax.jacobian(lambda x: constrained(parameter, x)[0].reshape(-1))(as_jax(x)))
    rows = parameter.support.coordinates(parameter.shape).reshape(-1)
    assert rows.sum() == len(x)
    _, log_jacobian = constrained(parameter, x)
    expected = np.linalg.slogdet(matrix[rows])[1]
    np.testing.assert_allclose(0.0 if log_jacobian is None else log_jacobian, expected, rtol=1e-9, atol=1e-12)
    still = ~parameter.support.varies(parameter.shape).reshape(-1)
    assert not matrix[still].any()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_library_computes_the_same(name: str, dtype: str) -> None:
    import tensorflow as tf

    parameter = ALL[name]
    x = free_numbers(parameter, 3).astype(dtype)
    value, log_jacobian = constrained(parameter, x)
    assert value.dtype == dtype
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for tensor, call in [
        (tf.constant, lambda f: f),
        *([(as_jax, lambda f: in_jax(f, lanes=False))] if HAS_JAX else []),
    ]:
        found, of_it = call(lambda x: constrained(parameter, x))(tensor(x))
        np.testing.assert_allclose(np.asarray(found), value, rtol=tolerance, atol=tolerance)
        if log_jacobian is None:
            assert of_it is None
        else:
            assert of_it.dtype == dtype
            np.testing.assert_allclose(np.asarray(of_it), log_jacobian, rtol=tolerance, atol=tolerance)
        one, _ = call(lambda x: constrained(parameter, x))(tensor(x[1]))
        np.testing.assert_allclose(np.asarray(one), value[1], rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(importlib.util.find_spec("numpyro") is None, reason="NumPyro is not installed")
@pytest.mark.parametrize(
    ("name", "constraint"),
    [
        ("positive", "positive"),
        ("unit_interval", "unit_interval"),
        ("ordered", "ordered_vector"),
        ("correlation_cholesky", "corr_cholesky"),
        ("covariance_cholesky", "lower_cholesky"),
    ],
)
def test_those_that_numpyro_has_in_the_same_form(name: str, constraint: str) -> None:
    import jax.numpy as jnp
    from numpyro.distributions import biject_to, constraints

    parameter = ALL[name]
    x = free_numbers(parameter).astype("float32")
    value, log_jacobian = constrained(parameter, x)
    if not parameter.shape:
        x = x[0]
    if constraint == "lower_cholesky":  # the diagonal comes last there
        places = np.argwhere(np.tri(3, dtype=bool))
        x = np.concatenate([x[places[:, 0] != places[:, 1]], x[places[:, 0] == places[:, 1]]])
    transform = biject_to(getattr(constraints, constraint))
    expected = transform(jnp.asarray(x))
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-6)
    found = float(transform.log_abs_det_jacobian(jnp.asarray(x), expected))
    np.testing.assert_allclose(log_jacobian, found, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "bijector"),
    [
        ("positive", lambda tfb: tfb.Exp()),
        ("lower", lambda tfb: tfb.Chain([tfb.Shift(np.float64(2.5)), tfb.Exp()])),
        ("upper", lambda tfb: tfb.Chain([tfb.Shift(np.float64(-1)), tfb.Scale(np.float64(-1)), tfb.Exp()])),
        ("interval", lambda tfb: tfb.Sigmoid(np.float64(-1), np.float64(4))),
        ("covariance_cholesky", lambda tfb: tfb.FillScaleTriL(diag_bijector=tfb.Exp(), diag_shift=None)),
    ],
)
def test_those_that_tensorflow_probability_has_in_the_same_form(name: str, bijector: Callable[[Any], Any]) -> None:
    import tensorflow as tf
    import tensorflow_probability as tfp

    parameter = ALL[name]
    x = free_numbers(parameter)
    value, log_jacobian = constrained(parameter, x)
    there = bijector(tfp.bijectors)
    given = x.reshape(parameter.shape) if name != "covariance_cholesky" else x
    if name == "covariance_cholesky":  # filled in an order of its own
        order = np.asarray(tfp.math.fill_triangular(tf.range(len(x))))[np.tri(3, dtype=bool)]
        given = np.empty_like(x)
        given[order] = x
    expected = there.forward(tf.constant(given))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    found = there.forward_log_det_jacobian(tf.constant(given), event_ndims=given.ndim)
    np.testing.assert_allclose(log_jacobian, np.asarray(found), rtol=1e-8)


@pytest.mark.parametrize(
    ("parameter", "value", "said"),
    [
        (positive(2), [1.0, -1.0], "'x' has the value -1.0; expected values above 0.0"),
        (upper(3.0), 3.5, "expected values below 3.0"),
        (unit_interval(2), [0.5, 1.0], "expected values between 0.0 and 1.0"),
        (ordered(3), [0.0, 2.0, 1.0], "expected values that ascend along the last axis"),
        (positive_ordered(2), [-1.0, 2.0], "expected values above 0"),
        (simplex(2), [0.5, 0.6], "expected sums of 1"),
        (simplex(2), [1.5, -0.5], "expected values above 0"),
        (unit_vector(2), [1.0, 1.0], "expected vectors of length 1"),
        (correlation_cholesky(2), [[1.0, 0.0], [0.5, 0.5]], "expected rows of length 1"),
        (covariance_cholesky(2), [[1.0, 1.0], [0.5, 0.5]], "expected zeros above the diagonal"),
        (covariance_cholesky(2), [[1.0, 0.0], [0.5, -0.5]], "expected a positive diagonal"),
    ],
)
def test_values_outside_are_refused(parameter: Parameter, value: Any, said: str) -> None:
    model = Model.from_function(lambda p: ops.sum(p["x"]), variables={"x": parameter}, name="m", dtype="float64")
    with pytest.raises(ModelError, match=r"Model 'm': 'x' has the value .*") as caught:
        model.unconstrain({"x": value})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        (lower(np.zeros(3), 2), r"Variable 'x' has bounds of shape \(3,\); expected a number, or an array"),
        (lower(math.inf), "has the bound inf; expected finite numbers"),
        (interval(1e39, 1e40), "the bounds of variable 'x' overflow float32, whose largest number is 3.4e.38"),
        (interval(-3e38, 3e38), "the bounds of variable 'x' overflow float32"),
        (upper(-1e39), "the bounds of variable 'x' overflow float32"),
        (interval(2, 1), "lies between 2 and 1; expected the lower bound to be below the upper one"),
        (ordered(), r"has shape \(\); expected a last axis, along which"),
        (simplex(1), r"has shape \(1,\); expected a last axis of at least 2"),
        (correlation_cholesky(1), r"has shape \(1, 1\); expected a square matrix of at least 2 rows"),
        (real(-1), "every axis needs at least one element"),
        (positive, r"variables\['x'\] is <function positive.*> \(call it, as in `positive\(\)`\)"),
        ("positive", r"variables\['x'\] is 'positive'; expected names with their shapes or supports"),
    ],
)
def test_declarations_that_cannot_be_are_refused(parameter: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        Model.from_function(lambda p: p["x"], variables={"x": parameter})


def test_a_support_needs_a_density_of_values() -> None:
    with pytest.raises(ModelError, match="variable 'tau' has a support, so its log_density takes a dict of values"):
        Model(name="m", log_density=lambda x: x[0], dimension=1, variables=(positive().named("tau"),))


def test_axes_are_named_and_labelled() -> None:
    model = Model.from_function(
        lambda p: ops.sum(p["theta"]) - p["tau"],
        variables={"theta": simplex(3, dims="part", coords={"part": ["a", "b", "c"]}), "tau": positive()},
    )
    assert model.dimension == 3
    assert model.element_names() == ["theta[a]", "theta[b]", "theta[c]", "tau"]
    assert model.free_names() == ["unconstrained(theta)[0]", "unconstrained(theta)[1]", "unconstrained(tau)"]
    sampler, _ = split_settings({"chains": 4, "draws": 5})
    drawn = to_datasets(make_draws(model, sampler), model, content=Content(unconstrained=True))
    assert drawn["posterior"]["theta"].dims == ("chain", "draw", "part")
    assert drawn["posterior"]["theta"].attrs["support"] == "simplex"
    assert list(drawn["posterior"]["part"].values) == ["a", "b", "c"]
    assert drawn["unconstrained_posterior"]["theta"].dims == ("chain", "draw", "theta_unconstrained")
    np.testing.assert_allclose(
        np.exp(drawn["unconstrained_posterior"]["tau"].values), drawn["posterior"]["tau"].values, rtol=1e-6
    )
    assert list(drawn["adaptation"]["coefficient"].values) == model.free_names()


def test_zeros_of_a_triangle_are_not_judged() -> None:
    model = Model.from_function(lambda p: -0.5 * ops.sum(p["L"] ** 2), variables={"L": covariance_cholesky(2)})
    sampler, _ = split_settings({"chains": 8, "draws": 1000})
    found = batchnuts.check(to_datasets(make_draws(model, sampler), model))
    assert found.diagnostics.names == ("L[0, 0]", "L[1, 0]", "L[1, 1]")
    assert found.diagnostics.converged


def test_starts_may_be_given_by_name() -> None:
    starts = {"tau": np.linspace(1, 2, 4), "p": np.full((4, 2), 0.5)}
    model = Model.from_function(
        lambda p: ops.log(p["tau"]), variables={"tau": positive(), "p": simplex(2)}, initializer=lambda rng, n: starts
    )
    found = model.constrain(model.initial_positions(np.random.default_rng(0), 4))
    for name, values in starts.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


ETA = 2.0


def known(p: dict[str, Any]) -> Any:
    """Densities of the values; what is expected of them is below."""
    terms = [
        -0.5 * ops.sum(p["half_normal"] ** 2),
        -2.0 * (p["above"] - 1.0),  # exponential
        2.0 * ops.log(p["beta"]) + ops.log(1 - p["beta"]),
        ops.sum(np.array([0.0, 1.0, 2.0], "float32") * ops.log(p["dirichlet"])),
        -0.5 * ops.sum(p["order"] ** 2),
        2 * (ETA - 1) * ops.log(p["lkj"][1, 1]),
    ]
    return sum(terms[1:], terms[0])


def test_sampled_values_have_the_expectations_of_their_density() -> None:
    """Half-normal, exponential, beta(3, 2), Dirichlet(1, 2, 3), order statistics, LKJ(2) of two, uniform directions."""
    variables = {
        "half_normal": positive(),
        "above": lower(1.0),
        "beta": unit_interval(),
        "dirichlet": simplex(3),
        "order": ordered(2),
        "lkj": correlation_cholesky(2),
        "direction": unit_vector(3),
    }
    model = Model.from_function(known, variables=variables)
    sampler, execution = split_settings({"chains": 64, "warmup": 300, "draws": 300, "seed": 5})
    draws = run_chains(model, sampler, execution)
    values = model.constrain(draws.position)
    mean_of_max = 1 / math.sqrt(math.pi)
    expected = {
        "half_normal": (values["half_normal"], math.sqrt(2 / math.pi)),
        "above": (values["above"], 1.5),
        "beta": (values["beta"], 3 / 5),
        "dirichlet": (values["dirichlet"], np.array([1, 2, 3]) / 6),
        "order": (values["order"], np.array([-mean_of_max, mean_of_max])),
        # r of LKJ(eta) is beta(eta, eta) on (-1, 1), whose variance is 1 / (2 eta + 1)
        "lkj": (values["lkj"][..., 1, 0] ** 2, 1 / (2 * ETA + 1)),
        "direction": (values["direction"] ** 2, np.full(3, 1 / 3)),
    }
    columns = [np.reshape(array, (*draws.done.shape, sampler.draws, -1)) for array, _ in expected.values()]
    wanted = np.concatenate([np.atleast_1d(mean) for _, mean in expected.values()])
    assert_expectations(np.concatenate(columns, axis=-1).astype("float64"), wanted, largest_error=0.05)


def test_bijectors_of_tensorflow_probability_are_supports() -> None:
    import tensorflow_probability as tfp

    tfb = tfp.bijectors
    model = Model.from_function(
        lambda p: -ops.sum(p["x"]) - ops.sum(p["L"] ** 2) - p["y"],
        variables={"x": tfb.Softplus(), "L": bijector(tfb.CorrelationCholesky(), 3, 3), "y": positive()},
    )
    assert model.dimension == 1 + 3 + 1
    assert density_library_of(model).backend == "tensorflow"
    positions = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    values = model.constrain(positions)
    assert values["L"].shape == (4, 3, 3)
    np.testing.assert_allclose((values["L"] ** 2).sum(axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(values["x"], np.log1p(np.exp(positions[:, 0])), rtol=1e-5)
    np.testing.assert_allclose(model.unconstrain(values), positions, rtol=1e-3, atol=1e-4)
    findings = {finding.name: finding for finding in model.check().findings}
    assert all(finding.ok for finding in findings.values()), findings
    assert "by automatic differentiation" in findings["Jacobian of x"].said


@pytest.mark.parametrize(
    ("shape", "said"),
    [((3, 2), "but its bijector makes arrays of shape (2, 2)"), ((), "has shape (), which its bijector rejects")],
)
def test_a_shape_that_a_bijector_cannot_make(shape: tuple[int, ...], said: str) -> None:
    import tensorflow_probability as tfp

    with pytest.raises(ModelError) as caught:
        Model.from_function(lambda p: p["L"], variables={"L": bijector(tfp.bijectors.CorrelationCholesky(), *shape)})
    assert said in str(caught.value)
