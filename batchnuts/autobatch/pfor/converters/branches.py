"""Calls and conditionals.

    condition      in general                                              under XLA, where shapes are static
    same           one branch runs, as before                              the same
    varies         rows are split by branch, each branch runs for its      every branch runs for all rows; `where` picks
                   rows, results are put back in order

A row that does not take a branch contributes neither value nor gradient: in the masked form it computes with the inputs
of a row that does take it, as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.calls import ELEMENTWISE
from batchnuts.autobatch.pfor.converters.elementwise import aligned
from batchnuts.autobatch.pfor.converters.lists import unpacked
from batchnuts.autobatch.pfor.errors import Refused
from batchnuts.autobatch.pfor.flows import branches_of, outputs_vary
from batchnuts.autobatch.pfor.graphs import called
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Loop, Site, with_shape
from batchnuts.autobatch.pfor.traced_once import converted_once
from batchnuts.autobatch.pfor.values import (
    Deferred,
    Invariant,
    ListHandle,
    OptionalValue,
    Stacked,
    Tensor,
    Value,
    varies,
)


@converts("PartitionedCall StatefulPartitionedCall", always=True)
def call(site: Site) -> list[Value]:
    """The function's ops in its place, or a call for the rows where it works element by element, or is kept.

    A gradient taken later may have added outputs after the function's own.
    """
    elementwise = ELEMENTWISE.get(site.attr("f").name)
    if elementwise is not None and all(isinstance(value, (Invariant, Stacked, Deferred)) for value in site.inputs):
        inputs = tuple(value.rows() if isinstance(value, Deferred) else value for value in site.inputs)
        of_rows = Stacked if any(map(varies, inputs)) else Invariant
        return [of_rows(tensor) for tensor in elementwise(*aligned(replace(site, inputs=inputs)))]
    once = converted_once(site)
    if once is not None:
        return once
    return site.convert_graph(called(site.op, "f"), site.inputs, site.loop)[: len(site.op.outputs)]


@converts("If StatelessIf Case StatelessCase", always=True)
def conditional(site: Site) -> list[Value]:
    """One branch where all rows take the same; else the rows split by branch, or under XLA every branch for all."""
    chosen, *inputs = site.inputs
    branches = branches_of(site.op)
    if isinstance(chosen, Invariant):
        return _one_branch(site, chosen.tensor, branches, inputs)
    assert isinstance(chosen, Stacked)
    _refuse_unlike(branches)
    index = _branch_index(chosen.tensor, len(branches))
    if site.loop.static or site.loop.mask is not None or any(isinstance(value, ListHandle) for value in inputs):
        return _masked(site, index, branches, inputs)
    return _split(site, index, branches, inputs)


def _refuse_unlike(branches: list[Any]) -> None:
    """Raise Refused where branches that iterations take differently give tensors of different shapes."""
    for results in zip(*(graph.outputs for graph in branches), strict=True):
        shapes = [tensor.shape for tensor in results if tensor.dtype != tf.variant]
        if any(not first.is_compatible_with(second) for first in shapes for second in shapes):
            listed = " and ".join(dict.fromkeys(str(shape) for shape in shapes))
            raise Refused(
                f"its branches give shapes {listed}, and which of them is taken depends on the iteration, so rows "
                "would have different shapes. Reduce in the branches (tf.reduce_sum and the like), or pad there to one "
                "shape"
            )


def _branch_index(chosen: Tensor, branches: int) -> Tensor:
    """The branch's number, int32; out of range means the last branch, as Case has it. An If takes any number."""
    if chosen.dtype == tf.bool:
        return tf.cast(chosen, tf.int32)
    if branches == 2 and not chosen.dtype.is_integer:
        return tf.cast(chosen != 0, tf.int32)
    return tf.where((chosen < 0) | (chosen >= branches), branches - 1, tf.cast(chosen, tf.int32))


# ---- the same branch for all rows -------------------------------------------------------------------------------


def _one_branch(site: Site, chosen: Tensor, branches: list[Any], inputs: Sequence[Value]) -> list[Value]:
    flags = [varies(value) for value in inputs]
    vary = [any(column) for column in zip(*(outputs_vary(graph, flags) for graph in branches))]

    def branch(graph: Any) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            values = site.convert_part(graph, inputs, site.loop)
            return [*(to_tensor(site.loop, value, flag) for value, flag in zip(values, vary)), tf.constant(0)]

        return run

    results = _switch(chosen, [branch(graph) for graph in branches])[:-1]  # one with effects alone gives the 0 only
    return [from_tensor(tensor, flag, output) for tensor, flag, output in zip(results, vary, site.op.outputs)]


