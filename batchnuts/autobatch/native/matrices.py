"""The product of a constant matrix and a vector, in LLVM's vectors: a sum of the matrix's columns.

    result[0:8W] = sum over k of x[k] * columns[k, 0:8W]        (W elements are a vector; and so on for the next 8W)

The sums of a block of vectors stay in registers, so that an element of the matrix is read once and nothing else is
read or written in between. LLVM would vectorize the sum along each row, whose parts have to be added in the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.ir.expression import Constant, Node
from batchnuts.autobatch.native.arrays import Array, Emitter
from batchnuts.autobatch.native.regions import accessed
from batchnuts.autobatch.native.sizes import Size
from batchnuts.autobatch.native.types import I32, element_type, integer, number

VECTOR = 64
"""Bytes of a vector at most; processors whose registers are smaller take several."""

BLOCK = 8
"""Vectors whose sums are kept at a time: as many as half of the registers, where these have VECTOR bytes."""

FUSED = ("contract",)
"""A product and a sum may be rounded once."""


def times_constant_matrix(em: Emitter, node: Node, arguments: list[Array]) -> Array | None:
    """The product of a vector and a matrix that is a constant, at either side; None for other products."""
    left, right = node.arguments
    ranks = tuple(len(argument.shape) for argument in arguments)
    if ranks == (2, 1) and isinstance(left, Constant):
        columns, x = left.array.T, arguments[1]
    elif ranks == (1, 2) and isinstance(right, Constant):
        columns, x = right.array, arguments[0]
    else:
        return None
    extents = (*em.sized(columns.shape), *x.shape)
    if min(columns.shape) < 2 or any(isinstance(extent, Size) for extent in extents):
        return None
    return _sum_of_columns(em, columns, x)


def _sum_of_columns(em: Emitter, columns: np.ndarray, x: Array) -> Array:
    """The sum of columns [k, n], each times an element of x [k]."""
    count, size = columns.shape
    dtype, b = columns.dtype, em.builder
    width = min(VECTOR // dtype.itemsize, 1 << (size - 1).bit_length())
    (x,) = em.in_memory(x)
    vector = ir.VectorType(element_type(dtype), width)
    vectors = -(-size // width)
    result = em.allocate(vectors * width * dtype.itemsize)
    padded = np.pad(columns, ((0, 0), (0, vectors * width - size)))
    zero = ir.Constant(vector, [number(dtype, 0)] * width)
    same = ir.Constant(ir.VectorType(I32, width), [ir.Constant(I32, 0)] * width)
    for first in range(0, vectors, BLOCK):
        last = min(first + BLOCK, vectors)
        block = em.fixed_constant(np.ascontiguousarray(padded[:, first * width : last * width]))
        row_bytes = (last - first) * width * dtype.itemsize
        with b.goto_entry_block():
            sums = [b.alloca(vector) for _ in range(first, last)]
        for total in sums:
            b.store(zero, total)
        with em.loop(count) as k:
            factor = b.shuffle_vector(b.insert_element(zero, x.element((k,)), integer(0)), zero, same)
            row = em.at(block.pointer, b.mul(k, integer(row_bytes), flags=("nsw",)))
            for number_, total in enumerate(sums):
                column = _access(b.load(em.at(row, number_ * width * dtype.itemsize), typ=vector), row, dtype)
                term = b.fmul(factor, column, flags=FUSED)
                b.store(b.fadd(b.load(total, typ=vector), term, flags=FUSED), total)
        for number_, total in enumerate(sums, first):
            _access(b.store(b.load(total, typ=vector), em.at(result, number_ * width * dtype.itemsize)), result, dtype)
    return em.memory(dtype, (size,), result)


def _access(instruction: Any, pointer: Any, dtype: np.dtype[Any]) -> Any:
    """A load or store of a vector, which is aligned as its elements are."""
    instruction.align = dtype.itemsize
    return accessed(instruction, pointer)
