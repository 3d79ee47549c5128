"""Calls of machine code in programs that TensorFlow has XLA compile (xla_call.py).

TensorFlow's own operation for calls (`XlaCustomCallV2`) makes those of an older kind, of which a program that was kept
on disk does not know any more whether they have several results. But it takes a program as text (`XlaCallModule`), and
here this consists of a typed call. Handlers are registered by the functions of XLA's header xla/ffi/api/c_api.h.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.backends.tensorflow.devices import has_accelerator
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.native.compile import MachineCode, code_of
from batchnuts.autobatch.native.types import I32, POINTER
from batchnuts.autobatch.native.xla_call import TARGET, handler

PLATFORM = "Host"

_LIBRARY = "libtensorflow_cc.*"
"""In TensorFlow's folder; it is loaded with it."""

_GET_API = ("XLA_FFI_GetApi", "_ZN3xla3ffi12GetXlaFfiApiEv")
"""The function that gives XLA_FFI_Api: of C, and of C++ in versions before that."""

_MAJOR_VERSION, _HANDLER_REGISTER = 32, 72
"""Offsets in XLA_FFI_Api, whose first number is its size: of the version, which changes with what is there already, and
of the function."""

_VERSION = 9
"""Of `XlaCallModule`."""

TRIED = 8191
"""What a first call must give back."""


class _Text(ctypes.Structure):
    """XLA_FFI_ByteSpan"""

    _fields_ = [("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Registration(ctypes.Structure):
    """XLA_FFI_Handler_Register_Args: of the four handlers of a bundle only the last one, which computes, is needed."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("name", _Text),
        ("platform", _Text),
        ("before", ctypes.c_void_p * 3),
        ("execute", ctypes.c_void_p),
        ("traits", ctypes.c_uint32),
    ]


@functools.cache
def _register() -> None:
    """Make the handler known to TensorFlow, once in a process. Raises what goes wrong."""
    import tensorflow as tf

    (path,) = Path(tf.__file__).parent.glob(_LIBRARY)
    library = ctypes.CDLL(str(path))
    (get_api, *_) = [getattr(library, name) for name in _GET_API if hasattr(library, name)]
    get_api.restype = ctypes.c_void_p
    api: int = get_api()
    api_size, version = ctypes.c_size_t.from_address(api).value, ctypes.c_int32.from_address(api + _MAJOR_VERSION).value
    if api_size < _HANDLER_REGISTER + ctypes.sizeof(ctypes.c_void_p) or version != 0:
        raise RuntimeError(f"TensorFlow has an interface for calls of {api_size} bytes in version {version}")
    address = ctypes.c_size_t.from_address(api + _HANDLER_REGISTER).value
    register = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Registration))(address)
    name, platform = (_Text(text.encode(), len(text)) for text in (TARGET, PLATFORM))
    # the size is that up to the last field, without what aligns the next structure
    size = _Registration.traits.offset + _Registration.traits.size
    answer = register(_Registration(size, None, name, platform, (None,) * 3, handler().address("handler"), 0))
    if answer is not None:
        raise RuntimeError(f"TensorFlow does not take the handler {TARGET}")


@functools.cache
def works() -> bool:
    """Whether a call does what it should, which it may not in another version of TensorFlow."""
    import tensorflow as tf

    def copied(handle: Any, number: Any) -> Any:
        return call(handle, [number], [TensorType("int32", (1,))])[0]

    try:
        _register()
        code = _copy()
        handle = np.array([code.address("copy"), 0], np.uint64)
        copy = tf.function(copied, jit_compile=True, autograph=False)
        answer: list[int] = copy(handle, np.array([TRIED], np.int32)).numpy().tolist()
    except Exception:  # of any of TensorFlow's parts
        return False
    return answer == [TRIED]


def _copy() -> MachineCode:
    """copy(context, operands, results): the first operand and result are int32 numbers."""
    module = ir.Module("batchnuts.copy")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 3), "copy")
    _, operands, results = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    b.store(b.load(b.load(operands, typ=POINTER), typ=I32), b.load(results, typ=POINTER))
    b.ret_void()
    return code_of(module)


def is_possible() -> bool:
    """Whether programs can make calls: on a processor, where TensorFlow's library is as expected."""
    return not has_accelerator() and works()


def call(handle: Any, operands: Sequence[Any], results: Sequence[TensorType]) -> Sequence[Any]:
    """The call, in a program that TensorFlow traces. It has no side effect, so that it may be in a loop."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    arguments = [handle, *operands]
    made: Sequence[Any] = gen_xla_ops.xla_call_module(
        args=arguments,
        version=_VERSION,
        module=_program([TensorType(x.dtype.name, tuple(x.shape)) for x in arguments], results),
        Sout=[t.shape for t in results],
        Tout=[t.dtype for t in results],
        platforms=["CPU"],
        dim_args_spec=[],
        function_list=[],
        disabled_checks=[],
        has_token_input_output=False,
    )
    for tensor, t in zip(made, results, strict=True):
        tensor.set_shape(t.shape)
    return made


def _program(operands: Sequence[TensorType], results: Sequence[TensorType]) -> str:
    """One call, in the language of StableHLO."""
    given, made = (", ".join(map(_in_stablehlo, types)) for types in (operands, results))
    parameters = ", ".join(f"%{i}: {_in_stablehlo(t)}" for i, t in enumerate(operands))
    names, parts = (", ".join(f"%{r}{i}" for i in range(len(n))) for r, n in (("", operands), ("made#", results)))
    attributes = "{api_version = 4 : i32, backend_config = {}, has_side_effect = false}"
    return (
        f"func.func public @main({parameters}) -> ({made}) {{\n"
        f"  %made:{len(results)} = stablehlo.custom_call @{TARGET}({names}) {attributes} : ({given}) -> ({made})\n"
        f"  return {parts} : {made}\n"
        "}\n"
    )


def _in_stablehlo(type_: TensorType) -> str:
    dtype = np.dtype(type_.dtype)
    number = {"f": "f{}", "i": "i{}", "u": "ui{}", "b": "i1", "c": "complex<f{}>"}[dtype.kind]
    bits = 8 * dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return f"tensor<{''.join(f'{n}x' for n in type_.shape)}{number.format(bits)}>"


def repeat(body: Callable[..., Sequence[Any]], first: Sequence[Any]) -> Sequence[Any]:
    """The values after the loop whose trips `body` makes, while the last one's first element is not 0."""
    import tensorflow as tf

    last: Sequence[Any] = tf.while_loop(
        lambda *values: values[-1][0] != 0, lambda *values: tuple(body(*values)), tuple(first)
    )
    return last
