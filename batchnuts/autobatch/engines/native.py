"""Machine code for each lane, by LLVM; other primitives by an array library, for all lanes that wait for them."""

from __future__ import annotations

import functools
import importlib.util
import warnings

from typing_extensions import override

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.backends.registry import get_backend, has_jax
from batchnuts.autobatch.engines.engine import Engine, EngineInfo, MachineOptions, Threads
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
    """Runs each lane by itself. The array library is JAX, where it is installed, else NumPy."""

    info = EngineInfo(
        "native",
        "machine code",
        packages=("llvmlite", "jax", "jaxlib", "numpy"),
        process_bytes=400_000_000,
        modes=("xla",),
        compiled_modes=("xla",),
        resumes=True,
        own_pace=True,
        profiles=True,
        gradients="jax",
        keeps_programs=True,
    )

    @override
    def arrays(self, mode: str, style: str) -> Backend:
        return get_backend("jax", "xla", style) if has_jax() else get_backend("numpy", "eager", style)

    @override
    def machine(self, compiled: CompiledFunction, arrays: Backend, lanes: int, options: MachineOptions) -> Machine:
        from batchnuts.autobatch.native.machine import NativeMachine

        depth = options.stack_depth or options.expected_depth or FIRST_STACK_DEPTH
        threads = 1 if options.ends_early else processors()
        others = (options.identity, threads, options.extents, options.profiled)
        return NativeMachine(compiled.lowered, arrays, lanes, depth, options.stack_depth, *others)

    @override
    def threads(self) -> Threads | None:
        from batchnuts.autobatch.backends.jax import threads

        return threads


NATIVE = NativeEngine()
