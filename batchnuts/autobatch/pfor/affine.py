"""Integers of the body as sums: the length of x[i : i + 2] is known although its ends are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.padding import origin_of
from batchnuts.autobatch.pfor.values import Stacked, Tensor, Value

ValueOf = Callable[[Tensor], Value]


@dataclass(frozen=True)
class Sum:
    """constant + the sum of factor * tensor; tensors that are computed in the same way are one."""

    constant: int
    factors: dict[str, int]
    """Factors by the `origin_of` their tensor; none of them is 0."""
    tensors: dict[str, Tensor]

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """The sum with `times` the other one."""
        factors = dict(self.factors)
        for name, factor in other.factors.items():
            factors[name] = factors.get(name, 0) + times * factor
        nonzero = {name: factor for name, factor in factors.items() if factor}
        return Sum(self.constant + times * other.constant, nonzero, self.tensors | other.tensors)


def sum_of(tensor: Tensor, value_of: ValueOf) -> Sum:
    """A scalar integer of the body as a sum."""
    constant = tf.get_static_value(tensor)
    if constant is not None:
        return Sum(int(constant), {}, {})
    op = tensor.op
    if op.type == "Identity" or (op.type == "Cast" and op.inputs[0].dtype.is_integer):
        return sum_of(op.inputs[0], value_of)
    if op.type in _SIGNS:
        first, second = (sum_of(part, value_of) for part in op.inputs)
        return first.plus(second, _SIGNS[op.type])
    if op.type == "Neg":
        return Sum(0, {}, {}).plus(sum_of(op.inputs[0], value_of), -1)
    if op.type == "Mul":
        for part, other in (op.inputs, reversed(op.inputs)):
            times = tf.get_static_value(part)
            if times is not None:
                return Sum(0, {}, {}).plus(sum_of(other, value_of), int(times))
    name = origin_of(value_of, tensor)
    return Sum(0, {name: 1}, {name: tensor})


_SIGNS = {"AddV2": 1, "Add": 1, "Sub": -1}


def known_rows(total: Sum, value_of: ValueOf, count: int | None) -> np.ndarray | None:
    """The sum's value in each of `count` iterations, if it is a multiple of the loop's index; else None."""
    if count is None or any(not _counts(value_of(total.tensors[name])) for name in total.factors):
        return None
    rows: np.ndarray = total.constant + sum(total.factors.values()) * np.arange(count, dtype=np.int64)
    return rows


def _counts(value: Value) -> bool:
    return isinstance(value, Stacked) and value.counts
