"""Log-densities with their data, in TensorFlow: for one lane, and for many as a person would batch them.

`single(q, data)` takes q [dimension] and gives a scalar; `by_hand(q, data)` takes q [lanes, dimension], gives [lanes].
All float32, up to constants. JAX's twins of the single ones are in `densities_jax.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from batchnuts.models.logistic_regression import synthetic

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Density:
    """One target."""

    dimension: int
    data: Callable[[np.random.Generator], dict[str, NDArray[Any]]]
    single: Callable[[Any, Data], Any]
    by_hand: Callable[[Any, Data], Any]


def _regression_data(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    x, y = synthetic(10_000, 100, int(rng.integers(2**31)))
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


def _regression(beta: Any, data: Data) -> Any:
    logits = tf.linalg.matvec(data["x"], beta)
    return tf.reduce_sum(data["y"] * logits - tf.math.softplus(logits)) - 0.5 * tf.reduce_sum(beta**2)


def _regression_by_hand(beta: Any, data: Data) -> Any:
    logits = tf.matmul(beta, data["x"], transpose_b=True)
    return tf.reduce_sum(data["y"] * logits - tf.math.softplus(logits), 1) - 0.5 * tf.reduce_sum(beta**2, 1)


def _gaussian_data(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    root = rng.standard_normal((100, 100))
    return {"precision": np.linalg.inv(root @ root.T / 100 + 0.1 * np.eye(100)).astype(np.float32)}


def _gaussian(x: Any, data: Data) -> Any:
    return -0.5 * tf.reduce_sum(x * tf.linalg.matvec(data["precision"], x))


def _gaussian_by_hand(x: Any, data: Data) -> Any:
    return -0.5 * tf.reduce_sum(x * tf.matmul(x, data["precision"], transpose_b=True), 1)


def _schools_data(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Rubin 1981."""
    effects, errors = [28, 8, -3, 7, -1, 1, 18, 12], [15, 10, 16, 11, 9, 11, 10, 18]
    return {"effect": np.array(effects, np.float32), "error": np.array(errors, np.float32)}


def _schools(q: Any, data: Data) -> Any:
    """Mean, log of the scale, and each school's standardized effect; N(0, 5) and half-Cauchy(5) priors."""
    mean, log_scale, z = q[0], q[1], q[2:]
    scale = tf.exp(log_scale)
    prior = -0.5 * (mean / 5.0) ** 2 + log_scale - tf.math.log1p((scale / 5.0) ** 2) - 0.5 * tf.reduce_sum(z**2)
    return prior - 0.5 * tf.reduce_sum(((data["effect"] - mean - scale * z) / data["error"]) ** 2)


def _schools_by_hand(q: Any, data: Data) -> Any:
    mean, log_scale, z = q[:, 0], q[:, 1], q[:, 2:]
    scale = tf.exp(log_scale)
    prior = -0.5 * (mean / 5.0) ** 2 + log_scale - tf.math.log1p((scale / 5.0) ** 2) - 0.5 * tf.reduce_sum(z**2, 1)
    misfit = (data["effect"] - mean[:, None] - scale[:, None] * z) / data["error"]
    return prior - 0.5 * tf.reduce_sum(misfit**2, 1)


_GROUPS, _OBSERVATIONS = 12, 400


def _hierarchical_data(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        "group": rng.integers(0, _GROUPS, _OBSERVATIONS).astype(np.int32),
        "x": rng.standard_normal(_OBSERVATIONS).astype(np.float32),
        "y": rng.standard_normal(_OBSERVATIONS).astype(np.float32),
    }


def _hierarchical(q: Any, data: Data) -> Any:
    """An intercept and a slope for each group; their means and the logarithms of all scales come first in q."""
    intercepts = q[0] + tf.exp(q[2]) * q[5 : 5 + _GROUPS]
    slopes = q[1] + tf.exp(q[3]) * q[5 + _GROUPS :]
    fitted = tf.gather(intercepts, data["group"]) + tf.gather(slopes, data["group"]) * data["x"]
    misfit = (data["y"] - fitted) / tf.exp(q[4])
    return -0.5 * tf.reduce_sum(misfit**2) - _OBSERVATIONS * q[4] - 0.5 * tf.reduce_sum(q**2)


def _hierarchical_by_hand(q: Any, data: Data) -> Any:
    intercepts = q[:, 0:1] + tf.exp(q[:, 2:3]) * q[:, 5 : 5 + _GROUPS]
    slopes = q[:, 1:2] + tf.exp(q[:, 3:4]) * q[:, 5 + _GROUPS :]
    fitted = tf.gather(intercepts, data["group"], axis=1) + tf.gather(slopes, data["group"], axis=1) * data["x"]
    misfit = (data["y"] - fitted) / tf.exp(q[:, 4:5])
    return -0.5 * tf.reduce_sum(misfit**2, 1) - _OBSERVATIONS * q[:, 4] - 0.5 * tf.reduce_sum(q**2, 1)


_POINTS, _JITTER = 30, 1e-3


def _process_data(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    t = np.linspace(0.0, 1.0, _POINTS)
    y = np.sin(6 * t) + 0.1 * rng.standard_normal(_POINTS)
    return {"distance": ((t[:, None] - t) ** 2).astype(np.float32), "y": y.astype(np.float32)}


def _process(q: Any, data: Data) -> Any:
    """Logarithms of amplitude, length scale and noise of a squared-exponential kernel."""
    kernel = tf.exp(2 * q[0]) * tf.exp(-0.5 * data["distance"] * tf.exp(-2 * q[1]))
    root = tf.linalg.cholesky(kernel + (tf.exp(2 * q[2]) + _JITTER) * tf.eye(_POINTS))
    z = tf.linalg.triangular_solve(root, data["y"][:, None])[:, 0]
    log_root = tf.math.log(tf.linalg.diag_part(root))
    return -0.5 * tf.reduce_sum(z**2) - tf.reduce_sum(log_root) - 0.5 * tf.reduce_sum(q**2)


def _process_by_hand(q: Any, data: Data) -> Any:
    amplitude, scale, noise = (q[:, k, None, None] for k in range(3))
    kernel = tf.exp(2 * amplitude) * tf.exp(-0.5 * data["distance"] * tf.exp(-2 * scale))
    root = tf.linalg.cholesky(kernel + (tf.exp(2 * noise) + _JITTER) * tf.eye(_POINTS))
    y = tf.broadcast_to(data["y"][:, None], [q.shape[0], _POINTS, 1])
    z = tf.linalg.triangular_solve(root, y)[:, :, 0]
    log_root = tf.math.log(tf.linalg.diag_part(root))
    return -0.5 * tf.reduce_sum(z**2, 1) - tf.reduce_sum(log_root, 1) - 0.5 * tf.reduce_sum(q**2, 1)


DENSITIES: Mapping[str, Density] = {
    "logistic_regression": Density(100, _regression_data, _regression, _regression_by_hand),
    "gaussian": Density(100, _gaussian_data, _gaussian, _gaussian_by_hand),
    "eight_schools": Density(10, _schools_data, _schools, _schools_by_hand),
    "hierarchical_regression": Density(5 + 2 * _GROUPS, _hierarchical_data, _hierarchical, _hierarchical_by_hand),
    "gaussian_process": Density(3, _process_data, _process, _process_by_hand),
}
