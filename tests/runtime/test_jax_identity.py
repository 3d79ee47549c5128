"""What is known of a JAX function's computation: one key for what is the same, never one for what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from identities import assert_tells_apart

from batchnuts.autobatch.language.libraries.jax_identity import identity_of

X = np.linspace(0.1, 3.0, 4, dtype="float32")
DATA = np.arange(4, dtype="float32")

KEY = jax.random.key(1)

Function = Callable[[Any], Any]


def scaled(scale: Any) -> Function:
    return lambda x: jnp.sum(x * scale)


def inner(data: Any) -> Function:
    """With constants within a program of its own."""
    return lambda x: jax.jit(lambda y: y * jnp.asarray(data))(x)


def looped(trips: int, data: Any = DATA) -> Function:
    return lambda x: jax.lax.scan(lambda c, d: (c * d + x, jnp.sum(c)), x, jnp.stack([data] * trips))


def chosen(scale: float) -> Function:
    return lambda x: jax.lax.cond(x[0] > 0, lambda y: y * scale, lambda y: y, x)


FAMILIES: dict[str, Callable[[Any], Function]] = {
    "literal": scaled,
    "constant": lambda n: scaled(DATA + n),
    "constant within": lambda n: inner(DATA + n),
    "trips": lambda n: looped(n + 1),
    "constant of a loop": lambda n: looped(3, DATA + n),
    "branch": chosen,
    "axis": lambda n: lambda x: jnp.cumsum(jnp.outer(x, x), axis=n % 2),
    "gradient": lambda n: jax.value_and_grad(lambda x: jnp.sum(jax.nn.softplus(x) ** (n + 1))),
    "solved": lambda n: lambda x: jnp.linalg.cholesky(jnp.outer(x, x) + (n + 1) * jnp.eye(4)),
    "structure": lambda n: lambda x: {"ab"[n % 2]: x},
    "dtype": lambda n: lambda x: x.astype(["int32", "float32"][n % 2]),
    "gathered": lambda n: lambda x: x[jnp.array([n % 4, 1])],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_function_has_the_same_identity_and_others_have_not(family: str) -> None:
    assert_tells_apart(identity_of, FAMILIES[family], X)


def test_the_order_of_equations_and_which_operand_is_which_matter() -> None:
    functions = [lambda x, y: x - y, lambda x, y: y - x, lambda x, y: x - x, lambda x, y: (x, y), lambda x, y: (y, x)]
    assert len({identity_of(function, X, X) for function in functions}) == len(functions)


def test_types_matter() -> None:
    arguments = [X, X[:3], X.astype("int32"), X.reshape(2, 2), jnp.asarray(1.0)]
    assert len({identity_of(lambda x: x * 2, argument) for argument in arguments}) == len(arguments)


def _own_primitive(x: Any) -> Any:
    own = jax.extend.core.Primitive("sin")  # named like one of JAX's
    own.def_abstract_eval(lambda x: x)
    return own.bind(x)


@jax.custom_batching.custom_vmap
def _with_a_rule(x: Any) -> Any:
    return jnp.sin(x)


_with_a_rule.def_vmap(lambda size, batched, x: (jnp.cos(x), True))


@jax.custom_jvp
def _with_a_derivative(x: Any) -> Any:
    return jnp.sin(x)


_with_a_derivative.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 3.0 * tangents[0]))


@jax.custom_vjp
def _with_a_reverse_derivative(x: Any) -> Any:
    return jnp.sin(x)


_with_a_reverse_derivative.defvjp(lambda x: (jnp.sin(x), x), lambda x, tangent: (3.0 * tangent,))


@pytest.mark.parametrize(
    "function",
    [
        _own_primitive,
        _with_a_rule,
        lambda x: jax.pure_callback(lambda v: v * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        lambda x: (jax.debug.print("x"), x)[1],
        lambda x: x + jax.random.normal(jax.random.key(0), (4,)),  # a parameter has the generator's functions
        lambda x: x + jax.random.normal(KEY, (4,)),
        lambda x: x + jnp.ones(7),
    ],
    ids=[
        "a primitive of the user's",
        "a batching rule of the user's",
        "callback",
        "effect",
        "random numbers",
        "a key from outside",
        "an error",
    ],
)
def test_what_is_not_known_for_certain_has_none(function: Function) -> None:
    assert identity_of(function, X) is None


def test_large_data_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one array or of several together."""
    limit = "batchnuts.autobatch.language.libraries.jax_identity.MOST_CONSTANT_BYTES"
    monkeypatch.setattr(limit, DATA.nbytes - 1)
    assert identity_of(scaled(DATA), X) is None
    monkeypatch.setattr(limit, 2 * DATA.nbytes + 8)
    assert identity_of(scaled(DATA), X) is not None
    assert identity_of(lambda x: (x * DATA, x * (DATA + 1), x * (DATA + 2)), X) is None


@pytest.mark.parametrize("function", [_with_a_derivative, _with_a_reverse_derivative], ids=["forward", "reverse"])
def test_a_derivative_of_the_users_counts_where_it_is_taken(function: Function) -> None:
    """Only what is computed has an identity: the function itself does not take its derivative."""
    assert identity_of(function, X) is not None
    taken = identity_of(jax.grad(lambda x: jnp.sum(function(x))), X)
    assert taken not in (None, identity_of(jax.grad(lambda x: jnp.sum(jnp.sin(x))), X))
