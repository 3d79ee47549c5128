"""Applications of pfor: functions of one example run for many, and derivatives that need many passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import PforError, caller
from batchnuts.autobatch.pfor.graphs import not_by_autograph
from batchnuts.autobatch.pfor.loop import over_rows, pfor, refuse_composite
from batchnuts.autobatch.pfor.site import dense
from batchnuts.autobatch.pfor.values import Tensor


@not_by_autograph
def vectorized_map(
    function: Callable[[Any], Any], elems: Any, *, fallback: bool = True, masked: bool | None = None
) -> Any:
    """`tf.map_fn(function, elems)` for all rows at once.

    elems: a tensor [n, ...], or a nest of such with one n; `function` gets one row of each. Outputs [n, ...]. See
    `pfor` for what it raises and for `fallback` and `masked`.
    """
    for part in tf.nest.flatten(elems):
        refuse_composite("elems", part)
    elems = tf.nest.map_structure(tf.convert_to_tensor, elems)
    flat = tf.nest.flatten(elems)
    if not flat:
        raise PforError("elems has no tensors", caller())
    for tensor in flat:
        if tensor.shape.rank is None or tensor.shape.rank == 0:
            description = "unknown rank" if tensor.shape.rank is None else "a scalar"
            raise PforError(f"elems must have a leading axis of rows; found {description}", caller())
    sizes = {int(tensor.shape[0]) for tensor in flat if tensor.shape[0] is not None}
    if len(sizes) > 1:
        raise PforError(f"all tensors of elems must have the same number of rows; found {sorted(sizes)}", caller())
    if sizes == {0}:
        raise PforError("elems has no rows, so there is nothing to stack", caller())

    def body(*row: Tensor) -> Any:
        return function(tf.nest.pack_sequence_as(elems, row))

    return over_rows(body, flat, fallback=fallback, masked=masked)


@not_by_autograph
def jacobian(function: Callable[[Any], Tensor], x: Any, *, masked: bool | None = None) -> Any:
    """d function(x) / dx by reverse mode, for all entries of the output at once.

    x: a floating tensor or variable of shape s, or a nest of such; `function` gives one tensor of shape o. Gives
    [*o, *s] for each tensor of x, in its dtype; zeros where the output does not depend on it.
    """
    x = _watchable(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = function(x)
        flat = tf.reshape(output, [-1])
    if flat.shape[0] == 0:
        return tf.nest.map_structure(lambda leaf: tf.zeros([*output.shape, *leaf.shape], leaf.dtype), x)
    length = flat.shape[0] if flat.shape[0] is not None else tf.size(flat)

    def row(i: Tensor) -> Any:
        return tape.gradient(flat, x, tf.one_hot(i, length, dtype=flat.dtype), tf.UnconnectedGradients.ZERO)

    rows = pfor(row, length, masked=masked)
    outer = tf.shape(output)

    def shaped(rows: Tensor, source: Tensor) -> Tensor:
        result = tf.reshape(rows, tf.concat([outer, tf.shape(source)], 0))
        return tf.ensure_shape(result, output.shape.concatenate(source.shape))

    return tf.nest.map_structure(shaped, rows, x)


@not_by_autograph
def hessian(function: Callable[[Tensor], Tensor], x: Tensor, *, masked: bool | None = None) -> Tensor:
    """The second derivatives of a function with a scalar value: the jacobian of its gradient.

    x: a floating tensor [*s]. Gives [*s, *s].
    """
    x = _watchable(x)

    def gradient(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        if value.shape.rank != 0:
            raise PforError(f"the function must give a scalar; found shape {value.shape}", caller())
        gradients = tape.gradient(value, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.nest.map_structure(dense, gradients)

    return jacobian(gradient, x, masked=masked)


@not_by_autograph
def per_example_gradient(
    loss: Callable[..., Tensor], parameters: Any, *examples: Any, masked: bool | None = None
) -> Any:
    """The gradient of each example's own loss.

    parameters: tensors or variables, in any nest, that `loss` uses; examples: tensors [n, ...], or nests of such, of
    which `loss` gets one row each. Gives [n, *shape of the parameter] for each parameter; zeros where the loss does not
    depend on it.
    """

    def gradients_of_row(rows: tuple[Any, ...]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            value = loss(*rows)
        gradients = tape.gradient(value, parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.nest.map_structure(dense, gradients)

    return vectorized_map(gradients_of_row, examples, masked=masked)


def _watchable(x: Any) -> Any:
    for leaf in tf.nest.flatten(x):
        refuse_composite("the arguments of derivatives", leaf)
    return tf.nest.map_structure(
        lambda leaf: leaf if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable) else tf.convert_to_tensor(leaf), x
    )
