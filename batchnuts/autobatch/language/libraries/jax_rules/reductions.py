"""Reductions, sums along an axis, products of matrices, and systems of few equations."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax

from batchnuts.autobatch.language.libraries.jax_rules.values import (
    Array,
    Equation,
    Rule,
    number,
    one_axis,
    permuted,
    shape_of,
    whole,
    wholes,
)
from batchnuts.autobatch.language.libraries.recording import FUNCTIONS as F
from batchnuts.autobatch.language.libraries.recording import LIBRARY
from batchnuts.autobatch.language.libraries.type_rules import NotTyped


def _reduction(function: str) -> Rule:
    def rule(equation: Equation, x: Array) -> Array:
        (x,) = wholes(equation, [x])
        axes = tuple(map(int, equation.params["axes"]))
        return getattr(F, function)(x, axes, False) if axes else x

    return rule


def _product(equation: Equation, x: Array) -> Array:
    """A product over axes, of at most 64 factors: one after another."""
    (x,) = wholes(equation, [x])
    axes, shape = tuple(equation.params["axes"]), shape_of(x)
    kept = [a for a in range(len(shape)) if a not in axes]
    count = math.prod(shape[a] for a in axes)
    if not 0 < count <= 64:
        raise NotTyped("products of more than 64 factors")
    rows = F.reshape(permuted(x, (*axes, *kept)), (count, *(shape[a] for a in kept)))
    return functools.reduce(F.multiply, (F.item(rows, one_axis(i, 0, len(kept) + 1)) for i in range(count)))


def _cumulative(equation: Equation, x: Array) -> Array:
    (x,) = wholes(equation, [x])
    axis, rank = int(equation.params["axis"]), len(shape_of(x))
    if not equation.params["reverse"]:
        return F.cumsum(x, axis)
    back = one_axis(slice(None, None, -1), axis, rank)
    return F.item(F.cumsum(F.item(x, back), axis), back)


def _dot_general(equation: Equation, x: Array, y: Array) -> Array:
    """A product of matrices: axes in the order batch, free, contracted and batch, contracted, free."""
    x, y = wholes(equation, [x, y])
    (result,) = equation.outvars
    if {LIBRARY.dtype_of(x), LIBRARY.dtype_of(y)} != {result.aval.dtype} or result.aval.dtype.kind != "f":
        raise NotTyped("products of matrices of two dtypes")
    (contracted_x, contracted_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    shape_x, shape_y = shape_of(x), shape_of(y)
    free_x = [a for a in range(len(shape_x)) if a not in contracted_x and a not in batch_x]
    free_y = [a for a in range(len(shape_y)) if a not in contracted_y and a not in batch_y]
    batch = tuple(shape_x[a] for a in batch_x)
    inner = math.prod(shape_x[a] for a in contracted_x)
    rows, columns = math.prod(shape_x[a] for a in free_x), math.prod(shape_y[a] for a in free_y)
    if not inner:
        raise NotTyped("products of empty matrices")
    left = permuted(x, (*batch_x, *free_x, *contracted_x))
    right = permuted(y, (*batch_y, *contracted_y, *free_y))
    if not contracted_x or (batch and rows == columns == 1):  # an outer product; elementwise
        left = F.reshape(left, (*batch, rows, 1, inner))
        right = F.reshape(permuted(y, (*batch_y, *free_y, *contracted_y)), (*batch, 1, columns, inner))
        return F.reshape(F.sum(F.multiply(left, right), (len(batch) + 2,), False), result.aval.shape)
    if batch:
        left, right = F.reshape(left, (*batch, rows, inner)), F.reshape(right, (*batch, inner, columns))
        return F.reshape(F.matmul(left, right), result.aval.shape)
    left = F.reshape(left, (rows, inner) if free_x else (inner,))
    right = F.reshape(right, (inner, columns) if free_y else (inner,))
    return F.reshape(F.matmul(left, right), result.aval.shape)


MOST_ROWS = 8
"""Of a matrix that is decomposed, or by which a system is solved, element by element: more are LAPACK's."""


def _require_small(rows: int) -> None:
    if rows > MOST_ROWS:
        raise NotTyped(f"a matrix of {rows} rows")


def _element(x: Array, *last: Any) -> Array:
    """x[..., i, j]."""
    return F.item(x, (*[slice(None)] * (len(shape_of(x)) - len(last)), *last))


def _less_products(x: Array, pairs: Sequence[tuple[Array, Array]]) -> Array:
    for left, right in pairs:
        x = F.subtract(x, F.multiply(left, right))
    return x


def _cholesky(equation: Equation, x: Array) -> Array:
    """L_ij = (A_ij - sum_k<j L_ik L_jk) / L_jj (Golub and Van Loan, Matrix Computations, 2013, section 4.2)."""
    (x,) = wholes(equation, [x])
    n = shape_of(x)[-1]
    _require_small(n)
    factor: dict[tuple[int, int], Array] = {}
    for j in range(n):
        for i in range(j, n):
            rest = _less_products(_element(x, i, j), [(factor[i, k], factor[j, k]) for k in range(j)])
            factor[i, j] = F.sqrt(rest) if i == j else F.divide(rest, factor[j, j])
    zero = whole(number(0, x), jax.ShapeDtypeStruct(shape_of(x)[:-2], LIBRARY.dtype_of(x)))
    rows = [F.stack(tuple(factor.get((i, j), zero) for j in range(n)), -1) for i in range(n)]
    return F.stack(tuple(rows), -2)


def _triangular_solve(equation: Equation, a: Array, b: Array) -> Array:
    """Substitution, row by row; of matrices with leading axes alike."""
    a, b = wholes(equation, [a, b])
    names = ("left_side", "lower", "transpose_a", "unit_diagonal")
    on_left, lower, transposed, unit = (bool(equation.params[name]) for name in names)
    n = shape_of(a)[-1]
    _require_small(n)
    if not on_left:  # x A = b is A' x' = b'
        b, transposed = F.transpose(b), not transposed
    solved: dict[int, Array] = {}
    for i in range(n) if lower != transposed else reversed(range(n)):

        def entry(j: int, i: int = i) -> Array:
            found = _element(a, j, i) if transposed else _element(a, i, j)
            return F.reshape(found, (*shape_of(found), 1))

        rest = _less_products(_element(b, i, slice(None)), [(entry(j), row) for j, row in solved.items()])
        solved[i] = rest if unit else F.divide(rest, entry(i))
    x = F.stack(tuple(solved[i] for i in range(n)), -2)
    return x if on_left else F.transpose(x)


RULES: dict[str, Rule] = {
    "reduce_sum": _reduction("sum"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_and": _reduction("all"),
    "reduce_or": _reduction("any"),
    "reduce_prod": _product,
    "cumsum": _cumulative,
    "dot_general": _dot_general,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
}
"""By the names of primitives."""
