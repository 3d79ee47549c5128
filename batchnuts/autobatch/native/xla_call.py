"""A call from XLA's programs into machine code of ours: one typed FFI handler, made by LLVM, without a compiler of C++.

The handler's first operand is uint64[2]: the address of a function, and one of its context. It calls

    function(context, operands, results)            (arrays of pointers to data: of the other operands, of the results)

so a program that XLA has compiled holds no address, and one that was kept on disk can be used by another process.
Offsets are those of XLA_FFI_CallFrame and what it points to in XLA's header xla/ffi/api/c_api.h; the version that the
handler claims is the one that the caller has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from batchnuts.autobatch.native.compile import MachineCode, code_of
from batchnuts.autobatch.native.context import emit_loop
from batchnuts.autobatch.native.types import I8, I32, I64, POINTER, integer

TARGET = "batchnuts_native"

_EXTENSION, _API, _STAGE = 8, 16, 32
_OPERANDS, _OPERAND_ARRAY, _RESULTS, _RESULT_ARRAY = 56, 72, 96, 112
_DATA = 24
"""Of XLA_FFI_Buffer."""
_API_VERSION, _NUMBERS = 16, (16, 20)
"""Of XLA_FFI_Api: XLA_FFI_Api_Version; and of the two numbers in that."""
_OLD_VERSION = (0, 1)
"""Of callers that do not say theirs, as in TensorFlow 2.18."""
_KIND, _METADATA_KIND, _METADATA = 8, 1, 24
"""Of XLA_FFI_Metadata_Extension: its kind, and the metadata that it asks for."""
_VERSION_OF_METADATA, _TRAITS = 8, 32
_RANK, _EXTENTS = 32, 40
"""Of XLA_FFI_Buffer: the number of axes, and a pointer to their extents."""
_EXECUTE = 3
"""The stage in which a handler computes."""
MOST = 64
"""Operands of a call, and results of one: the handler has room for so many."""


@dataclass(frozen=True)
class Buffer:
    """An operand or a result: a pointer to its elements, its number of axes, and a pointer to their extents, int64."""

    data: Any
    rank: Any
    extents: Any


@dataclass(frozen=True)
class Frame:
    """An XLA_FFI_CallFrame, and where instructions are emitted."""

    builder: ir.IRBuilder
    pointer: Any

    def at(self, pointer: Any, offset: int) -> Any:
        """A pointer moved by that many bytes."""
        return self.builder.gep(pointer, [integer(offset)], source_etype=I8)

    def load(self, pointer: Any, offset: int, type_: Any) -> Any:
        """What lies so many bytes behind a pointer."""
        return self.builder.load(self.at(pointer, offset), typ=type_)

    def operand(self, number: int) -> Buffer:
        """An operand of the call."""
        return self._buffer(_OPERAND_ARRAY, number)

    def result(self, number: int) -> Buffer:
        """A result of the call."""
        return self._buffer(_RESULT_ARRAY, number)

    def _buffer(self, array: int, number: int) -> Buffer:
        buffer = self.load(self.load(self.pointer, array, POINTER), 8 * number, POINTER)
        return Buffer(
            self.load(buffer, _DATA, POINTER), self.load(buffer, _RANK, I64), self.load(buffer, _EXTENTS, POINTER)
        )


def handler_module(name: str, execute: Callable[[Frame], None]) -> ir.Module:
    """A module with a function `handler`, which does what `execute` emits in the stage in which it computes."""
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), "handler")
    (frame,) = function.args
    blocks = [function.append_basic_block(n) for n in ("entry", "extended", "metadata", "stage", "computes", "done")]
    entry, extended, metadata, stage, computes, done = blocks
    b = ir.IRBuilder(entry)
    within = Frame(b, frame)
    at, load = within.at, within.load

    null = ir.Constant(POINTER, None)
    extension = load(frame, _EXTENSION, POINTER)
    b.cbranch(b.icmp_unsigned("==", extension, null), stage, extended)
    b.position_at_end(extended)
    asks = b.icmp_signed("==", load(extension, _KIND, I32), ir.Constant(I32, _METADATA_KIND))
    b.cbranch(asks, metadata, stage)
    b.position_at_end(metadata)
    answer, api = load(extension, _METADATA, POINTER), load(frame, _API, POINTER)

    def claim(version: list[Any]) -> None:
        for number, offset in zip(version, _NUMBERS):
            b.store(number, at(answer, _VERSION_OF_METADATA + offset))

    with b.if_else(b.icmp_unsigned("!=", api, null)) as (says_its_own, says_none):
        with says_its_own:
            claim([load(api, _API_VERSION + offset, I32) for offset in _NUMBERS])
        with says_none:
            claim([ir.Constant(I32, number) for number in _OLD_VERSION])
    b.store(ir.Constant(I32, 0), at(answer, _TRAITS))
    b.ret(null)
    b.position_at_end(stage)
    b.cbranch(b.icmp_signed("==", load(frame, _STAGE, I32), ir.Constant(I32, _EXECUTE)), computes, done)
    b.position_at_end(computes)
    execute(within)
    b.branch(done)
    b.position_at_end(done)
    b.ret(null)
    return module


def _call_handle(frame: Frame) -> None:
    """The call of the function whose address the first operand has."""
    b, load = frame.builder, frame.load
    pointers = []
    for count_at, array_at in ((_OPERANDS, _OPERAND_ARRAY), (_RESULTS, _RESULT_ARRAY)):
        with b.goto_entry_block():
            data = b.alloca(ir.ArrayType(I64, MOST))
        data.type = POINTER
        count, buffers = load(frame.pointer, count_at, I64), load(frame.pointer, array_at, POINTER)

        def note(i: Any, buffers: Any = buffers, data: Any = data) -> None:
            buffer = b.load(b.gep(buffers, [i], source_etype=POINTER), typ=POINTER)
            b.store(load(buffer, _DATA, POINTER), b.gep(data, [i], source_etype=POINTER))

        emit_loop(b, count, note)
        pointers.append(data)
    operands, results = pointers
    handle = b.load(operands, typ=POINTER)
    called, context = load(handle, 0, I64), load(handle, 8, I64)
    type_ = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, POINTER])
    target = b.inttoptr(called, POINTER)
    target.type = type_.as_pointer()
    b.call(target, [b.inttoptr(context, POINTER), b.gep(operands, [integer(1)], source_etype=POINTER), results])


@functools.cache
def handler() -> MachineCode:
    """The code of the function `handler`, which lives as long as this process: programs call it."""
    return code_of(handler_module("batchnuts.call", _call_handle))
