"""The density of a translated program as a model's function: JAX computes it, or what was recorded of it.

A recording consists of functions of the language (ir/expression.py), so that chains have it in machine code without
JAX. It holds the gradient too, which JAX has derived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from batchnuts.autobatch.machine import (
    Expression,
    TensorType,
    as_function,
    expression_of_library,
    library_of,
    tensor_library,
)

JAX = "JAX"
"""The library's name."""


@dataclass
class _Loaded:
    """What this process has of a translation."""

    in_jax: Callable[[Any], Any] | None = None
    gradient: Expression | None = None
    compute: Callable[..., tuple[Any, ...]] | None = None
    """The gradient's function."""


@dataclass(frozen=True, eq=False)
class Translation:
    """The log-density of a position [dimension], up to a constant, in JAX. mir, data: of the program.

    What the process has of it is not among its attributes, by which a changed model is found: a process that resumes a
    run may have other things.
    """

    mir: str
    data: Mapping[str, Any]
    dimension: int

    def __call__(self, position: Any) -> Any:
        """[dimension] -> scalar of the position's dtype."""
        library, loaded = library_of(position), self._loaded()
        if loaded.gradient is None or loaded.compute is None or library.name == JAX:
            return self.in_jax()(position)
        value, gradient = loaded.compute(position)
        return library.with_gradient(value, position, gradient)

    def in_jax(self) -> Callable[[Any], Any]:
        """The function of JAX, made once in a process. Raises NotTranslated, NotVectorized and NotRead."""
        loaded = self._loaded()
        if loaded.in_jax is None:
            from batchnuts.bridges.stan.mir import read_program
            from batchnuts.bridges.stan.translate import translated

            loaded.in_jax = translated(read_program(self.mir), self.data, self.dimension)
        return loaded.in_jax

    def recorded(self) -> Expression | None:
        """What it computes with its gradient in float64; None where the language has no functions for that."""
        position = TensorType("float64", (self.dimension,))
        return expression_of_library(tensor_library("jax"), self.in_jax(), position)

    def use(self, gradient: Expression | None) -> Translation:
        """Itself, computed in this process as was recorded."""
        loaded = self._loaded()
        loaded.gradient = gradient
        loaded.compute = None if gradient is None else as_function(gradient)
        return self

    @property
    def gradient(self) -> Expression | None:
        """What was recorded of it."""
        return self._loaded().gradient

    def _loaded(self) -> _Loaded:
        return _all_loaded.setdefault(self, _Loaded())

    def __reduce__(self) -> Any:
        return _remade, (self.mir, self.data, self.dimension, self.gradient)


_all_loaded: WeakKeyDictionary[Translation, _Loaded] = WeakKeyDictionary()


def _remade(mir: str, data: Mapping[str, Any], dimension: int, gradient: Expression | None) -> Translation:
    return Translation(mir, data, dimension).use(gradient)