def _switch(chosen: Tensor, runs: list[Any]) -> Any:
    if len(runs) == 2 and chosen.dtype == tf.bool:
        return tf.cond(chosen, runs[1], runs[0])
    return tf.switch_case(tf.reshape(_branch_index(chosen, len(runs)), []), runs)


def to_tensor(loop: Loop, value: Value, vary: bool) -> Tensor:
    """The one tensor of a value, for a place that takes tensors; with rows if it may vary."""
    if isinstance(value, OptionalValue):
        return unpacked(loop, value, vary).tensor
    if isinstance(value, Invariant) and vary and value.tensor.dtype == tf.variant:
        raise Refused("one branch returns a list that differs per iteration, another one that does not")
    if isinstance(value, ListHandle):
        if value.lengths is not None:
            raise Refused("the length of a list depends on the iteration")
        return value.tensor
    if isinstance(value, Invariant) and vary:
        return loop.rows(value.tensor)
    return value.tensor


def from_tensor(tensor: Tensor, vary: bool, like: Tensor) -> Value:
    """The value of a tensor that `to_tensor` gave."""
    if not vary:
        return Invariant(tensor)
    if like.dtype == tf.variant:
        return ListHandle(tensor)
    if like.shape.rank is not None:
        tensor = with_shape(tensor, [None, *like.shape])
    return Stacked(tensor)


# ---- rows split by branch ---------------------------------------------------------------------------------------


def _split(site: Site, index: Tensor, branches: list[Any], inputs: Sequence[Value]) -> list[Value]:
    places, results = [], []
    for k, graph in enumerate(branches):
        taking = tf.cast(tf.where(index == k)[:, 0], tf.int32)
        loop = site.loop.subset(tf.size(taking))
        seen = [take_rows(_of_branch(value, k, len(branches)), taking) for value in inputs]
        values = _run_unless_empty(site, graph, seen, loop)
        places.append(taking)
        results.append(values)
    return [
        _put_back(site, places, [values[k] for values in results], output) for k, output in enumerate(site.op.outputs)
    ]


def _run_unless_empty(site: Site, graph: Any, inputs: Sequence[Value], loop: Loop) -> list[Value]:
    """A branch for its rows. If there are none it is not run, provided that the shapes of its results are known."""
    plain = all(
        tensor.dtype != tf.variant and tensor.shape.is_fully_defined() for tensor in (*graph.outputs, *graph.inputs)
        if tensor.dtype != tf.resource
    )  # fmt: skip
    if not plain:
        return site.convert_part(graph, inputs, loop)

    def run() -> list[Tensor]:
        values = site.convert_part(graph, inputs, loop)
        return [*(to_tensor(loop, value, True) for value in values), tf.constant(0)]

    def empty() -> list[Tensor]:
        return [*(tf.zeros([0, *output.shape], output.dtype) for output in graph.outputs), tf.constant(0)]

    results = tf.cond(loop.count > 0, run, empty)[:-1]
    return [Stacked(with_shape(tensor, [None, *output.shape])) for tensor, output in zip(results, graph.outputs)]


def take_rows(value: Value, rows: Tensor) -> Value:
    """Some of the rows of a value."""
    if isinstance(value, Stacked):
        return Stacked(tf.gather(value.tensor, rows))
    if isinstance(value, OptionalValue):
        return value.map(lambda inner: take_rows(inner, rows))
    if isinstance(value, ListHandle):
        raise Refused("a list cannot be split by branch")
    return value


def _put_back(site: Site, places: list[Tensor], values: list[Value], output: Tensor) -> Value:
    if output.dtype == tf.variant:
        return _put_back_optional(site, places, values)
    parts = [
        value.tensor if isinstance(value, Stacked) else _repeated(value.tensor, rows)  # type: ignore[union-attr]
        for value, rows in zip(values, places)
    ]
    joined = tf.dynamic_stitch(places, parts)
    return Stacked(
        with_shape(joined, (site.loop.static_count, *output.shape)) if output.shape.rank is not None else joined
    )


