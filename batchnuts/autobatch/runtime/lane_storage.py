"""Where a machine's variables live: stacks as rows of one array each, and the values of a block under its mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from batchnuts.autobatch.backends.backend import Array, Backend, State
from batchnuts.autobatch.ir.program import TensorType, WriteRowOp
from batchnuts.autobatch.language.shared import entry_of


class LaneValues(Mapping[str, Array]):
    """Variables while a block runs: what the block has set so far over what the state holds.

    A value set for active lanes is undefined on other lanes until it is merged with the state's.
    """

    def __init__(self, state: State, mask: Array, backend: Backend) -> None:
        self._state = state
        self._mask = mask
        self._backend = backend
        self._set: dict[str, Array] = {}
        self._complete: set[str] = set()

    def __getitem__(self, variable: str) -> Array:
        return self._set[variable] if variable in self._set else self._state[f"value:{variable}"]

    def shared(self, name: str) -> Array:
        """The array that all lanes have in common; no lane axis."""
        return self._state[entry_of(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._set)

    def __len__(self) -> int:
        return len(self._set)

    def set_active(self, variable: str, value: Array) -> None:
        """A new value that holds on active lanes."""
        self._set[variable] = value
        self._complete.discard(variable)

    def set_all(self, variable: str, value: Array) -> None:
        """A new value that holds on every lane."""
        self._set[variable] = value
        self._complete.add(variable)

    def for_all_lanes(self, variable: str) -> Array:
        """The value on active lanes, what the state holds on the others."""
        never_held = f"value:{variable}" not in self._state
        if variable not in self._set or variable in self._complete or never_held:
            return self[variable]
        return self._backend.where(self._mask, self._set[variable], self._state[f"value:{variable}"])

    def changed(self) -> tuple[str, ...]:
        """Variables the block has set."""
        return tuple(self._set)


class LaneStorage:
    """Stacks: for each variable one array [lanes * (depth + 1), ...] of frames beneath the top, and their number.

    Lane i owns rows i*(depth+1) ... ; the first `height` of them hold frames and the next is free. The extra row
    keeps that true on a full stack, so a push needs no mask: rows of inactive lanes land in free slots.
    """

    def __init__(self, backend: Backend, lanes: int, depth: int) -> None:
        self.backend = backend
        self.lanes = lanes
        self.depth = depth

    def _slots(self, heights: Array) -> Array:
        """Each lane's row at its height. The first rows are computed where they are used, so that compilers see
        constants."""
        first = np.arange(self.lanes, dtype="int32") * (self.depth + 1)
        return self.backend.asarray(first, "int32") + heights

    def record_fault(self, state: State, lanes: Array, code: int) -> None:
        """Mark lanes that have no fault yet."""
        codes = self.backend.full((self.lanes,), code, "int32")
        state["fault"] = self.backend.where(lanes & (state["fault"] == 0), codes, state["fault"])

    def push(self, state: State, mask: Array, variable: str, top: Array, code: int) -> None:
        """Save the top frame on active lanes; a lane whose stack is full keeps it and gets the fault `code`."""
        height = state[f"height:{variable}"]
        full = mask & (height >= self.depth)
        self.record_fault(state, full, code)
        state[f"frames:{variable}"] = self.backend.put_rows(state[f"frames:{variable}"], self._slots(height), top)
        state[f"height:{variable}"] = height + self.backend.cast(mask & ~full, "int32")

    def pop(self, state: State, mask: Array, variable: str) -> Array:
        """Drop the top frame on active lanes; returns the frame beneath (undefined on other lanes)."""
        height = state[f"height:{variable}"]
        height = height - self.backend.cast(mask & (height > 0), "int32")
        state[f"height:{variable}"] = height
        return self.backend.take_rows(state[f"frames:{variable}"], self._slots(height))

    def write_row(
        self,
        state: State,
        mask: Array,
        op: WriteRowOp,
        values: LaneValues,
        types: Mapping[str, TensorType],
        code: int,
    ) -> Array:
        """The buffer [lanes, n, ...] with one row replaced on active lanes, complete on all lanes.

        An index outside the buffer writes nothing and gives the fault `code`.
        """
        backend = self.backend
        buffer_type = types[op.buffer]
        buffer = values.for_all_lanes(op.buffer) if op.buffer == op.var_out else values[op.buffer]
        index = backend.cast(values[op.index], "int64")
        inside = (index >= 0) & (index < buffer_type.shape[0])
        self.record_fault(state, mask & ~inside, code)
        value = backend.cast(values[op.value], buffer_type.dtype)
        written = backend.write_rows(buffer, mask & inside, index, value)
        if op.buffer == op.var_out:
            return written
        if op.var_out not in values:  # nothing to keep on other lanes yet
            return written
        return backend.where(mask, written, values.for_all_lanes(op.var_out))
