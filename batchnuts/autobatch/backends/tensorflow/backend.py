"""TensorFlow: regions are vectorized by `pfor`; programs run eagerly, as a graph, or compiled by XLA."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from batchnuts.autobatch.backends.abstract import (
    TRACED_LANES,
    StandIns,
    stand_in,
    trace_with_literals,
    type_of_value,
    without_lanes,
)
from batchnuts.autobatch.backends.backend import (
    MODES,
    Backend,
    BlockStep,
    CompiledMachine,
    Interpreted,
    LaneCounts,
    MachineFunction,
    RowFunction,
    State,
    SweepPlan,
    sweep_on_host,
)
from batchnuts.autobatch.backends.expression_work import work_of
from batchnuts.autobatch.backends.tensorflow.cached_programs import settings_of_process
from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
from batchnuts.autobatch.backends.tensorflow.machine import TracedMachine
from batchnuts.autobatch.backends.tensorflow.work_estimate import primitive_work
from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.ir.program import COPY, Primitive, TensorType
from batchnuts.autobatch.language.pytree import flatten, map_leaves, unflatten
from batchnuts.autobatch.passes.infer_types import AbstractResult
from batchnuts.autobatch.pfor.errors import warn_of_assertions
from batchnuts.autobatch.pfor.graphs import trace_of
from batchnuts.autobatch.pfor.loop import over_rows

VECTORIZERS: dict[str, Callable[..., Any]] = {
    "pfor": over_rows,
    "tensorflow": lambda function, rows: tf.vectorized_map(lambda row: function(*row), tuple(rows)),
}
"""Vectorizers of functions of one lane: our own, and TensorFlow's, for comparison."""


FEW = 1 << 15
"""Arrays of up to this many elements are copied from NumPy faster than an operation fills them: its call takes 30
microseconds, and in a graph it is three nodes."""


