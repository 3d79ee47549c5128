"""Functions that are one op of a graph, and stay one where the graph is converted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.values import Tensor

ELEMENTWISE: dict[str, ElementwiseFunction] = {}
"""The functions by the names under which graphs call them."""


class ElementwiseFunction:
    """tensors -> tensors, each output elementwise over the inputs, which broadcast: a call of a function that is traced
    once for all shapes of one rank.

    So a hundred ops become one wherever the function is used, and `pfor` calls it on the rows. XLA inlines the call.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self._function = function
        self._traced: dict[Any, Any] = {}
        self._tracing = threading.Lock()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The function's results. Tensors of unknown rank are not allowed."""
        rank = max((tensor.shape.rank for tensor in tensors), default=0)
        # as broadcasting does, so that what all rows share needs no trace of its own
        tensors = tuple(t if t.shape.rank == rank else t[(None,) * (rank - t.shape.rank)] for t in tensors)
        specs = tuple(tf.TensorSpec([None] * rank, tensor.dtype) for tensor in tensors)
        with self._tracing:
            if specs not in self._traced:
                with tf.init_scope():  # a function of its own, not a part of what is traced at present
                    concrete = tf.function(self._function, autograph=False).get_concrete_function(*specs)
                ELEMENTWISE[concrete.name.decode()] = self
                self._traced[specs] = concrete
        results: tuple[Tensor, ...] = self._traced[specs](*tensors)
        return results
