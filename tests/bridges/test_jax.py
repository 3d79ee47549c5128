"""`Model.from_jax`: trees of arrays, supports and transformations of the user's, and mistakes."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from bridge_models import config_of
from moments import assert_expectations
from scipy import special

from batchnuts import Model, positive, real, simplex
from batchnuts.cli.config import build_model
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import ModelError

jax = pytest.importorskip("jax", reason="the extra jax is not installed")
jnp = jax.numpy

Group = namedtuple("Group", "scale parts")
TREE = {"tau": 1.5, "mu": 0.0, "group": Group(np.full(3, 2.0), [0.0, np.zeros((2, 2))])}
NAMES = ["tau", "mu", "group.scale", "group.parts.0", "group.parts.1"]


def density(p: Any) -> Any:
    """Normal, but for scales: exponential."""
    total = -p["tau"] - jnp.sum(p["group"].scale) - 0.5 * (p["mu"] - 1) ** 2
    return total - 0.5 * p["group"].parts[0] ** 2 - 0.5 * jnp.sum(p["group"].parts[1] ** 2)


def value_and_gradient(model: Model, at: np.ndarray) -> tuple[float, np.ndarray]:
    library = density_library_of(model).library
    value, gradient = library.differentiated(model.flat_log_density)(library.tensor(at))
    return float(value), np.asarray(gradient)


def test_names_are_those_of_paths_in_the_users_order() -> None:
    model = Model.from_jax(density, TREE)
    assert [v.name for v in model.variables] == NAMES
    assert [v.shape for v in model.variables] == [(), (), (3,), (), (2, 2)]
    assert [v.name for v in Model.from_jax(jnp.sum, np.zeros(2)).variables] == ["position"]
    assert [v.name for v in Model.from_jax(sum, (0.0, 1.0)).variables] == ["position.0", "position.1"]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("way", ["supports", "transform"])
def test_density_is_the_users_and_the_jacobian(way: str, dtype: Any, tolerance: float) -> None:
    """exp(x) of scales adds x; both ways."""

    def exp(p: Any) -> Any:
        return {**p, "tau": jnp.exp(p["tau"]), "group": p["group"]._replace(scale=jnp.exp(p["group"].scale))}

    if way == "supports":
        supports = {"tau": positive(), "group.scale": positive(3)}
        model = Model.from_jax(density, TREE, supports=supports, dtype=dtype)
    else:
        model = Model.from_jax(density, TREE, transform=exp, dtype=dtype)
    x = np.random.default_rng(0).normal(size=10).astype(dtype)
    scales = np.exp(x[[0, 2, 3, 4]].astype("float64"))
    rest = x[[5, 6, 7, 8, 9]].astype("float64")
    expected = np.log(scales).sum() - scales.sum() - 0.5 * (x[1] - 1.0) ** 2 - 0.5 * (rest**2).sum()
    value, gradient = value_and_gradient(model, x)
    assert math.isclose(value, expected, rel_tol=tolerance)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(
        gradient, np.concatenate([1 - scales[:1], [1 - x[1]], 1 - scales[1:], -rest]), rtol=10 * tolerance
    )
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_a_number_of_pythons_has_the_dtype_of_the_model(dtype: Any, tolerance: float) -> None:
    """A von Mises density: JAX's Bessel function of 2.0 became float64, and met float32 within itself."""
    concentration = 2.0
    model = Model.from_jax(
        lambda x: concentration * jnp.cos(x) - jnp.log(jax.scipy.special.i0e(concentration)), 0.0, dtype=dtype
    )
    value, gradient = value_and_gradient(model, np.array([0.5], dtype))
    assert math.isclose(value, 2 * math.cos(0.5) - math.log(special.i0e(2.0)), rel_tol=tolerance)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient, [-2 * math.sin(0.5)], rtol=tolerance)


def test_a_transform_whose_elements_depend_on_each_other() -> None:
    """y = A x: by a determinant of A, which the user may give."""
    matrix = np.array([[2.0, 0.5], [0.3, 1.0]])
    given: dict[str, Any] = {"transform": lambda x: jnp.dot(matrix, x), "dtype": "float64"}
    model = Model.from_jax(lambda y: -0.5 * jnp.sum(y**2), np.zeros(2), **given)
    x = np.array([0.3, -1.0])
    expected = -0.5 * np.sum((matrix @ x) ** 2) + math.log(np.linalg.det(matrix))
    assert math.isclose(value_and_gradient(model, x)[0], expected, rel_tol=1e-12)
    told = Model.from_jax(lambda y: -0.5 * jnp.sum(y**2), np.zeros(2), log_jacobian=lambda x: 7.0 + 0 * x[0], **given)
    assert math.isclose(value_and_gradient(told, x)[0], expected - math.log(np.linalg.det(matrix)) + 7, rel_tol=1e-12)


def softmax(x: Any) -> Any:
    return {"p": jax.nn.softmax(jnp.concatenate([x["p"], jnp.zeros(1, x["p"].dtype)]))}


def log_ratios(v: Any) -> Any:
    return {"p": jnp.log(v["p"][:-1] / v["p"][-1])}


