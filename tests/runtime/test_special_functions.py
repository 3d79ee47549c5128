"""ops: special functions over their whole range, values and slopes, against mpmath."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from array_libraries import in_jax, needs_jax
from special_functions import OF_OPS, Special, exact, ulps

from batchnuts.autobatch import ops


def by_numpy(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[Any]]:
    return function(*arguments), []


def by_tensorflow(function: Callable[..., Any], *arguments: Any, xla: bool) -> tuple[Any, list[Any]]:
    def both(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        return value, tape.gradient(value, tensors)

    return tf.function(both, jit_compile=xla, autograph=False)(*map(tf.constant, arguments))


def by_jax(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[Any]]:
    import jax

    def both(*arrays: Any) -> Any:
        places = tuple(range(len(arrays)))
        return function(*arrays), jax.grad(lambda *given: function(*given).sum(), places)(*arrays)

    return in_jax(both, lanes=False)(*arguments)


WAYS = [
    pytest.param(by_numpy, id="numpy"),
    pytest.param(functools.partial(by_tensorflow, xla=True), id="xla", marks=pytest.mark.slow),
    pytest.param(functools.partial(by_tensorflow, xla=False), id="graph"),
    pytest.param(by_jax, id="jax", marks=needs_jax),
]


@functools.cache
def expected(special: int, dtype: str) -> Any:
    return exact(OF_OPS[special], dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(len(OF_OPS)), ids=[special.name for special in OF_OPS])
def test_values_and_slopes_are_exact_to_rounding(number: int, way: Any) -> None:
    special: Special = OF_OPS[number]
    for dtype in ("float32", "float64"):
        wanted = expected(number, dtype)
        value, slopes = way(getattr(ops, special.name), *wanted.arguments)
        assert np.asarray(value).dtype == dtype
        errors = ulps(value, wanted.value, wanted.scales[0], dtype)
        assert errors.max() <= special.within[0], wanted.arguments[0][errors.argmax()]
        for k, slope in enumerate(slopes):
            errors = ulps(slope, wanted.slopes[k], wanted.scales[k + 1], dtype)
            assert errors.max() <= special.within[1], wanted.arguments[0][errors.argmax()]
