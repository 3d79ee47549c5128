"""Programs that XLA has compiled, each in a session of its own; all that was compiled for it is freed with it.

TensorFlow's eager runtime keeps every program that XLA compiles, and its graphs, until the process ends: a hundred MB
for NUTS on a small model. A session has devices of its own, and what is compiled for them belongs to them; it is freed
with the session (decisions/0030).

Where threads have devices of their own (devices.py), each has its session, with a pool of one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from batchnuts.autobatch.backends.tensorflow.devices import own_pool, present_shard
from batchnuts.autobatch.backends.tensorflow.kept_programs import kept_program

IN_CALLER = -1
"""Instead of the number of a thread pool: the calling thread runs the graph, which is one op."""


def may_have_session(concrete: Any) -> bool:
    """Whether a traced function can run in a session: not if it reads variables, or tables, which are the eager
    runtime's, and not beside a graphics card, whose memory TensorFlow does not divide among sessions."""
    own = (tf.resource, tf.variant)
    return not tf.config.list_physical_devices("GPU") and all(c.dtype not in own for c in concrete.captured_inputs)


class SessionProgram:
    """arrays -> NumPy arrays: a `tf.function` that XLA compiles when it is first called.

    Captured tensors keep their present values.
    """

    def __init__(self, function: Any, specs: Sequence[tf.TensorSpec]) -> None:
        # a graph with nothing in it but the call: XLA compiles the body of the called function
        concrete = tf.function(lambda *arrays: function(*arrays), autograph=False).get_concrete_function(*specs)
        self._kept = kept_program(concrete.graph)
        self._graph = concrete.graph if self._kept is None else self._kept.graph
        self._captured = [np.asarray(tensor) for tensor in concrete.captured_inputs]
        self._callable = config_pb2.CallableOptions(
            feed=[tensor.name for tensor in concrete.inputs],
            fetch=[tensor.name for tensor in concrete.outputs],
            run_options=config_pb2.RunOptions(inter_op_thread_pool=IN_CALLER),
        )
        self._runs: dict[int, Any] = {}
        """By shard."""
        self._making = threading.Lock()

    def __call__(self, *arrays: Any) -> Sequence[np.ndarray]:
        """Run it, on the shard that this thread is at."""
        given = [*map(np.asarray, arrays), *self._captured]
        shard = present_shard()
        run = self._runs.get(shard)
        if run is None:
            with self._making:
                run = self._runs.get(shard)
                if run is None:
                    if self._kept is not None and not self._runs:
                        return self._kept.first_run(lambda: self._begin(shard)(*given))
                    run = self._begin(shard)
        results: Sequence[np.ndarray] = run(*given)
        return results

    def _begin(self, shard: int) -> Any:
        self._runs[shard] = self._make()
        return self._runs[shard]

    def _make(self) -> Any:
        config = config_pb2.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # the graph is a call, the rest is for XLA
        config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
        with own_pool() as threads:
            if threads is not None:
                config.intra_op_parallelism_threads = threads
            session = tf.compat.v1.Session(graph=self._graph, config=config)
        return session._make_callable_from_options(self._callable)
