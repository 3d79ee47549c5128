"""Small arrays passed into compiled code and back: packed, in one array for each dtype.

A call of TensorFlow takes some ten microseconds for every array that goes in or comes out, however small: it looks at
types, makes handles, allocates. A machine's state has about ninety arrays, and most of them are a number for each lane.
So with few lanes the small ones are passed together. Inside compiled code they are unpacked, where the machine's loop
would have copied them in any case; on the host they are views of NumPy arrays. With many lanes a call takes far longer
than that, and all arrays are passed separately.

XLA compiles each slice of an array to a function of its own, which takes twenty milliseconds, unless the slices are the
body of a small loop, which it compiles as a whole (xla_flags.py). So they are unpacked in a loop of one trip.

    {pc: int32 [4], fault: int32 [4], value:q: float32 [4, 9000]}   ->   value:q, int32 [8]
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.backends.backend import Array, State
from batchnuts.autobatch.backends.tensorflow.session import SessionProgram, may_have_session
from batchnuts.autobatch.ir.program import TensorType
from batchnuts.autobatch.pfor.errors import noting_warnings
from batchnuts.disk_cache.folder import current

SMALL = 1 << 13
"""Arrays with fewer elements are packed: copying this many elements a few times takes as long as passing one more
array."""


def is_small(shape: Sequence[int]) -> bool:
    """Whether an array of that shape may be packed."""
    return math.prod(shape) < SMALL


class Library(NamedTuple):
    """The array operations of one side: of the host, or of compiled code."""

    join: Callable[[list[Array]], Array]
    """Arrays as one vector."""
    cut: Callable[[Array, list[int]], list[Array]]
    """A vector in parts of these sizes."""
    shaped: Callable[[Array, tuple[int, ...]], Array]
    """A vector as an array of that shape."""


HOST = Library(
    lambda arrays: np.concatenate(arrays, axis=None),
    lambda vector, sizes: [vector[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes))],
    np.reshape,
)
GRAPH = Library(
    lambda arrays: tf.concat([array if len(array.shape) == 1 else tf.reshape(array, [-1]) for array in arrays], 0),
    lambda vector, sizes: tf.split(vector, sizes) if len(sizes) > 1 else [vector],
    lambda vector, shape: vector if len(shape) == 1 else tf.reshape(vector, shape),
)


@dataclass(frozen=True)
class Layout:
    """How some arrays are passed: the large ones separately, then all small ones of each dtype as one.

    If the small ones have more than `most` bytes in all, they are passed separately too. None: no limit, and they are
    unpacked without a loop, for there is no XLA.
    """

    types: tuple[TensorType, ...]
    most: int | None

    @cached_property
    def together(self) -> tuple[int, ...]:
        """The numbers of the arrays that are packed."""
        small = tuple(i for i, t in enumerate(self.types) if is_small(t.shape))
        size = sum(self.sizes[i] * np.dtype(self.types[i].dtype).itemsize for i in small)
        return small if self.most is None or size <= self.most else ()

    @cached_property
    def alone(self) -> tuple[int, ...]:
        """The numbers of those that are not."""
        return tuple(i for i in range(len(self.types)) if i not in self.together)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each array."""
        return tuple(math.prod(t.shape) for t in self.types)

    @cached_property
    def packs(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the arrays of each pack, which have one dtype."""
        by_dtype: dict[str, list[int]] = {}
        for i in self.together:
            by_dtype.setdefault(self.types[i].dtype, []).append(i)
        return tuple(map(tuple, by_dtype.values()))

    @cached_property
    def crossing(self) -> tuple[TensorType, ...]:
        """The types of what is passed."""
        vectors = (TensorType(self.types[pack[0]].dtype, (sum(self.sizes[i] for i in pack),)) for pack in self.packs)
        return (*(self.types[i] for i in self.alone), *vectors)

    def pack(self, arrays: Sequence[Array], library: Library) -> list[Array]:
        """What is passed for the arrays."""
        packs = (library.join([arrays[i] for i in pack]) for pack in self.packs)
        return [*(arrays[i] for i in self.alone), *packs]

    def unpack(self, crossed: Sequence[Array], library: Library) -> list[Array]:
        """The arrays, of what was passed; on the host, packed ones are views."""
        return self._in_place(crossed, self._cut(crossed, library))

    def unpack_in_graph(self, crossed: Sequence[Array], once: Array) -> list[Array]:
        """The arrays; for XLA unpacked in a loop of one trip. `once` is true, but not known when compiling."""
        if not self.packs or self.most is None:
            return self.unpack(crossed, GRAPH)
        types = [self.types[i] for pack in self.packs for i in pack]
        nothing = [tf.zeros(t.shape, t.dtype) for t in types]
        _, *parts = tf.while_loop(
            lambda goes_on, *_: goes_on, lambda *_: (False, *self._cut(crossed, GRAPH)), (once, *nothing), name="unpack"
        )
        return self._in_place(crossed, parts)

    def _cut(self, crossed: Sequence[Array], library: Library) -> list[Array]:
        """The packed arrays, pack by pack."""
        parts: list[Array] = []
        for pack, vector in zip(self.packs, crossed[len(self.alone) :]):
            pieces = library.cut(vector, [self.sizes[i] for i in pack])
            parts.extend(library.shaped(piece, self.types[i].shape) for i, piece in zip(pack, pieces))
        return parts

    def _in_place(self, crossed: Sequence[Array], parts: list[Array]) -> list[Array]:
        order = (*self.alone, *(i for pack in self.packs for i in pack))
        by_index = dict(zip(order, (*crossed[: len(self.alone)], *parts)))
        return [by_index[i] for i in range(len(self.types))]


@dataclass(frozen=True)
class _Border:
    """A function for arguments of some types: how they are passed, what runs, how results are returned."""

    into: Layout
    run: Callable[..., Sequence[Array]]
    names: tuple[str, ...]
    """Names of the entries of the state that results."""
    back: Layout
    traced: Any = None
    """The `tf.function`; None where the program was found without a trace."""

    def arguments(self, state: State, scalars: tuple[Array, ...]) -> list[Array]:
        """What is passed: whether to unpack, which is always true, and the packs."""
        return [np.True_, *self.into.pack([*state.values(), *scalars], HOST)]


SecondKey = Callable[[str], str | None]
"""The key by which a program is found on disk without a trace, of a text that says the types of its arguments; None:
there is none."""


class PackedFunction:
    """(State, *scalars) -> (State, scalar) of small arrays on the host, run by a traced function of packed ones.

    traced: makes a `tf.function` of a Python function. Traced once for each list of names, dtypes and shapes. most: see
    Layout. second_key: see SecondKey. unchanged: whether that key still is the one of what is traced.
    """

    def __init__(
        self,
        function: Callable[..., tuple[State, Array]],
        traced: Callable[[Callable[..., Any]], Any],
        most: int | None,
        second_key: SecondKey = lambda types: None,
        unchanged: Callable[[], bool] = lambda: True,
    ) -> None:
        self._function = function
        self._trace = traced
        self._most = most
        self._second_key = second_key
        self._unchanged = unchanged
        self._borders: dict[Any, _Border] = {}
        self._making = threading.Lock()

    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        """The results of the function for them."""
        border = self._border(state, scalars)
        crossed = border.run(*border.arguments(state, scalars))
        large = len(border.back.alone)
        *values, scalar = border.back.unpack([*crossed[:large], *map(np.asarray, crossed[large:])], HOST)
        return dict(zip(border.names, values)), scalar

    def trace(self, state: State, *scalars: Array) -> None:
        """Trace it for such arguments, if it was not yet."""
        self._border(state, scalars)

    @property
    def traces(self) -> int:
        """How often it was traced."""
        return sum(border.traced is not None for border in self._borders.values())

    def graph(self, state: State, *scalars: Array) -> Any:
        """The graph of what runs on these."""
        border = self._border(state, scalars)
        return self._traced(border, state).get_concrete_function(*_specs(border.into)).graph

    def compiled_text(self, state: State, *scalars: Array) -> str:
        """The optimized instructions that XLA makes of it for these arguments."""
        border = self._border(state, scalars)
        traced = self._traced(border, state)
        text: str = traced.experimental_get_compiler_ir(*border.arguments(state, scalars))(stage="optimized_hlo")
        return text

    def _traced(self, border: _Border, state: State) -> Any:
        return self._function_of(tuple(state), border.into, {}) if border.traced is None else border.traced

    def _border(self, state: State, scalars: tuple[Array, ...]) -> _Border:
        arrays = [*state.values(), *scalars]
        key = (tuple(state), tuple((_dtype(array), tuple(array.shape)) for array in arrays))
        border = self._borders.get(key)
        if border is None:
            with self._making:  # several threads may be the first
                if key not in self._borders:
                    types = tuple(TensorType(dtype.name, shape) for dtype, shape in key[1])
                    self._borders[key] = self._make(tuple(state), Layout(types, self._most))
                border = self._borders[key]
        return border

    def _make(self, names: tuple[str, ...], into: Layout) -> _Border:
        entries = current()
        key = None if entries is None else self._second_key(repr((names, into)))
        if entries is not None and key is not None and (content := entries.get(key)) is not None:
            with suppress(Exception):  # sound, but of something that this version does not read
                if (loaded := SessionProgram.of_entry(content)) is not None:
                    run, (names_back, types) = loaded
                    back = Layout(tuple(TensorType(dtype, tuple(shape)) for dtype, shape in types), self._most)
                    return _Border(into, run, tuple(names_back), back)
            entries.drop(key)
        results: dict[str, Any] = {}
        traced = self._function_of(names, into, results)
        specs = _specs(into)
        with noting_warnings() as warned:
            concrete = traced.get_concrete_function(*specs)
        names_back, back = results["names"], results["back"]
        if self._most is None or not may_have_session(concrete):
            # the concrete function itself would convert NumPy's arrays more slowly
            return _Border(into, lambda *arrays: concrete(*map(tf.convert_to_tensor, arrays)), names_back, back, traced)
        program = SessionProgram.of_function(traced, specs)
        if entries is not None and key is not None and not warned and self._unchanged():
            entry = program.as_entry((names_back, [(t.dtype, t.shape) for t in back.types]))
            if entry is not None:
                program.once_run = lambda: entries.put(key, entry)
        return _Border(into, program, names_back, back, traced)

    def _function_of(self, names: tuple[str, ...], into: Layout, results: dict[str, Any]) -> Any:
        """The `tf.function` of what is passed. results: has, once it is traced, the names of what it gives, and how
        that is returned."""

        def crossing(once: Any, *crossed: Any) -> list[Any]:
            arrays = into.unpack_in_graph(crossed, once)
            after, scalar = self._function(dict(zip(names, arrays)), *arrays[len(names) :])
            outputs = [*after.values(), scalar]
            back = Layout(tuple(TensorType(r.dtype.name, tuple(r.shape)) for r in outputs), self._most)
            results.update(names=tuple(after), back=back)
            return back.pack(outputs, GRAPH)

        return self._trace(crossing)


def _specs(into: Layout) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(t.shape, t.dtype) for t in (TensorType("bool"), *into.crossing)]


def _dtype(array: Any) -> np.dtype[Any]:
    """The dtype of an array or a tensor, as NumPy's."""
    dtype = array.dtype
    return dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.as_numpy_dtype)
