"""The virtual machine on an array library: all lanes together, block by block, in sweeps over the program."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.engines.engine import Engine, EngineInfo, MachineOptions, Threads
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.autobatch.runtime.virtual_machine import FIRST_STACK_DEPTH, VirtualMachine


class SweepEngine(Engine):
    """Runs the virtual machine on an array library. threads: imports the library's support of threads."""

    def __init__(self, info: EngineInfo, threads: Callable[[], Threads | None]) -> None:
        self.info = info
        self._threads = threads

    @override
    def arrays(self, mode: str, style: str) -> Backend:
        return get_backend(self.info.name, mode, style)

    @override
    def machine(
        self, compiled: CompiledFunction, arrays: Backend, lanes: int, options: MachineOptions
    ) -> VirtualMachine:
        return VirtualMachine(
            compiled.lowered,
            arrays,
            lanes,
            options.stack_depth or options.expected_depth or FIRST_STACK_DEPTH,
            options.schedule,
            options.profiled,
            options.ends_early,
            options.identity,
            compiled.costly_work,
        )

    @override
    def threads(self) -> Threads | None:
        return self._threads()


def _of_tensorflow() -> Threads:
    from batchnuts.autobatch.backends.tensorflow import devices

    return devices


def _of_jax() -> Threads:
    from batchnuts.autobatch.backends.jax import threads

    return threads


TENSORFLOW = SweepEngine(
    EngineInfo(
        "tensorflow",
        "TensorFlow",
        packages=("tensorflow", "tensorflow-probability", "numpy"),
        process_bytes=1_040_000_000,
        modes=("xla", "graph", "eager"),
        compiled_modes=("xla",),
        keeps_programs=True,
        resumes=True,
        profiles=True,
        dependents=("tensorflow", "tensorflow_probability", "tf_keras", "keras"),
        differentiates=True,
        where="tf.where",
    ),
    _of_tensorflow,
)

JAX = SweepEngine(
    EngineInfo(
        "jax",
        "JAX",
        packages=("jax", "jaxlib", "numpy"),
        process_bytes=430_000_000,
        modes=("xla", "eager"),
        compiled_modes=("xla",),
        keeps_programs=True,
        resumes=True,
        profiles=True,
        dependents=("jax", "numpyro", "blackjax"),
        differentiates=True,
        where="jax.numpy.where",
    ),
    _of_jax,
)

NUMPY = SweepEngine(
    EngineInfo("numpy", "NumPy", packages=("numpy",), process_bytes=150_000_000, resumes=True, profiles=True),
    lambda: None,
)

ON_BACKEND = SweepEngine(
    EngineInfo("backend", "a Backend object", packages=(), process_bytes=0, resumes=True, profiles=True), lambda: None
)
"""Of a Backend object that a caller brings along; it is not registered, since it has no arrays of its own."""
