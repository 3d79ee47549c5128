"""Dtypes as LLVM's types."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
POINTER = ir.PointerType()

DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"}
)
"""Those whose elements are values of LLVM's. Others are data that foreign functions alone compute with."""


def element_type(dtype: np.dtype[Any]) -> ir.Type:
    """The type of an element in a register: i1 for bool."""
    if dtype.kind == "b":
        return I1
    if dtype.kind == "f":
        return ir.FloatType() if dtype.itemsize == 4 else ir.DoubleType()
    return ir.IntType(8 * dtype.itemsize)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether elements are of LLVM's floating point types."""
    return dtype.kind == "f"


def is_signed(dtype: np.dtype[Any]) -> bool:
    """Whether elements are signed integers."""
    return dtype.kind == "i"


def number(dtype: np.dtype[Any], value: Any) -> ir.Constant:
    """A constant of a dtype."""
    if dtype.kind == "b":
        return ir.Constant(I1, int(bool(value)))
    if is_float(dtype):
        return ir.Constant(element_type(dtype), float(dtype.type(value)))
    return ir.Constant(element_type(dtype), int(value))


def integer(value: int) -> ir.Constant:
    """A constant index or size."""
    return ir.Constant(I64, value)
