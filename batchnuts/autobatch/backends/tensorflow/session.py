"""Programs that XLA has compiled, each in a session of its own; all that was compiled for it is freed with it.

TensorFlow's eager runtime keeps every program that XLA compiles, and its graphs, until the process ends: a hundred MB
for NUTS on a small model. A session has devices of its own, and what is compiled for them belongs to them; it is freed
with the session (decisions/0030).
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from batchnuts.autobatch.backends.tensorflow.cached_programs import KeptProgram, kept_program, known_program
from batchnuts.autobatch.language.libraries.tensorflow_graphs import renamed
from batchnuts.disk_cache.identity import MOST_CONSTANT_BYTES

Ends = tuple[list[str], list[str]]
"""Names of tensors: of those that are given, and of those that result."""

IN_CALLER = -1
"""Instead of the number of a thread pool: the calling thread runs the graph, which is one op."""


def may_have_session(concrete: Any) -> bool:
    """Whether a traced function can run in a session: not if it reads variables, or tables, which are the eager
    runtime's, and not beside a graphics card, whose memory TensorFlow does not divide among sessions."""
    eager_only = (tf.resource, tf.variant)
    return not tf.config.list_physical_devices("GPU") and all(
        c.dtype not in eager_only for c in concrete.captured_inputs
    )


class SessionProgram:
    """arrays -> NumPy arrays: a graph that calls one function, which XLA compiles when it is first called.

    ends: the names of the tensors that are given and that result, after those given the captured ones. captured: their
    values. kept: the program's place on disk, if it has one.
    """

    def __init__(self, graph: Any, ends: Ends, captured: Sequence[np.ndarray], kept: KeptProgram | None) -> None:
        self._graph = graph
        self._ends = ends
        self._captured = list(captured)
        self._kept = kept
        self._callable = config_pb2.CallableOptions(
            feed=ends[0], fetch=ends[1], run_options=config_pb2.RunOptions(inter_op_thread_pool=IN_CALLER)
        )
        self.once_run: Callable[[], object] = lambda: None
        """Called when a program that is kept has run for the first time."""
        self._run: Any = None
        """What runs the program."""
        self._making = threading.Lock()

    @classmethod
    def of_function(cls, function: Any, specs: Sequence[tf.TensorSpec]) -> SessionProgram:
        """Make it from a `tf.function`; captured tensors keep their present values."""
        # a graph with nothing in it but the call: XLA compiles the body of the called function
        concrete = tf.function(lambda *arrays: function(*arrays), autograph=False).get_concrete_function(*specs)
        kept = kept_program(concrete.graph)
        names = {} if kept is None else kept.names
        inputs, outputs = (
            [renamed(tensor.name, names) for tensor in ends] for ends in (concrete.inputs, concrete.outputs)
        )
        captured = [np.asarray(tensor) for tensor in concrete.captured_inputs]
        return cls(concrete.graph if kept is None else kept.graph, (inputs, outputs), captured, kept)

    def as_entry(self, about: Any) -> bytes | None:
        """The program without what XLA made of it, to be read by `of_entry`; None where that is not kept, or where data
        are too large. about: what JSON can say."""
        if self._kept is None or any(array.dtype.kind not in "biufc" for array in self._captured):
            return None
        graph = self._kept.graph.as_graph_def().SerializeToString()
        if len(graph) + sum(array.nbytes for array in self._captured) > MOST_CONSTANT_BYTES:
            return None
        text = json.dumps({"key": self._kept.key, "ends": self._ends, "about": about}).encode()
        file = io.BytesIO()
        np.savez(file, *self._captured, text=np.frombuffer(text, "uint8"), graph=np.frombuffer(graph, "uint8"))
        return file.getvalue()

    @classmethod
    def of_entry(cls, content: bytes) -> tuple[SessionProgram, Any] | None:
        """The program, and what was said about it; None where nothing is kept. Raises for what is no such entry."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            header = json.loads(arrays["text"].tobytes())
            kept = known_program(header["key"], arrays["graph"].tobytes())
            captured = [arrays[f"arr_{i}"] for i in range(len(arrays) - 2)]
        return None if kept is None else (cls(kept.graph, header["ends"], captured, kept), header["about"])

    def __call__(self, *arrays: Any) -> Sequence[np.ndarray]:
        """Run it."""
        inputs = [*map(np.asarray, arrays), *self._captured]
        if self._run is None:
            with self._making:
                if self._run is None:
                    if self._kept is not None:
                        first_results: Sequence[np.ndarray] = self._kept.first_run(lambda: self._begin()(*inputs))
                        self.once_run()
                        return first_results
                    self._begin()
        results: Sequence[np.ndarray] = self._run(*inputs)
        return results

    def _begin(self) -> Any:
        self._run = self._make()
        return self._run

    def _make(self) -> Any:
        config = config_pb2.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # the graph is a call, the rest is for XLA
        config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
        session = tf.compat.v1.Session(graph=self._graph, config=config)
        return session._make_callable_from_options(self._callable)
