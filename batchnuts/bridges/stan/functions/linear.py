"""Linear algebra, and functions for which it matters what is a vector, a row vector or a matrix.

Those take the types of their arguments (`Int`, `Real`, `Vector`, `RowVector`, `Matrix`) after the Numerics. Matrices
are in rows, as NumPy has them; where Stan's functions go through elements, they go column by column.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from batchnuts.bridges.stan.functions.elementwise import int_divide, power
from batchnuts.bridges.stan.functions.numerics import Array, Numerics, StanFunction

NUMBERS = ("Int", "Real", "Complex")
Leaves = tuple[str, ...]
TypedFunction = Callable[..., Array]


def _transposed(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _transposed_matrix(x: Array) -> Array:
    return x.T if x.ndim == 2 else x


def times(m: Numerics, leaves: Leaves, x: Array, y: Array) -> Array:
    """A product: of numbers with anything, and of matrices."""
    left, right = leaves
    if left in NUMBERS or right in NUMBERS:
        return m.np.asarray(x) * y
    if (left, right) == ("Vector", "RowVector"):
        return m.np.outer(x, y)
    return m.np.matmul(m.np.asarray(x), m.np.asarray(y))


def divide(m: Numerics, leaves: Leaves, x: Array, y: Array) -> Array:
    """By a number; a product with the inverse of a matrix; of integers rounded towards zero."""
    left, right = leaves
    if leaves == ("Int", "Int"):
        return int_divide(m, x, y)
    if right == "Matrix" and left in ("RowVector", "Matrix"):
        columns = x.T if left == "Matrix" else x
        return _transposed_matrix(m.np.linalg.solve(y.T, columns))
    return m.np.asarray(x) / y


def left_divide(m: Numerics, leaves: Leaves, x: Array, y: Array) -> Array:
    """inverse(x) * y."""
    return m.np.linalg.solve(x, y)


def transpose(m: Numerics, leaves: Leaves, x: Array) -> Array:
    """Of a matrix; a vector and a row vector are the same here."""
    return _transposed(x) if leaves == ("Matrix",) else x


def power_of(m: Numerics, leaves: Leaves, x: Array, y: Array) -> Array:
    """Of a square matrix by a whole number, else of each element."""
    if leaves[0] == "Matrix" and leaves[1] == "Int":
        return m.np.linalg.matrix_power(x, int(y))
    return power(m, x, y)


def rep_matrix(m: Numerics, leaves: Leaves, value: Array, *sizes: Array) -> Array:
    """A matrix of one number, of one row, or of one column."""
    value, counts = m.np.asarray(value), [int(n) for n in sizes]
    if leaves[0] == "RowVector":
        return m.np.broadcast_to(value[None, :], (counts[0], value.shape[0]))
    if leaves[0] == "Vector":
        return m.np.broadcast_to(value[:, None], (value.shape[0], counts[0]))
    return m.np.broadcast_to(value, tuple(counts))


def _as_matrix(m: Numerics, leaf: str, x: Array) -> Array:
    x = m.np.asarray(x)
    if leaf == "Vector":
        return x[:, None]
    return x[None, :] if leaf == "RowVector" else m.np.atleast_2d(x)


def append_row(m: Numerics, leaves: Leaves, x: Array, y: Array) -> Array:
    """One below the other; a number and vectors give a vector."""
    if all(leaf in (*NUMBERS, "Vector") for leaf in leaves):
        return m.np.concatenate([m.np.atleast_1d(m.np.asarray(part) * 1.0) for part in (x, y)])
    return m.np.concatenate([_as_matrix(m, leaf, part) for leaf, part in zip(leaves, (x, y))], axis=0)


def append_col(m: Numerics, leaves: Leaves, x: Array, y: Array) -> Array:
    """One beside the other; a number and row vectors give a row vector."""
    if all(leaf in (*NUMBERS, "RowVector") for leaf in leaves):
        return m.np.concatenate([m.np.atleast_1d(m.np.asarray(part) * 1.0) for part in (x, y)])
    return m.np.concatenate([_as_matrix(m, leaf, part) for leaf, part in zip(leaves, (x, y))], axis=1)


def to_vector(m: Numerics, leaves: Leaves, x: Array) -> Array:
    """All elements; of a matrix column by column."""
    x = m.np.asarray(x) * 1.0
    return _transposed(x).reshape(-1) if leaves == ("Matrix",) else x.reshape(-1)


def to_array_1d(m: Numerics, leaves: Leaves, x: Array) -> Array:
    """All elements; of a matrix column by column, of arrays row by row."""
    x = m.np.asarray(x)
    return _transposed(x).reshape(-1) if leaves == ("Matrix",) and x.ndim == 2 else x.reshape(-1)


def to_matrix(m: Numerics, leaves: Leaves, x: Array, *shape: Array) -> Array:
    """A matrix of columns, as many elements as it has; a further argument 0 means row by row."""
    x = m.np.asarray(x) * 1.0
    if not shape:
        return _as_matrix(m, leaves[0], x)
    flat = _transposed(x).reshape(-1) if leaves[0] == "Matrix" and x.ndim == 2 else x.reshape(-1)
    n, k = int(shape[0]), int(shape[1])
    if len(shape) > 2 and not int(shape[2]):
        return flat.reshape(n, k)
    return _transposed(flat.reshape(k, n))


TYPED: dict[str, TypedFunction] = {
    "Times__": times,
    "multiply": times,
    "Divide__": divide,
    "divide": divide,
    "LDivide__": left_divide,
    "mdivide_left": left_divide,
    "Transpose__": transpose,
    "transpose": transpose,
    "Pow__": power_of,
    "rep_matrix": rep_matrix,
    "append_row": append_row,
    "append_col": append_col,
    "to_vector": to_vector,
    "to_row_vector": to_vector,
    "to_array_1d": to_array_1d,
    "to_matrix": to_matrix,
}


# ---- matrices --------------------------------------------------------------------------------------------------------


def cholesky(m: Numerics, x: Array) -> Array:
    """The lower factor; NaN for what is not positive definite."""
    if not m.is_known:
        return m.np.linalg.cholesky(x)
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return np.full_like(x, np.nan)


def solve_lower(m: Numerics, factor: Array, b: Array) -> Array:
    """inverse(factor) * b of a lower triangular matrix."""
    return m.linalg.solve_triangular(factor, b, lower=True)


def log_determinant_spd(m: Numerics, x: Array) -> Array:
    """Of a positive definite matrix."""
    return 2.0 * m.np.sum(m.np.log(m.np.diagonal(cholesky(m, x))))


def inverse_spd(m: Numerics, x: Array) -> Array:
    """Of a positive definite matrix, by its factor."""
    half = solve_lower(m, cholesky(m, x), np.eye(x.shape[-1]))
    return half.T @ half


def diag_pre_multiply(m: Numerics, v: Array, x: Array) -> Array:
    """diag(v) * x."""
    return v[:, None] * x


def tcrossprod(m: Numerics, x: Array) -> Array:
    """x * x'."""
    return x @ x.T


