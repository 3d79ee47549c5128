"""What XLA makes of the machine's loop on JAX: random words computed once, lanes first in products, sums its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax

from batchnuts.autobatch import BatchedFunction, batch, ops, random
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir import evaluate

pytestmark = needs_jax

LANES, DIMENSION = 8, 5
MATRIX = np.arange(1.0, 1 + DIMENSION * DIMENSION).reshape(DIMENSION, DIMENSION).astype("float32")


def compiled_text(function: BatchedFunction, **inputs: Any) -> str:
    """Of a machine of LANES lanes for the arguments, one lane's each."""
    types = [as_type(f"{np.asarray(x).dtype}{list(np.shape(x))}") for x in inputs.values()]
    machine = function.machine(tuple(types), LANES, get_backend("jax", "xla"), "sweep", 4)
    return machine.compiled_text(machine.start([np.stack([x] * LANES) for x in inputs.values()]))


@batch
def swapped(key, x, y, n):
    while n > 0:
        key, own = random.split(key)
        turn = random.uniform(own) < 0.5
        x, y = ops.where(turn, y, x), ops.where(turn, x, y)
        x = x + y[::-1]
        n = n - 1
    return x, y


def ciphers() -> float:
    """How many words of random bits are computed: each takes 20 rounds, each of these a rotation."""
    vector = np.ones(DIMENSION, "float32")
    text = compiled_text(swapped, key=np.zeros(2, "uint32"), x=vector, y=vector, n=np.int64(1))
    return text.count(" shift-left(") / 20


def test_random_words_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would compute them again for each array that depends on them."""
    import jax

    from batchnuts.autobatch.language.libraries import jax_primitives

    once = ciphers()
    monkeypatch.setattr(jax_primitives.once, "bind", lambda words: words)
    evaluate._kernel.cache_clear()  # the cipher is traced once
    again = ciphers()
    monkeypatch.undo()
    evaluate._kernel.cache_clear()
    assert once <= 4
    if jax.__version_info__ < (0, 12):  # whose XLA sees through what is done against it, so far
        assert again > once


def density_of_ops(x: Any) -> Any:
    return ops.tanh(ops.matmul(MATRIX, x)) + x


def density_of_jax(x: Any) -> Any:
    import jax

    @jax.jit
    def within(x: Any) -> Any:
        return MATRIX @ x

    return jax.grad(lambda x: jax.numpy.tanh(within(x)).sum())(x)


@pytest.mark.parametrize("density", [density_of_ops, density_of_jax])
def test_lanes_come_first_in_products(density: Callable[[Any], Any]) -> None:
    """Whichever way round a matrix and a vector are multiplied: XLA has no lanes to turn afterwards."""

    @batch
    def walked(x, n):
        while n > 0:
            x = density(x)
            n = n - 1
        return x

    text = compiled_text(walked, x=np.ones(DIMENSION, "float32"), n=np.int64(1))
    products = re.findall(r" = f32\[(\d+),(\d+)\]\S* dot\(", text)
    assert products
    assert set(products) == {(str(LANES), str(DIMENSION))}
    assert " transpose(" not in text


def given_to_a_library(text: str) -> set[str]:
    """The operations in parts of a program that XLA hands to a library."""
    names = set(re.findall(r"kind=kCustom, calls=(%[\w.-]+)", text))
    found: set[str] = set()
    for computation in re.split(r"\n\n", text):
        if computation.split(" ", 1)[0] in names:
            found.update(re.findall(r" = \S+ ([\w-]+)\(", computation))
    return found - {"parameter", "constant", "bitcast", "transpose"}


def test_only_products_are_left_to_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would leave it long sums too, and store for it what they are made of."""
    from batchnuts.autobatch.language.libraries import jax_flags

    rows = np.random.default_rng(0).normal(size=(2000, DIMENSION)).astype("float32")

    @batch
    def climbed(x, n):
        while n > 0:
            logits = ops.matmul(rows, x)
            x = x + ops.sum(ops.log(1 + ops.exp(-ops.abs(logits)))) + ops.matmul(ops.tanh(logits), rows)
            n = n - 1
        return x

    inputs = {"x": np.ones(DIMENSION, "float32"), "n": np.int64(1)}
    assert given_to_a_library(compiled_text(climbed, **inputs)) <= {"dot"}
    monkeypatch.setattr(jax_flags, "OPTIONS", {"no_such_option": "1"})
    by_itself = given_to_a_library(compiled_text(climbed, **inputs))
    assert "reduce" in by_itself or not by_itself, "a version of XLA that has no such library, or another habit"


def test_products_keep_their_values() -> None:
    """Matrices and vectors in every order, and products of several axes, as `jax.vmap` itself has them."""
    import jax
    import jax.numpy as jnp

    from batchnuts.autobatch.backends.jax.products import vectorized

    cube = np.arange(24.0, dtype="float32").reshape(2, 3, 4)

    def products(x: Any, y: Any) -> tuple[Any, ...]:
        matrix = jnp.outer(x, y)
        return (
            cube @ y,
            x @ cube[0],
            jnp.einsum("ijk,jk->i", cube, matrix),
            cube[0] @ matrix.T,
            matrix @ y,
            x @ x,
            jnp.matmul(cube[1], y, precision=("highest", "default")),
            cube[0] @ np.ones(4, "float32"),
        )

    x, y = (np.random.default_rng(0).normal(size=(LANES, n)).astype("float32") for n in (3, 4))
    for found, expected in zip(vectorized(products)(x, y), jax.vmap(products)(x, y), strict=True):
        largest = float(np.abs(expected).max())  # a sum of large parts that cancel has their rounding errors
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * largest)
