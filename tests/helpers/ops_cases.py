"""Functions of `ops` and of Python's builtins on lanes, each with arguments: what test_ops.py runs on every library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from batchnuts.autobatch import ops
from batchnuts.autobatch.language import builtins as lane_builtins

INF, NAN = math.inf, math.nan

# Each case: a one-lane function and its arguments with a leading axis of 4 lanes.
rng = np.random.default_rng(0)
REAL = rng.normal(size=(4, 3)).astype(np.float32)
POSITIVE = np.exp(REAL)
UNIT = np.tanh(REAL)
SPECIAL = np.array([[-INF, -2.5, -0.0], [0.5, 1.5, 2.5], [INF, NAN, 3.0], [-0.5, -1.5, 1e30]], np.float32)
OTHER = np.array([[-INF, 7.0, 0.0], [0.5, NAN, -2.5], [INF, INF, -3.0], [-INF, 1.5, 1e30]], np.float32)
INTEGERS = np.array([[-7, 0, 3], [5, -5, 2], [1, 2, -3], [9, 8, 7]], np.int32)
WORDS = rng.integers(0, 2**32, (4, 3), dtype=np.uint32)
SHIFTS = rng.integers(0, 32, (4, 3), dtype=np.uint32)
BOOLS = np.array([[True, False, True], [False, False, False], [True, True, True], [False, True, False]])
MATRIX = rng.normal(size=(4, 2, 3)).astype(np.float32)
SQUARE = rng.normal(size=(4, 3, 3)).astype(np.float32)
COVARIANCE = np.matmul(SQUARE, np.swapaxes(SQUARE, 1, 2)) + np.eye(3, dtype=np.float32)
SHARED = rng.normal(size=(5, 3)).astype(np.float32)
SCALARS = np.array([-2.5, 0.0, 1.5, 2.5], np.float32)
FLAGS = np.array([True, False, True, False])

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "exp": (ops.exp, (REAL,)),
    "log": (ops.log, (SPECIAL,)),
    "log1p": (ops.log1p, (SPECIAL,)),
    "expm1": (ops.expm1, (REAL,)),
    "sqrt": (ops.sqrt, (SPECIAL,)),
    "sin": (ops.sin, (REAL,)),
    "cos": (ops.cos, (REAL,)),
    "tan": (ops.tan, (REAL,)),
    "tanh": (ops.tanh, (SPECIAL,)),
    "sigmoid": (ops.sigmoid, (SPECIAL,)),
    "softplus": (ops.softplus, (SPECIAL,)),
    "erf": (ops.erf, (SPECIAL,)),
    "erfinv": (ops.erfinv, (UNIT,)),
    "gammaln": (ops.gammaln, (POSITIVE,)),
    "lgamma": (ops.lgamma, (POSITIVE,)),
    "exp of integers": (ops.exp, (INTEGERS,)),
    "isfinite": (ops.isfinite, (SPECIAL,)),
    "isfinite of integers": (ops.isfinite, (INTEGERS,)),
    "isnan": (ops.isnan, (SPECIAL,)),
    "square": (ops.square, (REAL,)),
    "square of words": (ops.square, (WORDS,)),
    "abs": (ops.abs, (SPECIAL,)),
    "abs of integers": (ops.abs, (INTEGERS,)),
    "abs of words": (ops.abs, (WORDS,)),
    "sign": (ops.sign, (SPECIAL,)),
    "sign of integers": (ops.sign, (INTEGERS,)),
    "sign of words": (ops.sign, (SHIFTS,)),
    "floor": (ops.floor, (SPECIAL,)),
    "floor of integers": (ops.floor, (INTEGERS,)),
    "ceil": (ops.ceil, (SPECIAL,)),
    "round": (ops.round, (SPECIAL,)),
    "minimum": (ops.minimum, (SPECIAL, OTHER)),
    "maximum": (ops.maximum, (SPECIAL, OTHER)),
    "minimum of words": (ops.minimum, (WORDS, SHIFTS)),
    "maximum of bools": (ops.maximum, (BOOLS, BOOLS[::-1])),
    "maximum with a literal": (lambda x: ops.maximum(x, 0), (REAL,)),
    "clip": (lambda x: ops.clip(x, -1, 0.5), (SPECIAL,)),
    "clip to per-lane bounds": (ops.clip, (REAL, -(SCALARS**2), SCALARS**2)),
    "logaddexp": (ops.logaddexp, (SPECIAL, OTHER)),
    "bitwise_and": (ops.bitwise_and, (WORDS, SHIFTS)),
    "bitwise_or": (ops.bitwise_or, (WORDS, SHIFTS)),
    "bitwise_xor": (ops.bitwise_xor, (WORDS, WORDS[::-1])),
    "bitwise_xor with a literal": (lambda x: ops.bitwise_xor(x, 0xDEADBEEF), (WORDS,)),
    "bitwise_xor of bools": (ops.bitwise_xor, (BOOLS, BOOLS[::-1])),
    "bitwise_and of bools": (ops.bitwise_and, (BOOLS, BOOLS[::-1])),
    "left_shift": (ops.left_shift, (WORDS, SHIFTS)),
    "left_shift by a literal": (lambda x: ops.left_shift(x, 7), (WORDS,)),
    "right_shift": (ops.right_shift, (WORDS, SHIFTS)),
    "right_shift of signed integers": (lambda x: ops.right_shift(x, 1), (INTEGERS,)),
    "logical_not": (ops.logical_not, (BOOLS,)),
    "logical_not of numbers": (ops.logical_not, (SPECIAL,)),
    "logical_and": (ops.logical_and, (BOOLS, INTEGERS)),
    "logical_or": (ops.logical_or, (BOOLS, SCALARS)),
    "any": (ops.any, (BOOLS,)),
    "all of numbers": (lambda x: ops.all(x, axis=0), (INTEGERS,)),
    "sum": (ops.sum, (REAL,)),
    "sum of integers": (ops.sum, (INTEGERS,)),
    "sum of words": (ops.sum, (WORDS,)),
    "sum of bools": (ops.sum, (BOOLS,)),
    "sum over an axis": (lambda x: ops.sum(x, axis=-1), (MATRIX,)),
    "sum over axes": (lambda x: ops.sum(x, axis=(0, 1), keepdims=True), (MATRIX,)),
    "mean": (ops.mean, (REAL,)),
    "mean of integers": (ops.mean, (INTEGERS,)),
    "min": (ops.min, (SPECIAL,)),
    "max": (lambda x: ops.max(x, axis=0, keepdims=True), (MATRIX,)),
    "min of bools": (ops.min, (BOOLS,)),
    "max of words": (ops.max, (WORDS,)),
    "dot": (ops.dot, (REAL, POSITIVE)),
    "dot with a scalar": (ops.dot, (SCALARS, REAL)),
    "dot with a literal": (lambda x: ops.dot(2, x), (REAL,)),
    "dot with a matrix": (ops.dot, (MATRIX, REAL)),
    "matmul of vectors": (ops.matmul, (REAL, POSITIVE)),
    "matmul matrix vector": (ops.matmul, (MATRIX, REAL)),
    "matmul vector matrix": (ops.matmul, (REAL, SQUARE)),
    "matmul matrices": (ops.matmul, (MATRIX, SQUARE)),
    "matmul shared matrix vector": (lambda x: ops.matmul(SHARED, x), (REAL,)),
    "matmul vector shared matrix": (lambda x: ops.matmul(x, SHARED.T), (REAL,)),
    "matmul matrix shared vector": (lambda x: ops.matmul(x, SHARED[0]), (MATRIX,)),
    "norm": (ops.norm, (REAL,)),
    "norm over an axis": (lambda x: ops.norm(x, axis=1), (MATRIX,)),
    "norm of integers": (ops.norm, (INTEGERS,)),
    "cumsum": (ops.cumsum, (REAL,)),
    "cumsum along an axis": (lambda x: ops.cumsum(x, axis=0), (MATRIX,)),
    "logsumexp": (ops.logsumexp, (REAL * 100,)),
    "logsumexp over an axis": (lambda x: ops.logsumexp(x, axis=-1, keepdims=True), (MATRIX,)),
    "logsumexp of infinities": (lambda x: ops.logsumexp(ops.where(x > -3, -INF, x), axis=0), (MATRIX,)),
    "transpose": (ops.transpose, (MATRIX,)),
    "cholesky": (ops.cholesky, (COVARIANCE,)),
    "solve_triangular vector": (ops.solve_triangular, (COVARIANCE, REAL)),
    "solve_triangular matrix": (lambda a, b: ops.solve_triangular(a, b, lower=False), (COVARIANCE, SQUARE)),
    "solve_triangular transposed": (lambda a, b: ops.solve_triangular(a, b, transposed=True), (COVARIANCE, REAL)),
    "take": (lambda x: ops.take(x, [2, 0, 2, 1]), (REAL,)),
    "take a table along an axis": (lambda x: ops.take(x, [[2, 0], [1, 1]], axis=1), (MATRIX,)),
    "scan": (lambda x: ops.scan(lambda carry, row: (carry * 0.5 + row, carry - row), 1.0, x)[1], (REAL,)),
    "scan of structures": (
        lambda x: ops.scan(lambda c, r: ({"a": c["a"] + r[0], "n": c["n"] + 1}, None), {"a": 0.0, "n": 1}, (x,))[0][
            "a"
        ],
        (REAL,),
    ),
    "scan without rows": (lambda x: ops.scan(lambda carry, _: (carry * x, carry), x, length=3)[1], (REAL,)),
    "where": (ops.where, (BOOLS, REAL, POSITIVE)),
    "where per lane": (ops.where, (FLAGS, REAL, POSITIVE)),
    "where of literals": (lambda c: ops.where(c, 1.0, 0.0), (BOOLS,)),
    "where mixes a literal": (lambda c, x: ops.where(c, x, 0), (INTEGERS, REAL)),
    "nonzero": (ops.nonzero, (SPECIAL,)),
    "zeros_like": (ops.zeros_like, (REAL,)),
    "ones_like": (ops.ones_like, (INTEGERS,)),
    "full_like": (ops.full_like, (INTEGERS, SCALARS)),
    "full_like of a shared array": (lambda v: ops.full_like(SHARED, v), (SCALARS,)),
    "cast to integers": (lambda x: ops.cast(x, "int32"), (REAL * 3,)),
    "cast to float64": (lambda x: ops.cast(x, "float64"), (WORDS,)),
    "cast to bool": (lambda x: ops.cast(x, "bool"), (SPECIAL,)),
    "cast to words wraps": (lambda x: ops.cast(x, "uint32"), (INTEGERS,)),
    "stack": (lambda x, y: ops.stack([x, y], axis=-1), (REAL, POSITIVE)),
    "stack of scalars": (lambda x: ops.stack([x, 1.0, 2]), (SCALARS,)),
    "concatenate": (lambda x, y: ops.concatenate((x, y, SHARED[0])), (REAL, INTEGERS)),
    "reshape": (lambda x: ops.reshape(x, (3, -1)), (MATRIX,)),
    "reshape flat": (lambda x: ops.reshape(x, -1), (MATRIX,)),
    "bitcast to words": (lambda x: ops.bitcast(x, "uint32"), (SPECIAL,)),
    "bitcast to floats": (lambda x: ops.bitcast(x, "float32"), (SPECIAL.view(np.uint32),)),
    "truth": (lane_builtins.truth, (SCALARS,)),
    "truth of a bool": (lane_builtins.truth, (FLAGS,)),
    "python_min": (lambda x, y: lane_builtins.python_min(x, y, 1), (SCALARS, -SCALARS)),
    "python_max": (lambda x, y: lane_builtins.python_max(x, y, 1), (SCALARS, -SCALARS)),
    "python_max of a vector": (lane_builtins.python_max, (INTEGERS,)),
    "python_min of a tuple": (lambda x, y: lane_builtins.python_min((x, y)), (SCALARS, -SCALARS)),
    "python_abs": (lane_builtins.python_abs, (SCALARS,)),
    "python_round": (lane_builtins.python_round, (SCALARS,)),
    "python_round to places": (lambda x: lane_builtins.python_round(x, 1), (SCALARS * 1.33,)),
    "python_round to tens": (lambda x: lane_builtins.python_round(x, -1), (SCALARS * 13,)),
    "python_round of integers": (
        lambda x: lane_builtins.python_round(x[0], 2) + lane_builtins.python_round(x[1], -1),
        (INTEGERS * 7,),
    ),
    "python_int": (lane_builtins.python_int, (SCALARS,)),
    "python_float": (lane_builtins.python_float, (SCALARS,)),
    "python_sum": (lane_builtins.python_sum, (INTEGERS,)),
    "python_any": (lambda x, y: lane_builtins.python_any([x > 0, y]), (SCALARS, FLAGS)),
    "python_all": (lambda x, y: lane_builtins.python_all([x > 0, y]), (SCALARS, FLAGS)),
    "python_len": (lambda x: x + lane_builtins.python_len(x), (REAL,)),
}
