"""Arrays while instructions are emitted: where their elements are, or how each is computed.

An array is a function from an index to the instructions that give that element. Arrays of elementwise functions compute
an element when it is asked for, so that functions of functions become one loop; within a loop each is computed once.
What several loops would read is written to memory first (`Emitter.in_memory`). Arrays with one element are computed at
once. All shapes are known.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.native.function_table import cast
from batchnuts.autobatch.native.functions import declared
from batchnuts.autobatch.native.regions import Allocations, accessed, moved
from batchnuts.autobatch.native.sizes import FIXED, Extents, Size, SizeReader
from batchnuts.autobatch.native.types import DTYPES, I1, I8, I64, POINTER, element_type, integer, number

Element = Any
Index = tuple[Element, ...]
Shape = tuple[int, ...]

ON_STACK = 64
"""Bytes of an array that LLVM may keep in registers; larger ones are in the lane's scratch memory."""

ALIGNMENT = 64

_INDEX = np.dtype("int64")

CHECKS = "BATCHNUTS_NATIVE_CHECKS"
"""Environment variable: if set, indices and the heights of stacks are checked where they address memory."""


@dataclass(frozen=True, eq=False)
class Array:
    """An array of a dtype and shape. pointer: where its elements lie, one after another, if they are in memory."""

    dtype: np.dtype[Any]
    shape: Shape
    element: Callable[[Index], Element]
    pointer: Any = None

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes they take in memory."""
        return self.size * self.dtype.itemsize


class Emitter:
    """Emits instructions at one place of a function. scratch: a pointer to the lane's scratch memory.

    allocations: makes what is allocated there known to LLVM as apart, where no two arrays have one place.
    """

    def __init__(
        self, builder: ir.IRBuilder, scratch: Any, extents: Extents = FIXED, allocations: Allocations | None = None
    ) -> None:
        self.builder = builder
        self.allocations = allocations
        self.scratch = scratch
        self.extents = extents
        self.c_functions: list[str] = []
        """Keys of functions of C that are called."""
        self.size = SizeReader(builder)
        self.scratch_bytes = 0
        """Bytes of the scratch memory in use."""
        self.most_scratch = 0
        self.checks = bool(os.environ.get(CHECKS))
        self._allocated: list[Any] = []
        self._computed: list[dict[Any, Element]] = [{}]
        """Elements by array and index, for each loop that is open."""

    def require(self, condition: Callable[[], Element], text: str) -> None:
        """With checks, end the process with a line on stdout where the condition does not hold: an error of ours."""
        if not self.checks:
            return
        b, module = self.builder, self.builder.module
        go, stop = (b.append_basic_block(name) for name in ("sound", "unsound"))
        b.cbranch(condition(), go, stop)
        b.position_at_end(stop)
        line = f"batchnuts: machine code: {text}\0".encode()
        content = ir.GlobalVariable(module, ir.ArrayType(I8, len(line)), module.get_unique_name("check"))
        content.initializer = ir.Constant(ir.ArrayType(I8, len(line)), bytearray(line))
        content.linkage, content.type = "internal", POINTER
        for name, arguments in (("puts", [content]), ("fflush", [ir.Constant(POINTER, None)]), ("abort", [])):
            b.call(declared(b, name, ir.VoidType(), *[POINTER] * len(arguments)), arguments)
        b.unreachable()
        b.position_at_end(go)

    # ---- loops -----------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, extent: int) -> Iterator[Element]:
        """Within, instructions for each index below `extent`."""
        if extent == 1:
            yield integer(0)
            return
        b = self.builder
        before = b.block
        last = self.size(extent)
        head, body, end = (b.append_basic_block(name) for name in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(integer(0), before)
        b.cbranch(b.icmp_signed("<", index, last), body, end)
        b.position_at_end(body)
        self._computed.append({})
        yield index
        self._computed.pop()
        index.add_incoming(b.add(index, integer(1), flags=("nsw",)), b.block)
        b.branch(head)
        b.position_at_end(end)

    @contextmanager
    def each(self, shape: Shape) -> Iterator[Index]:
        """Within, instructions for each index of an array of that shape."""
        if not shape:
            yield ()
            return
        with self.loop(shape[0]) as first, self.each(shape[1:]) as others:
            yield (first, *others)

    def once(self, key: Any, index: Index, compute: Callable[[], Element]) -> Element:
        """What `compute` gives for this key and index, computed once in each loop."""
        place = (key, *(("constant", i.constant) if isinstance(i, ir.Constant) else id(i) for i in index))
        for computed in self._computed:
            if place in computed:
                return computed[place]
        value = compute()
        self._computed[-1][place] = value
        return value

    # ---- memory ----------------------------------------------------------------------------------------------------

    def at(self, pointer: Any, offset: int | Element) -> Any:
        """A pointer moved by that many bytes."""
        if isinstance(offset, int):
            offset = self.size(offset)
        if isinstance(offset, ir.Constant) and offset.constant == 0:
            return pointer
        return moved(self.builder.gep(pointer, [offset], inbounds=True, source_etype=I8), pointer)

    def load(self, pointer: Any, dtype: np.dtype[Any]) -> Element:
        """An element in memory."""
        type_ = I8 if dtype.kind == "b" else element_type(dtype)
        loaded = accessed(self.builder.load(pointer, typ=type_), pointer)
        return self.builder.icmp_unsigned("!=", loaded, ir.Constant(I8, 0)) if dtype.kind == "b" else loaded

    def store(self, element: Element, pointer: Any) -> None:
        """Write an element to memory."""
        stored = self.builder.zext(element, I8) if element.type == I1 else element
        accessed(self.builder.store(stored, pointer), pointer)

    def allocate(self, count: int) -> Any:
        """A pointer to that many bytes, which nothing else of the segment takes."""
        if count <= ON_STACK and not isinstance(count, Size):
            with self.builder.goto_entry_block():
                small = self.builder.alloca(ir.ArrayType(I8, max(count, 1)))
            small.align, small.type = 16, POINTER
            self._allocated.append(small)
            return small
        pointer = self.at(self.scratch, self.scratch_bytes)
        if self.allocations is not None:
            pointer = self.allocations.mark(self.builder.gep(pointer, [integer(0)], source_etype=I8))
        self.scratch_bytes += -(-count // ALIGNMENT) * ALIGNMENT
        self.most_scratch = max(self.most_scratch, self.scratch_bytes)
        self._allocated.append(pointer)
        return pointer

    def owns(self, pointer: Any) -> bool:
        """Whether `allocate` gave it."""
        return any(pointer is one for one in self._allocated)

    def copy(self, target: Any, source: Any, count: int) -> None:
        """Copy bytes between places that do not overlap, or are the same."""
        move = declared(self.builder, "llvm.memmove.p0.p0.i64", ir.VoidType(), POINTER, POINTER, I64, I1)
        self.builder.call(move, [target, source, self.size(count), ir.Constant(I1, 0)])

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def scalar(self, dtype: np.dtype[Any], element: Element, shape: Shape = ()) -> Array:
        """An array with one element."""
        return Array(dtype, shape, lambda _: element)

    def memory(self, dtype: np.dtype[Any], shape: Shape, pointer: Any) -> Array:
        """The array that lies at a pointer; its elements must not change as long as it is read."""

        def element(index: Index) -> Element:
            return self.once(key, index, lambda: self.load(self.at(pointer, self.offset(index, shape, dtype)), dtype))

        key = object()
        return Array(dtype, shape, element, pointer)

    def loaded(self, dtype: np.dtype[Any], shape: Shape, pointer: Any) -> Array:
        """The array that lies at a pointer; one number is read now."""
        array = self.memory(dtype, shape, pointer)
        if array.size == 1 and dtype.name in DTYPES:
            return self.scalar(dtype, self.load(pointer, dtype), shape)
        return array

    def placed(self, array: Array) -> Any:
        """A pointer to an array in memory, where it is written if it does not lie there."""
        (array,) = self.in_memory(array)
        if array.pointer is not None:
            return array.pointer
        pointer = self.allocate(array.bytes)
        self.write(array, pointer)
        return pointer

    def offset(self, index: Index, shape: Shape, dtype: np.dtype[Any]) -> Element:
        """Where an element lies, in bytes."""
        b, total, stride = self.builder, None, dtype.itemsize
        fixed = 0
        for i, extent in zip(reversed(index), reversed(shape)):
            if isinstance(i, ir.Constant):
                fixed += i.constant * stride
            else:
                part = b.mul(i, self.size(stride), flags=("nsw",))
                total = part if total is None else b.add(total, part, flags=("nsw",))
            stride *= extent
        if total is None:
            return self.size(fixed)
        return b.add(total, self.size(fixed), flags=("nsw",)) if fixed else total

    def constant(self, array: np.ndarray) -> Array:
        """An array that is known: a number, or a global constant of the module."""
        dtype = array.dtype
        if array.size == 1:
            return self.scalar(dtype, number(dtype, array.reshape(())[()]), array.shape)
        if (general := self._of_any_extent(array)) is not None:
            return general
        return self.fixed_constant(array)

    def fixed_constant(self, array: np.ndarray) -> Array:
        """An array that is known, as a global constant of the module, whatever its extents."""
        dtype = array.dtype
        content = np.ascontiguousarray(array).tobytes()
        name = f"constant.{hashlib.sha256(content).hexdigest()[:16]}"
        known = self.builder.module.globals.get(name)
        if known is None:
            type_ = ir.ArrayType(I8, len(content))
            known = ir.GlobalVariable(self.builder.module, type_, name)
            known.initializer = ir.Constant(type_, bytearray(content))
            known.global_constant, known.linkage, known.align = True, "internal", ALIGNMENT
            known.type = POINTER
        return self.memory(dtype, array.shape, known)

    def sized(self, shape: Shape) -> Shape:
        """A shape with Sizes where extents vary."""
        return tuple(self.extents.get(extent, extent) for extent in shape)

    def _of_any_extent(self, array: np.ndarray) -> Array | None:
        """A constant whose extents vary: one number everywhere, or the numbers from 0 on."""
        shape = self.sized(array.shape)
        if not any(isinstance(extent, Size) for extent in shape):
            return None
        first = array.flat[0]
        if array.tobytes() == first.tobytes() * array.size:
            return Array(array.dtype, shape, lambda _: number(array.dtype, first))
        if array.dtype.kind in "iu" and array.ndim == 1 and (array == np.arange(len(array))).all():
            return Array(array.dtype, shape, lambda index: cast(self.builder, index[0], _INDEX, array.dtype))
        return None

    def in_memory(self, *arrays: Array) -> list[Array]:
        """The same arrays, each a scalar or in memory: those of one shape in one loop."""
        placed: list[Array | None] = [a if a.pointer is not None or a.size == 1 else None for a in arrays]
        for shape in dict.fromkeys(a.shape for a, there in zip(arrays, placed) if there is None):
            chosen = [i for i, a in enumerate(arrays) if placed[i] is None and a.shape == shape]
            pointers = [self.allocate(arrays[i].bytes) for i in chosen]
            with self.each(shape) as index:
                elements = [arrays[i].element(index) for i in chosen]
                for i, element, pointer in zip(chosen, elements, pointers):
                    self.store(element, self.at(pointer, self.offset(index, shape, arrays[i].dtype)))
            for i, pointer in zip(chosen, pointers):
                placed[i] = self.memory(arrays[i].dtype, shape, pointer)
        return [a for a in placed if a is not None]

    def write(self, array: Array, pointer: Any) -> None:
        """Write all elements of an array, which is a scalar or in memory, to a place where it does not lie."""
        if array.pointer is not None:
            self.copy(pointer, array.pointer, array.bytes)
        elif array.size:
            self.store(array.element(zeros(array.shape)), pointer)


def zeros(shape: Sequence[int]) -> Index:
    """The first index."""
    return tuple(integer(0) for _ in shape)


def broadcast(array: Array, index: Index) -> Element:
    """The element of an array at an index of a larger shape that it broadcasts to."""
    own = index[len(index) - len(array.shape) :]
    return array.element(tuple(integer(0) if extent == 1 else i for i, extent in zip(own, array.shape)))
