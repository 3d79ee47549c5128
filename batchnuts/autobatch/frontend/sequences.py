"""What a `for` loop runs over, as data: arrays and structures, counts, and enumerate and zip of these.

    for i, (a, b) in enumerate(zip(x, y)):      Enumerate(Zip((Held("_1"), Held("_2"))), 0)

A loop counts its iterations `k` from zero. A sequence gives the values of iteration `k` from those of the variables
that it reads (`item`), the number of iterations if types determine it (`length`), and the conditions on values for an
iteration `k` (`bounds`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.language import iteration, operators
from batchnuts.autobatch.language.pytree import parts

Values = Mapping[str, Any]
"""The values of variables by their identifiers."""


Lengths = Callable[[str], int]
"""The length of the array or structure in a variable."""

Hide = Callable[[Any], ast.expr]
"""Maps a constant to an expression that denotes it."""


@dataclass(frozen=True)
class Learned:
    """What types determine about a loop: its maximum number of iterations, and whether one body serves all of them."""

    rounds: int
    alike: bool


@dataclass(frozen=True)
class Apart:
    """Types show that the parts of an expression have dtypes of their own: each part becomes an op."""


@dataclass(frozen=True)
class Numbers:
    """Types say which numbers a comprehension's range gives, or those of the elements that it runs over."""

    numbers: tuple[int, ...]


class LearnedMore(CompileError):
    """Types show that a loop or an expression (identified by its place) has to be compiled differently.

    The program is to be read again.
    """

    def __init__(self, loop: Hashable, learned: Learned | Apart | Numbers) -> None:
        super().__init__("the elements of a structure that a loop runs over have different types")
        self.loop = loop
        self.learned = learned


def length_of_type(type_: Any) -> int | None:
    """How many elements a value of that (structured) type has; None for a scalar."""
    structure = parts(type_)
    if structure is not None:
        return len(structure[1])
    return type_.shape[0] if type_.shape else None


class Sequence:
    """A sequence that a loop runs over (see the module)."""

    def inners(self) -> tuple[Sequence, ...]:
        """The sequences it is made of."""
        return ()

    def parts(self) -> Iterator[Sequence]:
        """Itself and all sequences it is made of."""
        yield self
        for inner in self.inners():
            yield from inner.parts()

    def held(self) -> tuple[str, ...]:
        """The variables whose lengths it asks for."""
        return tuple(part.variable for part in self.parts() if isinstance(part, Held))

    def reads(self) -> tuple[str, ...]:
        """The variables it reads itself."""
        return ()

    def length(self, lengths: Lengths) -> int | None:
        """The maximum number of iterations; None where it is a value of the lane. ValueError of a strict zip."""
        return self.inners()[0].length(lengths)

    def bounds(self, values: Values, k: Any) -> list[Any]:
        """Conditions for an iteration `k` that do not follow from the length."""
        return [bound for inner in self.inners() for bound in inner.bounds(values, k)]

    def item(self, values: Values, k: Any) -> Any:
        """The value of iteration `k`. Raises NotAlike where `k` cannot choose it."""
        raise NotImplementedError

    def text(self, k: str) -> str:
        """The value of iteration `k` in the program's text."""
        raise NotImplementedError

    def in_round(self, k: int, hide: Hide) -> ast.expr:
        """The value of an iteration whose number is known, as an expression."""
        raise NotImplementedError


@dataclass(frozen=True)
class Held(Sequence):
    """An array or structure in a variable."""

    variable: str

    @override
    def reads(self) -> tuple[str, ...]:
        return (self.variable,)

    @override
    def length(self, lengths: Lengths) -> int | None:
        return lengths(self.variable)

    @override
    def item(self, values: Values, k: Any) -> Any:
        return iteration.element(values[self.variable], k)

    @override
    def text(self, k: str) -> str:
        return f"element({self.variable}, {k})"

    @override
    def in_round(self, k: int, hide: Hide) -> ast.expr:
        return ast.Subscript(ast.Name(self.variable, ast.Load()), ast.Constant(k), ast.Load())