def multiply_lower_tri_self_transpose(m: Numerics, x: Array) -> Array:
    """L * L' of the lower triangle."""
    low = m.np.tril(x)
    return low @ low.T


def quad_form(m: Numerics, a: Array, b: Array) -> Array:
    """b' * a * b."""
    return b.T @ a @ b


def _softmax(m: Numerics, x: Array) -> Array:
    return m.np.exp(log_softmax(m, x))


def log_softmax(m: Numerics, x: Array) -> Array:
    """x - log_sum_exp(x)."""
    return x - m.special.logsumexp(x, axis=-1, keepdims=True)


def _eigen(part: int) -> StanFunction:
    return lambda m, x: m.np.linalg.eigh(x)[part]


def matrix_exp(m: Numerics, x: Array) -> Array:
    """The exponential of a square matrix."""
    return m.linalg.expm(x)


def _squared_distances(m: Numerics, x: Array, y: Array) -> Array:
    x, y = m.np.asarray(x) * 1.0, m.np.asarray(y) * 1.0
    if x.ndim == 1:
        return m.np.square(x[:, None] - y[None, :])
    return m.np.sum(m.np.square(x[:, None, :] - y[None, :, :]), axis=-1)


def _kernel(covariance: Callable[[Numerics, Array], Array]) -> StanFunction:
    """A covariance by distances over the length scale: of one set of points, or of two."""

    def function(m: Numerics, *arguments: Array) -> Array:
        two = len(arguments) == 4
        x, y = (arguments[0], arguments[1]) if two else (arguments[0], arguments[0])
        sigma, length = arguments[-2:]
        x, y = (m.np.asarray(points) * 1.0 for points in (x, y))
        if np.ndim(length):  # one for each dimension
            x, y, length = x / length, y / length, 1.0
        return m.np.square(sigma) * covariance(m, _squared_distances(m, x, y) / m.np.square(length))

    return function


