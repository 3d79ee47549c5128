"""Where everything of a lane lies: a row of bytes for each lane, one of frames, and one of buffers.

    row      pc int32, fault int32, waiting int32, height of each stack int32, the values of variables
    frames   for each stack, depth + 1 frames one after another; the first `height` are in use
    buffers  the variables that a program writes rows to, which are large

A stack's frames begin at (depth + 1) times the bytes that a frame of each stack before it takes, so that stacks can
grow without new code. Arrays over lanes are views of these rows, strided: the state of a machine by name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from batchnuts.autobatch.ir.program import RETURN_ADDRESS, Program, VariableAllocation
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.native.sizes import Size

PC, FAULT, WAITING = "pc", "fault", "waiting"
INT32 = TensorType("int32")
LINE = 64
"""Bytes of a cache line; rows begin with one."""


@dataclass(frozen=True)
class Layout:
    """The bytes of a program's lanes."""

    fields: Mapping[str, tuple[int, TensorType]]
    """Entries of a row: where each begins, and its type. Variables are `value:v`, heights `height:v`."""
    row_bytes: int
    buffers: Mapping[str, tuple[int, TensorType]]
    """The same of a lane's buffers."""
    buffer_bytes: int
    frames: Mapping[str, tuple[int, TensorType]]
    """For each stack, the bytes of a frame of all stacks before it, and the type of its frames."""
    frame_bytes: int
    """Bytes of a frame of all stacks."""

    @functools.cached_property
    def heights(self) -> tuple[str, ...]:
        """The entries that are heights of stacks."""
        return tuple(name for name in self.fields if name.startswith("height:"))

    def stride(self, depth: int) -> int:
        """Bytes of a lane's frames, where stacks hold `depth` of them beneath the top."""
        return _up(self.frame_bytes * (depth + 1), LINE)

    def places(self, depth: int) -> Mapping[str, Place]:
        """Where the entries of a lane are, by name; those of frames are [depth + 1, ...]."""
        if depth not in self._places_of:
            blocks = (
                {name: (offset, type_.shape, type_.dtype) for name, (offset, type_) in self.fields.items()},
                {name: (offset, type_.shape, type_.dtype) for name, (offset, type_) in self.buffers.items()},
                {
                    f"frames:{variable}": (offset * (depth + 1), (depth + 1, *type_.shape), type_.dtype)
                    for variable, (offset, type_) in self.frames.items()
                },
            )
            self._places_of[depth] = {
                name: Place(block, offset, tuple(shape), np.dtype(dtype), np.empty(shape, dtype).strides)
                for block, entries in enumerate(blocks)
                for name, (offset, shape, dtype) in entries.items()
            }
        return self._places_of[depth]

    @functools.cached_property
    def _places_of(self) -> dict[int, Mapping[str, Place]]:
        """By the depth of stacks: found out once, states are made often."""
        return {}


class Place(NamedTuple):
    """Where an entry of a lane begins, and its form."""

    block: int
    """0: its row, 1: its buffers, 2: its frames."""
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


def layout_of(
    program: Program,
    stored: tuple[str, ...],
    leaders: Mapping[str, str],
    buffers: frozenset[str],
    profiled: bool = False,
) -> Layout:
    """The layout of a program. stored: the variables of a lane, `buffers` among them. leaders: see `stack_leaders`.

    profiled: whether rows also have the greatest height that each stack has had, `peak:v`.
    """
    types = program.var_defs
    kinds = ("height", "peak") if profiled else ("height",)
    stack_names = (*dict.fromkeys(leaders.values()), RETURN_ADDRESS)
    heights = {f"{kind}:{leader}": INT32 for kind in kinds for leader in stack_names}
    entries = {PC: INT32, FAULT: INT32, WAITING: INT32, **heights}

    # those whose size varies come last, so that the others have fixed places
    def order(variable: str) -> tuple[bool, int]:
        return isinstance(types[variable].size, Size), -_itemsize(types[variable])

    values = {f"value:{v}": types[v] for v in sorted(stored, key=order) if v not in buffers}
    fields, row_bytes = _placed({**entries, **values})
    in_buffers, buffer_bytes = _placed({f"value:{v}": types[v] for v in stored if v in buffers})
    stacks = {v: types[v] for v, kind in program.var_alloc.items() if kind is VariableAllocation.FULL}
    stacks[RETURN_ADDRESS] = INT32
    frames: dict[str, tuple[int, TensorType]] = {}
    before = 0
    for variable in sorted(stacks, key=lambda v: (-_itemsize(stacks[v]), isinstance(stacks[v].size, Size))):
        frames[variable] = (before, stacks[variable])
        before += stacks[variable].size * _itemsize(stacks[variable])
    return Layout(fields, row_bytes, in_buffers, buffer_bytes, frames, before)


def _placed(entries: Mapping[str, TensorType]) -> tuple[dict[str, tuple[int, TensorType]], int]:
    """Entries one after another, aligned, and the bytes of all of them."""
    fields: dict[str, tuple[int, TensorType]] = {}
    end = 0
    for name, type_ in entries.items():
        size = type_.size * _itemsize(type_)
        at = _up(end, LINE if isinstance(size, Size) or size >= LINE else _itemsize(type_))
        fields[name] = (at, type_)
        end = at + size
    return fields, _up(end, LINE)


def _itemsize(type_: TensorType) -> int:
    return int(np.dtype(type_.dtype).itemsize)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def counters(count: int) -> np.ndarray:
    """Zeros int64 [count] in cache lines of their own: threads that count side by side would wait for each other."""
    numbers: np.ndarray = block_of(1, _up(8 * count + LINE, LINE)).view(np.int64)[0, :count]
    return numbers


def block_of(lanes: int, stride: int) -> np.ndarray:
    """Zeros [lanes, stride] of bytes, which begin with a cache line."""
    memory: np.ndarray[Any, np.dtype[np.uint8]] = np.zeros(lanes * stride + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + lanes * stride].reshape(lanes, stride)
