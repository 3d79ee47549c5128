"""Functions of whole containers: reductions, sizes, and what moves elements. Sizes and places are known integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from batchnuts.bridges.stan.functions.numerics import Array, Numerics, StanFunction

# ---- reductions ------------------------------------------------------------------------------------------------------


def log_sum_exp(m: Numerics, *arguments: Array) -> Array:
    """Of all elements of a container, or of two numbers."""
    if len(arguments) == 2:
        return m.np.logaddexp(*arguments)
    (x,) = arguments
    x = m.np.asarray(x)
    return m.special.logsumexp(x) if x.size else m.np.asarray(-math.inf)


def prod(m: Numerics, x: Array) -> Array:
    """Of all elements; 1 where there are none."""
    return m.np.prod(m.np.asarray(x))


def variance(m: Numerics, x: Array) -> Array:
    """Of a sample: the sum of squares is divided by one less than there are."""
    x = m.np.asarray(x)
    return m.np.var(x, ddof=1) if x.size > 1 else m.np.asarray(0.0)


REDUCTIONS: dict[str, StanFunction] = {
    "sum": lambda m, x: m.np.sum(m.np.asarray(x)),
    "mean": lambda m, x: m.np.mean(m.np.asarray(x)),
    "prod": prod,
    "min": lambda m, *x: m.np.minimum(*x) if len(x) == 2 else m.np.min(m.np.asarray(x[0])),
    "max": lambda m, *x: m.np.maximum(*x) if len(x) == 2 else m.np.max(m.np.asarray(x[0])),
    "variance": variance,
    "sd": lambda m, x: m.np.sqrt(variance(m, x)),
    "log_sum_exp": log_sum_exp,
    "dot_self": lambda m, x: m.np.sum(m.np.square(x)),
    "dot_product": lambda m, x, y: m.np.sum(m.np.asarray(x) * y),
    "squared_distance": lambda m, x, y: m.np.sum(m.np.square(m.np.asarray(x) - y)),
    "columns_dot_product": lambda m, x, y: m.np.sum(x * y, axis=-2),
    "columns_dot_self": lambda m, x: m.np.sum(x * x, axis=-2),
    "rows_dot_product": lambda m, x, y: m.np.sum(x * y, axis=-1),
    "rows_dot_self": lambda m, x: m.np.sum(x * x, axis=-1),
    "cumulative_sum": lambda m, x: m.np.cumsum(m.np.asarray(x)),
}

# ---- sizes -----------------------------------------------------------------------------------------------------------

SIZES: dict[str, Callable[[str, tuple[int, ...]], object]] = {
    "num_elements": lambda leaf, shape: math.prod(shape),
    "size": lambda leaf, shape: (shape or (1,))[0] if leaf != "Matrix" else math.prod(shape),
    "FnLength": lambda leaf, shape: (shape or (1,))[0],
    "dims": lambda leaf, shape: np.array(shape, int),
    "rows": lambda leaf, shape: 1 if leaf == "RowVector" else shape[0],
    "cols": lambda leaf, shape: 1 if leaf == "Vector" else shape[-1],
}
"""Of the type and shape of a container."""


# ---- made of numbers -------------------------------------------------------------------------------------------------


def _full(m: Numerics, value: Array, *shape: Array) -> Array:
    value = m.np.asarray(value)
    sizes = tuple(int(n) for n in shape)
    return m.np.broadcast_to(value, (*sizes, *value.shape))


def linspaced(m: Numerics, count: Array, low: Array, high: Array) -> Array:
    """Equally spaced from low to high; one alone is high."""
    n = int(count)
    if n == 1:
        return m.np.asarray([high]) * 1.0
    return low + (m.np.asarray(high) - low) * (np.arange(n) / max(n - 1, 1))


def _one_hot(m: Numerics, count: Array, place: Array) -> Array:
    return np.eye(int(count))[int(place) - 1]


MADE: dict[str, StanFunction] = {
    "rep_vector": _full,
    "rep_row_vector": _full,
    "rep_array": _full,
    **{f"{name}_{kind}": (lambda value: lambda m, *n: np.full(tuple(map(int, n)), value))(number)
       for name, number in (("ones", 1.0), ("zeros", 0.0)) for kind in ("vector", "row_vector", "array")},
    **{f"{name}_int_array": (lambda value: lambda m, n: np.full(int(n), value))(number)
       for name, number in (("ones", 1), ("zeros", 0))},
    **{f"linspaced_{kind}": linspaced for kind in ("vector", "row_vector", "array")},
    "linspaced_int_array": lambda m, n, low, high: np.linspace(int(low), int(high), int(n)).astype(int),
    **{f"one_hot_{kind}": _one_hot for kind in ("vector", "row_vector", "array")},
    "one_hot_int_array": lambda m, n, place: _one_hot(m, n, place).astype(int),
    "uniform_simplex": lambda m, n: np.full(int(n), 1.0 / int(n)),
    "identity_matrix": lambda m, n: np.eye(int(n)),
    "FnMakeArray": lambda m, *parts: m.np.stack([m.np.asarray(part) for part in parts]),
    "FnMakeRowVec": lambda m, *parts: m.np.stack([m.np.asarray(part) for part in parts]),
    "FnMakeRowVecUnsized": lambda m, *parts: m.np.stack([m.np.asarray(part) for part in parts]),
    "negative_infinity": lambda m: np.array(-math.inf),
    "positive_infinity": lambda m: np.array(math.inf),
    "not_a_number": lambda m: np.array(math.nan),
    "machine_precision": lambda m: np.array(np.finfo(float).eps),
    "pi": lambda m: np.array(math.pi),
    "e": lambda m: np.array(math.e),
    "sqrt2": lambda m: np.array(math.sqrt(2.0)),
    "log2": lambda m, *x: m.np.log2(*x) if x else np.array(math.log(2.0)),
    "log10": lambda m, *x: m.np.log10(*x) if x else np.array(math.log(10.0)),
    "FnNegInf": lambda m: np.array(-math.inf),
    "FnNaN": lambda m: np.array(math.nan),
}  # fmt: skip


# ---- orders ----------------------------------------------------------------------------------------------------------


PARTS: dict[str, StanFunction] = {
    "append_array": lambda m, x, y: m.np.concatenate([m.np.asarray(x), m.np.asarray(y)]),
    "reverse": lambda m, x: x[::-1],
    "sort_asc": lambda m, x: m.np.sort(m.np.asarray(x)),
    "sort_desc": lambda m, x: m.np.sort(m.np.asarray(x))[::-1],
    "sort_indices_asc": lambda m, x: m.np.argsort(m.np.asarray(x), kind="stable") + 1,
    "sort_indices_desc": lambda m, x: m.np.argsort(-m.np.asarray(x), kind="stable") + 1,
    "rank": lambda m, x, i: m.np.sum(m.np.asarray(x) < x[int(i) - 1]),
}
