"""Outlined functions: what a costly primitive computes, in a module of its own that the program's code calls.

    compute(input, ..., result, ..., scratch)          pointers to one lane's arrays, and to the end of its own memory

So a program's code does not depend on what they compute: it is the same for all densities, and kept on disk once. An
array of pointers (`Context.SHARED`) has their addresses after those of shared arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.language.c_functions import CFunction, c_function
from batchnuts.autobatch.lru_cache import LruCache
from batchnuts.autobatch.native import expressions
from batchnuts.autobatch.native.arrays import Array, Emitter
from batchnuts.autobatch.native.c_calls import fill_addresses
from batchnuts.autobatch.native.compile import MachineCode, code_of, in_background
from batchnuts.autobatch.native.regions import Allocations
from batchnuts.autobatch.native.types import I8, I64, POINTER, integer

COMPUTE = "compute"


@dataclass(frozen=True)
class Outlined:
    """A function in machine code. scratch_bytes: of the memory that it needs before the pointer that it is given."""

    code: Future[MachineCode]
    scratch_bytes: int
    calls: tuple[CFunction, ...] = ()
    """Functions of C that it calls, which live as long as it does."""

    @functools.cached_property
    def address(self) -> int:
        """Where it is, as soon as LLVM has made it."""
        return self.code.result().address(COMPUTE)


_made: LruCache[Outlined] = LruCache(16)
"""Several programs evaluate one density."""


def outlined(expression: Expression) -> Outlined:
    """The function of an expression."""
    found = _made.get(expression)
    if found is not None and not (found.code.done() and found.code.exception()):
        return found
    return _made.put(expression, _make(expression))


def _make(expression: Expression) -> Outlined:
    module = ir.Module("batchnuts.outlined")
    types = [*expression.inputs, *map(expression.type_of, expression.outputs)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * (len(types) + 1)), COMPUTE)
    function.attributes.add("nounwind")
    for argument in function.args:
        argument.attributes.add("noalias")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    *pointers, scratch = function.args
    size = ir.GlobalVariable(module, I64, "size")
    size.global_constant, size.linkage, size.type = True, "internal", POINTER
    memory = b.gep(scratch, [b.neg(b.load(size, typ=I64))], inbounds=True, source_etype=I8)
    em = Emitter(b, memory, allocations=Allocations(module))
    given, results = pointers[: len(expression.inputs)], pointers[len(expression.inputs) :]
    typed = zip(expression.inputs, given)
    inputs = [em.loaded(np.dtype(type_.dtype), type_.shape, pointer) for type_, pointer in typed]
    for array, pointer in zip(expressions.emit(em, expression, inputs), results, strict=True):
        em.write(array, pointer)
    b.ret_void()
    size.initializer = integer(em.most_scratch)
    keys = tuple(dict.fromkeys(em.c_functions))
    code = in_background(lambda: fill_addresses(code_of(module), keys))
    return Outlined(code, em.most_scratch, tuple(map(c_function, keys)))


def emit_call(
    em: Emitter, address: Any, inputs: Sequence[Array], types: Sequence[TensorType], scratch: Any
) -> list[Array]:
    """The results, of these types, of a call of such a function."""
    results = [em.allocate(type_.size * np.dtype(type_.dtype).itemsize) for type_ in types]
    pointers = [*map(em.placed, inputs), *results, scratch]
    address.type = ir.FunctionType(ir.VoidType(), [POINTER] * len(pointers)).as_pointer()
    em.builder.call(address, pointers)
    return [em.loaded(np.dtype(t.dtype), t.shape, pointer) for t, pointer in zip(types, results)]
