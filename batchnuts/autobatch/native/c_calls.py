"""Calls of functions of C (language/c_functions.py) in machine code: by addresses that a module is given when it is
there, so that the code can be kept on disk."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.language.c_functions import CFunction, Type, c_function
from batchnuts.autobatch.native.compile import MachineCode, code_of
from batchnuts.autobatch.native.context import emit_loop
from batchnuts.autobatch.native.jax_call import capsule
from batchnuts.autobatch.native.types import I8, I32, I64, POINTER, element_type, integer, number
from batchnuts.autobatch.native.xla_call import Frame, handler_module


def emit_c_call(b: ir.IRBuilder, key: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Compute one lane's outputs. inputs, outputs: pointers to the arrays."""
    function = c_function(key)
    address, *words = _words(b, key, function)
    before, after = words[: len(function.before)], words[len(function.before) :]
    pointers = [*inputs, *outputs]
    target = b.inttoptr(address, POINTER)
    types = [I64] * len(before) + [POINTER] * len(pointers) + [I64] * len(after)
    target.type = ir.FunctionType(I32, types).as_pointer()
    status = b.call(target, [*before, *pointers, *after])
    with b.if_then(b.icmp_signed("!=", status, ir.Constant(I32, 0)), likely=False):
        for pointer, type_, value in zip(outputs, function.outputs, function.without_result, strict=True):
            _fill(b, pointer, type_, value)


def _fill(b: ir.IRBuilder, pointer: Any, type_: Type, value: float) -> None:
    dtype, count = np.dtype(type_[0]), math.prod(type_[1])
    element = number(dtype, value)

    def store(i: Any) -> None:
        b.store(element, b.gep(pointer, [i], source_etype=element_type(dtype)))

    emit_loop(b, integer(count), store)


def _words(b: ir.IRBuilder, key: str, function: CFunction) -> list[Any]:
    """The address and the arguments that it is always called with, read from a variable of the module."""
    count = 1 + len(function.before) + len(function.after)
    name = _variable(key)
    table = b.module.globals.get(name)
    if table is None:
        table = ir.GlobalVariable(b.module, ir.ArrayType(I64, count), name)
        table.initializer, table.type = ir.Constant(table.value_type, None), POINTER
    return [b.load(b.gep(table, [integer(i)], source_etype=I64), typ=I64) for i in range(count)]


def _variable(key: str) -> str:
    return f"c_function:{key}"


def fill_addresses(code: MachineCode, keys: Iterable[str]) -> MachineCode:
    """The code, with the addresses that it reads."""
    for key in keys:
        function = c_function(key)
        words = np.array([function.address, *function.before, *function.after], np.int64)
        ctypes.memmove(code.variable(_variable(key)), words.ctypes.data, words.nbytes)
    return code


def for_jax(function: CFunction) -> str:
    """Make the function known to JAX as a target of XLA's; its name. It lives as long as the process then."""
    import jax

    target = f"batchnuts_c_{function.key}"
    if target not in _targets:
        code = fill_addresses(code_of(_handler(function)), [function.key])
        _targets[target] = code, function
        jax.ffi.register_ffi_target(target, capsule(code.address("handler")), platform="cpu")
    return target


_targets: dict[str, tuple[MachineCode, CFunction]] = {}


def _handler(function: CFunction) -> ir.Module:
    """A handler for XLA, of operands and results [lanes..., *shape]."""

    def execute(frame: Frame) -> None:
        b = frame.builder
        inputs = [frame.operand(i) for i in range(len(function.inputs))]
        outputs = [frame.result(i) for i in range(len(function.outputs))]
        lanes = b.alloca(I64)
        b.store(integer(1), lanes)

        def times(axis: Any) -> None:
            extent = b.load(b.gep(inputs[0].extents, [axis], source_etype=I64), typ=I64)
            b.store(b.mul(b.load(lanes, typ=I64), extent), lanes)

        emit_loop(b, b.sub(inputs[0].rank, integer(len(function.inputs[0][1]))), times)

        def lane(number_: Any) -> None:
            def of(buffer: Any, type_: Type) -> Any:
                size = integer(math.prod(type_[1]) * np.dtype(type_[0]).itemsize)
                return b.gep(buffer.data, [b.mul(number_, size)], source_etype=I8)

            given, wanted = (
                [of(buffer, type_) for buffer, type_ in zip(buffers, types, strict=True)]
                for buffers, types in ((inputs, function.inputs), (outputs, function.outputs))
            )
            emit_c_call(b, function.key, given, wanted)

        emit_loop(b, b.load(lanes, typ=I64), lane)

    return handler_module(f"batchnuts.c_function.{function.key}", execute)
