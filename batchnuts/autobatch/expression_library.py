"""NumPy as a library that differentiates: for functions written with `ops`, which are recorded as expressions.

What such a function computes is known without an array library that traces (ir/expression.py), and so is its gradient
(passes/differentiate.py). Where it runs for one chain, NumPy computes it; for many, machine code does.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.ir.evaluate import as_function
from batchnuts.autobatch.ir.expression import Expression, Ref, operands
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.language.libraries.library import Array, Function, TensorLibrary, Traced
from batchnuts.autobatch.language.libraries.numpy import NumPyLibrary
from batchnuts.autobatch.language.libraries.recording import Recorded
from batchnuts.autobatch.language.libraries.type_rules import NotTyped
from batchnuts.autobatch.language.pytree import TreeDef, map_leaves, unflatten
from batchnuts.autobatch.passes.differentiate import expression_of_gradient
from batchnuts.autobatch.passes.record_expressions import recorded
from batchnuts.disk_cache.identity import digest_of, own_sources


class ExpressionLibrary(NumPyLibrary, TensorLibrary):
    """The `TensorLibrary` of NumPy. Its functions are not differentiated unless they can be recorded."""

    # Functions

    @override
    def tensor(self, x: Array) -> Array:
        return np.asarray(x)

    @override
    def call(self, function: Function, *tensors: Array) -> Any:
        with np.errstate(all="ignore"):
            return function(*tensors)

    @override
    def untransformed(self, function: Function) -> Function:
        return function

    @override
    def from_caller(self, x: Array) -> Array:
        return x

    @override
    def as_callers(self, x: Array) -> Array:
        return x

    @override
    def without_reverse(self, function: Function, message: str) -> Function:
        return function

    @override
    def compiled(self, function: Function) -> Function:
        return functools.partial(self.call, function)

    @override
    def result_shapes(self, function: Function, *tensors: Array) -> Any:
        known = recorded(function, *map(_type, tensors))  # SciPy's functions take a third of a second to import
        return map_leaves(np.shape, self.call(function, *tensors)) if known is None else _shapes(*known)

    @override
    def traced(self, function: Function, *tensors: Array) -> Traced:
        known = recorded(function, *map(_type, tensors))
        if known is None:
            return Traced(self.result_shapes(function, *tensors))
        expression, tree = known
        compute = as_function(expression)

        def again(*arrays: Array) -> Any:
            return unflatten(tree, compute(*arrays))

        return Traced(_shapes(expression, tree), _identity(expression, tree), again, expression)

    @override
    def differentiated(
        self, function: Function, on_identity: Callable[[str], None] | None = None
    ) -> Callable[..., tuple[Any, Array | None]]:
        @functools.cache
        def of_types(*types: TensorType) -> Callable[..., tuple[Any, ...]] | None:
            both = expression_of_gradient(function, *types)
            if both is None or not _depends(both):
                return None
            compute = as_function(both)
            if on_identity is not None and (known := recorded(compute, *types)) is not None:
                on_identity(_identity(*known))
            return compute

        def value_and_gradient(x: Array, *others: Array) -> tuple[Any, Array | None]:
            if (both := of_types(_type(x), *map(_type, others))) is None:
                return self.call(function, x, *others), None
            value, gradient = both(x, *others)
            return value, gradient

        return value_and_gradient

    @override
    def value_and_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Any, Array | None]:
        return self.differentiated(function)(x, *others)

    @override
    def recorded_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Array, Array]:
        if (both := expression_of_gradient(function, _type(x), *map(_type, others))) is None:
            raise NotTyped("a function that is not the language's, or has no derivative")
        value, gradient = as_function(both)(x, *others)
        return value, gradient

    # Tracing

    @override
    def traced_once(self, function: Function, xla: bool) -> Function:
        return function

    @override
    def identity_of(self, function: Function, *arrays: Array) -> str | None:
        known = recorded(function, *map(_type, arrays))
        return None if known is None else _identity(*known)

    @override
    def key_by_identity(self, *identity: str) -> str | None:
        with suppress(Exception):  # a package without files
            if (package := own_sources()) is not None:
                return digest_of("expressions by identity", *identity, package, np.__version__)
        return None

    @override
    def trace_of(self, x: Array) -> object | None:
        return x.recording if isinstance(x, Recorded) else None


LIBRARY = ExpressionLibrary()


def _type(x: Array) -> TensorType:
    if isinstance(x, Recorded):
        return TensorType(x.static_dtype.name, x.static_shape)
    return TensorType(x.dtype.name, tuple(x.shape))


def _shapes(expression: Expression, tree: TreeDef) -> Any:
    return unflatten(tree, [expression.type_of(output).shape for output in expression.outputs])


def _identity(expression: Expression, tree: TreeDef | None = None) -> str:
    return hashlib.sha256(repr((expression, tree)).encode()).hexdigest()


def _depends(both: Expression) -> bool:
    """Whether the first result depends on the first input."""
    numbers, number = {0}, len(both.inputs)
    for node in both.nodes:
        if any(isinstance(read, Ref) and read.number in numbers for read in operands(node.arguments)):
            numbers |= set(range(number, number + len(node.types)))
        number += len(node.types)
    first = both.outputs[0]
    return isinstance(first, Ref) and first.number in numbers
