"""What machine code reads of a machine's state: an array of int64, and its entries as instructions read them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from batchnuts.autobatch.native.types import I8, I64, POINTER, integer


class Context(enum.IntEnum):
    """The entries: addresses, strides in bytes, and numbers."""

    ROWS = 0
    ROW_BYTES = 1
    FRAMES = 2
    FRAME_BYTES = 3
    BUFFERS = 4
    BUFFER_BYTES = 5
    DEPTH = 6
    ACTIVE = 7
    SHARED = 8
    """An array of the addresses of shared arrays, and of outlined functions."""
    SCRATCH = 9
    BLOCKS = 10
    """How many blocks of a lane are run at most before the next lane's turn."""
    LANES = 11
    ROUNDS_LEFT = 12
    """How many more rounds may be made; counted down."""
    LEAVE_AT = 13
    """The number of live lanes at which to leave."""
    EVALUATIONS = 14
    """How many evaluations were used; counted up."""


class Loaded:
    """The entries of a context, read at the beginning of a function."""

    def __init__(self, b: ir.IRBuilder, context: Any) -> None:
        self.b = b
        self.context = context
        pointers = (Context.ROWS, Context.FRAMES, Context.BUFFERS)
        self._blocks = [(self._load(name, POINTER), self._load(Context(name + 1))) for name in pointers]
        self.depth = self._load(Context.DEPTH)
        self.active = self._load(Context.ACTIVE, POINTER)
        self.shared = self._load(Context.SHARED, POINTER)
        self.scratch = self._load(Context.SCRATCH, POINTER)
        self.blocks = self._load(Context.BLOCKS)
        self.lanes = self._load(Context.LANES)

    def entry(self, name: Context) -> Any:
        """A pointer to an entry."""
        return self.b.gep(self.context, [integer(name)], source_etype=I64)

    def _load(self, name: Context, type_: Any = I64) -> Any:
        return self.b.load(self.entry(name), typ=type_)

    def _of(self, block: int, lane: Any) -> Any:
        pointer, stride = self._blocks[block]
        return self.b.gep(pointer, [self.b.mul(lane, stride)], inbounds=True, source_etype=I8)

    def row(self, lane: Any) -> Any:
        """A pointer to a lane's row."""
        return self._of(0, lane)

    def frames_of(self, lane: Any) -> Any:
        """A pointer to a lane's frames."""
        return self._of(1, lane)

    def buffers_of(self, lane: Any) -> Any:
        """A pointer to a lane's buffers."""
        return self._of(2, lane)

    def each_lane(self, body: Callable[[Any], None]) -> None:
        """Emit a loop over all lanes; the builder goes on after it."""
        emit_loop(self.b, self.lanes, body)


def emit_loop(b: ir.IRBuilder, count: Any, body: Callable[[Any], None]) -> None:
    """Emit a loop over 0, ..., count - 1, i64; the builder goes on after it."""
    before = b.block
    head, inside, end = (b.append_basic_block(name) for name in ("head", "inside", "after"))
    b.branch(head)
    b.position_at_end(head)
    number = b.phi(I64)
    number.add_incoming(integer(0), before)
    b.cbranch(b.icmp_signed("<", number, count), inside, end)
    b.position_at_end(inside)
    body(number)
    number.add_incoming(b.add(number, integer(1)), b.block)
    b.branch(head)
    b.position_at_end(end)
