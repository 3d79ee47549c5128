"""Sizes that machine code reads when it runs, so that one text of it serves many extents: models of any dimension, say.

    Size     an int computed from such an extent: its number here, and how it was computed
    @sizes   the module's array of the sizes that its instructions read; whoever loads the code fills it

An extent that varies is a Size in the shapes of variables and nodes. What is computed from Sizes is a Size: elements,
strides, offsets. An int that has lost this on its way is right all the same, in code for this extent alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from llvmlite import ir

from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.program import Program
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.native.types import I64, integer

TABLE = "sizes"

Extents = Mapping[int, "Size"]
"""The extents that vary, by their numbers here."""
FIXED: Extents = MappingProxyType({})


class Size(int):
    """A positive number that other programs have otherwise. key: how it was computed; equal keys have equal numbers."""

    key: str

    def __new__(cls, value: int, key: str) -> Size:
        """Make one."""
        size = super().__new__(cls, value)
        size.key = key if len(key) <= 40 else hashlib.sha256(key.encode()).hexdigest()[:24]
        return size


def _operator(name: str, unit: int | None) -> Any:
    """That of ints, whose result is a Size. unit: the operand that changes nothing."""
    compute = getattr(int, name)

    def apply(self: Size, other: Any) -> Any:
        value = compute(self, other)
        if value is NotImplemented or value == 0:
            return value
        if type(other) is int and other == unit:
            return self
        return Size(value, f"{name}({self.key},{other.key if isinstance(other, Size) else other})")

    return apply


for _name, _unit in (("add", 0), ("mul", 1), ("sub", 0), ("floordiv", 1), ("mod", None)):
    setattr(Size, f"__{_name}__", _operator(f"__{_name}__", _unit))
    reflected = f"__r{_name}__"
    setattr(Size, reflected, _operator(reflected, _unit if _name in ("add", "mul") else None))
Size.__neg__ = lambda self: 0 - self  # type: ignore[method-assign]


def extents_of(numbers: Iterable[int]) -> Extents:
    """Extents that vary, in an order that does not; one number is the first that has it."""
    extents: dict[int, Size] = {}
    for i, number in enumerate(numbers):
        extents.setdefault(number, Size(number, f"extent {i}"))
    return extents


def _sized(type_: TensorType, extents: Extents) -> TensorType:
    """The type with Sizes in its shape."""
    return replace(type_, shape=tuple(extents.get(extent, extent) for extent in type_.shape))


def sized_program(program: Program, extents: Extents) -> Program:
    """The program whose variables have Sizes in their shapes."""
    if not extents:
        return program
    return replace(program, var_defs={v: _sized(type_, extents) for v, type_ in program.var_defs.items()})


def sized_expression(expression: Expression, extents: Extents) -> Expression:
    """The expression whose nodes have Sizes in the shapes of their results."""
    if not extents:
        return expression
    nodes = (replace(node, types=tuple(_sized(type_, extents) for type_ in node.types)) for node in expression.nodes)
    return replace(expression, nodes=tuple(nodes))


class SizeReader:
    """Reads sizes at the end of a block, each once, for the blocks that come after it.

    Not where they are used: LLVM would read them once for all segments, and keep them where there are no registers.
    """

    def __init__(self, b: ir.IRBuilder) -> None:
        self._b = b
        self._block = b.block
        self._known: dict[str, Any] = {}

    def __call__(self, number: int) -> Any:
        """A number as i64: a constant, or read from @sizes."""
        if not isinstance(number, Size):
            return integer(number)
        if number.key not in self._known:
            b = self._b
            numbers, table = _table(b.module)
            place, _ = numbers.setdefault(number.key, (len(numbers), int(number)))
            with b.goto_block(self._block):
                entry = b.gep(table, [integer(place)], inbounds=True, source_etype=I64)
                self._known[number.key] = b.load(entry, typ=I64)
        return self._known[number.key]


def _table(module: ir.Module) -> tuple[dict[str, tuple[int, int]], ir.GlobalVariable]:
    """The place and number of each key in the module's table, and the table."""
    if TABLE not in module.globals:
        table = ir.GlobalVariable(module, ir.ArrayType(I64, 0), TABLE)
        table.numbers = {}
        table.type = ir.PointerType()
        table.align = 64
    table = module.globals[TABLE]
    return cast(dict[str, tuple[int, int]], table.numbers), table


def complete_sizes(module: ir.Module) -> tuple[int, ...]:
    """Give the module's table its length; returns its numbers, of the program here."""
    if TABLE not in module.globals:
        return ()
    numbers, table = _table(module)
    table.value_type = ir.ArrayType(I64, len(numbers))
    table.initializer = ir.Constant(table.value_type, None)
    return tuple(number for _, number in numbers.values())
