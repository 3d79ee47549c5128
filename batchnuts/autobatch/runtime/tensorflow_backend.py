"""TensorFlow: regions are vectorized by `tf.vectorized_map`; programs run eagerly, as a graph, or compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.compiler.infer_types import AbstractResult
from batchnuts.autobatch.compiler.ir import Primitive, TensorType
from batchnuts.autobatch.compiler.tree import flatten, map_leaves, unflatten
from batchnuts.autobatch.runtime.abstract import (
    TRACED_LANES,
    USUAL,
    ZEROS,
    StandIns,
    stand_in,
    type_of_value,
    without_lanes,
)
from batchnuts.autobatch.runtime.backend import BlockStep, Region, State, SweepPlan

MODES = ("xla", "graph", "eager")


class TensorFlowBackend:
    """The `Backend` of TensorFlow tensors.

    xla compiles the machine's whole loop; graph runs the same loop in TensorFlow's executor; eager drives it from
    Python with one traced function per region. XLA computes junk lanes and never raises; the other modes hand junk
    lanes the inputs of an active lane, so an operation that would raise on junk (integer division by zero, say) only
    ever sees values that an active lane has.
    """

    name = "tensorflow"

    def __init__(self, mode: str = "xla") -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; found {mode!r}")
        self.mode = mode

    # ---- type inference ---------------------------------------------------------------------------------------

    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """Trace the function once; the graph tells types, what is passed on unchanged, and what is used."""
        try:
            return self._trace(function, arguments, USUAL)
        except Exception:
            if not any(leaf.weak for t in arguments for leaf in flatten(t)[0]):
                raise
            try:  # a literal may be an index, and zero is one where five is not
                return self._trace(function, arguments, ZEROS)
            except Exception:  # the first failure is the one to show
                pass
            raise

    def _trace(self, function: Primitive, arguments: tuple[Any, ...], literals: StandIns) -> tuple[AbstractResult, ...]:
        lanes = (TRACED_LANES,) if function.batched else ()
        types = [leaf for t in arguments for leaf in flatten(t)[0]]
        traced = [i for i, t in enumerate(types) if not (t.weak and not lanes)]
        found: dict[str, Any] = {}

        def trace(*tensors: Any) -> list[Any]:
            by_index = dict(zip(traced, tensors))
            leaves = iter([by_index[i] if i in by_index else stand_in(t, literals) for i, t in enumerate(types)])
            values = [map_leaves(lambda _: next(leaves), t) for t in arguments]
            results = [flatten(value) for value in function.call(*values)]
            position = {id(tensor): i for i, tensor in by_index.items()}
            found["results"] = [
                ([(_type(leaf), position.get(id(leaf))) for leaf in flat], tree) for flat, tree in results
            ]
            computed = [leaf for flat, _ in results for leaf in flat if id(leaf) not in position]
            return [tf.identity(leaf) for leaf in computed if tf.is_tensor(leaf)]

        specs = [tf.TensorSpec(lanes + types[i].shape, types[i].dtype) for i in traced]
        graph = tf.function(trace, autograph=False).get_concrete_function(*specs).graph
        reached = _placeholders_used(graph)
        used = frozenset(i for k, i in enumerate(traced) if graph.inputs[k].name in reached)
        used |= {i for i in range(len(types)) if i not in traced}
        abstract = []
        for flat, tree in found["results"]:
            leaf_types = [without_lanes(t, *lanes) if lanes else t for t, _ in flat]
            sources = tuple(source for _, source in flat)
            abstract.append(AbstractResult(unflatten(tree, leaf_types), sources, used))
        return tuple(abstract)

    # ---- arrays -----------------------------------------------------------------------------------------------

    def asarray(self, value: Any, dtype: str) -> tf.Tensor:
        """See Backend."""
        return tf.convert_to_tensor(value, dtype)

    def to_numpy(self, array: Any) -> np.ndarray:
        """See Backend."""
        return np.asarray(array)

    def full(self, shape: Sequence[int], value: Any, dtype: str) -> tf.Tensor:
        """See Backend."""
        return tf.fill(tuple(shape), tf.constant(np.asarray(value, dtype)))

    def cast(self, array: Any, dtype: str) -> tf.Tensor:
        """See Backend."""
        return tf.cast(array, dtype)

    def reshape(self, array: Any, shape: Sequence[int]) -> tf.Tensor:
        """See Backend."""
        return tf.reshape(array, tuple(shape))

    def where(self, mask: Any, new: Any, old: Any) -> tf.Tensor:
        """See Backend."""
        rank = max(len(new.shape), len(old.shape))
        return tf.where(tf.reshape(mask, [mask.shape[0]] + [1] * (rank - 1)), new, old)

    def clip(self, values: Any, low: int, high: int) -> tf.Tensor:
        """See Backend."""
        return tf.clip_by_value(values, tf.cast(low, values.dtype), tf.cast(high, values.dtype))

    def count(self, mask: Any) -> tf.Tensor:
        """See Backend."""
        return tf.reduce_sum(tf.cast(mask, tf.int64))

    def add_at(self, values: Any, index: int, amount: Any) -> tf.Tensor:
        """See Backend."""
        return values + tf.one_hot(index, values.shape[0], dtype=values.dtype) * tf.cast(amount, values.dtype)

    def take_rows(self, memory: Any, rows: Any) -> tf.Tensor:
        """See Backend."""
        return tf.gather(memory, rows)

    def put_rows(self, memory: Any, rows: Any, values: Any) -> tf.Tensor:
        """See Backend."""
        return tf.tensor_scatter_nd_update(memory, rows[:, None], values)

    # ---- programs ---------------------------------------------------------------------------------------------

    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> Region:
        """See Backend: `tf.vectorized_map` of the region, traced once per lane count."""

        def one_lane(values: tuple[Any, ...]) -> tuple[tf.Tensor, ...]:
            return tuple(_as_type(r, t) for r, t in zip(function(*values), outputs))

        def region(mask: Any, *values: Any) -> tuple[tf.Tensor, ...]:
            if not values:  # constants: the same on every lane
                lanes = mask.shape[0]
                return tuple(tf.broadcast_to(r, (lanes, *t.shape)) for r, t in zip(one_lane(()), outputs))
            return tuple(tf.vectorized_map(one_lane, self._without_junk(mask, values)))

        return tf.function(region, autograph=False) if self.mode == "eager" else region

    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> Region:
        """See Backend."""

        def region(mask: Any, *values: Any) -> tuple[tf.Tensor, ...]:
            results = primitive.call(*self._without_junk(mask, values))
            lanes = mask.shape[0]
            return tuple(tf.ensure_shape(_as_type(r, t), (lanes, *t.shape)) for r, t in zip(results, outputs))

        return region

    def _without_junk(self, mask: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.mode == "xla":
            return values
        lanes = tf.range(mask.shape[0], dtype=tf.int32)
        rows = tf.where(mask, lanes, tf.argmax(mask, output_type=tf.int32))
        return tuple(tf.gather(v, rows) for v in values)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See Backend."""
        if self.mode == "eager":
            return function
        compiled: Callable[..., Any] = tf.function(function, autograph=False, jit_compile=self.mode == "xla")
        return compiled

    def sweep(self, plan: SweepPlan, state: State, budget: Any) -> tuple[State, Any]:
        """See Backend: a host loop in eager mode, else one `tf.while_loop`.

        Each block sits in a loop of its own of zero or one trip that carries only what the block changes: unlike a
        conditional, that makes XLA copy neither stacks nor buffers. What no block changes is no loop variable at all.
        """
        if self.mode == "eager":
            return _sweep_on_host(plan, state, int(budget))

        def some_lane_runs(touched: State, taken: Any) -> Any:
            return (tf.reduce_min(touched["pc"]) < plan.halted) & (taken < budget)

        def one_sweep(touched: State, taken: Any) -> tuple[State, Any]:
            now = {**state, **touched}
            at_start = plan.view(now) if plan.one_view else None
            for step in plan.steps:
                now = _run_if_due(step, plan.view(now) if at_start is None else at_start, now)
            return {name: now[name] for name in touched}, taken + 1

        touched = {name: state[name] for name in plan.touches}
        touched, taken = tf.while_loop(some_lane_runs, one_sweep, (touched, tf.zeros_like(budget)))
        return {**state, **touched}, taken


