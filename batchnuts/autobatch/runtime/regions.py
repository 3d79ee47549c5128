"""Blocks prepared to run over lanes: consecutive primitives become Regions, everything else stays an op.

The batching executors share this. A run of consecutive one-lane primitives is vectorized as one region, so the backend
sees (and fuses) all of it; a primitive written over lanes is a region of its own; a run of nothing but copies moves
arrays. The backend's style says for which lanes a region computes: see `backend.STYLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batchnuts.autobatch.backends.backend import Array, Backend, RowFunction
from batchnuts.autobatch.ir.dataflow import Variables, live_after_ops
from batchnuts.autobatch.ir.evaluate import function_of
from batchnuts.autobatch.ir.program import COPY, Block, Op, PrimOp, TensorType, terminator_reads
from batchnuts.autobatch.language.shared import bound
from batchnuts.autobatch.runtime.lane_storage import LaneValues
from batchnuts.autobatch.runtime.results import in_type

Region = Callable[..., tuple[Array, ...]]
"""(mask, *inputs, *shared arrays) -> outputs, over lanes but for the shared arrays. Rows of lanes outside the mask are
unspecified in the outputs."""


@dataclass(frozen=True)
class Compute:
    """vars_out = region(vars_in, shared)."""

    vars_in: tuple[str, ...]
    vars_out: tuple[str, ...]
    region: Region
    shared: tuple[str, ...] = ()
    """Names of shared arrays."""

    def __call__(self, mask: Array, values: LaneValues) -> dict[str, Array]:
        """The outputs by name, given all variables by name."""
        inputs = [*(values[v] for v in self.vars_in), *map(values.shared, self.shared)]
        return dict(zip(self.vars_out, self.region(mask, *inputs)))


Step = Compute | Op


def plan_block(
    block: Block, live_at_end: Variables, types: Mapping[str, TensorType], backend: Backend
) -> tuple[Step, ...]:
    """The steps of a block in order; `live_at_end` are the variables that must have their values afterwards."""
    return plan_ops(block.ops, live_at_end | set(terminator_reads(block.terminator)), types, backend)


def plan_ops(
    ops: tuple[Op, ...], needed: Variables, types: Mapping[str, TensorType], backend: Backend
) -> tuple[Step, ...]:
    """The steps of a sequence of ops; `needed` are the variables that must have their values afterwards."""
    live_after = live_after_ops(ops, needed)
    steps: list[Step] = []
    run: list[PrimOp] = []

    def close(needed: Variables) -> None:
        if run:
            steps.append(_compute(tuple(run), needed, types, backend))
            run.clear()

    for op, after in zip(ops, live_after):
        if isinstance(op, PrimOp) and not op.function.batched:
            run.append(op)
            needed = after
            continue
        close(needed)
        if isinstance(op, PrimOp):
            outputs = tuple(types[v] for v in op.vars_out)
            shared = tuple(array.name for array in op.function.shared)
            region = _with_shared(backend.over_lanes(op.function, outputs), outputs, shared, backend)
            steps.append(Compute(op.vars_in, op.vars_out, region, shared))
        else:
            steps.append(op)
    close(needed)
    return tuple(steps)


def _compute(run: tuple[PrimOp, ...], needed: Variables, types: Mapping[str, TensorType], backend: Backend) -> Compute:
    written: set[str] = set()
    vars_in: dict[str, None] = {}
    for op in run:
        vars_in.update((v, None) for v in op.vars_in if v not in written)
        written |= set(op.vars_out)
    inputs = tuple(vars_in)
    outputs = tuple(sorted(written & needed))
    function = one_lane(run, inputs, outputs, types)
    same_types = all(types[o] == types[i] for op in run if op.function is COPY for o, i in zip(op.vars_out, op.vars_in))
    if all(op.function is COPY for op in run) and same_types:
        return Compute(inputs, outputs, _copies(run, inputs, outputs))
    in_types, out_types = tuple(types[v] for v in inputs), tuple(types[v] for v in outputs)
    if not inputs:  # constants: the same on every lane; the mask gives the number of lanes
        of_mask = backend.vectorize(lambda _: function(), (TensorType("bool"),), out_types)
        return Compute((), outputs, lambda mask: of_mask(mask))
    region = _region(backend.vectorize(function, in_types, out_types), out_types, backend)
    return Compute(inputs, outputs, backend.as_one_op(region) if backend.style == "masking" else region)


def _copies(run: tuple[PrimOp, ...], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Region:
    """A run of nothing but copies: whole arrays change their names."""
    origin = {v: i for i, v in enumerate(inputs)}
    for op in run:
        origin.update({out: origin[v] for out, v in zip(op.vars_out, op.vars_in)})
    return lambda mask, *values: tuple(values[origin[v]] for v in outputs)


def _with_shared(
    function: RowFunction, outputs: tuple[TensorType, ...], shared: tuple[str, ...], backend: Backend
) -> Region:
    """A function of rows, which reads the shared arrays as they are bound, as a region that is given them."""
    if not shared:
        return _region(function, outputs, backend)

    def region(mask: Array, *values: Array) -> tuple[Array, ...]:
        rows, arrays = values[: -len(shared)], values[-len(shared) :]
        with bound(shared, arrays):
            return _region(function, outputs, backend)(mask, *rows)

    return region


def _region(function: RowFunction, outputs: tuple[TensorType, ...], backend: Backend) -> Region:
    """A function of rows, run for the active lanes in the backend's style."""

    def region(mask: Array, *values: Array) -> tuple[Array, ...]:
        rows = backend.rows_to_compute(mask)
        if rows is None:
            return function(*values)
        lanes = mask.shape[0]
        if rows.shape[0] == 0:  # every lane of the block has failed an assertion before this
            return tuple(backend.full((lanes, *t.shape), 0, t.dtype) for t in outputs)
        results = function(*(backend.take_rows(v, rows) for v in values))
        if backend.style == "masking":
            return results
        return tuple(
            backend.put_rows(backend.full((lanes, *t.shape), 0, t.dtype), rows, r) for r, t in zip(results, outputs)
        )

    return region


def one_lane(
    run: tuple[PrimOp, ...], inputs: tuple[str, ...], outputs: tuple[str, ...], types: Mapping[str, TensorType]
) -> Callable[..., tuple[Any, ...]]:
    """A run of primitives as a function of one lane's arrays, from the variables `inputs` to `outputs`."""
    functions = [function_of(op.function) for op in run]

    def function(*arguments: Any) -> tuple[Any, ...]:
        values = dict(zip(inputs, arguments))
        for op, call in zip(run, functions):
            results = call(*(values[v] for v in op.vars_in))
            values.update((v, in_type(r, types[v], op.function, op.source)) for v, r in zip(op.vars_out, results))
        return tuple(values[v] for v in outputs)

    return function
