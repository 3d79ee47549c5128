"""The state of a native machine by name: blocks of bytes and counters, and views of these bytes where they are read.

A state has some hundred entries, of which a reader needs a few; making all views takes longer than a short run.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.native.layout import Layout

BLOCKS = ("rows", "buffers", "frames")
"""The entries whose bytes the views are of, uint8 [lanes, bytes]."""


class NativeState(dict[str, Any]):
    """Entries by name; those of the layout are views of the blocks, strided, which write through.

    depth: of the stacks. others: counters and shared arrays.
    """

    def __init__(
        self, layout: Layout, rows: np.ndarray, frames: np.ndarray, buffers: np.ndarray, depth: int, others: Any
    ) -> None:
        super().__init__(others)
        self.own = tuple(others)
        """The names of counters and shared arrays."""
        self.depth = depth
        self._places = layout.places(depth)
        for name, block in zip(BLOCKS, (rows, buffers, frames), strict=True):
            super().__setitem__(name, block)

    def __missing__(self, name: str) -> np.ndarray:
        block, offset, shape, dtype, strides = self._places[name]
        of_block = super().__getitem__(BLOCKS[block])
        lanes, stride = len(of_block), of_block.strides[0]
        view: np.ndarray = np.ndarray((lanes, *shape), dtype, of_block, offset, (stride, *strides))
        super().__setitem__(name, view)
        return view

    @override
    def __contains__(self, name: object) -> bool:
        return name in self._places or super().__contains__(name)

    @override
    def __iter__(self) -> Iterator[str]:
        yield from (*BLOCKS, *self.own, *self._places)

    @override
    def __len__(self) -> int:
        return len(BLOCKS) + len(self.own) + len(self._places)

    @override
    def keys(self) -> KeysView[str]:  # type: ignore[override]  # dict's own class of keys cannot be made
        return KeysView(self)

    @override
    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    @override
    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)
