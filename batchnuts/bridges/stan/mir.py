"""Stan's typed intermediate form (MIR) as data, and the reader of stanli's encoding of it.

    program    ::= input* prepare_data log_prob generate_quantities function* output* transform_inits
    statement  ::= declare x type [= expression] | assign x [index*] expression | target += expression
                 | block | for i in lower:upper statement | if expression statement [statement] | while | call
                 | return [expression] | break | continue
    expression ::= variable | number | text | function(expression*) | x[index*] | c ? a : b | a || b | a && b

The encoding is a list of bytes in base64 after "STANLI2:"; numbers are little-endian, lists and texts begin with their
length. Its parts are in the order of the fields here.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

MAGIC = "STANLI2:"


class NotRead(Exception):
    """The text is no MIR in the encoding that is known here."""


@dataclass(frozen=True)
class Expr:
    """An expression. kind: one of EXPRESSIONS."""

    kind: str
    name: str = ""
    """Of a variable or a function."""
    arguments: tuple[Expr, ...] = ()
    """Of a function; of Indexed the array and then its indices, functions called IndexAll, IndexSingle, ..."""
    value: int | float | str | None = None
    """Of a literal."""
    library: str = ""
    """Of a function: StanLib, Internal or UserDefined."""
    drops_constants: bool = False
    """Of a density: whether terms that depend on no parameter may be left out."""
    type: str = ""
    """UInt, UReal, UVector, URowVector, UMatrix, UComplex or UArray."""
    depth: int = 0
    """Of nested arrays."""
    leaf: str = ""
    """The type of their elements: Int, Real, Complex, Vector, RowVector or Matrix."""
    data_only: bool = False
    """Whether it depends on no parameter."""

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return self.depth + {"Vector": 1, "RowVector": 1, "Matrix": 2}.get(self.leaf, 0)


@dataclass(frozen=True)
class Transform:
    """Of a constrained variable. kind: one of TRANSFORMS."""

    kind: str
    arguments: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class SizedType:
    """A declared type: SInt, SReal, SVector, SRowVector, SMatrix, SComplex or SArray, with the sizes of its axes."""

    base: str
    sizes: tuple[Expr, ...] = ()
    element: str = ""
    """Of an array: the base of its innermost elements."""

    @property
    def leaf(self) -> str:
        """The base of its elements."""
        return self.element or self.base


@dataclass(frozen=True)
class Stmt:
    """A statement. kind: one of STATEMENTS."""

    kind: str
    name: str = ""
    """Of what is declared or assigned, of a loop's variable, or of a function that is called."""
    type: SizedType = SizedType("")
    data_only: bool = False
    value: Expr | None = None
    """What is assigned, added to the target or returned; the initial value of a declaration; a condition."""
    indices: tuple[Expr, ...] = ()
    """Of an assignment."""
    arguments: tuple[Expr, ...] = ()
    """Of a call; the sizes of a parameter that is read; a loop's bounds."""
    transform: Transform | None = None
    """Of a parameter that is read, written or checked."""
    body: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Function:
    """A function of the program's."""

    name: str
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class StanProgram:
    """A program in its sections."""

    inputs: tuple[tuple[str, SizedType], ...]
    prepare_data: tuple[Stmt, ...]
    log_prob: tuple[Stmt, ...]
    generate_quantities: tuple[Stmt, ...]
    """All that makes a draw's numbers of a position, transformed parameters too."""
    functions: tuple[Function, ...]
    outputs: tuple[str, ...]


LEAVES = ("Unknown", "Int", "Real", "Complex", "Vector", "RowVector", "Matrix")
EXPRESSIONS = (
    *("Var", "LitInt", "LitReal", "LitStr", "FunApp", "Promotion", "Indexed", "TernaryIf", "EOr", "EAnd"),
    "Unsupported",
)
LIBRARIES = ("StanLib", "Internal", "UserDefined")
TRANSFORMS = (
    *("Identity", "Lower", "Upper", "LowerUpper", "Offset", "Multiplier", "OffsetMultiplier", "Simplex", "Ordered"),
    *("PositiveOrdered", "CholeskyCorr", "UnitVector", "SumToZero", "Correlation", "Covariance", "CholeskyCov"),
    "Unsupported",
)
STATEMENTS = (
    *("Decl", "Assignment", "TargetPE", "Block", "SList", "For", "IfElse", "While", "NRFunApp", "Return", "Break"),
    *("Continue", "Skip", "Unsupported"),
)
"""In the order of their numbers in the encoding."""


def draws_numbers(text: str) -> bool:
    """Whether a program may draw random numbers; True for an encoding that is not known."""
    return not text.startswith(MAGIC) or b"_rng" in base64.b64decode(text[len(MAGIC) :])


