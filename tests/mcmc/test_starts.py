"""Where chains start: what is drawn again, and what is said where no start is good."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from array_libraries import needs_jax
from densities import good, run, solving, starts_of

from batchnuts import sample_chains
from batchnuts.mcmc.execution.evaluation import ProgramGradients
from batchnuts.mcmc.model.check_model import check_density
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.starts.find_starts import TRIES


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_density_that_is_not_finite_at_the_start(value: float) -> None:
    """Only chains that start to the right of zero are bad: the message says how many, and which is the first."""

    def half(q: Any) -> Any:
        return tf.where(q[0] > 0, tf.constant(value, tf.float32), good(q))

    model = Model(
        name="half",
        log_density=half,
        dimension=2,
        initializer=lambda rng, chains: np.linspace(-1, 1, 2 * chains).reshape(chains, 2),
    )
    with pytest.raises(ModelError) as caught:
        run(model)
    message = str(caught.value)
    assert "log-density is not finite at the initial position of 2 of 4 chains (first: chain 2, " in message
    assert str(value) in message
    assert ("transform constrained parameters, or give the model an initializer" in message) != np.isnan(value)
    assert ("float64" in message and "jitter" in message) == np.isnan(value)
    assert "drawn" not in message, "the initializer would give the same again"


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("own", [False, True])
def test_a_start_that_is_not_finite_is_drawn_again(value: float, own: bool) -> None:
    """Others stay where they were, and what a chain gets depends neither on how many there are nor on its neighbours"""

    def edge(q: Any) -> Any:
        return tf.where(q[0] > 1.0, tf.constant(value, tf.float32), good(q))

    initializer = (lambda rng, chains: rng.normal(size=(chains, 2))) if own else None
    model = Model(name="edge", log_density=edge, dimension=2, initializer=initializer)
    first = model.initial_positions(np.random.default_rng(3), 40)
    found = starts_of(model, 40, seed=3)
    fine = first[:, 0] <= 1.0
    assert 0 < fine.sum() < 40
    np.testing.assert_array_equal(found[fine], first[fine])
    assert (found[:, 0] <= 1.0).all()
    np.testing.assert_array_equal(found, starts_of(model, 40, seed=3))
    np.testing.assert_array_equal(found[:9], starts_of(model, 9, seed=3))
    assert (found != starts_of(model, 40, seed=4)).all()


def test_a_start_is_drawn_again_where_the_gradient_is_not_finite() -> None:
    def root(q: Any) -> Any:  # at q[0] < 0 the value is 0 and the gradient NaN
        return good(q) + tf.where(q[0] < 0, 0.0, 1e-3 * tf.pow(q[0], 0.5))

    assert (starts_of(Model.from_function(root, dimension=2), 12)[:, 0] > 0).all()


def test_starts_are_drawn_a_bounded_number_of_times() -> None:
    drawn = 0

    def initializer(rng: np.random.Generator, chains: int) -> Any:
        nonlocal drawn
        drawn += 1
        return rng.normal(size=(chains, 2))

    def nowhere(q: Any) -> Any:
        return tf.where(q[0] < 100.0, tf.constant(-np.inf), good(q))

    model = Model(name="nowhere", log_density=nowhere, dimension=2, initializer=initializer)
    with pytest.raises(ModelError, match=r"of 3 of 3 chains \(first: chain 0, -inf, drawn 100 times\)"):
        starts_of(model, 3)
    assert drawn == TRIES == 100


def gaussian_process(jitter: float, dtype: str = "float32") -> Model:
    """With length scales at which some covariance matrices are singular in float32."""
    x = tf.cast(tf.linspace(0.0, 1.0, 12), dtype)

    def log_density(q: Any) -> Any:
        covariance = tf.exp(-0.5 * ((x[:, None] - x) / tf.exp(q[0])) ** 2) + jitter * tf.eye(12, dtype=dtype)
        scale = tf.linalg.cholesky(covariance)
        return -tf.reduce_sum(tf.math.log(tf.linalg.diag_part(scale))) - 0.5 * tf.reduce_sum(q * q)

    return Model.from_function(log_density, dimension=2, name="process", dtype=dtype)  # type: ignore[arg-type]


def test_a_decomposition_that_fails_at_some_starts() -> None:
    first = np.random.default_rng(0).uniform(-2, 2, (8, 2))
    assert first[0, 0] > -1.5
    found = starts_of(gaussian_process(0.0), 8, execution=ExecutionSettings())
    assert (found[0] != first[0].astype("float32")).all()
    assert (found[:, 0] < first[:, 0]).any()


def test_a_matrix_that_is_singular_at_some_starts() -> None:
    model, positions = solving(0.0), np.array([[0.5, 0.0], [0.25, 0.0], [-0.5, 0.0]], "float32")
    check_density(model, iter(positions), density_library_of(model))
    with pytest.raises(ModelError, match=r"initial position at .*densities.py:\d+: a matrix is singular after"):
        starts_of(solving(0.0), 8)


def test_a_matrix_that_is_singular_at_all_starts_blames_rounding() -> None:
    with pytest.raises(ModelError) as caught:
        starts_of(solving(-5.0), 2)
    message = str(caught.value)
    assert re.search(r"failed at all of 100 initial positions at .*densities.py:\d+: a matrix is", message)
    assert "compute in float64 (the model's dtype), or add jitter to its diagonal" in message
    assert "What TensorFlow said: {{" in message
    assert "constrained" not in message
    with pytest.raises(ModelError, match="after rounding: add jitter"):
        starts_of(solving(-5.0, "float64"), 2)


@pytest.mark.parametrize(
    ("initializer", "said"),
    [
        (np.zeros((4, 2)), r"is a ndarray; expected a function of .* `lambda rng, chains: array`"),
        (
            lambda chains: np.zeros((4, 2)),
            r"failed with TypeError: .*takes 1 positional.*Expected a function of NumPy's",
        ),
        (lambda rng, chains: {}["a"], r"failed at .*test_starts.py:\d+ with KeyError: 'a'. Expected a f"),
        (lambda rng, chains: "abc", r"returned a str that is not an array of real numbers. Expected a function"),
        (lambda rng, chains: np.array([["1.5", "2"]] * 4), r"returned a ndarray that is not an array of real numbers"),
        (lambda rng, chains: None, r"returned a NoneType that is not an array of real numbers"),
        (lambda rng, chains: [[0.0, 1.0], [2.0]], r"returned a list that is not an array of real numbers"),
        (lambda rng, chains: np.zeros((4, 2), complex), r"returned a ndarray that is not an array of real numbers"),
        (
            lambda rng, chains: {"mu": np.zeros((4, 2))},
            r"returned values by name: got values for \[.mu.\]; expected \[.position.\]",
        ),
        (lambda rng, chains: np.full((chains, 2), 1e39), r"returned a position that is not finite for chain 0"),
        (lambda rng, chains: np.zeros((5, 2)), r"returned positions of shape \(5, 2\); expected \(4, 2\)"),
    ],
)
def test_an_initializer_that_gives_no_positions(initializer: Any, said: str) -> None:
    with pytest.raises(ModelError, match=rf"Model 'm': its initializer.*{said}") as caught:
        run(Model(name="m", log_density=good, dimension=2, initializer=initializer))
    assert "\n" not in str(caught.value)


def test_starts_that_are_given_as_one_array() -> None:
    starts = np.linspace(-1, 1, 8).reshape(4, 2)
    run(Model(name="given", log_density=good, dimension=2, initializer=lambda rng, chains: starts))


def test_a_gradient_that_is_not_finite_at_the_start() -> None:
    def root(q: Any) -> Any:
        return -tf.sqrt(tf.reduce_sum(q * q))

    model = Model(name="root", log_density=root, dimension=2, initializer=lambda rng, chains: np.zeros((chains, 2)))
    with pytest.raises(ModelError, match="its gradient is not finite at the initial position of 4 of 4 chains"):
        run(model)


NAN = float("nan")


@pytest.mark.parametrize(
    ("y", "x", "scale", "words"),
    [
        ([1.0, NAN, 2, NAN], [1.0] * 4, 1.0, r"nan for 2 of 4 observations of 'y', first for y\[1\] = nan. Leave out"),
        ([1.0, 1, 1, 3], [1.0, 2, NAN, 4], 1.0, r"nan for 1 .*first for y\[2\] = 1.0: is it .* covariates missing\?"),
        ([1.0, 1, 1, -3], [1.0] * 4, 1.0, r"-inf for 1 of 4 .* first for y\[3\] = -3.0: is it outside of the support"),
        ([1.0] * 4, [1.0] * 4, -1.0, r"nan for 4 of 4 observations of 'y', first for y\[0\] = 1.0: .* a scale that"),
    ],
)  # fmt: skip
def test_observations_that_no_start_can_have(y: list[float], x: list[float], scale: float, words: str) -> None:
    """The error of a run, and what `Model.check` says of starts, name them; other remedies are left out."""
    data, predictor = np.array(y, "float32"), np.array(x, "float32")

    def pointwise(p: Any) -> Any:
        density = -0.5 * ((data - p["b"] * predictor) / scale) ** 2 - tf.math.log(scale)
        return tf.where(data < 0, -tf.constant(np.inf), density)

    model = Model.from_function(
        lambda p: -0.5 * p["b"] ** 2 + tf.reduce_sum(pointwise(p)),
        variables={"b": []},
        name="lines",
        observed_data={"y": (("row",), data)},
        log_likelihood=pointwise,
    )
    with pytest.raises(ModelError, match=words) as caught:
        run(model)
    assert "jitter" not in str(caught.value)
    assert "initializer" not in str(caught.value)
    starts = model.check().findings[0]
    assert re.search(words.removesuffix(r"\?").removesuffix(". Leave out"), starts.said)
    assert starts.said.startswith("0 of 64 initial positions have a finite log-density and gradient. Where it is not, ")


def calling_python(calls: int) -> Model:
    """A standard normal variable, whose density is a function of Python that fails after so many calls."""
    import jax
    import jax.numpy as jnp

    left = itertools.count(calls, -1)

    def host(x: Any) -> Any:
        if next(left) <= 0:
            raise ValueError("the solver did not converge")
        return np.float32(-0.5 * x * x)

    @jax.custom_jvp
    def value(x: Any) -> Any:
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential")

    value.defjvp(lambda given, tangents: (value(given[0]), -given[0] * tangents[0]))
    return Model.from_jax(lambda p: value(p["a"]), {"a": 0.0}, name="calling")


@needs_jax
@pytest.mark.parametrize(("calls", "when"), [(3, "the start of chain 0"), (100, "warmup")])
def test_a_function_of_python_that_fails_is_named_with_its_line(calls: int, when: str) -> None:
    words = rf"jax.pure_callback failed at .*test_starts.py:\d+ \({when}\): ValueError: the solver did not converge"
    with pytest.raises(ModelError, match=words):
        sample_chains(calling_python(calls), chains=8, warmup=20, draws=5, backend="jax")


@needs_jax
def test_an_error_of_xla_is_not_taken_for_one_of_tracing() -> None:
    from jax.errors import JaxRuntimeError

    class Failing:
        def run(self, *_: Any, **options: Any) -> Any:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.")

    failing: Any = Failing()
    gradients = ProgramGradients(Model.from_function(good, dimension=1), failing, ExecutionSettings())
    with pytest.raises(ModelError, match=r"XLA failed to run it for 8: RESOURCE_EXHAUSTED: .* use fewer chains"):
        gradients.evaluate(np.zeros((8, 1), "float32"))
