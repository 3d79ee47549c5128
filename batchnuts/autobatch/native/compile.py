"""LLVM's modules to machine code of this processor."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from importlib import metadata
from typing import Any, TypeVar

import llvmlite.binding as llvm
from llvmlite import ir

from batchnuts.autobatch.native.functions import C_FUNCTIONS
from batchnuts.disk_cache.folder import current
from batchnuts.disk_cache.identity import digest_of

Made = TypeVar("Made")

_PASSES = {"speed_level": 2, "loop_vectorization": True, "slp_vectorization": True, "loop_unrolling": True}
"""Options of LLVM's passes."""

_CODE_LEVEL = 2
"""Of the generation of instructions."""

_DISABLE_LSR = "-disable-lsr"
"""LLVM's loop strength reduction takes longer than all else where the places of arrays are read at run time, and gains
nothing measurable in either kind of code."""

_lock = threading.RLock()
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
        cpu=llvm.get_host_cpu_name(), features=features, opt=_CODE_LEVEL, jit=True
    )


def _optimize(module: llvm.ModuleRef, target: llvm.TargetMachine) -> None:
    """Run LLVM's passes."""
    options = llvm.create_pipeline_tuning_options()
    for name, value in _PASSES.items():
        setattr(options, name, value)
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)


@functools.cache
def surroundings() -> tuple[str, ...]:
    """What the machine code of a module depends on beside its text."""
    return (
        metadata.version("llvmlite"),
        ".".join(map(str, llvm.llvm_version_info)),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        llvm.get_process_triple(),
        str(_PASSES),
        str(_CODE_LEVEL),
        _DISABLE_LSR,
    )


def check() -> None:
    """Make and run a function, and look for those of the C library; raises what goes wrong."""
    process = ctypes.CDLL(None)
    if missing := [name for name in C_FUNCTIONS if not hasattr(process, name)]:
        raise RuntimeError(f"the C library has no {', '.join(missing)}")
    module = ir.Module("check")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType()]), "check")
    b = ir.IRBuilder(function.append_basic_block())
    b.store(ir.Constant(ir.IntType(32), 1), function.args[0])
    b.ret_void()
    answer = ctypes.c_int32(0)
    code_of(module).function("check", ctypes.c_void_p)(ctypes.addressof(answer))
    if answer.value != 1:
        raise RuntimeError("a function that writes 1 has not")


class MachineCode:
    """Functions in machine code, callable as long as this object lives.

    engine: LLVM's, which has them in memory. key: of their entry on disk; None where nothing is kept.
    """

    def __init__(self, engine: llvm.ExecutionEngine, key: str | None = None) -> None:
        self._engine = engine
        self.key = key

    def address(self, name: str) -> int:
        """Where a function is."""
        address: int = self._engine.get_function_address(name)
        return address

    def variable(self, name: str) -> int:
        """Where a global variable is."""
        address: int = self._engine.get_global_value_address(name)
        return address

    def function(self, name: str, *arguments: Any) -> Callable[..., None]:
        """A function without a result, of ctypes' arguments."""
        call = ctypes.CFUNCTYPE(None, *arguments)(self.address(name))
        call.code = self  # type: ignore[attr-defined]  # which it needs as long as it lives
        return call


def code_of(module: ir.Module) -> MachineCode:
    """A module's machine code. It is found on disk, and kept there, where a run asks for that."""
    entries = current()
    with _lock:  # LLVM's global tables
        text = str(module)
        key = None if entries is None else digest_of("native 2", *surroundings(), text)
        if key is not None and (kept := kept_code(key)) is not None:
            return kept
        target = _target_machine()
        parsed = _parsed(text, target)
        _optimize(parsed, target)
        made: list[bytes] = []
        engine = llvm.create_mcjit_compiler(parsed, target)
        engine.set_object_cache(lambda _, code: made.append(code), lambda _: None)
        llvm.set_option("batchnuts", f"{_DISABLE_LSR}=1")  # of the whole process: Numba has the same LLVM
        engine.finalize_object()
        llvm.set_option("batchnuts", f"{_DISABLE_LSR}=0")
    if entries is not None and key is not None and made:
        entries.put(key, made[0])
    return MachineCode(engine, key)


def kept_code(key: str) -> MachineCode | None:
    """The machine code of an entry on disk; None if there is none. Neither its module nor LLVM's passes are needed."""
    entries = current()
    content = None if entries is None else entries.get(key)
    if content is None:
        return None
    with _lock:
        target = _target_machine()
        engine = llvm.create_mcjit_compiler(_parsed("", target), target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(content))
        engine.finalize_object()
    return MachineCode(engine, key)


def _parsed(text: str, target: llvm.TargetMachine) -> llvm.ModuleRef:
    """The module of a text, for this processor."""
    parsed = llvm.parse_assembly(text)
    parsed.triple, parsed.data_layout = target.triple, str(target.target_data)
    return parsed


def in_background(make: Callable[[], Made]) -> Future[Made]:
    """What `make` gives, by a thread of its own: while LLVM works, Python goes on."""
    future: Future[Made] = Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), name="batchnuts-llvm", daemon=True).start()
    return future
