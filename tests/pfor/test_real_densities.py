"""Log-densities of real models, as users of TensorFlow Probability write them for one position: all rows at once and
one after another, with gradients, without XLA and with. No op of theirs may run row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from test_libraries import ROWS, compare

from batchnuts.autobatch.pfor import PforError, vectorized_map

tfd, tfb = tfp.distributions, tfp.bijectors
pytestmark = pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
Array = Any
DIMENSION = 18
_rng = np.random.default_rng(11)


def real(value: Any) -> Array:
    return tf.constant(value, tf.float64)


SERIES = real(_rng.normal(size=20).cumsum())
COUNTS = real(_rng.poisson(4, size=15))
POINTS = real(_rng.normal(size=(12, 2)))
GROUP, X, Y = tf.constant(_rng.integers(0, 5, size=30)), real(_rng.normal(size=30)), real(_rng.normal(size=30))


def hidden_markov_of_reals(q: Array) -> Array:
    """All of its parameters vary by row."""
    states = tfd.Categorical(probs=real([0.3, 0.3, 0.4]))
    moves = tfd.Categorical(probs=tf.nn.softmax(tf.reshape(q[:9], (3, 3))))
    emissions = tfd.Normal(q[9:12], tf.exp(q[12]))
    return tfd.HiddenMarkovModel(states, moves, emissions, num_steps=20).log_prob(SERIES)


def _of_counts(q: Array) -> Any:
    states = tfd.Categorical(logits=tf.zeros(2, tf.float64))
    moves = tfd.Categorical(logits=tf.reshape(q[:4], (2, 2)))
    return tfd.HiddenMarkovModel(states, moves, tfd.Poisson(log_rate=q[4:6]), num_steps=15)


def hidden_markov_of_counts(q: Array) -> Array:
    return _of_counts(q).log_prob(COUNTS)


def probabilities_of_hidden_states(q: Array) -> Array:
    """Forward and backward."""
    return tf.reduce_sum(_of_counts(q).posterior_marginals(COUNTS).probs_parameter()[:, 0])


def mixture_of_normals(q: Array) -> Array:
    scales = tfb.FillScaleTriL(diag_shift=real(1e-3))(tf.reshape(q[9:18], (3, 3)))
    parts = tfd.MultivariateNormalTriL(tf.reshape(q[3:9], (3, 2)), scales)
    return tf.reduce_sum(tfd.MixtureSameFamily(tfd.Categorical(logits=q[:3]), parts).log_prob(POINTS))


def correlated_effects(q: Array) -> Array:
    """An LKJ prior of the Cholesky factor of correlations, and effects by group."""
    factor = tfb.CorrelationCholesky()(q[:3])
    effects = tfd.MultivariateNormalTriL(tf.zeros(3, tf.float64), tf.exp(q[3:6])[:, None] * factor)
    prior = tfd.CholeskyLKJ(3, real(2.0)).log_prob(factor)
    return prior + tf.reduce_sum(effects.log_prob(tf.reshape(q[6:18], (4, 3))))


def full_covariance(q: Array) -> Array:
    factor = tfb.FillScaleTriL(diag_shift=real(1e-3))(q[:3])
    covariance = tf.matmul(factor, factor, transpose_b=True) + 0.1 * tf.eye(2, dtype=tf.float64)
    return tf.reduce_sum(tfd.MultivariateNormalFullCovariance(q[3:5], covariance).log_prob(POINTS))


def local_level(q: Array) -> Array:
    """A Kalman filter."""
    same = tf.linalg.LinearOperatorIdentity(1, dtype=tf.float64)
    model = tfd.LinearGaussianStateSpaceModel(
        num_timesteps=20,
        transition_matrix=same,
        transition_noise=tfd.MultivariateNormalDiag(scale_diag=tf.exp(q[:1])),
        observation_matrix=same,
        observation_noise=tfd.MultivariateNormalDiag(scale_diag=tf.exp(q[1:2])),
        initial_state_prior=tfd.MultivariateNormalDiag(scale_diag=real([3.0])),
    )
    return model.log_prob(SERIES[:, None])


def structural_time_series(q: Array) -> Array:
    """A trend and a season, whose state space has five dimensions."""
    trend = tfp.sts.LocalLinearTrend(observed_time_series=SERIES)
    season = tfp.sts.Seasonal(4, observed_time_series=SERIES)
    model = tfp.sts.Sum([trend, season], observed_time_series=SERIES)
    values = [parameter.bijector(q[k]) for k, parameter in enumerate(model.parameters)]
    return model.make_state_space_model(20, values).log_prob(SERIES[:, None])


def gaussian_process(q: Array) -> Array:
    kernel = tfp.math.psd_kernels.MaternThreeHalves(tf.exp(q[0]), tf.exp(q[1]))
    process = tfd.GaussianProcess(kernel, POINTS, observation_noise_variance=tf.exp(q[2]), jitter=1e-6)
    return process.log_prob(SERIES[:12])


def markov_chain(q: Array) -> Array:
    step = tfd.MarkovChain(
        tfd.Normal(real(0.0), 1.0), lambda _, x: tfd.Normal(tf.tanh(q[0]) * x, tf.exp(q[1])), num_steps=20
    )
    return step.log_prob(SERIES)


def _predators(q: Array) -> Callable[[Array], Array]:
    """The right-hand side of Lotka and Volterra's equations."""
    a, b, c, d = (tf.exp(0.2 * q[k]) for k in range(4))
    return lambda y: tf.stack([a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]])


def _start(q: Array) -> Array:
    return tf.stack([tf.exp(0.1 * q[4]), real(1.0)])


