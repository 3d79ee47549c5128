"""Where lanes keep the places that their calls come back to: packed into a word each, or on a stack like a variable's.

A program has few places to come back to. With b bits for a place, a lane's word is 1 followed by the places of its
calls, the innermost last; so 1 is no call, and pushing place p makes word * 2^b + p of it. A push or a pop of the
machine is then arithmetic on [lanes], without a scatter or a gather. Where a word of 62 bits has not room for all
frames, addresses (the pc itself) go to rows of an array as other stacks do (`storage`).
"""

from __future__ import annotations

from typing import Protocol

from batchnuts.autobatch.backends.backend import Array, State, StateArrays
from batchnuts.autobatch.ir.program import Program, PushGotoOp
from batchnuts.autobatch.runtime.storage import RETURN_ADDRESS, Storage

BITS = 62
"""Of an int64 that frames may fill: one is the sign, one goes before them."""

WORD = f"word:{RETURN_ADDRESS}"


class ReturnAddresses(Protocol):
    """Return addresses of all lanes, in a machine's state."""

    def start(self, arrays: StateArrays, lanes: int) -> State:
        """The entries before the first block."""

    def push(self, state: State, lanes: Storage, mask: Array, pc: int, code: int) -> None:
        """Note on active lanes that a call comes back to `pc`; a lane without room gets the fault `code`."""

    def pop(self, state: State, lanes: Storage, mask: Array) -> tuple[Array, Array]:
        """Drop the innermost address on active lanes; gives where there was none, and the address (else unused)."""


def return_addresses(program: Program, index: dict[str, int], stack_depth: int, packed: bool) -> ReturnAddresses:
    """Packed into words if they may be, and fit; `index` gives each block's pc."""
    ends = (block.terminator for block in program.graph.blocks)
    places = sorted({index[end.resume_label] for end in ends if isinstance(end, PushGotoOp)})
    words = Words(tuple(places), stack_depth)
    return words if packed and words.fit else Stack(stack_depth)


class Words:
    """One word for each lane: `word:@`, int64 [lanes]."""

    def __init__(self, places: tuple[int, ...], stack_depth: int) -> None:
        self.places = places
        bits = max(len(places) - 1, 0).bit_length()
        self.base = 1 << max(bits, 1)
        self.fit = max(bits, 1) * stack_depth <= BITS
        self.least_full = self.base**stack_depth if self.fit else 0
        """Words from here on have no room."""

    def start(self, arrays: StateArrays, lanes: int) -> State:
        """See ReturnAddresses."""
        return {WORD: arrays.full((lanes,), 1, "int64")}

    def push(self, state: State, lanes: Storage, mask: Array, pc: int, code: int) -> None:
        """See ReturnAddresses."""
        word = state[WORD]
        full = mask & (word >= self.least_full)
        lanes.record_fault(state, full, code)
        state[WORD] = lanes.backend.where(mask & ~full, word * self.base + self.places.index(pc), word)

    def pop(self, state: State, lanes: Storage, mask: Array) -> tuple[Array, Array]:
        """See ReturnAddresses."""
        backend, word = lanes.backend, state[WORD]
        at_bottom = word == 1
        rest = word // self.base
        place = word - rest * self.base
        state[WORD] = backend.where(mask & ~at_bottom, rest, word)
        address = backend.full((lanes.lanes,), self.places[0] if self.places else 0, "int32")
        for i, pc in enumerate(self.places[1:], 1):
            address = backend.where(place == i, backend.full((lanes.lanes,), pc, "int32"), address)
        return at_bottom, address


class Stack:
    """A stack as that of a variable: `frames:@`, int32 [lanes * (depth + 1)], and `height:@`, int32 [lanes]."""

    def __init__(self, stack_depth: int) -> None:
        self.rows = stack_depth + 1

    def start(self, arrays: StateArrays, lanes: int) -> State:
        """See ReturnAddresses."""
        frames, height = arrays.full((lanes * self.rows,), 0, "int32"), arrays.full((lanes,), 0, "int32")
        return {f"frames:{RETURN_ADDRESS}": frames, f"height:{RETURN_ADDRESS}": height}

    def push(self, state: State, lanes: Storage, mask: Array, pc: int, code: int) -> None:
        """See ReturnAddresses."""
        lanes.push(state, mask, RETURN_ADDRESS, lanes.backend.full((lanes.lanes,), pc, "int32"), code)

    def pop(self, state: State, lanes: Storage, mask: Array) -> tuple[Array, Array]:
        """See ReturnAddresses."""
        at_bottom = state[f"height:{RETURN_ADDRESS}"] == 0
        return at_bottom, lanes.pop(state, mask, RETURN_ADDRESS)
