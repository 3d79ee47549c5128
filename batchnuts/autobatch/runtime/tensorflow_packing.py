"""Small arrays on their way into compiled code and back: one behind the other, in one array for each dtype.

A call of TensorFlow takes some ten microseconds for every array that goes in or comes out, however small: it looks at
types, makes handles, allocates. A machine's state has about ninety arrays, and most of them are a number for each lane.
So the small ones cross the border together. On the far side they are slices, which the machine's loop would have copied
in any case; on this side they are views of NumPy arrays.

    {pc: int32 [4], fault: int32 [4], value:q: float32 [4, 9000]}   ->   value:q, int32 [8]
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.compiler.ir import TensorType
from batchnuts.autobatch.runtime.backend import Array, State

SMALL = 1 << 13
"""Arrays with fewer elements are packed: copying so many a few times takes as long as an array more."""


def is_small(shape: Sequence[int]) -> bool:
    """Whether an array of that shape is packed."""
    return math.prod(shape) < SMALL


class Library(NamedTuple):
    """Whose arrays they are on one side of the border."""

    join: Callable[[list[Array]], Array]
    """Arrays as one vector."""
    cut: Callable[[Array, int, int, tuple[int, ...]], Array]
    """From a vector, from here to there, as an array of that shape."""


HOST = Library(
    lambda arrays: np.concatenate(arrays, axis=None),
    lambda vector, begin, end, shape: vector[begin:end].reshape(shape),
)
GRAPH = Library(
    lambda arrays: tf.concat([tf.reshape(array, [-1]) for array in arrays], 0),
    lambda vector, begin, end, shape: tf.reshape(vector[begin:end], shape),
)


@dataclass(frozen=True)
class Layout:
    """How some arrays cross: the large ones by themselves, then all small ones of each dtype as one."""

    types: tuple[TensorType, ...]

    @cached_property
    def alone(self) -> tuple[int, ...]:
        """Which arrays are large."""
        return tuple(i for i, t in enumerate(self.types) if not is_small(t.shape))

    @cached_property
    def packs(self) -> tuple[tuple[int, ...], ...]:
        """Which small ones go together."""
        by_dtype: dict[str, list[int]] = {}
        for i, t in enumerate(self.types):
            if is_small(t.shape):
                by_dtype.setdefault(t.dtype, []).append(i)
        return tuple(map(tuple, by_dtype.values()))

    @cached_property
    def crossing(self) -> tuple[TensorType, ...]:
        """The types of what crosses."""
        sums = (sum(math.prod(self.types[i].shape) for i in pack) for pack in self.packs)
        together = (TensorType(self.types[pack[0]].dtype, (size,)) for pack, size in zip(self.packs, sums))
        return (*(self.types[i] for i in self.alone), *together)

    @cached_property
    def places(self) -> tuple[tuple[tuple[int, int, int, tuple[int, ...]], ...], ...]:
        """For each pack: (array, where it begins, where it ends, its shape)."""
        found = []
        for pack in self.packs:
            shapes = [self.types[i].shape for i in pack]
            ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
            found.append(tuple(zip(pack, [0, *ends], ends, shapes)))
        return tuple(found)

    def pack(self, arrays: Sequence[Array], library: Library) -> list[Array]:
        """What crosses, of the arrays."""
        packs = (library.join([arrays[i] for i in pack]) for pack in self.packs)
        return [*(arrays[i] for i in self.alone), *packs]

    def unpack(self, crossed: Sequence[Array], library: Library) -> list[Array]:
        """The arrays, of what crossed; on the host, small ones are views."""
        large = len(self.alone)
        arrays: list[Array] = [None] * len(self.types)
        for i, array in zip(self.alone, crossed):
            arrays[i] = array
        for places, together in zip(self.places, crossed[large:]):
            for i, begin, end, shape in places:
                arrays[i] = library.cut(together, begin, end, shape)
        return arrays


@dataclass(frozen=True)
class _Border:
    """A function for arguments of some types: how they cross, what runs, how results come back."""

    into: Layout
    traced: Any
    run: Any
    """Its concrete function, which looks at types no more."""
    names: tuple[str, ...]
    """Of the state that results."""
    back: Layout


class PackedFunction:
    """(State, *scalars) -> (State, scalar) of small arrays on the host, run by a traced function of packed ones.

    traced: makes a `tf.function` of a Python function. Traced once for each list of names, dtypes and shapes.
    """

    def __init__(
        self, function: Callable[..., tuple[State, Array]], traced: Callable[[Callable[..., Any]], Any]
    ) -> None:
        self._function = function
        self._trace = traced
        self._borders: dict[Any, _Border] = {}
        self._making = threading.Lock()

    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        """What the function gives for them."""
        border = self._border(state, scalars)
        packed = border.into.pack([*state.values(), *scalars], HOST)
        crossed = border.run(*map(tf.convert_to_tensor, packed))  # which would take its time over it
        large = len(border.back.alone)
        *values, scalar = border.back.unpack([*crossed[:large], *map(np.asarray, crossed[large:])], HOST)
        return dict(zip(border.names, values)), scalar

    @property
    def traces(self) -> int:
        """How often it was traced."""
        return len(self._borders)

    def graph(self, state: State, *scalars: Array) -> Any:
        """The graph that runs on these."""
        return self._border(state, scalars).run.graph

    def compiled_text(self, state: State, *scalars: Array) -> str:
        """What XLA makes of it for these: its optimized instructions."""
        border = self._border(state, scalars)
        packed = border.into.pack([*state.values(), *scalars], HOST)
        text: str = border.traced.experimental_get_compiler_ir(*packed)(stage="optimized_hlo")
        return text

    def _border(self, state: State, scalars: tuple[Array, ...]) -> _Border:
        arrays = [*state.values(), *scalars]
        key = (tuple(state), tuple((_dtype(array), tuple(array.shape)) for array in arrays))
        border = self._borders.get(key)
        if border is None:
            with self._making:  # several threads may be the first
                if key not in self._borders:
                    types = tuple(TensorType(dtype.name, shape) for dtype, shape in key[1])
                    self._borders[key] = self._make(tuple(state), Layout(types))
                border = self._borders[key]
        return border

    def _make(self, names: tuple[str, ...], into: Layout) -> _Border:
        found: dict[str, Any] = {}

        def crossing(*crossed: Any) -> list[Any]:
            arrays = into.unpack(crossed, GRAPH)
            after, scalar = self._function(dict(zip(names, arrays)), *arrays[len(names) :])
            results = [*after.values(), scalar]
            found["names"] = tuple(after)
            back = found["back"] = Layout(tuple(TensorType(r.dtype.name, tuple(r.shape)) for r in results))
            return back.pack(results, GRAPH)

        traced = self._trace(crossing)
        run = traced.get_concrete_function(*(tf.TensorSpec(t.shape, t.dtype) for t in into.crossing))
        return _Border(into, traced, run, found["names"], found["back"])


def _dtype(array: Any) -> np.dtype[Any]:
    """NumPy's, of a tensor too."""
    dtype = array.dtype
    return dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.as_numpy_dtype)