def _repeated(tensor: Tensor, rows: Tensor) -> Tensor:
    return tf.broadcast_to(tensor, tf.concat([tf.shape(rows), tf.shape(tensor)], 0))


def _put_back_optional(site: Site, places: list[Tensor], values: list[Value]) -> Value:
    """What branches leave for their gradients. Rows of other branches get zeros, which are never used."""
    contents: list[tuple[Value, ...] | None] = []
    for value, rows in zip(values, places):
        inner = _single(value)
        contents.append(None if inner is None else tuple(_spread(site, element, rows) for element in inner))
    return OptionalValue(tuple(contents))


def _spread(site: Site, value: Value, rows: Tensor) -> Value:
    """A value of some rows put in their places among all."""
    if isinstance(value, Invariant):
        return value
    if not isinstance(value, Stacked):
        raise Refused("a branch that only some iterations take stores a list for its gradient")
    shape = tf.concat([site.loop.count[None], tf.shape(value.tensor)[1:]], 0)
    spread = tf.scatter_nd(rows[:, None], value.tensor, shape)
    return Stacked(with_shape(spread, (site.loop.static_count, *value.tensor.shape[1:])))


def _single(value: Value) -> tuple[Value, ...] | None:
    """The values that an Optional of one branch holds."""
    if not isinstance(value, OptionalValue) or len(value.contents) != 1:
        raise Refused("a list that one branch returns cannot be joined with what the other branches return")
    return value.contents[0]


def _of_branch(value: Value, k: int, branches: int) -> Value:
    """What branch k sees of an input: of an Optional, what the branch of that number left."""
    if isinstance(value, OptionalValue) and len(value.contents) == branches:
        return OptionalValue((value.contents[k],))
    return value


# ---- every branch for all rows ----------------------------------------------------------------------------------


def _masked(site: Site, index: Tensor, branches: list[Any], inputs: Sequence[Value]) -> list[Value]:
    results = []
    for k, graph in enumerate(branches):
        taking = index == k
        loop = site.loop.masked(taking)
        assert loop.mask is not None
        seen = [safe(_of_branch(value, k, len(branches)), loop.mask) for value in inputs]
        results.append(site.convert_part(graph, seen, loop))
    return [_chosen(site, index, [values[k] for values in results]) for k in range(len(site.op.outputs))]


def safe(value: Value, mask: Tensor) -> Value:
    """The value for the rows of the mask; others have what the mask's first row has, as a constant."""
    if isinstance(value, OptionalValue):
        return value.map(lambda inner: safe(inner, mask))
    if isinstance(value, Invariant) and value.tensor.dtype.is_floating:
        return Invariant(tf.where(tf.reduce_any(mask), value.tensor, tf.stop_gradient(value.tensor)))
    if not isinstance(value, Stacked) or value.tensor.dtype == tf.variant:
        return value
    tensor = value.tensor
    first = tf.argmax(mask, output_type=tf.int32)
    spare = tf.stop_gradient(tf.gather(tensor, first[None]))
    return Stacked(tf.where(beside(mask, tensor), tensor, spare))


def beside(mask: Tensor, tensor: Tensor) -> Tensor:
    """A mask of rows, with unit axes, to choose among the rows of a tensor."""
    return tf.reshape(mask, [-1, *[1] * (tensor.shape.rank - 1)])


def _chosen(site: Site, index: Tensor, values: list[Value]) -> Value:
    if any(isinstance(value, OptionalValue) for value in values):
        return OptionalValue(tuple(_single(value) for value in values))
    if any(isinstance(value, ListHandle) or _is_variant(value) for value in values):
        first = values[0]
        if all(isinstance(value, (ListHandle, Invariant)) and value.tensor is first.tensor for value in values):  # type: ignore[union-attr]
            return first
        raise Refused("whether a list is changed depends on the iteration")
    stacked = [to_tensor(site.loop, value, True) for value in values]
    result = stacked[-1]
    for k in range(len(stacked) - 2, -1, -1):
        result = tf.where(beside(index == k, result), stacked[k], result)
    return Stacked(result)


def _is_variant(value: Value) -> bool:
    return not isinstance(value, OptionalValue) and value.tensor.dtype == tf.variant
