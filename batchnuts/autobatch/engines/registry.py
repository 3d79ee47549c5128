"""Which engines there are, by name. The only place where one has to be entered."""

from __future__ import annotations

from typing import Any

from batchnuts.autobatch.engines.engine import Engine, EngineInfo
from batchnuts.autobatch.engines.reference import ReferenceEngine
from batchnuts.autobatch.engines.sweep import JAX, NUMPY, TENSORFLOW
from batchnuts.autobatch.errors import OptionError

_ENGINES: dict[str, Engine] = {}


def register(engine: Engine) -> None:
    """Make an engine known by its name. Raises OptionError for a name that another one has."""
    if engine.info.name in _ENGINES:
        raise OptionError(f"found a second engine {engine.info.name!r}; the names of engines are unique")
    _ENGINES[engine.info.name] = engine


def engine_of(name: Any) -> Engine:
    """The engine of that name. Raises OptionError for what is no engine's name."""
    if not isinstance(name, str) or name not in _ENGINES:
        raise OptionError(f"backend must be one of {', '.join(_ENGINES)}, or a Backend object; found {name!r}")
    return _ENGINES[name]


def engine_infos() -> dict[str, EngineInfo]:
    """What is known of each engine, by name, in the order in which they were registered."""
    return {name: engine.info for name, engine in _ENGINES.items()}


for _engine in (JAX, TENSORFLOW, NUMPY, ReferenceEngine()):  # the first one starts in a fraction of the time
    register(_engine)
