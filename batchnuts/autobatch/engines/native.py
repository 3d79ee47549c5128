"""Machine code for each lane, by LLVM; other primitives by an array library, for all lanes that wait for them."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import replace

from typing_extensions import override

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.engines.engine import Engine, EngineInfo, MachineOptions, Threads
from batchnuts.autobatch.engines.sweep import JAX, NUMPY, TENSORFLOW
from batchnuts.autobatch.environment import processors
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.autobatch.runtime.machine import Machine
from batchnuts.autobatch.runtime.virtual_machine import FIRST_STACK_DEPTH


@functools.cache
def is_available() -> bool:
    """Whether machine code can be made and run here. Says once why not, where llvmlite is there and fails."""
    if importlib.util.find_spec("llvmlite") is None:
        return False
    try:
        from batchnuts.autobatch.native.compile import check

        check()
    except Exception as error:  # of any of LLVM's parts, or a library that does not fit this system
        warnings.warn(
            f"LLVM cannot make machine code here ({type(error).__name__}: {error}), so programs run on the virtual "
            "machine, which is slower. Reinstall llvmlite, or set the backend yourself.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


class NativeEngine(Engine):
    """Runs each lane by itself.

    arrays: makes the array library of all that has no machine code; has_calls: whether that library's programs can call
    machine code; threads: imports its support of threads.
    """

    def __init__(
        self,
        info: EngineInfo,
        arrays: Callable[[str], Backend],
        has_calls: Callable[[], bool],
        threads: Callable[[], Threads | None],
    ) -> None:
        self.info = info
        self._arrays = arrays
        self._has_calls = has_calls
        self._threads = threads

    def pays(self) -> bool:
        """Whether it is faster than the virtual machine: on a processor, where rounds need no Python."""
        threads = self._threads()
        return threads is not None and not threads.has_accelerator() and self._has_calls()

    @override
    def arrays(self, mode: str, style: str) -> Backend:
        return self._arrays(style)

    @override
    def machine(self, compiled: CompiledFunction, arrays: Backend, lanes: int, options: MachineOptions) -> Machine:
        from batchnuts.autobatch.native.machine import NativeMachine

        depth = options.stack_depth or options.expected_depth or FIRST_STACK_DEPTH
        threads = 1 if options.ends_early else processors()
        others = (options.identity, threads, options.extents, options.profiled, compiled.key)
        return NativeMachine(compiled.lowered, arrays, lanes, depth, options.stack_depth, *others)

    @override
    def threads(self) -> Threads | None:
        return self._threads()


def _alone() -> Threads:
    from batchnuts.autobatch.native import threads

    return threads


def _calls_of_tensorflow() -> bool:
    from batchnuts.autobatch.native import tensorflow_call

    return tensorflow_call.is_possible()


NATIVE = NativeEngine(
    EngineInfo(
        "native",
        "machine code",
        packages=("llvmlite", *JAX.info.packages),
        process_bytes=400_000_000,
        modes=("xla",),
        compiled_modes=("xla",),
        resumes=True,
        own_pace=True,
        profiles=True,
        gradients=JAX.info.name,
        family="native",
        keeps_programs=True,
    ),
    lambda style: get_backend("jax", "xla", style),
    lambda: True,
    JAX.threads,
)

NATIVE_NUMPY = NativeEngine(
    replace(
        NATIVE.info,
        name="native_numpy",
        packages=("llvmlite", *NUMPY.info.packages),
        process_bytes=200_000_000,
        gradients=NUMPY.info.name,
    ),
    lambda style: get_backend("numpy", "eager", style),
    lambda: True,
    _alone,
)

NATIVE_TENSORFLOW = NativeEngine(
    replace(
        NATIVE.info,
        name="native_tensorflow",
        packages=("llvmlite", *TENSORFLOW.info.packages),
        process_bytes=850_000_000,
        gradients=TENSORFLOW.info.name,
    ),
    lambda style: get_backend("tensorflow", "xla", style),
    _calls_of_tensorflow,
    TENSORFLOW.threads,
)
