"""Which engines there are, by name. The only place where one has to be entered."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

from batchnuts.autobatch.backends.registry import has_jax
from batchnuts.autobatch.engines.engine import Engine, EngineInfo
from batchnuts.autobatch.engines.native import NATIVE, NATIVE_NUMPY, NATIVE_TENSORFLOW, is_available
from batchnuts.autobatch.engines.reference import ReferenceEngine
from batchnuts.autobatch.engines.sweep import JAX, NUMPY, TENSORFLOW
from batchnuts.autobatch.errors import CompileError, OptionError

_ENGINES: dict[str, Engine] = {}


def register(engine: Engine) -> None:
    """Make an engine known by its name. Raises OptionError for a name that another one has."""
    if engine.info.name in _ENGINES:
        raise OptionError(f"found a second engine {engine.info.name!r}; names of engines must be unique")
    _ENGINES[engine.info.name] = engine


def engine_of(name: Any) -> Engine:
    """The engine of that name. Raises OptionError for what is no engine's name."""
    if not isinstance(name, str) or name not in _ENGINES:
        names = ", ".join((AUTO, *_ENGINES))
        raise OptionError(f"backend must be one of {names}, or a Backend object; found {name!r}")
    return _ENGINES[name]


def engine_infos() -> dict[str, EngineInfo]:
    """What is known of each engine, by name, in the order in which they were registered."""
    return {name: engine.info for name, engine in _ENGINES.items()}


_NATIVE = {engine.info.gradients: engine for engine in (NATIVE, NATIVE_TENSORFLOW, NATIVE_NUMPY)}
"""Machine code by the library that computes gradients."""

AUTO = "auto"
"""The backend's name in place of which one is chosen."""


def preferred_backend(mode: str = "xla", style: str = "auto") -> str:
    """The backend that `auto` stands for, of a program that runs on JAX and TensorFlow alike: JAX, which starts sooner,
    where it is installed and has the mode and style."""
    return "jax" if has_jax() and mode != "graph" and style != "gather" else "tensorflow"


def engine_on(library: str, mode: str, style: str, schedule: Any, executor: str) -> str:
    """The engine that `auto` takes for a program whose array library is this one: machine code where that is faster,
    and nothing else is asked for."""
    native = _NATIVE.get(library) if _is_usual(mode, style, schedule, executor) else None
    return native.info.name if native is not None and is_available() and native.pays() else library


def is_family(name: Any) -> TypeGuard[str]:
    """Whether a name stands for one of several engines, by the library of a program (`EngineInfo.family`)."""
    return isinstance(name, str) and name in _ENGINES and _ENGINES[name].info.family == name


def engine_with(name: str, library: str) -> str:
    """The engine that a name stands for where gradients are computed by this library: one of a family by the name of
    the family, else that of the name."""
    infos = engine_infos().values()
    kin = [info.name for info in infos if info.family == name and info.gradients == library]
    return kin[0] if kin else name


def engine_alone(mode: str, style: str, schedule: Any, executor: str) -> str | None:
    """The engine that `auto` takes for a program that calls functions of no library, where JAX is not installed:
    machine code, which needs neither; None where something else is asked for."""
    engine = engine_on("numpy", mode, style, schedule, executor)
    return engine if engine == NATIVE_NUMPY.info.name else None


def _is_usual(mode: str, style: str, schedule: Any, executor: str) -> bool:
    return mode == "xla" and style == "auto" and schedule == "auto" and executor == "virtual_machine"


def backend_of_program(compiles: Callable[[str], object], mode: str, style: str = "auto") -> str:
    """The backend that `auto` stands for, of a program that may call functions of one library.

    compiles: compiles it for the backend of that name. Raises CompileError where neither can: TensorFlow's, if an array
    of JAX met a function of TensorFlow.
    """
    name = preferred_backend(mode, style)
    if name != "jax":
        return name
    try:
        compiles(name)
    except CompileError as refused:
        if "tensorflow" not in sys.modules:  # so it calls none of its functions
            raise
        try:
            compiles("tensorflow")
        except CompileError as also_refused:
            raise (also_refused if "TensorFlow" in str(refused) else refused) from None
        return "tensorflow"
    return name


# of array libraries, the first one starts in the shortest time
for _engine in (*_NATIVE.values(), JAX, TENSORFLOW, NUMPY, ReferenceEngine()):
    register(_engine)