SIMPLEX: dict[str, Any] = {
    "transform": softmax,
    "inverse": log_ratios,
    "log_jacobian": lambda x: jnp.sum(jnp.log(softmax(x)["p"])),
}


def test_an_inverse_gives_the_unconstrained_shape_and_the_starts() -> None:
    example = {"p": np.array([0.7, 0.2, 0.1])}
    model = Model.from_jax(lambda v: jnp.sum(jnp.log(v["p"])), example, **SIMPLEX)
    assert (model.dimension, model.free_names()) == (2, ["unconstrained(p)[0]", "unconstrained(p)[1]"])
    starts = model.initial_positions(np.random.default_rng(0), 1000)
    assert np.abs(starts - np.log([7.0, 2.0])).max() <= 2.001
    assert model.generated is not None
    values = model.generated({"unconstrained(p)": jnp.asarray([math.log(7.0), math.log(2.0)])})
    np.testing.assert_allclose(values["p"], example["p"], rtol=1e-5)


def test_starts_lie_around_the_example() -> None:
    model = Model.from_jax(density, {**TREE, "mu": 40.0, "tau": 1e3}, supports={"tau": positive()})
    starts = model.initial_positions(np.random.default_rng(0), 1000)
    assert np.abs(starts[:, :2] - [math.log(1e3), 40.0]).max() <= 2.001
    assert np.ptp(starts[:, 1]) > 3.9


def test_functions_of_draws_take_trees() -> None:
    model = Model.from_jax(
        density,
        TREE,
        supports={"tau": positive()},
        generated=lambda p: {"twice": 2 * p["group"].scale},
        log_likelihood=lambda p: {"y": p["mu"] - jnp.zeros(4)},
        prior=lambda seed: {**TREE, "mu": jax.random.normal(seed)},
        dims={"group.scale": ["site"], "twice": ["site"]},
        coords={"site": ["a", "b", "c"]},
    )
    found = {f.name: f for f in model.check().findings}
    assert all(f.ok for f in found.values()), found
    assert "functions of draws" in found
    assert model.element_names()[2:5] == ["group.scale[a]", "group.scale[b]", "group.scale[c]"]
    assert model.dims_of("twice", (3,)) == ("site",)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["supports", "transform"])
def test_sampled_moments(way: str) -> None:
    """tau ~ Exp(1), mu ~ N(1, 1); Dirichlet(2, 2, 2) by the transformation."""
    from batchnuts import sample_chains

    if way == "supports":
        model = Model.from_jax(density, TREE, supports={"tau": positive(), "group.scale": positive(3)})
        posterior = sample_chains(model, chains=64, warmup=200, draws=200, seed=1)["posterior"]
        assert list(posterior) == NAMES
        draws = np.stack([posterior["tau"].values, posterior["mu"].values], axis=-1)
        assert_expectations(draws, [1.0, 1.0], 0.05)
    else:
        model = Model.from_jax(lambda v: jnp.sum(jnp.log(v["p"])), {"p": np.full(3, 1 / 3)}, **SIMPLEX)
        posterior = sample_chains(model, chains=64, warmup=200, draws=200, seed=1)["posterior"]
        assert list(posterior) == ["p"]
        p = posterior["p"].values
        np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-5)
        assert_expectations(np.concatenate([p, p**2], axis=-1), [1 / 3] * 3 + [1 / 7] * 3, 0.05)


MODULE = """
import jax.numpy as jnp

def density(p):
    return -p["tau"] - 0.5 * jnp.sum((p["theta"] - 1) ** 2)

def start():
    return {"tau": 1.0, "theta": jnp.ones(2)}

def broken():
    return 1 / 0

def generated(p):
    return {"total": jnp.sum(p["theta"])}
"""


@pytest.mark.parametrize("example", ["{tau: 1, theta: [1, 1]}", "own_jax:start"])
def test_config(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, example: str) -> None:
    more = "supports: {tau: positive, theta: positive}, generated: generated, dims: {theta: [site]}, dtype: float64"
    model = build_model(
        config_of(tmp_path, monkeypatch, "own_jax", MODULE, f"{{jax: own_jax:density, example: {example}, {more}}}")
    )
    assert sorted(model.element_names()) == ["tau", "theta[0]", "theta[1]"]
    assert (model.dtype, model.dims_of("theta", (2,))) == ("float64", ("site",))
    ones = {"tau": np.ones(()), "theta": np.ones(2)}
    assert float(model.flat_log_density(model.unconstrain(ones))) == -1.0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{jax: own_jax, example: 0.0}", r"model: jax is 'own_jax'; expected package.module:function"),
        ("{jax: own_jax:density}", "model.example: this key is required"),
        ("{jax: own_jax:denstiy, example: 0.0}", "did you mean 'density'"),
        (
            "{jax: own_jax:density, example: own_jax:broken}",
            r"'own_jax:broken' failed with ZeroDivisionError.*own_jax.py:11",
        ),
        ("{jax: own_jax:density, example: [[0, 1], [0]]}", "rows of one length"),
        ("{jax: own_jax:density, example: {mu: yes}}", "model.example: .*the part 'mu' of its example is 'yes'"),
        (
            "{jax: own_jax:density, example: {mu: 0}, supports: {m: positive}}",
            "not a part of the example; did you mean 'mu'",
        ),
        ("{jax: own_jax:density, example: 0.0, transfrom: f}", "unknown key; did you mean 'transform'"),
    ],
)
def test_mistakes_in_a_config(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, section: str, words: str) -> None:
    from batchnuts.settings.yaml import ConfigError

    with pytest.raises(ConfigError, match=words):
        build_model(config_of(tmp_path, monkeypatch, "own_jax", MODULE, section))


