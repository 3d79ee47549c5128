"""NumPy: regions run lane by lane, active lanes only. Slow and plain: the machine one can step through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.compiler.infer_types import WEAK_DTYPES, AbstractResult
from batchnuts.autobatch.compiler.ir import Primitive, TensorType
from batchnuts.autobatch.compiler.tree import flatten, map_leaves, unflatten
from batchnuts.autobatch.runtime.backend import BlockStep, Region, State

STAND_INS = {"b": True, "i": 5, "u": 5, "f": 0.5, "c": 0.5}
"""What stands for an unknown value of a dtype kind while types are inferred."""


def weak_stand_in(type_: TensorType) -> Any:
    """The Python number that stands for a literal while types are inferred."""
    return STAND_INS[np.dtype(type_.dtype).kind]


def type_of_value(value: Any) -> TensorType:
    """The type of one array, or the weak type of a Python number. Raises TypeError for anything else."""
    if type(value) in WEAK_DTYPES:
        return TensorType(WEAK_DTYPES[type(value)], (), weak=True)
    array = np.asarray(value)
    if array.dtype.kind not in STAND_INS:
        raise TypeError(f"a variable holds arrays and numbers, found {type(value).__name__}")
    return TensorType(array.dtype.name, array.shape)


class NumpyBackend:
    """The `Backend` of NumPy arrays; its only mode is eager."""

    name = "numpy"
    mode = "eager"

    # ---- type inference ---------------------------------------------------------------------------------------

    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """NumPy cannot trace, so the function runs on stand-in values: ones and halves, then zeros if that fails."""
        try:
            return self._evaluate_with(function, arguments, dict(STAND_INS))
        except Exception:
            try:
                return self._evaluate_with(function, arguments, dict.fromkeys(STAND_INS, 0))
            except Exception:  # the first failure is the one to show
                pass
            raise

    def _evaluate_with(
        self, function: Primitive, arguments: tuple[Any, ...], stand_ins: dict[str, Any]
    ) -> tuple[AbstractResult, ...]:
        lanes = (2,) if function.batched else ()

        def stand_in(type_: TensorType) -> Any:
            if type_.weak and not function.batched:
                return weak_stand_in(type_)
            value = stand_ins[np.dtype(type_.dtype).kind]
            return np.full(lanes + type_.shape, value, type_.dtype)[()]

        values = [map_leaves(stand_in, t) for t in arguments]
        order = [leaf for value in values for leaf in flatten(value)[0]]
        # an input that comes back as the same object was passed on; Python's numbers and NumPy's two booleans are
        # shared objects, which says nothing
        own = [isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, np.bool_) for leaf in order]
        position = {id(leaf): i for i, leaf in enumerate(order) if own[i]}
        with np.errstate(all="ignore"):
            results = function.call(*values)
        abstract = []
        for result in results:
            leaves, tree = flatten(result)
            types = [type_of_value(leaf) for leaf in leaves]
            if lanes:
                types = [TensorType(t.dtype, t.shape[1:]) for t in types]
            sources = tuple(position.get(id(leaf)) for leaf in leaves)
            abstract.append(AbstractResult(unflatten(tree, types), sources, frozenset(range(len(order)))))
        return tuple(abstract)

    # ---- arrays -----------------------------------------------------------------------------------------------

    def asarray(self, value: Any, dtype: str) -> Any:
        """See Backend."""
        return np.array(value, dtype)

    def to_numpy(self, array: Any) -> np.ndarray:
        """See Backend."""
        return np.asarray(array)

    def full(self, shape: Sequence[int], value: Any, dtype: str) -> Any:
        """See Backend."""
        return np.full(tuple(shape), value, dtype)

    def cast(self, array: Any, dtype: str) -> Any:
        """See Backend."""
        return np.asarray(array).astype(dtype)

    def reshape(self, array: Any, shape: Sequence[int]) -> Any:
        """See Backend."""
        return np.reshape(array, tuple(shape))

    def where(self, mask: Any, new: Any, old: Any) -> Any:
        """See Backend."""
        rank = max(np.ndim(new), np.ndim(old))
        return np.where(np.reshape(mask, mask.shape + (1,) * (rank - 1)), new, old)

    def clip(self, values: Any, low: int, high: int) -> Any:
        """See Backend."""
        return np.clip(values, low, high)

    def any(self, mask: Any) -> Any:
        """See Backend."""
        return mask.any()

    def count(self, mask: Any) -> Any:
        """See Backend."""
        return mask.sum(dtype="int64")

    def minimum(self, values: Any) -> Any:
        """See Backend."""
        return values.min()

    def add_at(self, values: Any, index: int, amount: Any) -> Any:
        """See Backend."""
        values = values.copy()
        values[index] += amount
        return values

    def take_rows(self, memory: Any, rows: Any) -> Any:
        """See Backend."""
        return memory[rows]

    def put_rows(self, memory: Any, rows: Any, values: Any) -> Any:
        """See Backend."""
        memory = memory.copy()
        memory[rows] = values
        return memory

    # ---- programs ---------------------------------------------------------------------------------------------

    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> Region:
        """See Backend: a loop over the active lanes."""

        def region(mask: Any, *values: Any) -> tuple[np.ndarray, ...]:
            results = tuple(np.zeros((len(mask), *t.shape), t.dtype) for t in outputs)
            for lane in np.flatnonzero(mask):
                for result, value in zip(results, function(*(v[lane] for v in values))):
                    result[lane] = value
            return results

        return region

    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> Region:
        """See Backend: one call with the active lanes' rows."""

        def region(mask: Any, *values: Any) -> tuple[np.ndarray, ...]:
            lanes = np.flatnonzero(mask)
            results = tuple(np.zeros((len(mask), *t.shape), t.dtype) for t in outputs)
            if len(lanes):
                for result, value in zip(results, primitive.call(*(v[lanes] for v in values))):
                    result[lanes] = np.asarray(value)
            return results

        return region

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See Backend: nothing to do."""
        return function

    def sweep(self, steps: Sequence[BlockStep], state: State, halted: int, budget: Any) -> State:
        """See Backend: a host loop."""
        for _ in range(int(budget)):
            if int(state["pc"].min(initial=halted)) == halted:
                break
            for step in steps:
                pc = state["pc"]
                if (pc == step.index).any() and pc.min() >= step.group_start:
                    state = step.run(state)
        return state
