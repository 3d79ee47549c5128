"""`pfor`: the loop itself. Its body is traced once, for one iteration, and the graph converted for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from batchnuts.autobatch.pfor.errors import PforError, caller, of_tracing, refusal, warn_of_assertions
from batchnuts.autobatch.pfor.graphs import compiled_by_xla, not_by_autograph, traced, with_called
from batchnuts.autobatch.pfor.site import Loop, dense
from batchnuts.autobatch.pfor.values import Invariant, Padded, Stacked, Tensor, Value
from batchnuts.autobatch.pfor.walk import convert_graph, has_effects

_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""A body is being traced: what a pfor in it emits is converted again, so its shapes may not depend on data."""


@not_by_autograph
def pfor(
    body: Callable[[Tensor], Any],
    iters: int | Tensor,
    *,
    fallback: bool = True,
    sequential: bool = False,
    masked: bool | None = None,
) -> Any:
    """The results of `body(0)`, ..., `body(iters - 1)`, stacked: all iterations at once, in lockstep.

    `body` takes a scalar int32 tensor and returns tensors in any nest of tuples, lists, dicts and the like; each
    output of shape s and some dtype becomes [iters, *s] of that dtype. `iters` may be known only when it runs, but not
    under XLA. After Agarwal and Ganichev, "Auto-Vectorizing TensorFlow Graphs" (2019).

    An op without a converter runs once per iteration (FallbackWarning; with fallback=False an error). `sequential`
    runs the iterations one after another if they have effects that cannot be joined. `masked` chooses how branches and
    loops are run that iterations take differently: True computes them for all and picks, which needs no shapes that
    depend on data; False for those iterations that take them; None: masked under XLA, and in the body of another
    pfor, else not.

    Numerics: each output is computed by the same ops in the same dtypes as one iteration would, but sums and products
    may be taken in another order. Integers and random bits are equal; floats agree to within a few ulps of the largest
    term of a sum.

    Raises PforError, a CompileError, at the user's line: what has effects, depends in shape on the iteration, or has
    unknown rank; iteration counts below 1, or too large for memory.
    """
    _check_count(iters)
    if tf.executing_eagerly():

        def run() -> Any:
            return pfor(body, _static_count(iters), fallback=fallback, sequential=sequential, masked=masked)

        return traced(run, [])()
    count = _count(iters)
    index = Stacked(tf.range(count), counts=True)
    return convert(body, [tf.TensorSpec((), tf.int32, "iteration")], [index], count, fallback, sequential, masked)


def convert(
    body: Callable[..., Any],
    row_specs: Sequence[tf.TensorSpec],
    rows: Sequence[Stacked],
    count: Tensor,
    fallback: bool = True,
    sequential: bool = False,
    masked: bool | None = None,
) -> Any:
    """A function of rows for all of them: traced once on `row_specs`, then converted. In a graph, not eagerly."""
    nested = _inside.get()
    token = _inside.set(True)
    try:  # default arguments of the body must not become inputs of the graph
        concrete = traced(lambda *row: _tensors(body(*row)), row_specs)
    except PforError:
        raise
    except Exception as error:
        explained = of_tracing(error)
        if explained is None:
            raise
        raise explained from None
    finally:
        _inside.reset(token)
    _refuse_composites(concrete)
    graph = concrete.graph
    if compiled_by_xla():
        warn_of_assertions(graph.get_operations())
    if sequential and any(has_effects(op) for op in graph.get_operations()):
        return _one_after_another(concrete, rows)
    loop = Loop(count, compiled_by_xla() or nested if masked is None else masked, fallback)
    _check_memory(graph, loop)
    captured = {internal.ref(): Invariant(external) for external, internal in graph.captures}
    unread = iter(rows)
    inputs = [captured[tensor.ref()] if tensor.ref() in captured else next(unread) for tensor in graph.inputs]
    try:
        outputs = convert_graph(graph, inputs, loop)
    except PforError as error:  # the ops of a loaded model have no line
        if error.source is not None:
            raise
        raise PforError(error.message, caller()) from None
    results = [_stacked(value, tensor, loop) for value, tensor in zip(outputs, graph.outputs, strict=True)]
    return _structured(concrete, results)


@not_by_autograph
def over_rows(
    function: Callable[..., Any], rows: Sequence[Tensor], *, fallback: bool = True, masked: bool | None = None
) -> Any:
    """`function` of one row of each of these tensors [n, ...], for all rows at once; n may be 0. See `pfor`."""
    if tf.executing_eagerly():

        def run(*rows: Tensor) -> Any:
            return over_rows(function, rows, fallback=fallback, masked=masked)

        return traced(run, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in rows])(*rows)
    sizes = [tensor.shape[0] for tensor in rows if tensor.shape[0] is not None]
    count = tf.constant(sizes[0]) if sizes else tf.shape(rows[0])[0]
    specs = [tf.TensorSpec(tensor.shape[1:], tensor.dtype) for tensor in rows]
    return convert(function, specs, [Stacked(tensor) for tensor in rows], count, fallback, masked=masked)


def _static_count(iters: Any) -> int | None:
    value = tf.get_static_value(iters) if tf.is_tensor(iters) else iters
    return None if value is None else int(value)


