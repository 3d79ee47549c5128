"""Rows of different lengths (`values.Padded`): which of their entries are valid, which lengths are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.values import Invariant, Padded, Stacked, Tensor, Value


def real(tensor: Tensor, lengths: Tensor) -> Tensor:
    """Which entries are valid: bool [rows, longest, 1, ...] of as many axes as the tensor [rows, longest, ...]."""
    count = tf.shape(tensor)[1]
    within = tf.range(count)[None, :] < lengths[:, None]
    return tf.reshape(within, tf.concat([tf.shape(within), tf.ones(tensor.shape.rank - 2, tf.int32)], 0))


def cut_to(tensor: Tensor, lengths: Tensor, origin: str) -> Padded:
    """The first entries of each row of [rows, longest, ...], followed by the first one again, as a constant."""
    return Padded(tf.where(real(tensor, lengths), tensor, tf.stop_gradient(tensor[:, :1])), lengths, origin)


def filled(value: Padded, neutral: Any = 0) -> Tensor:
    """The tensor, with another number in the padding."""
    return tf.where(real(value.tensor, value.lengths), value.tensor, tf.constant(neutral, value.tensor.dtype))


def origin_of(value_of: Callable[[Tensor], Value], *parts: Any) -> str:
    """Equal texts for lengths of the same origin: numbers, texts, and tensors of the body, computed in the same way.

    value_of: the converted value of a tensor of the body.
    """
    memo: dict[Any, str] = {}
    return _digest(*(_computed(part, value_of, memo) if tf.is_tensor(part) else part for part in parts))


def _computed(tensor: Tensor, value_of: Callable[[Tensor], Value], memo: dict[Any, str]) -> str:
    """How a tensor of the body is computed, as a text. Inputs of its graph, and random numbers, stand for
    themselves."""
    if tensor.ref() not in memo:
        op = tensor.op
        if op.op_def.is_stateful or not (op.inputs or op.type == "Const"):
            value = value_of(tensor)  # in the body of a function that is converted twice, it differs each time
            memo[tensor.ref()] = _digest(id(value.tensor) if isinstance(value, (Invariant, Stacked)) else id(value))
        else:
            attributes = sorted((name, value.SerializeToString()) for name, value in op.node_def.attr.items())
            inputs = [_computed(part, value_of, memo) for part in op.inputs]
            memo[tensor.ref()] = _digest(op.type, tensor.value_index, attributes, inputs)
    return memo[tensor.ref()]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