def read_program(text: str) -> StanProgram:
    """A program of its encoding. Raises NotRead for another one."""
    if not text.startswith(MAGIC):
        raise NotRead(f"it begins with {text[:8]!r}")
    try:
        reader = _Reader(base64.b64decode(text[len(MAGIC) :], validate=True))
        return reader.program()
    except (binascii.Error, struct.error, IndexError, UnicodeDecodeError) as error:
        raise NotRead(str(error)) from None


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def _number(self, form: str, size: int) -> Any:
        (value,) = struct.unpack_from(form, self.content, self.at)
        self.at += size
        return value

    def byte(self) -> int:
        """A number of 0 to 255."""
        return int(self._number("<B", 1))

    def flag(self) -> bool:
        """0 or 1."""
        return self.byte() == 1

    def text(self) -> str:
        """UTF-8."""
        size = self._number("<I", 4)
        self.at += size
        return self.content[self.at - size : self.at].decode()

    def list(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Several of one kind."""
        return tuple(read() for _ in range(self._number("<I", 4)))

    def expressions(self) -> tuple[Expr, ...]:
        """Several."""
        return self.list(self.expression)

    def expression(self) -> Expr:
        """What it is, then its type."""
        kind = EXPRESSIONS[self.byte()]
        fields: dict[str, Any] = {}
        match kind:
            case "Var":
                fields["name"] = self.text()
            case "LitInt":
                fields["value"] = self._number("<i", 4)
            case "LitReal":
                fields["value"] = self._number("<d", 8)
            case "LitStr":
                fields["value"] = self.text()
            case "FunApp":
                fields["library"], fields["name"] = LIBRARIES[self.byte()], self.text()
                fields["drops_constants"], fields["arguments"] = self.flag(), self.expressions()
            case "Unsupported":
                pass
            case _:
                fields["arguments"] = self.expressions()
        fields["type"], fields["depth"], fields["leaf"] = self.text(), self.byte(), LEAVES[self.byte()]
        fields["data_only"], _promoted, raw = self.flag(), self.flag(), self.text()
        return Expr(kind, **fields) if kind != "Unsupported" else Expr(kind, value=raw)

    def transform(self) -> Transform:
        """Its kind and its bounds."""
        kind, arguments, _raw = TRANSFORMS[self.byte()], self.expressions(), self.text()
        return Transform(kind, arguments)

    def sized_type(self) -> SizedType:
        """Base, sizes, base of elements."""
        base, sizes, element, _raw = self.text(), self.expressions(), self.text(), self.text()
        return SizedType(base, sizes, element)

    def statements(self) -> tuple[Stmt, ...]:
        """Several."""
        return self.list(self.statement)

    def statement(self) -> Stmt:
        """Its kind, then what that has."""
        kind = STATEMENTS[self.byte()]
        fields: dict[str, Any] = {}
        match kind:
            case "Decl":
                fields["name"], fields["type"], fields["data_only"] = self.text(), self.sized_type(), self.flag()
                fields["value"] = self.expression() if self.flag() else None
                fields["transform"] = self.transform() if self.flag() else None
                fields["arguments"] = self.expressions()
            case "Assignment":
                fields["name"], fields["indices"] = self.text(), self.expressions()
                fields["value"] = self.expression()
            case "TargetPE":
                fields["value"] = self.expression()
            case "Block" | "SList":
                fields["body"] = self.statements()
            case "For":
                fields["name"] = self.text()
                fields["arguments"], fields["body"] = (self.expression(), self.expression()), self.statements()
            case "IfElse" | "While":
                fields["value"], fields["body"] = self.expression(), self.statements()
            case "NRFunApp":
                fields["name"], fields["arguments"] = self.text(), self.expressions()
                fields["transform"] = self.transform() if self.flag() else None
                fields["value"] = Expr("LitStr", value=self.text())
            case "Return":
                fields["value"] = self.expression() if self.flag() else None
            case "Break" | "Continue":
                return Stmt(kind)
        raw = self.text()
        return Stmt(kind, **fields) if kind != "Unsupported" else Stmt(kind, name=raw)

    def function(self) -> Function:
        """Its name, parameters and body."""
        name, parameters, types = self.text(), self.list(self.text), self.list(self.text)
        self.list(lambda: (self.byte(), self.byte()))
        self.list(self.flag)
        return Function(name, parameters, types, self.statements())

    def program(self) -> StanProgram:
        """The sections, one after another."""
        inputs = self.list(lambda: (self.text(), self.sized_type()))
        sections = self.statements(), self.statements(), self.statements()
        functions, outputs = self.list(self.function), self.list(self.text)
        if self.at < len(self.content):
            self.statements()  # how values of parameters are made unconstrained
        if self.at != len(self.content):
            raise NotRead(f"{len(self.content) - self.at} bytes are left")
        return StanProgram(inputs, *sections, functions, outputs)
