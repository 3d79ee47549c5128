"""The density of each problem over a leading axis of chains, in TensorFlow, for samplers that differentiate it.

Written so that one gradient costs as many matrix products as the model's hand-written twin: one for the Gaussian, two
for the regression. Also here: where TensorFlow is to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchnuts.experiments.harness.processes import Device
from batchnuts.experiments.samplers.problems import Problem, is_centered
from batchnuts.experiments.samplers.task import MissingSampler
from batchnuts.models.eight_schools import SCALE


def log_density(problem: Problem) -> Callable[[Any], Any]:
    """A function of positions [chains, dimension] to log-densities [chains], both of the problem's dtype."""
    import tensorflow as tf

    data = {name: tf.constant(array.astype(problem.dtype)) for name, array in problem.data.items()}

    def logistic_regression(beta: Any) -> Any:
        logits = tf.matmul(beta, data["x"], transpose_b=True)  # [chains, rows]
        size = tf.abs(logits)
        softplus = 0.5 * (logits + size) + tf.math.log(1 + tf.exp(-size))  # as the packaged model has it
        return tf.reduce_sum(data["y"] * logits - softplus, axis=1) - 0.5 * tf.reduce_sum(beta * beta, axis=1)

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # differentiated by TensorFlow, x P x costs two products more
    def correlated_gaussian(x: Any) -> Any:
        precision = data["precision"]
        gradient = -(tf.matmul(x, precision) if precision.shape.rank == 2 else x * precision)
        return 0.5 * tf.reduce_sum(x * gradient, axis=1), lambda upstream: upstream[:, None] * gradient

    def neal_funnel(position: Any) -> Any:
        v, x = position[:, 0], position[:, 1:]
        wide = problem.dimension - 1
        return -0.5 * ((v / data["scale"]) ** 2 + wide * v + tf.exp(-v) * tf.reduce_sum(x * x, axis=1))

    def eight_schools(position: Any) -> Any:
        mu, log_tau, schools = position[:, :1], position[:, 1:2], position[:, 2:]
        tau = tf.exp(log_tau)
        centered = is_centered(problem)
        theta, eta = (schools, (schools - mu) / tau) if centered else (mu + tau * schools, schools)
        squares = ((data["y"] - theta) / data["sigma"]) ** 2 + eta**2
        prior = 0.5 * (mu / SCALE) ** 2 + tf.math.log1p((tau / SCALE) ** 2) + (7.0 if centered else -1.0) * log_tau
        return -0.5 * tf.reduce_sum(squares, axis=1) - prior[:, 0]

    densities: dict[str, Callable[[Any], Any]] = {
        "logistic_regression": logistic_regression,
        "correlated_gaussian": correlated_gaussian,
        "neal_funnel": neal_funnel,
        "eight_schools": eight_schools,
    }
    return densities[problem.name]


def place(device: Device) -> Any:
    """A context in which TensorFlow's operations run on this device. Raises MissingSampler where there is none."""
    import tensorflow as tf

    if not tf.config.list_physical_devices(device.upper()):
        raise MissingSampler(f"TensorFlow sees no {device} on this machine; set device: cpu, or install its driver.")
    return tf.device(f"/{device.upper()}:0")
