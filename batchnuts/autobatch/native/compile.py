"""LLVM's modules to machine code of this processor."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

_lock = threading.Lock()
_ready = False


def _target_machine() -> llvm.TargetMachine:
    """That of the processor here."""
    global _ready
    if not _ready:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _ready = True
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True
    )


class MachineCode:
    """A module's functions, callable as long as this object lives."""

    def __init__(self, module: ir.Module) -> None:
        with _lock:  # LLVM's global tables
            target = _target_machine()
            module.triple = target.triple
            module.data_layout = str(target.target_data)
            parsed = llvm.parse_assembly(str(module))
            options = llvm.create_pipeline_tuning_options(speed_level=2)
            options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = True
            passes = llvm.create_pass_builder(target, options)
            passes.getModulePassManager().run(parsed, passes)
            self.text = str(parsed)
            """The instructions after LLVM's passes."""
            self._engine = llvm.create_mcjit_compiler(parsed, target)
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where a function is."""
        address: int = self._engine.get_function_address(name)
        return address

    def function(self, name: str, *arguments: Any) -> Callable[..., None]:
        """A function without a result, of ctypes' arguments."""
        return ctypes.CFUNCTYPE(None, *arguments)(self.address(name))
