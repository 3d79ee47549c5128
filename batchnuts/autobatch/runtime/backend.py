"""What an executor needs of an array library. A new backend is one file that provides this Protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from batchnuts.autobatch.compiler.infer_types import Evaluator
from batchnuts.autobatch.compiler.ir import Primitive, TensorType

Array = Any
"""An array of the backend's library; [lanes, ...] unless said otherwise."""

State = dict[str, Array]
"""All arrays of a machine, by name."""

Region = Callable[..., tuple[Array, ...]]
"""(mask, *inputs) -> outputs, all over lanes. Rows of lanes outside the mask are unspecified in the outputs."""


@dataclass(frozen=True)
class BlockStep:
    """One block ready to run: on the lanes whose pc is `index`."""

    index: int
    group_start: int
    """Index of the first block of its group."""
    touches: tuple[str, ...]
    """The entries of the state that it may change."""
    run: Callable[[State], State]


@dataclass(frozen=True)
class SweepPlan:
    """One sweep: the steps in order, each if it is due when the sweep comes to it.

    A step is due if, in the view of the state, some lane is at its index and none is below its group's start.
    """

    steps: tuple[BlockStep, ...]
    halted: int
    """The pc of lanes that have halted; more than any step's index."""
    view: Callable[[State], Array]
    """int32 [lanes]: the pc of lanes that may move, `halted` for the others."""
    one_view: bool = False
    """Whether the view is taken once, at the start of a sweep, instead of anew before each step."""

    @property
    def touches(self) -> tuple[str, ...]:
        """The entries of the state that any step may change."""
        return tuple(sorted({name for step in self.steps for name in step.touches}))


class Backend(Evaluator, Protocol):
    """Arrays, masking, rows of stacks, vectorization and control flow of one array library."""

    name: str
    mode: str
    """How programs run: "eager", and where the library has them "graph" and "xla"."""

    def asarray(self, value: Any, dtype: str) -> Array:
        """A value of the host as an array."""

    def to_numpy(self, array: Array) -> np.ndarray:
        """An array on the host."""

    def full(self, shape: Sequence[int], value: Any, dtype: str) -> Array:
        """An array with the same value everywhere."""

    def cast(self, array: Array, dtype: str) -> Array:
        """The array in another dtype."""

    def reshape(self, array: Array, shape: Sequence[int]) -> Array:
        """The array's elements in another static shape."""

    def where(self, mask: Array, new: Array, old: Array) -> Array:
        """Per lane: the row of `new` where mask [lanes] holds, else of `old`."""

    def clip(self, values: Array, low: int, high: int) -> Array:
        """Values kept within [low, high]."""

    def count(self, mask: Array) -> Array:
        """How many lanes of the mask hold: an int64 scalar."""

    def add_at(self, values: Array, index: int, amount: Array) -> Array:
        """values [n] with `amount` added at a static index."""

    def take_rows(self, memory: Array, rows: Array) -> Array:
        """memory[rows] for memory [n, ...] and valid row numbers [lanes]."""

    def put_rows(self, memory: Array, rows: Array, values: Array) -> Array:
        """memory [n, ...] with values [lanes, ...] in rows [lanes], valid and all different."""

    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> Region:
        """A function of one lane's arrays as a Region."""

    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> Region:
        """A primitive already written over lanes as a Region."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of States and scalars as the mode runs it."""

    def sweep(self, plan: SweepPlan, state: State, budget: Array) -> tuple[State, Array]:
        """Sweep until every lane's pc is `plan.halted` or `budget` (int64) sweeps were made (inside `compile`).

        Gives the state, in which at most the entries `plan.touches` differ, and how many sweeps were made.
        """
