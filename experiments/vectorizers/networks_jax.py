"""`networks.py` in JAX's words, for one example each: `jax.vmap` makes the batch.

JAX has no reverse derivative of a loop whose length is data, so the LSTM runs over all tokens and keeps its state past
the end of a sequence: what `jax.vmap` makes of a `while_loop` that sequences leave at different times is the same.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from batchnuts.experiments.vectorizers.networks import Weights


def _convolve(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _pool(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")


def convnet(image: Any, w: Weights) -> Any:
    """An image [28, 28, 1] to logits [10]."""
    x = image[None]
    for kernel, bias in ((w["kernel1"], w["bias1"]), (w["kernel2"], w["bias2"])):
        x = _pool(jax.nn.relu(_convolve(x, kernel) + bias))
    x = x.reshape(-1)
    x = jax.nn.relu(x @ w["dense1"] + w["bias3"])
    return x @ w["dense2"] + w["bias4"]


def convnet_loss(image: Any, label: Any, w: Weights) -> Any:
    """Cross entropy of one image."""
    return -jax.nn.log_softmax(convnet(image, w))[label]


def lstm(tokens: Any, length: Any, w: Weights) -> Any:
    """The last state [units] of the first `length` of tokens [longest, features]."""

    def step(state: Any, at: Any) -> Any:
        h, c = state
        t, token = at
        i, f, o, g = jnp.split(jnp.concatenate([token, h]) @ w["cell"] + w["bias"], 4)
        new_c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
        return (jnp.where(t < length, new_h, h), jnp.where(t < length, new_c, c)), None

    start = jnp.zeros(w["bias"].shape[0] // 4)
    (h, _), _ = jax.lax.scan(step, (start, start), (jnp.arange(tokens.shape[0]), tokens))
    return h


def lstm_loss(tokens: Any, length: Any, w: Weights) -> Any:
    """Half the squared last state."""
    return 0.5 * jnp.sum(lstm(tokens, length, w) ** 2)


def vgg(image: Any, w: Weights) -> Any:
    """An image [side, side, 3] to [outputs]."""
    x = image[None]
    for block in range((len(w) - 1) // 2):
        x = jax.nn.relu(_convolve(x, w[f"kernel{block}a"]))
        x = jax.nn.relu(_convolve(x, w[f"kernel{block}b"]))
        x = _pool(x)
    return (x.reshape(1, -1) @ w["dense"])[0]
