"""A function that is traced once, and converted once for each number of rows, however many programs call it.

A log-density of many parts is thousands of ops, which take TensorFlow a millisecond each to make. A run has a dozen
places where it is evaluated: to find types, to estimate work, and in the loops of three programs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import note_warning, noting_warnings
from batchnuts.autobatch.pfor.graphs import compiled_by_xla, for_inspection, traced_apart
from batchnuts.autobatch.pfor.site import Loop, Site
from batchnuts.autobatch.pfor.values import Invariant, Stacked, Tensor, Value


@dataclass(frozen=True, eq=False)
class _Trace:
    """The trace of a function, as a graph calls it."""

    concrete: Any
    arguments: int
    """The number of its arguments; further inputs are eager tensors that it captures."""
    converted: dict[Any, tuple[Any, list[bool], list[str]]] = field(default_factory=dict)
    """By all that a conversion depends on: the function of all rows, which of its results have rows, and warnings."""


_TRACES: weakref.WeakValueDictionary[str, _Trace] = weakref.WeakValueDictionary()
"""The traces by the names under which graphs call them. Where one is gone, the call is converted like any other."""

_working = threading.RLock()


class TracedOnce:
    """tensors of known shapes -> what the function gives of them; in a graph a call of one traced function.

    xla: whether the graphs that compute with it will be compiled by XLA. Those that only look at its results, for
    types, use the same trace. Eagerly it is called itself.
    """

    def __init__(self, function: Callable[..., Any], *, xla: bool) -> None:
        self._function = function
        self._xla = xla
        self._traces: dict[Any, _Trace] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        """The function's results. Raises what the function raises."""
        if tf.executing_eagerly() or not all(tensor.shape.is_fully_defined() for tensor in tensors):
            return self._function(*tensors)
        xla = self._xla if for_inspection() else compiled_by_xla()
        specs = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors)
        with _working:
            trace = self._traces.get((specs, xla))
            if trace is None:
                trace = _Trace(traced_apart(self._function, specs, xla), len(specs))
                self._traces[specs, xla] = trace
                _TRACES[trace.concrete.name.decode()] = trace
        return trace.concrete(*tensors)


def converted_once(site: Site) -> list[Value] | None:
    """The outputs of a call of such a function for all rows, by a function that is kept; None for other calls."""
    trace = _TRACES.get(site.attr("f").name)
    loop = site.loop
    if trace is None or loop.static_count is None or loop.mask is not None or loop.partial:
        return None
    arguments = site.inputs[: trace.arguments]
    if not all(isinstance(value, (Invariant, Stacked)) for value in arguments):
        return None
    rows = tuple(isinstance(value, Stacked) for value in arguments)
    key = (rows, loop.static_count, loop.static, loop.fallback, compiled_by_xla())
    with _working:
        if key not in trace.converted:
            with noting_warnings() as warned:
                function, varying = _converted(site, trace, rows)
            trace.converted[key] = function, varying, warned
    function, varying, warned = trace.converted[key]
    for text in warned:
        note_warning(text)
    results = function(*(site.tensor(k) for k in range(trace.arguments)))
    return [Stacked(tensor) if varies else Invariant(tensor) for tensor, varies in zip(results, varying, strict=True)]


def _converted(site: Site, trace: _Trace, rows: tuple[bool, ...]) -> tuple[Any, list[bool]]:
    graph, loop = trace.concrete.graph, site.loop
    captured = [Invariant(tensor) for tensor in trace.concrete.captured_inputs]
    varying: list[bool] = []

    def all_rows(*arguments: Tensor) -> list[Tensor]:
        inside = Loop(tf.constant(loop.static_count, tf.int32), loop.static, loop.fallback)
        values = [Stacked(x) if varies else Invariant(x) for x, varies in zip(arguments, rows, strict=True)]
        outputs = site.convert_graph(graph, [*values, *captured], inside)
        tensors = [value.tensor for value in outputs if isinstance(value, (Invariant, Stacked))]
        assert len(tensors) == len(outputs), "results are arrays of known shapes"
        varying[:] = [isinstance(value, Stacked) for value in outputs]
        return tensors

    specs = [tf.TensorSpec(site.tensor(k).shape, site.tensor(k).dtype) for k in range(trace.arguments)]
    return traced_apart(all_rows, specs, compiled_by_xla()), varying
