"""Calls of every op that has a converter, on small inputs: what the converters are compared on.

A case is an op of `tf.raw_ops` with arguments by name. A `Given` argument is an input that may vary from iteration to
iteration; everything else is the same for all. `floats`, `positive`, ... say what an input looks like, `Given(...,
steady=True)` that the converter takes it only as the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Given:
    """An input: how one row of it is drawn. dtype None is the case's own."""

    draw: Draw
    shape: tuple[int, ...]
    dtype: str | None = None
    steady: bool = False


@dataclass(frozen=True)
class Case:
    """One call of an op, for several dtypes."""

    op: str
    arguments: dict[str, Any]
    dtypes: tuple[str, ...]
    xla: bool
    ulps: int
    function: Callable[..., Any] | None = None
    """In place of the bare op: a function of the inputs that calls it, where these depend on each other."""
    pick: Callable[[Any], Any] | None = None
    """Of the outputs, what is compared: where an op is free to choose among several (the sign of an eigenvector,
    say)."""

    @property
    def given(self) -> list[Given]:
        """All inputs that are Given, in order."""
        found = []
        for argument in self.arguments.values():
            found += [a for a in (argument if isinstance(argument, list) else [argument]) if isinstance(a, Given)]
        return found

    def call(self, tensors: list[Any], dtype: str) -> list[Any]:
        """The op's outputs, with tensors in the place of what is Given."""
        rest = iter(tensors)

        def place(argument: Any) -> Any:
            if isinstance(argument, list):
                return [place(a) for a in argument]
            if isinstance(argument, Given):
                return next(rest)
            return getattr(tf, dtype) if argument is OWN else argument

        if self.function is not None:
            return [tensor for tensor in tf.nest.flatten(self.function(*tensors)) if isinstance(tensor, tf.Tensor)]
        result = getattr(tf.raw_ops, self.op)(**{name: place(a) for name, a in self.arguments.items()})
        if self.pick is not None:
            result = self.pick(result)
        return [tensor for tensor in tf.nest.flatten(result) if isinstance(tensor, tf.Tensor)]


OWN = object()
"""As an attribute: the case's dtype."""

FLOATS = ("float32", "float64")
INTS = ("int32", "int64")
COMPLEX = ("complex64", "complex128")
BOOL = ("bool",)


def _kind(draw: Draw, dtype: str | None = None) -> Callable[..., Given]:
    def make(*shape: int, dtype: str | None = dtype) -> Given:
        return Given(draw, shape, dtype)

    return make


def complex_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def spd(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    root = rng.normal(size=shape)
    return root @ np.swapaxes(root, -1, -2) + 3 * np.eye(shape[-1])


floats = _kind(lambda rng, shape: rng.normal(size=shape))
positive = _kind(lambda rng, shape: rng.uniform(0.3, 3.0, size=shape))
unit = _kind(lambda rng, shape: rng.uniform(-0.9, 0.9, size=shape))
probability = _kind(lambda rng, shape: rng.uniform(0.1, 0.9, size=shape))
whole = _kind(lambda rng, shape: rng.integers(1, 7, size=shape))
signed = _kind(lambda rng, shape: rng.choice([-3, -2, -1, 1, 2, 3], size=shape))
small = _kind(lambda rng, shape: rng.integers(0, 3, size=shape), "int32")
flags = _kind(lambda rng, shape: rng.random(size=shape) < 0.5, "bool")
complexes = _kind(complex_normal)
definite = _kind(spd)
lower = _kind(lambda rng, shape: np.tril(rng.normal(size=shape)) + 3 * np.eye(shape[-1]))
increasing = _kind(lambda rng, shape: np.sort(rng.normal(size=shape), axis=-1))
in_order = _kind(lambda rng, shape: np.sort(rng.integers(0, 3, size=shape)), "int64")
splits = _kind(lambda rng, shape: np.array([0, *np.sort(rng.integers(0, 7, size=shape[0] - 2)), 6]), "int64")
"""Where lists end that have six entries together, after a 0."""
shuffled = _kind(lambda rng, shape: rng.permutation(shape[0]), "int32")


def steady(given: Given) -> Given:
    """The same for all iterations."""
    return replace(given, steady=True)


def case(
    op: str,
    dtypes: tuple[str, ...] = FLOATS,
    *,
    xla: bool = True,
    ulps: int = 64,
    pick: Callable[[Any], Any] | None = None,
    **arguments: Any,
) -> Case:
    return Case(op, arguments, dtypes, xla, ulps, pick=pick)


def composed(
    op: str,
    function: Callable[..., Any],
    *given: Given,
    dtypes: tuple[str, ...] = ("float32",),
    xla: bool = True,
    ulps: int = 1024,
) -> Case:
    """A case of an op inside of a function of these inputs."""
    return Case(op, {str(k): one for k, one in enumerate(given)}, dtypes, xla, ulps, function)
