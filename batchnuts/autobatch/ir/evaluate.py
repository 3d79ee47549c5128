"""The meaning of expressions: each node is a call of the library whose arrays it reads."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.expression import KERNEL, SEVERAL, Argument, Constant, Expression, Ref, Slice
from batchnuts.autobatch.ir.program import Primitive
from batchnuts.autobatch.language.arrays import tensor_library_of
from batchnuts.autobatch.language.libraries.library import Library
from batchnuts.autobatch.language.libraries.numpy import NUMPY

Values = list[Any]


def function_of(primitive: Primitive) -> Callable[..., tuple[Any, ...]]:
    """A primitive as a function of one lane's arrays, of NumPy, JAX or TensorFlow."""
    return primitive.call if primitive.body is None else as_function(primitive.body)


def as_function(expression: Expression) -> Callable[..., tuple[Any, ...]]:
    """An expression as a function of arrays of its inputs' types, of one library and of NumPy.

    Nothing here looks at the types: what a library traces may have more axes in front. A node is computed by the
    library of the arrays that it reads, so by NumPy where these are NumPy's alone, as plain code would.
    """
    calls = [
        (node.function, [_reader(argument) for argument in node.arguments], node.function in SEVERAL)
        for node in expression.nodes
    ]
    outputs = [_reader(output) for output in expression.outputs]

    def evaluate(*arrays: Any) -> tuple[Any, ...]:
        tensors = tensor_library_of(*arrays)
        values: Values = list(arrays)
        with np.errstate(all="ignore"):
            for name, arguments, gives_several in calls:
                given = [read(values) for read in arguments]
                library: Library = NUMPY
                if tensors is not None and tensor_library_of(*given) is not None:
                    library, given = tensors, [_converted(argument, tensors) for argument in given]
                if name == KERNEL:
                    result = _kernel(library, given[0])(*given[1:])  # type: ignore[arg-type]  # a Protocol as Hashable
                else:
                    result = getattr(library, name)(*given)
                if gives_several:
                    values.extend(result)
                else:
                    values.append(result)
            return tuple(read(values) for read in outputs)

    return evaluate


def _converted(argument: Any, library: Library) -> Any:
    """An argument with the library's own arrays in place of NumPy's."""
    if isinstance(argument, (np.ndarray, np.generic)):
        return library.convert(argument, argument.dtype)
    return tuple(_converted(part, library) for part in argument) if isinstance(argument, tuple) else argument


_Reader = Callable[[Values], Any]


def _reader(argument: Argument) -> _Reader:
    """What finds an argument among the values."""
    match argument:
        case Ref(number):
            return operator.itemgetter(number)
        case Constant():
            array = argument.array
            return lambda _: array
        case Slice(start, stop, step):
            part = slice(start, stop, step)
            return lambda _: part
        case tuple():
            parts = [_reader(part) for part in argument]
            return lambda values: tuple(read(values) for read in parts)
    return lambda _: argument


@functools.lru_cache(maxsize=256)
def _kernel(library: Library, expression: Expression) -> Callable[..., Any]:
    """The kernel of an expression: one for all primitives that have it, since a library traces each."""
    return library.kernel(as_function(expression))
