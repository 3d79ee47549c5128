"""Starts from quasi-Newton optimization: Pathfinder, for several starts at once.

From each start L-BFGS climbs the log-density. Every point on the way, with the inverse Hessian that L-BFGS knows there,
is a normal approximation of the posterior; the best one by its evidence lower bound gives the start. It is near the
typical set, not at the mode, which in many dimensions is far from it.

Source: Zhang, Carpenter, Gelman and Vehtari, "Pathfinder: parallel quasi-Newton variational inference", JMLR 23 (2022),
Algorithms 1 to 4, with a dense inverse Hessian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
ValueAndGradient = Callable[[Float], tuple[float, Float]]
"""A function of one position [dimension]: log-density and gradient, float64."""
LogDensities = Callable[[Float], Float]
"""A function of positions [n, dimension]: log-densities [n]."""

HISTORY = 6
"""Pairs of steps and changes of the gradient that an inverse Hessian is made of (J in the paper)."""

DRAWS = 10
"""Draws by which each approximation is judged (K in the paper)."""

ITERATIONS = 200
"""The most iterations of L-BFGS."""

MOST_APPROXIMATIONS = 40
"""Points on the way that are judged, at most: the last ones."""


@dataclass(frozen=True, eq=False)
class Approximation:
    """A normal approximation: its mean [dimension], and a factor [dimension, dimension] of its covariance."""

    mean: Float
    factor: Float

    def draws(self, normals: Float) -> tuple[Float, Float]:
        """[n, dimension] from standard normals of that shape, and the logarithm of the approximation's density [n]."""
        log_density = -0.5 * (normals**2).sum(axis=1) - np.log(np.diag(self.factor)).sum()
        return self.mean + normals @ self.factor.T, log_density - 0.5 * normals.shape[1] * np.log(2 * np.pi)


def pathfinder_starts(
    value_and_gradient: ValueAndGradient, log_densities: LogDensities, starts: Float, rng: np.random.Generator
) -> Float:
    """A draw from the best approximation on the path of each of `starts` [n, dimension]; the start where there is none.

    A draw at which the log-density is not finite is never given.
    """
    paths = [climb(value_and_gradient, start) for start in starts]
    chosen = np.array(starts, np.float64)
    for number, path in enumerate(paths):
        best, height = None, -np.inf
        for approximation in approximations(path)[-MOST_APPROXIMATIONS:]:
            drawn, log_q = approximation.draws(rng.normal(size=(DRAWS, starts.shape[1])))
            log_p = log_densities(drawn)
            finite = np.isfinite(log_p)
            # equation (5): the evidence lower bound, by DRAWS draws
            bound = float(np.mean(log_p - log_q)) if finite.all() else -np.inf
            if bound > height:
                best, height = drawn[0], bound
        if best is not None:
            chosen[number] = best
    return chosen


def climb(value_and_gradient: ValueAndGradient, start: Float) -> list[tuple[Float, Float]]:
    """The points that L-BFGS visits from a start [dimension], each with the gradient of the log-density there."""
    from scipy.optimize import minimize

    path: list[tuple[Float, Float]] = []

    def descend(position: Float) -> tuple[float, Float]:
        value, gradient = value_and_gradient(position)
        bad = not (np.isfinite(value) and np.isfinite(gradient).all())
        return (1e300, np.zeros_like(gradient)) if bad else (-value, -gradient)  # a line search goes back from there

    def note(position: Float) -> None:
        path.append((position.copy(), value_and_gradient(position)[1]))

    note(start)
    options = {"maxcor": HISTORY, "maxiter": ITERATIONS}
    minimize(descend, start, jac=True, method="L-BFGS-B", callback=note, options=options)
    return [point for point in path if np.isfinite(point[1]).all()]


def approximations(path: Sequence[tuple[Float, Float]]) -> list[Approximation]:
    """The normal approximation at each point after the first whose inverse Hessian is positive definite."""
    result = []
    pairs: list[tuple[Float, Float]] = []
    for (previous, previous_gradient), (position, gradient) in pairwise(path):
        step, change = position - previous, previous_gradient - gradient  # of minus the log-density
        if step @ change > 1e-12 * float(change @ change):  # else the curvature is not positive, as in Algorithm 3
            pairs = [*pairs, (step, change)][-HISTORY:]
        if not pairs:
            continue
        covariance = inverse_hessian(pairs)
        try:
            factor: Float = np.linalg.cholesky(covariance).astype(np.float64)
        except np.linalg.LinAlgError:
            continue
        result.append(Approximation(position + covariance @ gradient, factor))  # a Newton step from there
    return result


def inverse_hessian(pairs: Sequence[tuple[Float, Float]]) -> Float:
    """[dimension, dimension]: BFGS updates, by pairs of steps and changes of the gradient, of a scaled identity."""
    step, change = pairs[-1]
    dimension = len(step)
    inverse = np.eye(dimension) * (step @ change) / (change @ change)
    for step, change in pairs:
        weight = 1.0 / (step @ change)
        left = np.eye(dimension) - weight * np.outer(step, change)
        inverse = left @ inverse @ left.T + weight * np.outer(step, step)
    symmetric: Float = 0.5 * (inverse + inverse.T)
    return symmetric