@dataclass(frozen=True, eq=False)
class Known(Sequence):
    """A sequence that is known at compile time."""

    value: Any
    written: str

    @override
    def length(self, lengths: Lengths) -> int | None:
        return len(self.value)

    @override
    def item(self, values: Values, k: Any) -> Any:
        return iteration.element(self.value, k)

    @override
    def text(self, k: str) -> str:
        return f"element({self.written}, {k})"

    @override
    def in_round(self, k: int, hide: Hide) -> ast.expr:
        return hide(self.value[k])


@dataclass(frozen=True)
class Count(Sequence):
    """`range(start, stop)` up to a number of the lane."""

    start: int
    stop: str

    @override
    def reads(self) -> tuple[str, ...]:
        return (self.stop,)

    @override
    def length(self, lengths: Lengths) -> int | None:
        return None

    @override
    def bounds(self, values: Values, k: Any) -> list[Any]:
        return [operators.less(self.item(values, k), values[self.stop])]

    @override
    def item(self, values: Values, k: Any) -> Any:
        return k + self.start if self.start else k

    @override
    def text(self, k: str) -> str:
        return f"{k} + {self.start}" if self.start else k

    @override
    def in_round(self, k: int, hide: Hide) -> ast.expr:
        return ast.Constant(k + self.start)


@dataclass(frozen=True)
class Enumerate(Sequence):
    """`enumerate(inner, start)`; start is a number, or a variable that holds one."""

    inner: Sequence
    start: int | str

    @override
    def inners(self) -> tuple[Sequence, ...]:
        return (self.inner,)

    @override
    def reads(self) -> tuple[str, ...]:
        return (self.start,) if isinstance(self.start, str) else ()

    @override
    def item(self, values: Values, k: Any) -> Any:
        start = values[self.start] if isinstance(self.start, str) else self.start
        number = k if self.start == 0 else operators.add(k, start)
        return number, self.inner.item(values, k)

    @override
    def text(self, k: str) -> str:
        return f"({k if self.start == 0 else f'{k} + {self.start}'}, {self.inner.text(k)})"

    @override
    def in_round(self, k: int, hide: Hide) -> ast.expr:
        number: ast.expr = ast.Constant(k + self.start) if isinstance(self.start, int) else ast.Constant(k)
        if isinstance(self.start, str):
            number = ast.BinOp(number, ast.Add(), ast.Name(self.start, ast.Load()))
        return ast.Tuple([number, self.inner.in_round(k, hide)], ast.Load())


@dataclass(frozen=True)
class Zip(Sequence):
    """`zip(*all, strict=strict)`: as long as the shortest, and where strict, all as long."""

    all: tuple[Sequence, ...]
    strict: bool

    @override
    def inners(self) -> tuple[Sequence, ...]:
        return self.all

    @override
    def length(self, lengths: Lengths) -> int | None:
        inner_lengths = [inner.length(lengths) for inner in self.all]
        static_lengths = [n for n in inner_lengths if n is not None]
        if self.strict and len(set(inner_lengths)) > 1:
            raise ValueError(f"zip(..., strict=True) of sequences of the lengths {', '.join(map(str, static_lengths))}")
        return min(static_lengths, default=None)

    @override
    def item(self, values: Values, k: Any) -> Any:
        return tuple(inner.item(values, k) for inner in self.all)

    @override
    def text(self, k: str) -> str:
        return f"({', '.join(inner.text(k) for inner in self.all)})"

    @override
    def in_round(self, k: int, hide: Hide) -> ast.expr:
        return ast.Tuple([inner.in_round(k, hide) for inner in self.all], ast.Load())


@dataclass(frozen=True)
class Backwards(Sequence):
    """`reversed` of a sequence in a variable."""

    inner: Held

    @override
    def inners(self) -> tuple[Sequence, ...]:
        return (self.inner,)

    @override
    def item(self, values: Values, k: Any) -> Any:
        return self.inner.item(values, iteration.length(values[self.inner.variable]) - 1 - k)

    @override
    def text(self, k: str) -> str:
        return self.inner.text(f"len({self.inner.variable}) - 1 - {k}")

    @override
    def in_round(self, k: int, hide: Hide) -> ast.expr:
        return self.inner.in_round(-1 - k, hide)
