"""What others' code is made of: log-densities of TensorFlow Probability's distributions and bijectors with their
gradients, Keras layers, and the packaged models. No op of theirs may run row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from ways import one_in

from batchnuts.autobatch.pfor import jacobian, vectorized_map
from batchnuts.models import REGISTRY as MODELS

tfd, tfb = tfp.distributions, tfp.bijectors
pytestmark = pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
ROWS = 4
_rng = np.random.default_rng(5)


def _positive(*shape: int) -> Any:
    return tf.constant(_rng.uniform(0.5, 2.0, size=(ROWS, *shape)))


def _real(*shape: int) -> Any:
    return tf.constant(_rng.normal(size=(ROWS, *shape)))


def _unit(*shape: int) -> Any:
    return tf.constant(_rng.uniform(0.2, 0.8, size=(ROWS, *shape)))


def _whole(*shape: int) -> Any:
    return tf.constant(_rng.integers(0, 4, size=(ROWS, *shape)).astype(float))


def _simplex(*shape: int) -> Any:
    parts = _rng.uniform(0.2, 1.0, size=(ROWS, *shape))
    return tf.constant(parts / parts.sum(-1, keepdims=True))


def _lower(a: Any) -> Any:
    return tf.linalg.band_part(a, -1, 0) + 3.0 * tf.eye(3, dtype=a.dtype)


# name: (distribution of parameters, parameters, value), each with a row for every example
DISTRIBUTIONS: dict[str, tuple[Callable[..., Any], list[Any], Any]] = {
    "Normal": (tfd.Normal, [_real(), _positive()], _real()),
    "LogNormal": (tfd.LogNormal, [_real(), _positive()], _positive()),
    "StudentT": (tfd.StudentT, [_positive(), _real(), _positive()], _real()),
    "Cauchy": (tfd.Cauchy, [_real(), _positive()], _real()),
    "HalfCauchy": (tfd.HalfCauchy, [tf.zeros(ROWS, tf.float64), _positive()], _positive()),
    "HalfNormal": (tfd.HalfNormal, [_positive()], _positive()),
    "Laplace": (tfd.Laplace, [_real(), _positive()], _real()),
    "Logistic": (tfd.Logistic, [_real(), _positive()], _real()),
    "Gumbel": (tfd.Gumbel, [_real(), _positive()], _real()),
    "Exponential": (tfd.Exponential, [_positive()], _positive()),
    "Gamma": (tfd.Gamma, [_positive(), _positive()], _positive()),
    "InverseGamma": (tfd.InverseGamma, [_positive(), _positive()], _positive()),
    "Chi2": (tfd.Chi2, [_positive()], _positive()),
    "Weibull": (tfd.Weibull, [_positive(), _positive()], _positive()),
    "Pareto": (tfd.Pareto, [_positive(), _unit() * 0.1], _positive()),
    "Beta": (tfd.Beta, [_positive(), _positive()], _unit()),
    "Kumaraswamy": (tfd.Kumaraswamy, [_positive(), _positive()], _unit()),
    "Uniform": (tfd.Uniform, [-_positive(), _positive() + 2], _unit()),
    "TruncatedNormal": (lambda a, b: tfd.TruncatedNormal(a, b, -3.0, 3.0), [_real(), _positive()], _unit()),
    "VonMises": (tfd.VonMises, [_real(), _positive()], _real()),
    "Bernoulli": (lambda p: tfd.Bernoulli(logits=p, dtype=tf.float64), [_real()], tf.round(_unit())),
    "Binomial": (lambda p: tfd.Binomial(5.0, logits=p), [_real()], _whole()),
    "NegativeBinomial": (lambda n, p: tfd.NegativeBinomial(n, logits=p), [_positive(), _real()], _whole()),
    "Poisson": (lambda r: tfd.Poisson(log_rate=r), [_real()], _whole()),
    "Geometric": (lambda p: tfd.Geometric(logits=p), [_real()], _whole()),
    "Categorical": (lambda p: tfd.Categorical(logits=p, dtype=tf.int32), [_real(4)], tf.cast(_whole(), tf.int32)),
    "OneHotCategorical": (
        lambda p: tfd.OneHotCategorical(logits=p),
        [_real(4)],
        tf.one_hot([0, 3, 1, 2], 4, dtype=tf.float64),
    ),
    "Multinomial": (
        lambda p: tfd.Multinomial(6.0, logits=p),
        [_real(3)],
        tf.constant([[1.0, 2, 3], [6, 0, 0], [2, 2, 2], [0, 1, 5]], tf.float64),
    ),
    "Dirichlet": (tfd.Dirichlet, [_positive(3)], _simplex(3)),
    "MultivariateNormalDiag": (tfd.MultivariateNormalDiag, [_real(3), _positive(3)], _real(3)),
    "MultivariateNormalTriL": (
        lambda m, a: tfd.MultivariateNormalTriL(m, _lower(a)),
        [_real(3), _real(3, 3)],
        _real(3),
    ),
    "MultivariateStudentT": (
        lambda m, a: tfd.MultivariateStudentTLinearOperator(
            tf.constant(5.0, tf.float64), m, tf.linalg.LinearOperatorLowerTriangular(_lower(a))
        ),
        [_real(3), _real(3, 3)],
        _real(3),
    ),
    "LKJ": (lambda c: tfd.LKJ(3, 1.0 + c), [_positive()], tf.eye(3, batch_shape=[ROWS], dtype=tf.float64)),
    "CholeskyLKJ": (
        lambda c: tfd.CholeskyLKJ(3, 1.0 + c),
        [_positive()],
        tf.eye(3, batch_shape=[ROWS], dtype=tf.float64),
    ),
    "WishartTriL": (
        lambda a: tfd.WishartTriL(tf.constant(5.0, tf.float64), _lower(a)),
        [_real(3, 3)],
        3.0 * tf.eye(3, batch_shape=[ROWS], dtype=tf.float64),
    ),
    "MixtureSameFamily": (
        lambda p, m, s: tfd.MixtureSameFamily(tfd.Categorical(logits=p), tfd.Normal(m, s)),
        [_real(3), _real(3), _positive(3)],
        _real(),
    ),
    "Independent": (lambda m, s: tfd.Independent(tfd.Normal(m, s), 1), [_real(3), _positive(3)], _real(3)),
    "TransformedDistribution": (
        lambda m, s: tfd.TransformedDistribution(tfd.Normal(m, s), tfb.Sigmoid()),
        [_real(), _positive()],
        _unit(),
    ),
    "GaussianProcess": (
        lambda a, scale: tfd.GaussianProcess(
            tfp.math.psd_kernels.ExponentiatedQuadratic(a, scale),
            tf.constant([[0.0], [0.5], [1.0]], tf.float64),
            observation_noise_variance=tf.constant(0.1, tf.float64),
        ),
        [_positive(), _positive()],
        _real(3),
    ),
    "ZeroInflated": (
        lambda p, r: tfd.Mixture(
            tfd.Categorical(logits=tf.stack([p, -p])), [tfd.Poisson(log_rate=r), tfd.Poisson(log_rate=2 * r)]
        ),
        [_real(), _real()],
        _whole(),
    ),
    "AR": (
        lambda c, s: tfd.Autoregressive(
            lambda x: tfd.Independent(tfd.Normal(c * tf.concat([[0.0], x[:-1]], 0), s), 1), tf.zeros(3, tf.float64)
        ),
        [_real(), _positive()],
        _real(3),
    ),
}

BIJECTORS = {
    "Exp": tfb.Exp(),
    "Softplus": tfb.Softplus(),
    "Sigmoid": tfb.Sigmoid(),
    "Tanh": tfb.Tanh(),
    "Softsign": tfb.Softsign(),
    "Identity": tfb.Identity(),
    "Shift": tfb.Shift(tf.constant(2.0, tf.float64)),
    "Scale": tfb.Scale(tf.constant(2.0, tf.float64)),
    "Interval": tfb.Sigmoid(tf.constant(-1.0, tf.float64), tf.constant(3.0, tf.float64)),
    "Square": tfb.Chain([tfb.Square(), tfb.Exp()]),
    "Reciprocal": tfb.Chain([tfb.Reciprocal(), tfb.Exp()]),
    "Ordered": tfb.Ascending(),
    "IteratedSigmoid": tfb.IteratedSigmoidCentered(),
    "Cumsum": tfb.Cumsum(),
    "Permute": tfb.Permute([2, 0, 1, 5, 4, 3]),
    "Reshape": tfb.Reshape([2, 3]),
    "FillTriangular": tfb.FillTriangular(),
    "CorrelationCholesky": tfb.CorrelationCholesky(),
    "FillScaleTriL": tfb.FillScaleTriL(diag_shift=tf.constant(1e-3, tf.float64)),
    "SinhArcsinh": tfb.SinhArcsinh(tf.constant(0.3, tf.float64), tf.constant(1.2, tf.float64)),
    "Chain": tfb.Chain([tfb.Shift(tf.constant(1.0, tf.float64)), tfb.Exp(), tfb.Scale(tf.constant(0.5, tf.float64))]),
    "Split": tfb.Blockwise([tfb.Exp(), tfb.Softplus()], [2, 4]),
    "RealNVPLike": tfb.Chain([tfb.Permute([5, 4, 3, 2, 1, 0]), tfb.Exp()]),
    "CholeskyOuterProduct": tfb.Chain([tfb.CholeskyOuterProduct(), tfb.FillTriangular(), tfb.Exp()]),
}


def compare(function: Callable[..., Any], rows: list[Any], rtol: float = 1e-8) -> None:
    """All rows at once, without XLA and with, against one after another."""
    one = tf.function(function, autograph=False)
    wanted = [tf.nest.flatten(one(*(value[k] for value in rows))) for k in range(ROWS)]
    for xla in (False, True):
        run = tf.function(
            lambda: vectorized_map(lambda row: function(*row), tuple(rows)), autograph=False, jit_compile=xla
        )
        for found, *values in zip(tf.nest.flatten(run()), *wanted, strict=True):
            np.testing.assert_allclose(found, np.stack(values), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", one_in(4, DISTRIBUTIONS))
def test_log_densities_and_their_gradients(name: str) -> None:
    make, parameters, value = DISTRIBUTIONS[name]

    def function(x: Any, *parameters: Any) -> Any:
        watched = [p for p in (x, *parameters) if p.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            density = make(*parameters).log_prob(x)
        return density, *tape.gradient(density, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    compare(function, [value, *parameters])


@pytest.mark.parametrize("name", one_in(4, BIJECTORS))
def test_bijectors_and_their_gradients(name: str) -> None:
    bijector = BIJECTORS[name]

    def function(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = bijector.forward(x)
            volume = bijector.forward_log_det_jacobian(x, event_ndims=1)
            total = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(volume)
        return y, volume, tape.gradient(total, x)

    compare(function, [_real(6)])


def test_a_joint_distribution() -> None:
    joint = tfd.JointDistributionNamed({
        "scale": tfd.HalfNormal(tf.constant(1.0, tf.float64)),
        "mean": tfd.Normal(tf.constant(0.0, tf.float64), 2.0),
        "data": lambda mean, scale: tfd.Independent(tfd.Normal(mean * tf.ones(5, tf.float64), scale), 1),
    })  # fmt: skip
    data = tf.constant(_rng.normal(size=5))

    def function(mean: Any, scale: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((mean, scale))
            density = joint.log_prob(mean=mean, scale=scale, data=data)
        return density, *tape.gradient(density, (mean, scale))

    compare(function, [_real(), _positive()])


@pytest.mark.parametrize("name", list(MODELS))
def test_packaged_models(name: str) -> None:
    small = {"logistic_regression": {"rows": 20, "columns": 3}, "correlated_gaussian": {"dimension": 4}}
    options = MODELS[name].options.model_validate({"name": name, "dtype": "float64", **small.get(name, {})})
    model = MODELS[name].build(options)

    def function(q: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(q)
            density = model.flat_log_density(q)
        return density, tape.gradient(density, q)

    compare(function, [_real(model.dimension)])


KERAS: dict[str, Callable[[Any], tuple[list[Any], tuple[int, ...]]]] = {
    "dense": lambda k: ([k.layers.Dense(4, "tanh"), k.layers.Dense(2)], (3,)),
    "convolution": lambda k: (
        [k.layers.Conv2D(3, 3, padding="same", activation="relu"), k.layers.Conv2D(2, 2, 2)],
        (6, 6, 2),
    ),
    "depthwise": lambda k: ([k.layers.DepthwiseConv2D(3), k.layers.GlobalAveragePooling2D()], (6, 6, 2)),
    "pooling": lambda k: ([k.layers.MaxPooling2D(), k.layers.AveragePooling2D(2), k.layers.Flatten()], (8, 8, 2)),
    "normalization": lambda k: (
        [k.layers.Conv2D(3, 3), k.layers.BatchNormalization(), k.layers.LayerNormalization()],
        (6, 6, 2),
    ),
    "lstm": lambda k: ([k.layers.LSTM(3)], (5, 2)),
    "gru": lambda k: ([k.layers.GRU(3)], (5, 2)),
    "embedding": lambda k: ([k.layers.Embedding(7, 3), k.layers.GlobalAveragePooling1D()], (5,)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", one_in(3, KERAS))
def test_keras_layers_and_the_gradients_of_their_weights(name: str) -> None:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(2)
    layers, shape = KERAS[name](keras)
    network = keras.Sequential([keras.layers.Input(shape), *layers])
    if name == "embedding":
        examples: Any = tf.constant(_rng.integers(0, 7, size=(ROWS, *shape)))
    else:
        examples = tf.constant(_rng.normal(size=(ROWS, *shape)).astype("f4"))
    weights = [variable.value for variable in network.trainable_variables]

    def function(example: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            output = network(example[None], training=False)
            loss = tf.reduce_sum(output * output)
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return output, [tf.convert_to_tensor(gradient) for gradient in gradients]

    compare(function, [examples], rtol=2e-4)


def test_the_jacobian_of_a_recurrent_network() -> None:
    weights = tf.constant(_rng.normal(size=(5, 3)) * 0.3)

    def states(inputs: Any) -> Any:
        return tf.scan(
            lambda h, x: tf.tanh(tf.linalg.matvec(weights, tf.concat([h, x], 0), transpose_a=True)),
            inputs,
            tf.zeros(3, tf.float64),
        )

    inputs = tf.constant(_rng.normal(size=(4, 2)))
    found = jacobian(states, inputs)
    step = 1e-6
    for t in range(4):
        for d in range(2):
            bump = tf.scatter_nd([[t, d]], tf.constant([step], tf.float64), (4, 2))
            wanted = (states(inputs + bump) - states(inputs - bump)) / (2 * step)
            np.testing.assert_allclose(found[:, :, t, d], wanted, atol=1e-8)


def test_nothing_stands_between_a_convolution_its_bias_and_its_activation() -> None:
    """So TensorFlow makes one kernel of them."""
    images, kernel, bias = tf.ones([4, 8, 8, 3]), tf.ones([3, 3, 3, 5]), tf.ones(5)

    def network(image: Any) -> Any:
        return tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(image[None], kernel, 1, "SAME") + bias), 2, 2, "SAME")[0]

    traced = tf.function(lambda: vectorized_map(network, images), autograph=False).get_concrete_function()
    (op,) = [op for op in traced.graph.get_operations() if op.type == "MaxPool"]
    types = []
    while op.type != "Conv2D":
        op = op.inputs[0].op
        types.append(op.type)
    assert types == ["Relu", "AddV2", "Conv2D"]
