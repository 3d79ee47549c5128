"""Networks in TensorFlow: each takes one example, or with an axis of examples in front, all of them at once.

Weights are dictionaries of arrays, float32, drawn by the functions `*_weights`; JAX uses the same (`networks_jax.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Weights = Mapping[str, Any]

CLASSES = 10


def _normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Weights [*inputs, outputs] with variance 1 / inputs, so that activations keep their scale."""
    return np.asarray(rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), np.float32)


def convnet_weights(rng: np.random.Generator, filters: Sequence[int], hidden: int) -> dict[str, NDArray[np.float32]]:
    """The weights of `convnet`."""
    first, second = filters
    return {
        "kernel1": _normal(rng, 5, 5, 1, first),
        "kernel2": _normal(rng, 5, 5, first, second),
        "dense1": _normal(rng, 7 * 7 * second, hidden),
        "dense2": _normal(rng, hidden, CLASSES),
        "bias1": np.zeros(first, np.float32),
        "bias2": np.zeros(second, np.float32),
        "bias3": np.zeros(hidden, np.float32),
        "bias4": np.zeros(CLASSES, np.float32),
    }


def convnet(images: Any, w: Weights) -> Any:
    """Images [n, 28, 28, 1] to logits [n, 10]."""
    x = images
    for kernel, bias in ((w["kernel1"], w["bias1"]), (w["kernel2"], w["bias2"])):
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + bias)
        x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    x = tf.reshape(x, [x.shape[0], w["dense1"].shape[0]])
    x = tf.nn.relu(tf.matmul(x, w["dense1"]) + w["bias3"])
    return tf.matmul(x, w["dense2"]) + w["bias4"]


def convnet_loss(image: Any, label: Any, w: Weights) -> Any:
    """Cross entropy of one image [28, 28, 1]: a scalar."""
    logits = convnet(image[None], w)[0]
    return tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)


def lstm_weights(rng: np.random.Generator, features: int, units: int) -> dict[str, NDArray[np.float32]]:
    """The weights of `lstm` and `lstm_by_hand`."""
    return {"cell": _normal(rng, features + units, 4 * units), "bias": np.zeros(4 * units, np.float32)}


def _cell(token: Any, h: Any, c: Any, w: Weights, product: Any) -> tuple[Any, Any]:
    """One step; Hochreiter, Schmidhuber 1997, with a forget gate. `product` multiplies by the matrix."""
    gates = product(tf.concat([token, h], -1), w["cell"]) + w["bias"]
    i, f, o, g = tf.split(gates, 4, -1)
    c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def lstm(tokens: Any, length: Any, w: Weights) -> Any:
    """The last state [units] of one sequence: the first `length` of tokens [longest, features]."""
    units = w["bias"].shape[0] // 4

    def step(t: Any, h: Any, c: Any) -> Any:
        h, c = _cell(tokens[t], h, c, w, lambda row, matrix: tf.linalg.matvec(matrix, row, transpose_a=True))
        return t + 1, h, c

    start = tf.zeros(units)
    _, h, _ = tf.while_loop(lambda t, *_: t < length, step, (0, start, start), maximum_iterations=int(tokens.shape[0]))
    return h


def lstm_by_hand(tokens: Any, lengths: Any, w: Weights) -> Any:
    """`lstm` of many: tokens [n, longest, features], lengths [n] to [n, units]."""
    count, longest, _ = tokens.shape
    by_time = tf.transpose(tokens, [1, 0, 2])

    def step(t: Any, h: Any, c: Any) -> Any:
        new_h, new_c = _cell(by_time[t], h, c, w, tf.matmul)
        goes_on = (t < lengths)[:, None]
        return t + 1, tf.where(goes_on, new_h, h), tf.where(goes_on, new_c, c)

    start = tf.zeros([count, w["bias"].shape[0] // 4])
    until = tf.reduce_max(lengths)
    _, h, _ = tf.while_loop(lambda t, *_: t < until, step, (0, start, start), maximum_iterations=int(longest))
    return h


def lstm_loss(tokens: Any, length: Any, w: Weights) -> Any:
    """Half the squared last state of one sequence: a scalar."""
    return 0.5 * tf.reduce_sum(lstm(tokens, length, w) ** 2)


def vgg_weights(rng: np.random.Generator, side: int, filters: Sequence[int], outputs: int) -> dict[str, Any]:
    """The weights of `vgg`: two kernels a block, and the dense layer."""
    weights, channels = {}, 3
    for block, width in enumerate(filters):
        weights[f"kernel{block}a"] = _normal(rng, 3, 3, channels, width)
        weights[f"kernel{block}b"] = _normal(rng, 3, 3, width, width)
        channels, side = width, -(-side // 2)
    weights["dense"] = _normal(rng, side * side * channels, outputs)
    return weights


def vgg(image: Any, w: Weights) -> Any:
    """An image [side, side, 3] to [outputs]; Simonyan, Zisserman 2015, at a smaller scale."""
    x = image[None]
    for block in range((len(w) - 1) // 2):
        x = tf.nn.relu(tf.nn.conv2d(x, w[f"kernel{block}a"], 1, "SAME"))
        x = tf.nn.relu(tf.nn.conv2d(x, w[f"kernel{block}b"], 1, "SAME"))
        x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    return tf.matmul(tf.reshape(x, [1, -1]), w["dense"])[0]
