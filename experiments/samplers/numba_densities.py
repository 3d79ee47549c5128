"""The log-density of each problem and its gradient for one chain, compiled by Numba, in float64.

Derived and written by hand, each quantity computed once, with the relaxations of floating-point arithmetic that
PyTensor's Numba backend has by default: what a user of PyMC gets at best. Matrix products are BLAS's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.samplers.problems import Problem, is_centered
from batchnuts.models.eight_schools import SCALE

FASTMATH = {"arcp", "contract", "afn", "reassoc", "nsz"}
"""Infinities and NaN stay what they are."""


@dataclass(frozen=True)
class NumbaDensity:
    """A compiled function and the memory that it reads."""

    function: Callable[[Any, Any, Any], float]
    """Takes a position [dimension], an array [dimension] for its gradient, and `data`; gives the log-density."""
    data: NDArray[np.float64]
    """The problem's arrays, one after another, and as vectors."""


def density(problem: Problem) -> NumbaDensity:
    """The density of the problem, compiled when it is first called."""
    import numba

    functions: dict[str, Callable[[Problem], Callable[..., Any]]] = {
        "correlated_gaussian": _gaussian,
        "logistic_regression": _regression,
        "neal_funnel": _funnel,
        "eight_schools": _schools,
    }
    data = [np.ravel(array) for array in problem.data.values()]
    compiled = numba.njit(fastmath=FASTMATH, error_model="numpy")(functions[problem.name](problem))
    return NumbaDensity(compiled, np.concatenate(data))


def _gaussian(problem: Problem) -> Callable[..., Any]:
    """Data: its precision, a matrix or a diagonal."""
    dimension = problem.dimension

    def full(x: Any, gradient: Any, data: Any) -> Any:
        np.dot(data.reshape(dimension, dimension), x, gradient)
        total = 0.0
        for i in range(dimension):
            gradient[i] = -gradient[i]
            total += x[i] * gradient[i]
        return 0.5 * total

    def diagonal(x: Any, gradient: Any, data: Any) -> Any:
        total = 0.0
        for i in range(dimension):
            gradient[i] = -data[i] * x[i]
            total += x[i] * gradient[i]
        return 0.5 * total

    return full if problem.data["precision"].ndim == 2 else diagonal


def _regression(problem: Problem) -> Callable[..., Any]:
    """Data: x, row by row, and y."""
    rows, columns = problem.data["x"].shape

    def function(beta: Any, gradient: Any, data: Any) -> Any:
        x, y = data[: rows * columns].reshape(rows, columns), data[rows * columns :]
        logits = np.dot(x, beta)
        total = 0.0
        for i in range(rows):
            small = np.exp(-abs(logits[i]))
            total += y[i] * logits[i] - max(logits[i], 0.0) - np.log1p(small)
            probability = (1.0 if logits[i] >= 0 else small) / (1 + small)
            logits[i] = y[i] - probability
        np.dot(x.T, logits, gradient)
        for j in range(columns):
            total -= 0.5 * beta[j] * beta[j]
            gradient[j] -= beta[j]
        return total

    return function


def _funnel(problem: Problem) -> Callable[..., Any]:
    """Data: the scale."""
    dimension = problem.dimension

    def function(position: Any, gradient: Any, data: Any) -> Any:
        v, variance = position[0], data[0] ** 2
        precision = np.exp(-v)
        squares = 0.0
        for i in range(1, dimension):
            squares += position[i] * position[i]
            gradient[i] = -precision * position[i]
        gradient[0] = -v / variance - 0.5 * (dimension - 1) + 0.5 * precision * squares
        return -0.5 * (v * v / variance + (dimension - 1) * v + precision * squares)

    return function


def _schools(problem: Problem) -> Callable[..., Any]:
    """Data: y and sigma."""
    schools = problem.dimension - 2
    centered = is_centered(problem)

    def function(position: Any, gradient: Any, data: Any) -> Any:
        mu, log_tau = position[0], position[1]
        tau = np.exp(log_tau)
        ratio = (tau / SCALE) ** 2
        total = -0.5 * (mu / SCALE) ** 2 - np.log1p(ratio)
        of_mu, of_log_tau = -mu / SCALE**2, -2 * ratio / (1 + ratio)
        if centered:
            total -= (schools - 1) * log_tau
            of_log_tau -= schools - 1
        else:
            total += log_tau
            of_log_tau += 1
        for i in range(schools):
            own, sigma = position[2 + i], data[schools + i]
            if centered:
                theta, eta = own, (own - mu) / tau
            else:
                theta, eta = mu + tau * own, own
            residual = (data[i] - theta) / sigma
            total -= 0.5 * (residual * residual + eta * eta)
            push = residual / sigma  # of the likelihood on theta
            if centered:
                gradient[2 + i] = push - eta / tau
                of_mu += eta / tau
                of_log_tau += eta * eta
            else:
                gradient[2 + i] = tau * push - eta
                of_mu += push
                of_log_tau += push * tau * own
        gradient[0], gradient[1] = of_mu, of_log_tau
        return total

    return function
