"""Compaction: a block that serves some of the lanes that wait at it, and computes no others.

A dispatch costs what it costs for all lanes of the machine, however few of them wait. A slot with a width takes that
many lanes out of the state, runs its block on these as if they were all, and puts back what that has changed:

    numbers = those of the lanes that wait, in turn from the one after the lane served last, then of others
    some    = rows `numbers` of each entry that the block reads
    state   = state with rows `numbers` of each entry that it has changed, where the lane waited

Stacks stay whole, since a push or a pop goes to each lane's own slot, and so do buffers that rows are written into.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchnuts.autobatch.backends.backend import Array, Backend, State
from batchnuts.autobatch.ir.program import Block, WriteRowOp, reads, writes
from batchnuts.autobatch.runtime.storage import Storage


def written_in_place(block: Block) -> frozenset[str]:
    """The buffers of which a block needs nothing but to write rows into them."""
    in_place = [op for op in block.ops if isinstance(op, WriteRowOp) and op.buffer == op.var_out]
    others = (op for op in block.ops if op not in in_place)
    used = {v for op in others for v in (*reads(op), *writes(op))} | {
        v for op in in_place for v in (op.index, op.value)
    }
    return frozenset(op.buffer for op in in_place) - used


class SomeLanes(dict[str, Array]):
    """A state's entries for the lanes `numbers` [k], taken when they are first read; it notes which are assigned."""

    def __init__(self, state: State, numbers: Array, whole: Callable[[str], bool], backend: Backend) -> None:
        super().__init__({name: array for name, array in state.items() if whole(name)})
        self._state, self._numbers, self._backend = state, numbers, backend
        self.assigned: set[str] = set()

    def __missing__(self, name: str) -> Array:
        taken = self._backend.take_rows(self._state[name], self._numbers)
        super().__setitem__(name, taken)
        return taken

    def __contains__(self, name: object) -> bool:
        return name in self._state

    def __setitem__(self, name: str, value: Array) -> None:
        self.assigned.add(name)
        super().__setitem__(name, value)

    def copy(self) -> SomeLanes:
        """Itself: it is nobody else's."""
        return self


def serve_some(
    run: Callable[[State, Storage], State], block: Block, here: int, lanes: Storage, width: int
) -> Callable[[State], State]:
    """`run`, which runs the block (its pc is `here`) on the lanes of a storage, for `width` lanes at a time."""
    backend = lanes.backend
    buffers = written_in_place(block)
    place = np.full(1, here, "int32")

    def whole(name: str) -> bool:
        return name.startswith(("frames:", "timeline:")) or name.removeprefix("value:") in buffers

    def run_some(state: State) -> State:
        waiting = state["pc"] == here
        at = backend.asarray(place, "int32")
        numbers = backend.in_turn(waiting, backend.take_rows(state["turn"], at), width)
        served = backend.take_rows(waiting, numbers)
        some = SomeLanes(state, numbers, whole, backend)
        after = run(some, lanes.of(numbers, width, buffers))
        changed = dict(state)
        for name in sorted(some.assigned & state.keys()):
            there = state[name]
            changed[name] = after[name] if whole(name) else backend.merge_rows(there, numbers, served, after[name])
        last = backend.full((1,), -1, "int32") + backend.cast(backend.count(served), "int32")
        some_lane = backend.full((1,), True, "bool")
        changed["turn"] = backend.merge_rows(state["turn"], at, some_lane, backend.take_rows(numbers, last))
        return changed

    return run_some