@pytest.mark.parametrize(
    ("example", "options", "words"),
    [
        ({}, {}, "has no numbers"),
        ({"a": np.zeros(2, int)}, {}, "'a' of its example has dtype int64, but discrete parameters"),
        ({"a": True}, {}, "discrete"),
        ({"a": "x"}, {}, "'a' of its example is 'x'; expected a real number"),
        ({"a": [0.0, np.nan]}, {}, "'a.1' of its example is not finite"),
        ({"a": 1e39}, {}, "not finite in float32"),
        ({"a": 0.0, "b": {"c": None}}, {}, "the part 'b.c' of its example is None"),
        ({"a": 0.0}, {"supports": ["a"]}, r"supports is \['a'\]; expected supports by the name of a part"),
        ({"a": 0.0}, {"dims": {"a": 3}}, r"dims\['a'\] is 3; expected a name for each axis"),
        ({"a": 0.0}, {"observed_data": np.zeros(3)}, "observed_data is array.*; expected arrays by name"),
        ({"a": 0.0}, {"observed_data": {"y": {"z": 1}}}, "expected an array of numbers or strings"),
        ({"a.b": 0.0, "a": {"b": 0.0}}, {}, "two parts of its example are called 'a.b'"),
        ({"a": 0.0}, {"supports": {"b": positive()}}, "supports has 'b'"),
        ({"a": 0.0}, {"supports": {"a": positive}}, r"call it, as in `positive\(\)`"),
        ({"a": np.zeros(3)}, {"supports": {"a": positive(2)}}, r"has shape \(2,\), but the example's is \(3,\)"),
        ({"a": -1.0}, {"supports": {"a": positive()}}, "above 0"),
        ({"a": np.ones(3)}, {"supports": {"a": simplex(3)}}, "'a' has"),
        ({"a": np.zeros(0)}, {}, "every axis needs at least one element"),
        ({"a/b": 0.0}, {}, "the name 'a/b' has a slash"),
        ({"chain": 0.0}, {}, "cannot be called 'chain'"),
        ({"a": 0.0}, {"supports": {"a": real()}, "transform": lambda p: p}, "not both"),
        ({"a": 0.0}, {"inverse": lambda p: p}, "inverse belongs to a transform, which is not given"),
        ({"a": 0.0}, {"transform": lambda p: {"b": p["a"]}}, "does not fit the example: it gave the structure"),
        ({"a": 0.0}, {"transform": lambda p: {"a": p["c"]}}, r"failed with KeyError: 'c' at .*test_jax.py:\d+"),
        ({"a": 0.0}, {"transform": 3}, "transform is 3; expected a function"),
        ({"a": 2.0}, {"transform": lambda p: {"a": 3 * p["a"]}, "inverse": lambda p: p}, "its transform, applied"),
        ({"a": np.zeros(3)}, {"transform": lambda p: {"a": p["a"][:2]}}, "give log_jacobian"),
        ({"a": np.zeros(80)}, {"transform": lambda p: {"a": jnp.cumsum(p["a"])}}, "80 x 80 would be computed"),
        ({"a": 0.0}, {"transform": lambda p: p, "prior": lambda seed: {"a": 0.0}}, "needs its inverse"),
        ({"a": 0.0}, {"data": np.zeros(2)}, "no field 'data'; its functions read their data themselves"),
        ({"a": 0.0}, {"genrated": lambda p: {}}, "no field 'genrated'; did you mean 'generated'"),
    ],
)  # fmt: skip
def test_mistakes(example: Any, options: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Model.from_jax(lambda p: -0.5 * p["a"] ** 2, example, **options)


def test_function_and_example_swapped() -> None:
    with pytest.raises(ModelError, match="The function comes first"):
        Model.from_jax({"a": 0.0}, density)  # type: ignore[arg-type]


def test_a_density_that_fails_is_named_with_its_line() -> None:
    def wrong(p: Any) -> Any:
        return -0.5 * p["b"] ** 2

    with pytest.raises(ModelError, match=r"position of 1 number \(.*failed with KeyError: 'b' at .*test_jax.py:\d+"):
        Model.from_jax(wrong, {"a": 0.0}).check()


def test_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchnuts.bridges.jax.has_jax", lambda: False)
    with pytest.raises(ModelError, match=r"needs JAX, which is not installed: pip install 'batchnuts\[jax\]'"):
        Model.from_jax(density, TREE)
