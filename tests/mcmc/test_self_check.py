"""`Model.check` finds what it looks for, and nothing in models that are right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax

from batchnuts import Model, covariance_cholesky, positive, real, simplex
from batchnuts.autobatch import ops
from batchnuts.mcmc.model.declarations import Parameter
from batchnuts.mcmc.model.supports import Array, Lower, Shape


def said(model: Model) -> dict[str, tuple[bool, str]]:
    return {finding.name: (finding.ok, finding.said) for finding in model.check().findings}


def sound(p: dict[str, Any]) -> Any:
    return -0.5 * ops.sum(p["mu"] ** 2) - p["tau"] + ops.sum(ops.log(p["theta"])) - ops.sum(p["L"] ** 2)


VARIABLES = {"mu": real(2), "tau": positive(), "theta": simplex(3), "L": covariance_cholesky(2)}


def test_a_sound_model_is_found_to_be_so() -> None:
    found = Model.from_function(sound, variables=VARIABLES, generated=lambda p: {"log_tau": ops.log(p["tau"])}).check()
    assert found.ok, found
    names = [
        "starts",
        "Jacobian of tau",
        "Jacobian of theta",
        "Jacobian of L",
        "repeated",
        "batch",
        "gradient",
        "functions of draws",
    ]
    assert [finding.name for finding in found.findings] == names
    assert str(found).splitlines()[0] == "ok  starts: 64 of 64 initial positions have a finite log-density and gradient"


@dataclass(frozen=True, eq=False)
class WithoutSlope(Lower):
    """A support that forgets a half of its Jacobian."""

    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        value, log_jacobian = super().constrain(x, shape)
        return value, 0.5 * log_jacobian


def test_a_wrong_jacobian_is_found() -> None:
    model = Model.from_function(lambda p: -p["tau"], variables={"tau": Parameter(WithoutSlope())})
    ok, text = said(model)["Jacobian of tau"]
    assert not ok
    assert "by automatic differentiation" in text


@needs_jax
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_jacobian_that_a_user_gives_is_compared(share: float) -> None:
    """Of a simplex of three numbers made of two: with respect to its first two elements."""
    import jax
    import jax.numpy as jnp

    def transform(x: Any) -> Any:
        return {"p": jax.nn.softmax(jnp.append(x["p"], 0.0)), "tau": jnp.exp(x["tau"])}

    def inverse(p: Any) -> Any:
        return {"p": jnp.log(p["p"][:2] / p["p"][2]), "tau": jnp.log(p["tau"])}

    def log_jacobian(x: Any) -> Any:
        return jnp.sum(jnp.log(transform(x)["p"])) + share * x["tau"]

    model = Model.from_jax(
        lambda p: jnp.sum(jnp.log(p["p"])) - p["tau"],
        {"p": np.ones(3) / 3, "tau": 1.0},
        transform=transform,
        inverse=inverse,
        log_jacobian=log_jacobian,
    )
    ok, text = said(model)["Jacobian"]
    assert ok == (share == 1)
    assert "by automatic differentiation" in text


def test_a_jacobian_of_many_elements_or_behind_rounding_is_not_compared() -> None:
    def model(scale: float, dimension: int) -> Model:
        return Model(
            name="m",
            log_density=lambda p: -scale * ops.sum(p["position"] ** 2),
            dimension=dimension,
            structured=True,
            natural_scale=lambda: lambda p: (p, -scale * ops.sum(p["position"] ** 2)),
        )

    assert said(model(1.0, 2))["Jacobian"][1].startswith("what is added to the log-density of the values")
    assert said(model(1.0, 401))["Jacobian"] == (True, "not compared: more than 400 elements")
    assert "not compared: rounding of a log-density" in said(model(1e9, 2))["Jacobian"][1]


def test_starts_outside_of_the_support_are_counted() -> None:
    model = Model.from_function(lambda p: ops.log(p["x"]) - p["x"], variables={"x": real()})
    ok, text = said(model)["starts"]
    assert ok  # others are drawn
    assert ", and a run draws the others again; at " in text
    assert text.endswith("if a scale may be negative there, declare it with batchnuts.positive()")
    count = int(text.split()[0])
    assert 20 < count < 44


def test_hardly_any_start_is_too_few() -> None:
    model = Model.from_function(lambda p: ops.log(p["x"] - 1.9) - p["x"], variables={"x": real()})
    ok, text = said(model)["starts"]
    assert int(text.split()[0]) < 6
    assert not ok


def test_a_density_that_depends_on_more_than_its_argument_is_found() -> None:
    calls = []

    def counted(p: dict[str, Any]) -> Any:
        calls.append(1)
        return -0.5 * p["x"] ** 2 - 0.1 * len(calls)

    ok, text = said(Model.from_function(counted, variables={"x": real()}))["repeated"]
    assert not ok
    assert "depends on something other than its argument (a counter, random numbers, the time)" in text


@needs_jax
def test_a_gradient_by_hand_that_is_wrong_is_found() -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def square(x: Any) -> Any:
        return jnp.sum(x**2)

    square.defvjp(lambda x: (jnp.sum(x**2), x), lambda x, cotangent: (3 * x * cotangent,))
    findings = said(Model.from_function(lambda x: -square(x), dimension=3))
    assert not findings["gradient"][0]
    assert "more than their error at 4 of 4 positions" in findings["gradient"][1]
    assert findings["batch"][0]


def test_a_twin_that_disagrees_is_found() -> None:
    model = Model(
        name="m",
        log_density=lambda x: -0.5 * ops.sum(x**2),
        dimension=2,
        batched_value_and_gradient=lambda x: (-0.51 * ops.sum(x**2, axis=-1), -x),
    )
    assert not said(model)["batch"][0]


def test_a_function_of_draws_that_fails_is_found() -> None:
    model = Model.from_function(lambda p: -(p["x"] ** 2), variables={"x": []}, generated=lambda p: {"y": p["z"]})
    ok, text = said(model)["functions of draws"]
    assert not ok
    assert "failed with KeyError: 'z'" in text


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_scales_do_not_matter(scale: float) -> None:
    centre = np.float32(scale)
    found = Model.from_function(lambda x: -0.5 * ops.sum(((x - centre) / centre) ** 2), dimension=3).check()
    assert found.ok, found