class TensorFlowBackend(Backend, LaneCounts):
    """The `Backend` of TensorFlow tensors.

    xla compiles the machine's whole loop; graph runs the same loop in TensorFlow's executor; eager drives it from
    Python with one traced function per region, for any number of rows. XLA computes inactive lanes and never raises;
    the other modes hand inactive lanes the inputs of an active lane, so an operation that would raise on what they have
    (integer division by zero, say) only ever sees values that an active lane has.
    """

    name = "tensorflow"

    def __init__(self, mode: str = "xla", style: str = "masking", vectorizer: str = "pfor") -> None:
        if mode not in MODES:
            raise OptionError(f"mode must be one of {', '.join(MODES)}; found {mode!r}")
        if style == "gather" and mode != "eager":
            raise ValueError(
                f"style='gather' computes as many rows as there are active lanes, but mode={mode!r} compiles for a "
                "fixed number of rows. Use mode='eager', or style='masking'."
            )
        if vectorizer not in VECTORIZERS:
            raise OptionError(f"vectorizer must be one of {', '.join(VECTORIZERS)}; found {vectorizer!r}")
        self.mode = mode
        self.style = style
        self.vectorizer = vectorizer

    # ---- type inference ---------------------------------------------------------------------------------------

    @override
    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """Trace the function once; the graph gives types, what is passed on unchanged, and what is used."""
        return trace_with_literals(self._trace, function, arguments)

    def _trace(self, function: Primitive, arguments: tuple[Any, ...], literals: StandIns) -> tuple[AbstractResult, ...]:
        lanes = (TRACED_LANES,) if function.batched else ()
        types = [leaf for t in arguments for leaf in flatten(t)[0]]
        places = [i for i, t in enumerate(types) if not (t.weak and not lanes)]

        def call(*tensors: Any) -> tuple[Any, ...]:
            by_index = dict(zip(places, tensors))
            leaves = iter([by_index[i] if i in by_index else stand_in(t, literals) for i, t in enumerate(types)])
            return function.call(*[map_leaves(lambda _: next(leaves), t) for t in arguments])

        trace = trace_of(call, [tf.TensorSpec(lanes + types[i].shape, types[i].dtype) for i in places])
        position = {id(tensor): i for i, tensor in zip(places, trace.inputs)}
        results = [flatten(value) for value in trace.result]
        computed = [leaf for flat, _ in results for leaf in flat if tf.is_tensor(leaf) and id(leaf) not in position]
        reached = _reached(trace.graph, computed)
        used = frozenset(position[id(tensor)] for tensor in trace.inputs if tensor.op in reached)
        used |= {i for i in range(len(types)) if i not in places}
        abstract = []
        for flat, tree in results:
            leaf_types = [_type(leaf) for leaf in flat]
            leaf_types = [without_lanes(t, *lanes) for t in leaf_types] if lanes else leaf_types
            sources = tuple(position.get(id(leaf)) for leaf in flat)
            abstract.append(AbstractResult(unflatten(tree, leaf_types), sources, used))
        return tuple(abstract)

    def _scope(self, name: str) -> Any:
        """Operations within have the name in theirs, which a profile of XLA's kernels shows."""
        return nullcontext() if self.mode == "eager" else tf.name_scope(name)

    # ---- arrays -----------------------------------------------------------------------------------------------

    @override
    def asarray(self, value: Any, dtype: str) -> tf.Tensor:
        return tf.convert_to_tensor(value, dtype)

    @override
    def to_numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    @override
    def full(self, shape: Sequence[int], value: Any, dtype: str) -> tf.Tensor:
        scalar = np.asarray(value, dtype)
        if math.prod(shape) <= FEW:
            return tf.constant(np.full(tuple(shape), scalar))
        return tf.fill(tuple(shape), tf.constant(scalar))

    @override
    def cast(self, array: Any, dtype: str) -> tf.Tensor:
        return tf.cast(array, dtype)

    @override
    def where(self, mask: Any, new: Any, old: Any) -> tf.Tensor:
        rank = max(len(new.shape), len(old.shape))
        with self._scope("mask"):
            mask = tf.reshape(mask, [mask.shape[0]] + [1] * (rank - 1)) if rank > 1 else mask
            return tf.where(mask, new, old)

    @override
    def count(self, mask: Any) -> tf.Tensor:
        with self._scope("rule"):
            return tf.math.count_nonzero(mask)

    @override
    def largest(self, values: Any, mask: Any) -> tf.Tensor:
        return tf.reduce_max(tf.where(mask, values, 0))

    @override
    def waiting(self, pc: Any, halted: int) -> tf.Tensor:
        with self._scope("rule"):
            indices = tf.range(halted + 1, dtype=tf.int32)
            return tf.math.count_nonzero(pc[:, None] == indices, 0)

    @override
    def take_rows(self, memory: Any, rows: Any) -> tf.Tensor:
        with self._scope("stack"):
            return tf.gather(memory, rows)

    @override
    def put_rows(self, memory: Any, rows: Any, values: Any) -> tf.Tensor:
        with self._scope("stack"):
            return tf.tensor_scatter_nd_update(memory, rows[:, None], values)

    @override
    def write_rows(self, buffers: Any, mask: Any, rows: Any, values: Any) -> tf.Tensor:
        # by a scatter, no select over whole buffers; lanes that do not write get an index outside the buffer, which XLA
        # ignores; elsewhere that is an error, so they write their old row
        count, size = buffers.shape[0], buffers.shape[1]
        flat = tf.reshape(buffers, (count * size, *buffers.shape[2:]))
        first = np.arange(count, dtype="int32") * size
        if self.mode == "xla":
            slots = tf.where(mask, first + tf.cast(rows, tf.int32), count * size)
        else:
            slots = first + tf.where(mask, tf.cast(rows, tf.int32), 0)
            values = self.where(mask, values, tf.gather(flat, slots))
        with self._scope("record"):
            return tf.reshape(self.put_rows(flat, slots, values), buffers.shape)

    @override
    def work(self, function: Primitive, inputs: tuple[TensorType, ...]) -> float | None:
        if self.mode != "xla":  # the cost of a dispatch is that of starting its TensorFlow ops
            return None
        if function is COPY:
            return 0.0
        return primitive_work(function, inputs) if function.body is None else work_of(function.body)

    @override
    def rows_to_compute(self, mask: Any) -> tf.Tensor | None:
        if self.mode == "xla":
            return None
        if self.style == "gather":
            return tf.cast(tf.where(mask)[:, 0], tf.int32)
        return tf.where(mask, tf.range(mask.shape[0], dtype=tf.int32), tf.argmax(mask, output_type=tf.int32))

    # ---- programs ---------------------------------------------------------------------------------------------

    @override
    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> RowFunction:
        # by our own `pfor`; in eager mode traced once, whatever the number of rows

        def one_lane(*values: Any) -> tuple[tf.Tensor, ...]:
            return tuple(_as_type(r, t) for r, t in zip(function(*values), outputs))

        def over_lanes(*values: Any) -> tuple[tf.Tensor, ...]:
            return tuple(VECTORIZERS[self.vectorizer](one_lane, values))

        if self.mode != "eager":
            return over_lanes
        rows = tuple(tf.TensorSpec((None, *t.shape), t.dtype) for t in inputs)
        return _traced(over_lanes, input_signature=rows)

    @override
    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> RowFunction:
        def over_rows(*values: Any) -> tuple[tf.Tensor, ...]:
            graph = tf.compat.v1.get_default_graph()
            earlier_ops = len(graph.get_operations())
            results = zip(primitive.call(*values), outputs)
            if self.mode == "xla":
                warn_of_assertions(graph.get_operations()[earlier_ops:])
            return tuple(tf.ensure_shape(_as_type(r, t), (values[0].shape[0], *t.shape)) for r, t in results)

        return over_rows

    @override
    def as_one_op(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # traced in eager mode; the other modes compile more than that at once
        return _traced(function) if self.mode == "eager" else function

    @override
    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.mode == "eager":
            return function
        return _traced(function, jit_compile=self.mode == "xla")

    @override
    def compile_machine(self, function: MachineFunction) -> CompiledMachine:
        if self.mode == "eager":
            return Interpreted(function)
        identity, lanes = function.identity, function.lanes
        beside_gpu = bool(tf.config.list_physical_devices("GPU"))  # there programs have no sessions
        if self.mode == "graph" or identity is None or PROCESS.programs is None or beside_gpu:
            return TracedMachine(function, self.compile, sessions=self.mode == "xla")

        def second_key(types: str) -> str | None:
            return identity.key(function.text(), types, self.vectorizer, settings_of_process(), lanes=lanes)

        return TracedMachine(function, self.compile, True, second_key, identity.is_unchanged)

    @override
    def sweep(self, plan: SweepPlan, state: State, budget: Any, leave_at: Any) -> tuple[State, Any]:
        # A host loop in eager mode, else one `tf.while_loop`.
        # Each block sits in a loop of its own of zero or one trip that carries only what the block changes: unlike a
        # conditional, that makes XLA copy neither stacks nor buffers. What no block changes is not a loop variable at
        # all.
        if self.mode == "eager":
            return sweep_on_host(self, plan, state, budget, leave_at)

        def goes_on(touched: State, sweeps_made: Any) -> Any:
            return (self.count(touched["pc"] < plan.halted) > leave_at) & (sweeps_made < budget)

        def one_sweep(touched: State, sweeps_made: Any) -> tuple[State, Any]:
            current = {**state, **touched}
            due_at = plan.dues(current, self)
            runs: dict[int, Any] = {}
            served: dict[int, Any] = {}
            for step in plan.steps:
                block = step.index
                due, waiting = due_at(step, current["pc"])
                runs[block] = runs.get(block, 0) + tf.cast(due, tf.int64)
                served[block] = served.get(block, 0) + tf.where(due, waiting, 0)
                current = _run_if_due(step, due, current)
            current["sweeps"] += 1
            for name, counts in (("executions", runs), ("active", served)):
                current[name] += tf.stack([counts[block] for block in range(plan.halted)])
            return {name: current[name] for name in touched}, sweeps_made + 1

        touched = {name: state[name] for name in plan.touches}
        touched, sweeps_made = tf.while_loop(goes_on, one_sweep, (touched, tf.zeros_like(budget)))
        return {**state, **touched}, sweeps_made


def _traced(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A `tf.function`, without TensorFlow's warning that it is traced too often.

    TensorFlow counts by the line of the source, and here one line makes the functions of all blocks.
    """
    traced: Callable[..., Any] = tf.function(function, autograph=False, **options)
    traced._omit_frequent_tracing_warning = True  # type: ignore[attr-defined]
    return traced


def _run_if_due(step: BlockStep, due: Any, state: State) -> State:
    """The state after the step, if it is due; a loop whose trip count is zero or one."""

    def once(_: Any, touched: State) -> tuple[Any, State]:
        after = step.run({**state, **touched})
        return tf.constant(False), {name: after[name] for name in step.touches}

    touched = {name: state[name] for name in step.touches}
    name = re.sub(r"[^\w.]", "_", step.label)  # the name in a profile of XLA's kernels
    _, touched = tf.while_loop(lambda due, _: due, once, (due, touched), name=name)
    return {**state, **touched}


def _type(leaf: Any) -> TensorType:
    if not tf.is_tensor(leaf):
        return type_of_value(leaf)
    if not leaf.shape.is_fully_defined():
        raise ValueError(f"shape {leaf.shape} is not static; every array of the language has a static shape")
    return TensorType(leaf.dtype.name, tuple(leaf.shape))


def _as_type(value: Any, type_: TensorType) -> tf.Tensor:
    return tf.cast(value, type_.dtype) if tf.is_tensor(value) else tf.constant(value, type_.dtype)


def _reached(graph: Any, tensors: Sequence[Any]) -> set[Any]:
    """The ops of the graph that the tensors depend on, or that have effects."""
    todo = [tensor.op for tensor in tensors if tf.is_symbolic_tensor(tensor) and tensor.graph is graph]
    todo += [op for op in graph.get_operations() if op.op_def.is_stateful]
    seen = set(todo)
    while todo:
        op = todo.pop()
        predecessors = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - seen
        seen |= predecessors
        todo.extend(predecessors)
    return seen
