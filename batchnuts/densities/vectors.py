"""Densities of vectors and of Cholesky factors."""

from __future__ import annotations

import numpy as np

from batchnuts.autobatch import ops
from batchnuts.densities.arithmetic import HALF_LOG_2PI, LOG_PI, Array, above, floats, quiet, total


@quiet
def dirichlet(x: Array, alpha: Array, pointwise: bool = False) -> Array:
    """Dirichlet of simplexes `x` [..., k], all of whose elements are positive, with `alpha` [..., k] > 0."""
    x, alpha = floats(x, alpha)
    (x, outside), (alpha, no_alpha) = above(x), above(alpha)
    constant = ops.gammaln(ops.sum(alpha, -1)) - ops.sum(ops.gammaln(alpha), -1)
    value = constant + ops.sum((alpha - 1.0) * ops.log(x), -1)
    return total(value, pointwise, ops.any(outside, -1), ops.any(no_alpha, -1))


def _eye(matrix: Array) -> np.ndarray:
    return np.eye((ops.static_shape(matrix) or (0,))[-1] or 0, dtype=bool)


def _log_diagonal(factor: Array) -> tuple[Array, Array, Array]:
    """A Cholesky factor, the logarithms of its diagonal, and whether it is none: not all of these are positive."""
    eye = _eye(factor)
    none = ops.logical_not(ops.all(ops.sum(ops.where(eye, factor, 0), -1) > 0))
    factor = ops.where(none, eye.astype(ops.dtype_of(factor)), factor)
    return factor, ops.log(ops.sum(ops.where(eye, factor, 0), -1)), none


@quiet
def multi_normal(x: Array, mu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Normal of vectors `x` [k] or [n, k] with means `mu` [k] or [n, k] and the covariance `sigma` [k, k].

    -inf where `sigma` is not positive definite; its gradient is NaN there, and TensorFlow raises an error without XLA.
    """
    x, mu, sigma = floats(x, mu, sigma)
    return multi_normal_cholesky(x, mu, ops.cholesky(sigma), pointwise)


@quiet
def multi_normal_cholesky(x: Array, mu: Array, L: Array, pointwise: bool = False) -> Array:
    """`multi_normal` by the covariance's lower Cholesky factor `L` [k, k], whose diagonal is positive."""
    x, mu, factor = floats(x, mu, L)
    factor, logs, none = _log_diagonal(factor)
    residual = x - mu
    vector = len(ops.static_shape(residual) or ()) == 1
    whitened = ops.solve_triangular(factor, residual if vector else ops.transpose(residual))
    return total(_of_whitened(whitened, 0, -ops.sum(logs), logs), pointwise, none)


@quiet
def multi_normal_prec(x: Array, mu: Array, omega: Array, pointwise: bool = False) -> Array:
    """`multi_normal` by the inverse of the covariance, `omega` [k, k]. As there where it is not positive definite."""
    x, mu, omega = floats(x, mu, omega)
    factor, logs, none = _log_diagonal(ops.cholesky(omega))
    return total(_of_whitened(ops.matmul(x - mu, factor), -1, ops.sum(logs), logs), pointwise, none)


def _of_whitened(whitened: Array, axis: int, log_volume: Array, logs: Array) -> Array:
    size = (ops.static_shape(logs) or (0,))[-1] or 0
    return -0.5 * ops.sum(ops.square(whitened), axis) + log_volume - size * HALF_LOG_2PI


@quiet
def lkj_corr_cholesky(L: Array, eta: Array) -> Array:
    """LKJ with shape `eta` > 0, of a correlation matrix's lower Cholesky factor `L` [k, k], as a density of `L`."""
    factor, eta = floats(L, eta)
    eta, outside = above(eta)
    _, logs, none = _log_diagonal(factor)
    size = _eye(factor).shape[0]
    rows = np.arange(1, size)
    shapes = 0.5 * (size - 1 - rows)
    constant = (size - 1) * ops.gammaln(eta + 0.5 * (size - 1)) - 0.25 * size * (size - 1) * LOG_PI
    powers = [2.0 * float(shape) + 2.0 * eta - 2.0 for shape in shapes]
    value = constant + sum(power * logs[row] for power, row in zip(powers, rows.tolist(), strict=True))
    return total(value - sum(ops.gammaln(eta + float(shape)) for shape in shapes), False, none, outside)
