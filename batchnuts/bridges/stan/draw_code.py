"""All numbers of a draw in one call of C, with a generator of random numbers of its own: so that threads compute draws
at once, and a draw's numbers depend on its seed alone."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from batchnuts.autobatch.machine import machine_code

I1, I32, I64 = (ir.IntType(bits) for bits in (1, 32, 64))
POINTER = ir.PointerType()

LIBRARY = ("bs_rng_construct", "bs_param_constrain", "bs_rng_destruct")
"""The functions of the library that are called, in the order of the last arguments."""


@functools.cache
def columns_code() -> Any:
    """`int columns(model, const double *position, const uint32_t seed[2], double *result, construct, constrain,
    destruct)`, integers being addresses: 0, or another number where Stan rejects the draw."""
    module = ir.Module("batchnuts.stan_columns")
    types = [I64, POINTER, POINTER, POINTER, I64, I64, I64]
    function = ir.Function(module, ir.FunctionType(I32, types), "columns")
    b = ir.IRBuilder(function.append_basic_block())
    model, position, seed, result, *addresses = function.args

    def target(address: ir.Value, result: ir.Type, *arguments: ir.Type) -> ir.Value:
        pointer = b.inttoptr(address, POINTER)
        pointer.type = ir.FunctionType(result, arguments).as_pointer()
        return pointer

    construct = target(addresses[0], POINTER, I32, POINTER)
    constrain = target(addresses[1], I32, I64, I1, I1, POINTER, POINTER, POINTER, POINTER)
    destruct = target(addresses[2], ir.VoidType(), POINTER)
    low, high = (b.load(b.gep(seed, [ir.Constant(I32, k)], source_etype=I32), typ=I32) for k in range(2))
    half = ir.Constant(I32, 16)  # both halves of a key, which may differ in one bit of either
    mixed = b.xor(low, b.or_(b.shl(high, half), b.lshr(high, half)))
    no_message, yes = ir.Constant(POINTER, None), ir.Constant(I1, 1)
    generator = b.call(construct, [mixed, no_message])
    zero_extended = {1: ("zeroext",), 2: ("zeroext",)}
    status = b.call(constrain, [model, yes, yes, position, result, generator, no_message], arg_attrs=zero_extended)
    b.call(destruct, [generator])
    b.ret(status)
    return machine_code(module)
