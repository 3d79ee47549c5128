"""What a primitive computes, as data: a list of calls of the array library's functions.

    expression ::= type* node* => operand*                (the types of its inputs, and its results)
    node       ::= type+ = function "(" argument* ")"     (a function of `language.libraries.library`)
    argument   ::= operand | static | "[" argument* "]" | expression
    operand    ::= "%" number                             Ref: an input or a result of an earlier node
                 | constant                               Constant: an array that is known
    static     ::= an integer, None, a name | slice       (an axis, a shape, a dtype)

Values are numbered in order: the inputs first, then the results of each node. Arguments are all positional, in the
order of the function's parameters. The one function of functions is `kernel`, whose first argument is an expression.
Expressions are frozen, equal where they compute the same in the same way, and can be pickled; `evaluate` gives them
their meaning on NumPy, JAX and TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from batchnuts.autobatch.ir.tensor_type import TensorType


@dataclass(frozen=True)
class Ref:
    """The value of that number."""

    number: int

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True)
class Constant:
    """An array that is known when the program is compiled, kept as its bytes: so it can be compared and hashed."""

    type: TensorType
    content: bytes

    @classmethod
    def of(cls, value: Any) -> Constant:
        """A copy of an array or number, in the processor's order of bytes; the same object for equal arrays."""
        array = np.asarray(value)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        constant = cls(TensorType(array.dtype.name, array.shape), array.tobytes())
        return _constants.setdefault(constant, constant)

    @functools.cached_property
    def array(self) -> np.ndarray:
        """It as NumPy's array, which cannot be written."""
        return np.frombuffer(self.content, self.type.dtype).reshape(self.type.shape)

    def __str__(self) -> str:
        return f"<{self.type}>" if len(self.content) > 64 else _show_constant(self)

    def __reduce__(self) -> Any:
        return type(self), (self.type, self.content)


_constants: WeakValueDictionary[Constant, Constant] = WeakValueDictionary()
"""Those in use: many primitives read one table."""


@dataclass(frozen=True)
class Slice:
    """A slice of constants, which can be hashed."""

    start: int | None
    stop: int | None
    step: int | None

    def __str__(self) -> str:
        parts = ("" if part is None else str(part) for part in (self.start, self.stop, self.step))
        return ":".join(parts) if self.step is not None else ":".join(list(parts)[:2])


KERNEL = "kernel"
"""The function whose first argument is an expression, which it computes of the others."""

SEVERAL = (KERNEL, "parts_of_last_axis", "call_c")
"""Functions with several results."""

REDUCTIONS = frozenset({"any", "all", "sum", "mean", "min", "max"})
"""Functions of (x, axis, keepdims)."""

Argument = Any
"""An operand; a static value; a tuple of arguments; the expression of a kernel."""


@dataclass(frozen=True)
class Node:
    """One call of a function of the array library: its results have these types."""

    function: str
    arguments: tuple[Argument, ...]
    types: tuple[TensorType, ...]


@dataclass(frozen=True)
class Expression:
    """A pure function of one lane's arrays."""

    inputs: tuple[TensorType, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Ref | Constant, ...]

    def __reduce__(self) -> Any:  # the hash is this process's
        return type(self), (self.inputs, self.nodes, self.outputs)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:  # of a cipher, each time that it is called
        return hash((self.inputs, self.nodes, self.outputs))

    @functools.cached_property
    def types(self) -> tuple[TensorType, ...]:
        """The types of all values, by their numbers."""
        return (*self.inputs, *(type_ for node in self.nodes for type_ in node.types))

    @functools.cached_property
    def elements(self) -> int:
        """Elements of what its nodes compute."""
        return sum(type_.size for node in self.nodes for type_ in node.types)

    @functools.cached_property
    def products(self) -> int:
        """Multiplications within its products of matrices."""
        products = (node for node in self.nodes if node.function == "matmul")
        return sum(node.types[0].size * self.type_of(node.arguments[0]).shape[-1] for node in products)

    def type_of(self, operand: Ref | Constant) -> TensorType:
        """The type of an operand."""
        return operand.type if isinstance(operand, Constant) else self.types[operand.number]


def operands(argument: Argument) -> Iterator[Ref | Constant]:
    """The operands in an argument, those in tuples too; not those of a kernel's expression."""
    if isinstance(argument, (Ref, Constant)):
        yield argument
    elif isinstance(argument, tuple):
        for part in argument:
            yield from operands(part)


def show_expression(expression: Expression) -> list[str]:
    """A line for each node, and one for the results."""
    lines = []
    number = len(expression.inputs)
    for node in expression.nodes:
        names = ", ".join(f"%{number + i}" for i in range(len(node.types)))
        number += len(node.types)
        shown = ", ".join(_show(argument) for argument in node.arguments if not isinstance(argument, Expression))
        lines.append(f"{names} = {node.function}({shown}) : {', '.join(map(str, node.types))}")
        for inner in (argument for argument in node.arguments if isinstance(argument, Expression)):
            lines += [f"  {line}" for line in show_expression(inner)]
    return [*lines, f"=> {', '.join(map(str, expression.outputs))}"]


@functools.lru_cache(1024)
def _show_constant(constant: Constant) -> str:
    """The values of a small array. A program has few of them, hundreds of times; NumPy takes long."""
    values = np.array2string(constant.array, separator=",", floatmode="unique", max_line_width=10**6)
    return f"{constant.type.dtype} {''.join(values.split())}"


def _show(argument: Argument) -> str:
    if isinstance(argument, tuple):
        return f"[{', '.join(map(_show, argument))}]"
    return str(argument)
