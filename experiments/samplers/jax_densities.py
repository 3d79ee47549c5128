"""The density of each problem for one chain in jax.numpy, and where and in which precision JAX is to run.

Gradients of the two with matrices are given in closed form: differentiated by JAX, the softplus costs up to a third
more, and x P x two more products. Under `vmap` the products with a vector become products of matrices; `beta @ x.T`,
with x.T laid out row by row, is then the faster way to write the regression's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from batchnuts.experiments.harness.processes import Device
from batchnuts.experiments.samplers.problems import Problem, is_centered
from batchnuts.experiments.samplers.task import MissingSampler
from batchnuts.models.eight_schools import SCALE

INSTALL = "pip install 'batchnuts[peers]'"


def log_density(problem: Problem) -> Callable[[Any], Any]:
    """A function of one position [dimension] to its log-density, both of the problem's dtype."""
    import jax
    import jax.numpy as jnp

    transposed = {name: array.T.astype(problem.dtype, order="C") for name, array in problem.data.items()}
    data = {name: jnp.asarray(array) for name, array in transposed.items()}

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def log_likelihood(logits: Any) -> Any:
        softplus = jnp.maximum(logits, 0) + jnp.log(1 + jnp.exp(-jnp.abs(logits)))  # as in ours
        return jnp.sum(data["y"] * logits - softplus)

    log_likelihood.defvjp(
        lambda logits: (log_likelihood(logits), data["y"] - jax.nn.sigmoid(logits)),
        lambda gradient, upstream: (upstream * gradient,),
    )

    def logistic_regression(beta: Any) -> Any:
        return log_likelihood(beta @ data["x"]) - 0.5 * beta @ beta

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def correlated_gaussian(x: Any) -> Any:
        return value_and_gradient(x)[0]

    def value_and_gradient(x: Any) -> tuple[Any, Any]:
        precision = data["precision"]
        gradient = -(x @ precision if precision.ndim == 2 else x * precision)
        return 0.5 * x @ gradient, gradient

    correlated_gaussian.defvjp(value_and_gradient, lambda gradient, upstream: (upstream * gradient,))

    def neal_funnel(position: Any) -> Any:
        v, x = position[0], position[1:]
        return -0.5 * ((v / data["scale"]) ** 2 + (problem.dimension - 1) * v + jnp.exp(-v) * (x @ x))

    def eight_schools(position: Any) -> Any:
        mu, log_tau, schools = position[0], position[1], position[2:]
        tau = jnp.exp(log_tau)
        centered = is_centered(problem)
        theta, eta = (schools, (schools - mu) / tau) if centered else (mu + tau * schools, schools)
        squares = jnp.sum(((data["y"] - theta) / data["sigma"]) ** 2 + eta**2)
        prior = 0.5 * (mu / SCALE) ** 2 + jnp.log1p((tau / SCALE) ** 2) + (7.0 if centered else -1.0) * log_tau
        return -0.5 * squares - prior

    densities: dict[str, Callable[[Any], Any]] = {
        "logistic_regression": logistic_regression,
        "correlated_gaussian": correlated_gaussian,
        "neal_funnel": neal_funnel,
        "eight_schools": eight_schools,
    }
    return densities[problem.name]


def use_jax(library: str, task_device: Device, dtype: str) -> Any:
    """Set JAX's precision for this process, and give the context in which arrays and programs are on the device.

    Raises MissingSampler where the library, built on JAX, is not installed, or JAX sees no such device.
    """
    try:
        importlib.import_module(library)
        import jax
    except ImportError as error:
        raise missing(library, library) from error
    jax.config.update("jax_enable_x64", dtype == "float64")
    return jax.default_device(first_device(library, task_device))


def first_device(sampler: str, task_device: Device) -> Any:
    """JAX's. Raises MissingSampler where it sees none of the kind."""
    import jax

    try:
        return jax.devices(task_device)[0]
    except RuntimeError as error:
        raise MissingSampler(
            f"Sampler {sampler}: JAX sees no {task_device} on this machine; set device: cpu, or install JAX for it."
        ) from error


def missing(sampler: str, package: str) -> MissingSampler:
    """The error for a package that is not installed."""
    return MissingSampler(f"Sampler {sampler} needs {package}: {INSTALL}")