def _check_count(iters: Any) -> None:
    """Raise PforError for an invalid count, as far as it is known."""
    if not tf.is_tensor(iters) and (isinstance(iters, bool) or not isinstance(iters, (int, np.integer))):
        raise PforError(f"iters must be an integer; found {iters!r}", caller())
    if tf.is_tensor(iters) and (not iters.dtype.is_integer or iters.shape.rank not in (0, None)):
        raise PforError(f"iters must be a scalar integer; found {iters.dtype.name}{list(iters.shape)}", caller())
    count = _static_count(iters)
    if count is not None and not 1 <= count < 2**31:
        raise PforError(f"iters must be from 1 to {2**31 - 1}; found {count}", caller())


def _count(iters: Any) -> Tensor:
    """Scalar int32; checked when it runs where it is not known before."""
    static_count = _static_count(iters)
    if static_count is not None:
        return tf.constant(static_count, tf.int32)
    count = tf.cast(iters, tf.int32)
    with tf.control_dependencies(
        [tf.debugging.assert_positive(count, f"{caller()}\niters of pfor must be at least 1")]
    ):
        return tf.identity(count)


def _stacked(value: Value, output: Tensor, loop: Loop) -> Tensor:
    if isinstance(value, Stacked):
        return value.tensor
    if isinstance(value, Padded):
        op = output.op
        while op.type == "Identity":  # of the tracing, which has no line
            op = op.inputs[0].op
        raise refusal(
            op,
            f"the body returns {output.name!r}, whose length depends on the iteration, so it cannot be stacked. Reduce "
            "it, or pad to one shape: tf.where(mask, x, 0) in place of tf.boolean_mask(x, mask)",
        )
    if isinstance(value, Invariant) and value.tensor.dtype not in (tf.variant, tf.resource):
        return loop.rows(value.tensor)
    raise PforError("an output of the body is a list or a variable, which cannot be stacked", caller())


def _tensors(result: Any) -> Any:
    """What the body returned, with tensors in place of IndexedSlices."""
    for leaf in tf.nest.flatten(result):
        if isinstance(leaf, tf.Operation):
            raise PforError(
                f"an output of the body is the op {leaf.type}, which has no result. Return tensors, or None; with "
                "pfor(..., sequential=True) such an op runs without being returned",
                caller(),
            )
    try:
        return tf.nest.map_structure(dense, result)
    except ValueError as error:
        raise PforError(f"an output of the body cannot be stacked: {error}", caller()) from None


def _refuse_composites(concrete: Any) -> None:
    """Raise for outputs that are composite tensors."""
    for leaf in tf.nest.flatten(concrete.structured_outputs):
        if not isinstance(leaf, (tf.Tensor, tf.TensorSpec)) and (isinstance(leaf, tf.TypeSpec) or tf.is_tensor(leaf)):
            raise PforError(
                f"an output of the body is a {_composite(leaf)}, whose rows cannot be stacked. Return tensors"
                + _AS_TENSORS.get(_composite(leaf), ""),
                caller(),
            )


def refuse_composite(argument: str, value: Any) -> None:
    """Raise if this argument is a composite tensor."""
    if isinstance(value, tf.TypeSpec) or (
        tf.is_tensor(value) and not isinstance(value, (tf.Tensor, tf.Variable)) and _composite(value) in _AS_TENSORS
    ):
        lengths = "; give x.row_lengths() beside it, and take row[:length] in the body"
        advice = _AS_TENSORS.get(_composite(value), "") + (lengths if isinstance(value, tf.RaggedTensor) else "")
        raise PforError(f"{argument} must be tensors; found a {_composite(value)}{advice}", caller())


def _composite(leaf: Any) -> str:
    return type(leaf).__name__.removesuffix("Spec")


_AS_TENSORS = {
    "RaggedTensor": ": x.to_tensor() pads its rows to one length",
    "SparseTensor": ": tf.sparse.to_dense makes one",
    "IndexedSlices": ": tf.convert_to_tensor makes one",
}
"""How to make tensors of composite ones."""


def _structured(concrete: Any, results: list[Tensor]) -> Any:
    """The results in the nest that the body returned; what it returned as None stays so."""
    rest = iter(results)
    outputs = concrete.structured_outputs

    def fill(leaf: Any) -> Any:
        return next(rest) if tf.is_tensor(leaf) or isinstance(leaf, tf.TensorSpec) else leaf

    return tf.nest.map_structure(fill, outputs)


def _one_after_another(concrete: Any, rows: Sequence[Stacked]) -> Any:
    """The sequential loop."""
    signature = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in concrete.outputs)

    def one_row(row: Any) -> Any:
        return tuple(tensor for tensor in tf.nest.flatten(concrete(*row)) if tensor is not None)

    tensors = tuple(r.tensor for r in rows)
    results = tf.map_fn(one_row, tensors, fn_output_signature=signature, parallel_iterations=1)
    return _structured(concrete, list(results))


def _check_memory(graph: Any, loop: Loop) -> None:
    """Raise where one tensor of all rows would be larger than this machine's memory."""
    if loop.static_count is None:
        return
    memory = psutil.virtual_memory().total
    for op in with_called(graph.get_operations()):
        for tensor in op.outputs:
            if tensor.dtype in (tf.variant, tf.resource, tf.string) or not tensor.shape.is_fully_defined():
                continue
            size = loop.static_count * int(np.prod(tuple(tensor.shape), dtype=object)) * tensor.dtype.size
            if size > memory and op.type not in ("Const", "Placeholder"):
                raise PforError(
                    f"{loop.static_count:,} iterations of {tensor.name!r} ({op.type}, "
                    f"{tensor.dtype.name}{list(tensor.shape)}) are {size:,} bytes, more than the {memory:,} of this "
                    "machine. Loop over chunks of fewer iterations",
                    caller(),
                )
