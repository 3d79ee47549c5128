"""The meaning of expressions: each node is a call of the library whose arrays come in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.expression import KERNEL, SEVERAL, Argument, Constant, Expression, Ref, Slice
from batchnuts.autobatch.ir.program import Primitive
from batchnuts.autobatch.language.arrays import library_of
from batchnuts.autobatch.language.libraries.library import Library

Values = list[Any]


def function_of(primitive: Primitive) -> Callable[..., tuple[Any, ...]]:
    """A primitive as a function of one lane's arrays, of NumPy, JAX or TensorFlow."""
    return primitive.call if primitive.body is None else as_function(primitive.body)


def as_function(expression: Expression) -> Callable[..., tuple[Any, ...]]:
    """An expression as a function of arrays of its inputs' types, of one library and NumPy.

    Nothing here looks at the types: what a library traces may have more axes in front.
    """
    calls = [
        (node.function, [_reader(argument) for argument in node.arguments], node.function in SEVERAL)
        for node in expression.nodes
    ]
    outputs = [_reader(output) for output in expression.outputs]

    def evaluate(*arrays: Any) -> tuple[Any, ...]:
        library = library_of(*arrays)
        values: Values = list(arrays)
        with np.errstate(all="ignore"):
            for name, arguments, gives_several in calls:
                given = [read(values, library) for read in arguments]
                result = given[0](*given[1:]) if name == KERNEL else getattr(library, name)(*given)
                if gives_several:
                    values.extend(result)
                else:
                    values.append(result)
            return tuple(read(values, library) for read in outputs)

    return evaluate


_Reader = Callable[[Values, Library], Any]


def _reader(argument: Argument) -> _Reader:
    """What finds an argument among the values."""
    match argument:
        case Ref(number):
            return lambda values, _: values[number]
        case Constant():
            array = argument.array
            return lambda _, library: library.convert(array, array.dtype)
        case Slice(start, stop, step):
            part = slice(start, stop, step)
            return lambda *_: part
        case Expression():
            by_library: dict[str, Callable[..., Any]] = {}  # hashing an expression takes long

            def kernel(_: Values, library: Library) -> Any:
                if library.name not in by_library:
                    by_library[library.name] = _kernel(library, argument)  # type: ignore[arg-type]  # a Protocol as Hashable
                return by_library[library.name]

            return kernel
        case tuple():
            parts = [_reader(part) for part in argument]
            return lambda values, library: tuple(read(values, library) for read in parts)
    return lambda *_: argument


@functools.lru_cache(maxsize=256)
def _kernel(library: Library, expression: Expression) -> Callable[..., Any]:
    """The kernel of an expression: one for all primitives that have it, since a library traces each."""
    return library.kernel(as_function(expression))