def _root(m: Numerics, squared: Array) -> Array:
    """Distances, whose derivative at 0 is 0."""
    apart = squared > 0
    return m.np.where(apart, m.np.sqrt(m.np.where(apart, squared, 1.0)), 0.0)


def _matern32(m: Numerics, squared: Array) -> Array:
    distance = math.sqrt(3.0) * _root(m, squared)
    return (1.0 + distance) * m.np.exp(-distance)


def _matern52(m: Numerics, squared: Array) -> Array:
    distance = math.sqrt(5.0) * _root(m, squared)
    return (1.0 + distance + 5.0 / 3.0 * squared) * m.np.exp(-distance)


def csr_matrix_times_vector(m: Numerics, rows_: Array, cols_: Array, w: Array, v: Array, u: Array, b: Array) -> Array:
    """A product with a sparse matrix: w its values, v the columns and u where rows begin, from 1, known."""
    begins = np.asarray(u) - 1
    row = np.repeat(np.arange(int(rows_)), np.diff(begins))
    terms = m.np.asarray(w) * m.np.asarray(b)[np.asarray(v) - 1]
    if m.is_known:
        return np.bincount(row, terms, int(rows_))
    return m.np.zeros(int(rows_), terms.dtype).at[row].add(terms)


MATRICES: dict[str, StanFunction] = {
    "cholesky_decompose": cholesky,
    "inverse": lambda m, x: m.np.linalg.inv(x),
    "inverse_spd": inverse_spd,
    "log_determinant": lambda m, x: m.np.linalg.slogdet(x)[1],
    "diagonal": lambda m, x: m.np.diagonal(x),
    "diag_matrix": lambda m, x: m.np.diag(m.np.asarray(x) * 1.0),
    "add_diag": lambda m, x, d: x + m.np.diag(m.np.broadcast_to(m.np.asarray(d) * 1.0, (min(x.shape),))),
    "diag_pre_multiply": diag_pre_multiply,
    "diag_post_multiply": lambda m, x, v: x * v[None, :],
    "quad_form": quad_form,
    "quad_form_sym": quad_form,
    "quad_form_diag": lambda m, x, v: v[:, None] * x * v[None, :],
    "tcrossprod": tcrossprod,
    "crossprod": lambda m, x: x.T @ x,
    "multiply_lower_tri_self_transpose": multiply_lower_tri_self_transpose,
    "mdivide_left_tri_low": solve_lower,
    "mdivide_left_spd": lambda m, a, b: m.np.linalg.solve(a, b),
    "mdivide_right_tri_low": lambda m, b, a: m.linalg.solve_triangular(a, b.T, lower=True, trans=1).T,
    "mdivide_right_spd": lambda m, b, a: m.np.linalg.solve(a, b.T).T,
    "mdivide_right": lambda m, b, a: m.np.linalg.solve(a.T, b.T).T,
    "softmax": _softmax,
    "log_softmax": log_softmax,
    "eigenvalues_sym": _eigen(0),
    "eigenvectors_sym": _eigen(1),
    "matrix_exp": matrix_exp,
    "gp_exp_quad_cov": _kernel(lambda m, squared: m.np.exp(-0.5 * squared)),
    "gp_exponential_cov": _kernel(lambda m, squared: m.np.exp(-_root(m, squared))),
    "gp_matern32_cov": _kernel(_matern32),
    "gp_matern52_cov": _kernel(_matern52),
    "csr_matrix_times_vector": csr_matrix_times_vector,
}
