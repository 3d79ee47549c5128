"""The single-lane log-densities of `densities.py` in JAX's words: `jax.vmap` makes the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from batchnuts.experiments.vectorizers.densities import Data


def _regression(beta: Any, data: Data) -> Any:
    logits = data["x"] @ beta
    return jnp.sum(data["y"] * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(beta**2)


def _gaussian(x: Any, data: Data) -> Any:
    return -0.5 * jnp.sum(x * (data["precision"] @ x))


def _schools(q: Any, data: Data) -> Any:
    mean, log_scale, z = q[0], q[1], q[2:]
    scale = jnp.exp(log_scale)
    prior = -0.5 * (mean / 5.0) ** 2 + log_scale - jnp.log1p((scale / 5.0) ** 2) - 0.5 * jnp.sum(z**2)
    return prior - 0.5 * jnp.sum(((data["effect"] - mean - scale * z) / data["error"]) ** 2)


def _hierarchical(q: Any, data: Data) -> Any:
    groups = (q.shape[0] - 5) // 2
    intercepts = q[0] + jnp.exp(q[2]) * q[5 : 5 + groups]
    slopes = q[1] + jnp.exp(q[3]) * q[5 + groups :]
    misfit = (data["y"] - intercepts[data["group"]] - slopes[data["group"]] * data["x"]) / jnp.exp(q[4])
    return -0.5 * jnp.sum(misfit**2) - len(data["y"]) * q[4] - 0.5 * jnp.sum(q**2)


def _process(q: Any, data: Data) -> Any:
    kernel = jnp.exp(2 * q[0]) * jnp.exp(-0.5 * data["distance"] * jnp.exp(-2 * q[1]))
    root = jnp.linalg.cholesky(kernel + (jnp.exp(2 * q[2]) + 1e-3) * jnp.eye(len(data["y"])))
    z = jax.scipy.linalg.solve_triangular(root, data["y"], lower=True)
    return -0.5 * jnp.sum(z**2) - jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * jnp.sum(q**2)


DENSITIES: Mapping[str, Callable[[Any, Data], Any]] = {
    "logistic_regression": _regression,
    "gaussian": _gaussian,
    "eight_schools": _schools,
    "hierarchical_regression": _hierarchical,
    "gaussian_process": _process,
}
