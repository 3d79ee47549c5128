"""NumPy: regions run lane by lane. Slow and simple: a machine that can be stepped through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.backends.abstract import (
    OTHER,
    TRACED_LANES,
    USUAL,
    ZEROS,
    StandIns,
    stand_in,
    type_of_value,
    without_lanes,
)
from batchnuts.autobatch.backends.backend import (
    Backend,
    CompiledMachine,
    Interpreted,
    MachineFunction,
    RowFunction,
    State,
    SweepPlan,
    sweep_on_host,
)
from batchnuts.autobatch.errors import unexpected_result
from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.language.arrays import read_only
from batchnuts.autobatch.language.libraries.numpy import only_types
from batchnuts.autobatch.language.pytree import flatten, map_leaves, unflatten
from batchnuts.autobatch.passes.infer_types import AbstractResult


class NumpyBackend(Backend):
    """The `Backend` of NumPy arrays; its only mode is eager, its style gather unless masking is asked for."""

    name = "numpy"
    mode = "eager"

    def __init__(self, style: str = "gather") -> None:
        self.style = style

    # ---- type inference ---------------------------------------------------------------------------------------

    @override
    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """NumPy cannot trace, so the function runs on stand-in values: two sets of them, or those that it accepts.

        A result that is an input's own object under both sets is passed on; a type that differs is an error, since
        the values of a run would decide it.
        """
        evaluations: list[tuple[AbstractResult, ...]] = []
        failure: Exception | None = None
        for values in (USUAL, OTHER, ZEROS):
            try:
                evaluations.append(self._evaluate_with(function, arguments, values))
            except Exception as error:  # some values may fail and others not; the first failure is shown
                failure = failure or error
            if len(evaluations) == 2:
                break
        if not evaluations:
            assert failure is not None
            raise failure
        return tuple(_agreed(first, second) for first, second in zip(evaluations[0], evaluations[-1]))

    def _evaluate_with(
        self, function: Primitive, arguments: tuple[Any, ...], values: StandIns
    ) -> tuple[AbstractResult, ...]:
        lanes = TRACED_LANES if function.batched else None

        def stand_in_of(type_: TensorType) -> Any:
            if lanes is None:
                return read_only(stand_in(type_, values))
            return stand_in(TensorType(type_.dtype, (lanes, *type_.shape)), values)

        inputs = [map_leaves(stand_in_of, t) for t in arguments]
        order = [leaf for value in inputs for leaf in flatten(value)[0]]
        # an input that comes back as the same object was passed on; Python's numbers and NumPy's two booleans are
        # shared objects, which says nothing
        is_array = [isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, np.bool_) for leaf in order]
        position = {id(leaf): i for i, leaf in enumerate(order) if is_array[i]}
        # a user's function may do anything with values, if it is not one that can be recorded
        token = only_types.set(function.of_language or function.record is not None)
        try:
            with np.errstate(all="ignore"):
                results = function.call(*inputs)
        finally:
            only_types.reset(token)
        abstract = []
        for result in results:
            leaves, tree = flatten(result)
            types = [type_of_value(leaf) for leaf in leaves]
            if lanes is not None:
                types = [without_lanes(t, lanes) for t in types]
            sources = tuple(position.get(id(leaf)) if function.rearranges else None for leaf in leaves)
            abstract.append(AbstractResult(unflatten(tree, types), sources, frozenset(range(len(order)))))
        return tuple(abstract)

    # ---- arrays -----------------------------------------------------------------------------------------------

    @override
    def asarray(self, value: Any, dtype: str) -> Any:
        return np.array(value, dtype)

    @override
    def to_numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    @override
    def full(self, shape: Sequence[int], value: Any, dtype: str) -> Any:
        return np.full(tuple(shape), value, dtype)

    @override
    def cast(self, array: Any, dtype: str) -> Any:
        return np.asarray(array).astype(dtype)

    @override
    def where(self, mask: Any, new: Any, old: Any) -> Any:
        rank = max(np.ndim(new), np.ndim(old))
        return np.where(np.reshape(mask, mask.shape + (1,) * (rank - 1)), new, old)

    @override
    def count(self, mask: Any) -> Any:
        return mask.sum(dtype="int64")

    @override
    def take_rows(self, memory: Any, rows: Any) -> Any:
        return memory[rows]

    @override
    def put_rows(self, memory: Any, rows: Any, values: Any) -> Any:
        # in place
        memory[rows] = values
        return memory

    @override
    def write_rows(self, buffers: Any, mask: Any, rows: Any, values: Any) -> Any:
        buffers = buffers.copy()
        buffers[np.flatnonzero(mask), rows[mask]] = values[mask]
        return buffers

    @override
    def work(self, function: Primitive, inputs: tuple[TensorType, ...]) -> float | None:
        # NumPy cannot look into a function
        return None

    @override
    def rows_to_compute(self, mask: Any) -> Any:
        active = np.flatnonzero(mask)
        if self.style == "gather" or not len(active):
            return active
        return np.where(mask, np.arange(len(mask)), active[0])

    # ---- programs ---------------------------------------------------------------------------------------------

    @override
    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> RowFunction:
        # a loop over the rows

        def over_rows(*values: Any) -> tuple[np.ndarray, ...]:
            count = len(values[0])
            results = tuple(np.empty((count, *t.shape), t.dtype) for t in outputs)
            arrays = [read_only(v) for v in values]  # and so are their rows
            for row in range(count):
                for result, value in zip(results, function(*(v[row] for v in arrays))):
                    result[row] = _checked(value, result.shape[1:], result.dtype)
            return results

        return over_rows

    @override
    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> RowFunction:
        def over_rows(*values: Any) -> tuple[np.ndarray, ...]:
            count = len(values[0])
            results = zip(primitive.call(*values), outputs)
            return tuple(_checked(r, (count, *t.shape), np.dtype(t.dtype)).astype(t.dtype) for r, t in results)

        return over_rows

    @override
    def as_one_op(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # the function itself
        return function

    @override
    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # nothing to do
        return function

    @override
    def compile_machine(self, function: MachineFunction) -> CompiledMachine:
        # nothing to do
        return Interpreted(function)

    @override
    def sweep(self, plan: SweepPlan, state: State, budget: Any, leave_at: Any) -> tuple[State, Any]:
        # a host loop, on its own copy of what `put_rows` changes
        state = {name: a if name.startswith("value:") else a.copy() for name, a in state.items()}
        return sweep_on_host(self, plan, state, budget, leave_at)


def _agreed(first: AbstractResult, second: AbstractResult) -> AbstractResult:
    """What holds for both sets of stand-in values."""
    if first is second:  # nothing to compare with: it may depend on its inputs in any way
        return replace(first, sources=(None,) * len(first.sources))
    if first.type != second.type:
        raise TypeError(f"the values decide the result's type: {first.type} or {second.type}; it must be one type")
    sources = tuple(a if a == b else None for a, b in zip(first.sources, second.sources))
    return replace(first, sources=sources)


def _checked(value: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A result of a run, if it has the type that was inferred on stand-in values."""
    array = np.asarray(value)
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise unexpected_result(f"{array.dtype}{list(array.shape)}", f"{dtype}{list(shape)}")
    return array