def _sweep_on_host(plan: SweepPlan, state: State, budget: int) -> tuple[State, tf.Tensor]:
    taken = 0
    while taken < budget and int(tf.reduce_min(state["pc"])) < plan.halted:
        at_start = plan.view(state).numpy() if plan.one_view else None
        for step in plan.steps:
            view = plan.view(state).numpy() if at_start is None else at_start
            if (view == step.index).any() and view.min() >= step.group_start:
                state = step.run(state)
        taken += 1
    return state, tf.constant(taken, tf.int64)


def _run_if_due(step: BlockStep, view: Any, state: State) -> State:
    """The state after the step, if it is due; a loop whose trip count is zero or one."""
    due = tf.reduce_any(view == step.index) & (tf.reduce_min(view) >= step.group_start)

    def once(_: Any, touched: State) -> tuple[Any, State]:
        after = step.run({**state, **touched})
        return tf.constant(False), {name: after[name] for name in step.touches}

    touched = {name: state[name] for name in step.touches}
    _, touched = tf.while_loop(lambda due, _: due, once, (due, touched))
    return {**state, **touched}


def _type(leaf: Any) -> TensorType:
    if not tf.is_tensor(leaf):
        return type_of_value(leaf)
    if not leaf.shape.is_fully_defined():
        raise ValueError(f"shape {leaf.shape} is not static; every array of the language has a static shape")
    return TensorType(leaf.dtype.name, tuple(leaf.shape))


def _as_type(value: Any, type_: TensorType) -> tf.Tensor:
    return tf.cast(value, type_.dtype) if tf.is_tensor(value) else tf.constant(value, type_.dtype)


def _placeholders_used(graph: Any) -> set[str]:
    """Names of the graph's inputs that its outputs depend on."""
    inputs = {tensor.name for tensor in graph.inputs}
    todo = [tensor.op for tensor in graph.outputs]
    used = {tensor.name for tensor in graph.outputs} & inputs
    seen = set(todo)
    while todo:
        op = todo.pop()
        for tensor in op.inputs:
            if tensor.name in inputs:
                used.add(tensor.name)
            elif tensor.op not in seen:
                seen.add(tensor.op)
                todo.append(tensor.op)
        for control in op.control_inputs:
            if control not in seen:
                seen.add(control)
                todo.append(control)
    return used
