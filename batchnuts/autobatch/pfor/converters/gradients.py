"""Functions with gradients of their own (`tf.custom_gradient`): for tapes inside the body, and for those around it.

TensorFlow keeps such a function's gradient by name, on an IdentityN of its results and arguments. A tape in the body
has used it when the body was traced. For a tape around the pfor, what the conversion passes on gets a gradient again:
the function's own, traced when it is asked for, and converted for all rows like anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import PforError, refusal
from batchnuts.autobatch.pfor.graphs import gradient_of, is_visible, traced_in
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, dense
from batchnuts.autobatch.pfor.values import Invariant, Stacked, Tensor, Value


@converts("IdentityN", always=True)
def all_passed_on(site: Site) -> list[Value]:
    """Each of its inputs is an output, also one that is the same for all rows, or a list."""
    gradient = gradient_of(site.op)
    ours = [
        k for k, value in enumerate(site.inputs) if isinstance(value, (Invariant, Stacked)) and _flows(value.tensor)
    ]
    if gradient is None or not ours:
        return list(site.inputs)

    made_in = tf.compat.v1.get_default_graph()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def passed(*tensors: Tensor) -> Any:
        def backward(*upstream: Tensor) -> list[Tensor]:
            inside = _counterpart_in(made_in)
            return _backward(_seen_from(site, inside), gradient, dict(zip(ours, upstream, strict=True)), inside)

        return tuple(tf.identity(tensor) for tensor in tensors), backward

    results = list(site.inputs)
    for k, tensor in zip(ours, passed(*(site.tensor(k) for k in ours)), strict=True):
        before = site.inputs[k]
        results[k] = Stacked(tensor, before.counts) if isinstance(before, Stacked) else Invariant(tensor)
    return results


def _flows(tensor: Tensor) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _backward(site: Site, gradient: Any, upstream: dict[int, Tensor], inside: Inside) -> list[Tensor]:
    """Gradients by the inputs that have an upstream one, by their numbers, of all rows."""
    op = site.op
    specs = [tf.TensorSpec(output.shape, output.dtype) for output in op.outputs]

    def one_row(*grads: Tensor) -> list[Tensor]:
        gradients = gradient(op, *grads)
        return [
            _zeros(op.inputs[k]) if gradients[k] is None else tf.convert_to_tensor(dense(gradients[k]))
            for k in upstream
        ]

    concrete = traced_in(op.graph, one_row, specs)
    seen = {internal.ref(): _value_of(site, external, inside) for external, internal in concrete.graph.captures}
    grads = iter(_like(site, k, upstream[k]) if k in upstream else _nothing(site, k) for k in range(len(op.outputs)))
    inputs = [seen[tensor.ref()] if tensor.ref() in seen else next(grads) for tensor in concrete.graph.inputs]
    values = site.convert_graph(concrete.graph, inputs, site.loop)
    return [_for_input(site, k, value) for k, value in zip(upstream, values, strict=True)]


Inside = Callable[[Tensor], Tensor]


def _counterpart_in(graph: Any) -> Inside:
    """The counterpart of a tensor in the graph where the op was converted, for a gradient taken in another graph: of a
    branch.

    TensorFlow merges the inputs that a branch's gradient takes from the branch with those from outside, and drops one
    of two that are the same tensor. So the branch's own inputs are used.
    """
    if tf.compat.v1.get_default_graph() is graph:
        return lambda tensor: tensor
    captured = {external.ref(): internal for external, internal in getattr(graph, "captures", ())}
    return lambda tensor: captured.get(tensor.ref(), tensor)


def _seen_from(site: Site, inside: Inside) -> Site:
    """The site, with the counterparts of all tensors there."""

    def value_of(tensor: Tensor) -> Value:
        value = site.value_of(tensor)
        return replace(value, tensor=inside(value.tensor)) if isinstance(value, (Invariant, Stacked)) else value

    mask = site.loop.mask
    loop = replace(site.loop, count=inside(site.loop.count), mask=None if mask is None else inside(mask))
    return replace(site, loop=loop, value_of=value_of)


def _zeros(like: Tensor) -> Tensor:
    return tf.zeros(like.shape, like.dtype) if like.shape.is_fully_defined() else tf.zeros_like(like)


def _value_of(site: Site, tensor: Tensor, inside: Inside) -> Value:
    """The value of a tensor that the gradient uses: of the op's own graph, given to it, or from outside of the loop."""
    graph = site.op.graph
    captured = {external.ref(): internal for external, internal in graph.captures}
    if not is_visible(tensor):
        tensor = captured.get(tensor.ref(), tensor)
        if tensor.graph is not graph:
            raise refusal(
                site.op,
                f"its custom gradient (tf.custom_gradient) uses the tensor {tensor.name!r} of an enclosing graph, "
                "which is not given to this one",
            )
        return site.value_of(tensor)
    return Invariant(inside(tensor))


def _like(site: Site, k: int, tensor: Tensor) -> Value:
    return Stacked(tensor) if isinstance(site.inputs[k], Stacked) else Invariant(tensor)


def _nothing(site: Site, k: int) -> Value:
    """The upstream gradient of an output without one."""
    output = site.op.outputs[k]
    if not output.shape.is_fully_defined() or output.dtype in (tf.variant, tf.resource):
        raise refusal(site.op, "its custom gradient (tf.custom_gradient) needs the gradient of an output that has none")
    return Invariant(tf.zeros(output.shape, output.dtype))


def _for_input(site: Site, k: int, value: Value) -> Tensor:
    """The gradient by an input: one for each row where the input has rows; else their sum."""
    if isinstance(site.inputs[k], Stacked):
        return value.tensor if isinstance(value, Stacked) else site.loop.rows(value.tensor)  # type: ignore[union-attr]
    if isinstance(value, Stacked):
        tensor = value.tensor
        if site.loop.mask is not None:
            mask = tf.reshape(site.loop.mask, [-1, *[1] * (tensor.shape.rank - 1)])
            tensor = tf.where(mask, tensor, tf.zeros_like(tensor))
        return tf.reduce_sum(tensor, 0)
    if isinstance(value, Invariant):
        return value.tensor
    raise PforError("a custom gradient returns rows of different lengths, or a list", None)