def _solved(q: Array, solver: Any) -> Array:
    change = _predators(q)
    found = solver.solve(lambda t, y: change(y), real(0.0), _start(q), solution_times=real([0.5, 1.0, 1.5]))
    return -0.5 * tf.reduce_sum((found.states - 1.0) ** 2)


def dormand_prince(q: Array) -> Array:
    """Each row takes steps of its own; the gradient is that of the adjoint equation."""
    return _solved(q, tfp.math.ode.DormandPrince(rtol=1e-6, atol=1e-6))


def runge_kutta_by_scan(q: Array) -> Array:
    change = _predators(q)

    def step(y: Array, _: Array) -> Array:
        k1 = change(y)
        k2 = change(y + 0.05 * k1)
        k3 = change(y + 0.05 * k2)
        k4 = change(y + 0.1 * k3)
        return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return -0.5 * tf.reduce_sum((tf.scan(step, tf.range(15), initializer=_start(q)) - 1.0) ** 2)


def garch_by_scan(q: Array) -> Array:
    level, new, old = tf.exp(q[0]), tf.sigmoid(q[1]), 0.9 * tf.sigmoid(q[2])
    variances = tf.scan(lambda v, y: level + new * y * y + old * v, SERIES[:-1], initializer=tf.exp(q[3]))
    return tf.reduce_sum(tfd.Normal(real(0.0), tf.sqrt(variances)).log_prob(SERIES[1:]))


def filter_by_foldl(q: Array) -> Array:
    """A Kalman filter of a local level, step by step."""

    def step(carry: tuple[Array, Array, Array], y: Array) -> tuple[Array, Array, Array]:
        mean, variance, total = carry
        variance = variance + tf.exp(q[0])
        of_data = variance + tf.exp(q[1])
        gain = variance / of_data
        density = tfd.Normal(mean, tf.sqrt(of_data)).log_prob(y)
        return mean + gain * (y - mean), (1 - gain) * variance, total + density

    return tf.foldl(step, SERIES, initializer=(q[2], real(1.0), real(0.0)))[2]


def filter_by_while_loop(q: Array) -> Array:
    def step(i: Array, mean: Array, total: Array) -> tuple[Array, Array, Array]:
        miss = SERIES[i] - mean
        return i + 1, mean + tf.sigmoid(q[0]) * miss, total - 0.5 * miss**2 * tf.exp(q[1])

    start = (0, q[2], real(0.0))
    return tf.while_loop(lambda i, *_: i < 20, step, start, maximum_iterations=20)[2]


def groups_by_gather(q: Array) -> Array:
    """A hierarchical regression with intercepts and slopes by group."""
    raw = q[2:7]
    intercept = tf.gather(q[0] + tf.exp(q[1]) * raw, GROUP)
    likelihood = tfd.Normal(intercept + tf.gather(q[7:12], GROUP) * X, tf.exp(q[12])).log_prob(Y)
    return tf.reduce_sum(likelihood) + tf.reduce_sum(tfd.Normal(real(0.0), 1.0).log_prob(raw))


def groups_by_segments(q: Array) -> Array:
    by_group = tf.math.unsorted_segment_sum(tfd.Normal(q[0], 1.0).log_prob(Y), GROUP, 5)
    return tf.reduce_sum(tf.nn.softplus(q[2:7] + 0.01 * by_group))


CHEAP = (groups_by_segments, markov_chain)
ALL = (
    hidden_markov_of_reals,
    hidden_markov_of_counts,
    probabilities_of_hidden_states,
    mixture_of_normals,
    correlated_effects,
    full_covariance,
    local_level,
    structural_time_series,
    gaussian_process,
    markov_chain,
    dormand_prince,
    runge_kutta_by_scan,
    garch_by_scan,
    filter_by_foldl,
    filter_by_while_loop,
    groups_by_gather,
    groups_by_segments,
)


def _with_gradient(density: Callable[[Array], Array], q: Array) -> tuple[Array, Array]:
    with tf.GradientTape() as tape:
        tape.watch(q)
        value = density(q)
    return value, tape.gradient(value, q, unconnected_gradients=tf.UnconnectedGradients.ZERO)  # here


def _positions() -> Array:
    return real(0.5 * np.random.default_rng(3).normal(size=(ROWS, DIMENSION)))


@pytest.mark.filterwarnings("ignore::batchnuts.autobatch.AssertionWarning")  # of the distributions' own checks
@pytest.mark.parametrize(
    "density",
    [pytest.param(f, id=f.__name__, marks=[] if f in CHEAP else [pytest.mark.slow]) for f in ALL],
)
def test_rows_are_those_of_one_position(density: Callable[[Array], Array]) -> None:
    # a solver that controls its error stops where its last digits tell it to
    tolerance = 1e-6 if density is dormand_prince else 1e-8
    compare(lambda q: _with_gradient(density, q), [_positions()], tolerance)


@pytest.mark.slow
def test_a_solver_that_cannot_be_vectorized_is_refused_at_the_users_line() -> None:
    """Its Jacobians have ops of unknown shape."""

    def stiff(q: Array) -> Array:
        return _solved(q, tfp.math.ode.BDF(rtol=1e-3, atol=1e-3))

    def run() -> Any:
        return vectorized_map(lambda q: _with_gradient(stiff, q), _positions(), fallback=False)

    with pytest.raises(PforError, match=r"pfor cannot convert op .*bdf") as error:
        tf.function(run, autograph=False)()
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# here"))
    assert f"test_real_densities.py:{line}" in str(error.value)
