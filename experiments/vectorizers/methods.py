"""The ways to vectorize, as tools; and a workload made ready to be called in one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from batchnuts.autobatch import pfor
from batchnuts.experiments.harness.processes import Unavailable
from batchnuts.experiments.samplers.tf_densities import place
from batchnuts.experiments.vectorizers.registry import KINDS, NutsOptions
from batchnuts.experiments.vectorizers.task import Computation, Task
from batchnuts.experiments.vectorizers.workloads import WORKLOADS, Tools, Work


def ready(task: Task) -> Computation:
    """Lay out the inputs and trace. Raises Unavailable where that cannot be."""
    options = KINDS[task.kind].options.model_validate(task.options)
    if isinstance(options, NutsOptions):
        from batchnuts.experiments.vectorizers.nuts import nuts

        return nuts(options, task)
    work = WORKLOADS[task.kind](options, task.size, np.random.default_rng(task.seed))
    return _in_jax(work, task) if task.method == "jax" else _in_tensorflow(work, task)


class Pfor(Tools):
    """The vectorizer of batchnuts."""

    @override
    def rows(self, function: Callable[..., Any], *rows: Any) -> Any:
        return pfor.vectorized_map(lambda row: function(*row), rows, fallback=False)

    @override
    def jacobian(self, function: Callable[[Any], Any], x: Any) -> Any:
        return pfor.jacobian(function, x)


class TensorFlow(Tools):
    """The vectorizer that comes with TensorFlow."""

    @override
    def rows(self, function: Callable[..., Any], *rows: Any) -> Any:
        return tf.vectorized_map(lambda row: function(*row), rows, fallback_to_while_loop=False)

    @override
    def jacobian(self, function: Callable[[Any], Any], x: Any) -> Any:
        return _jacobian(function, x, vectorized=True)


class Sequential(Tools):
    """One example after another (TensorFlow may overlap ten of them), as `tf.while_loop` does it."""

    @override
    def rows(self, function: Callable[..., Any], *rows: Any) -> Any:
        specs = [tf.TensorSpec(tensor.shape[1:], tensor.dtype) for tensor in rows]
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        signature = tf.nest.map_structure(
            lambda output: tf.TensorSpec(output.shape, output.dtype), traced.structured_outputs
        )
        return tf.map_fn(lambda row: function(*row), rows, fn_output_signature=signature)

    @override
    def jacobian(self, function: Callable[[Any], Any], x: Any) -> Any:
        return _jacobian(function, x, vectorized=False)


def _jacobian(function: Callable[[Any], Any], x: Any, *, vectorized: bool) -> Any:
    with tf.GradientTape(persistent=not vectorized) as tape:
        tape.watch(x)
        output = function(x)
    return tape.jacobian(output, x, experimental_use_pfor=vectorized)


TOOLS: dict[str, Tools] = {"pfor": Pfor(), "tensorflow": TensorFlow(), "sequential": Sequential()}


def _in_tensorflow(work: Work, task: Task) -> Computation:
    with place(task.device):
        tensors = {name: tf.constant(array) for name, array in work.inputs.items()}

    def computation(tensors: Any) -> Any:
        if task.method == "by_hand":
            assert work.by_hand is not None
            return work.by_hand(tensors)
        return work.program(TOOLS[task.method], tensors)

    compiled = tf.function(computation, jit_compile=task.compiled, autograph=False)

    def call() -> Any:
        with place(task.device):
            result = compiled(tensors)
        if task.device == "gpu":
            tf.test.experimental.sync_devices()
        return result

    return Computation(call, work.units, lambda result: [leaf.numpy() for leaf in tf.nest.flatten(result)])


def _in_jax(work: Work, task: Task) -> Computation:
    try:
        import jax
    except ImportError as error:
        raise Unavailable("the method jax needs JAX: pip install 'batchnuts[peers]'") from error
    if not any(device.platform == task.device for device in jax.devices()):
        raise Unavailable(f"JAX sees no {task.device} on this machine; set device: cpu, or install its driver.")

    class Jax:
        def rows(self, function: Callable[..., Any], *rows: Any) -> Any:
            return jax.vmap(function)(*rows)

        def jacobian(self, function: Callable[[Any], Any], x: Any) -> Any:
            return jax.jacrev(function)(x)

    tensors = {name: jax.numpy.asarray(array) for name, array in work.inputs.items()}
    program = work.in_jax()
    compiled = jax.jit(lambda tensors: program(Jax(), tensors))
    return Computation(
        lambda: jax.block_until_ready(compiled(tensors)),
        work.units,
        lambda result: [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result)],
    )
