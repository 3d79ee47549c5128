"""Which backends there are, by name."""

from __future__ import annotations

import functools
import importlib.util

from batchnuts.autobatch.backends.backend import STYLES, Backend
from batchnuts.autobatch.errors import OptionError
from batchnuts.process.quiet import import_tensorflow

BACKENDS = ("tensorflow", "jax", "numpy")


def get_backend(name: str, mode: str, style: str = "auto") -> Backend:
    """The backend of that name, mode and style: the same object for equal arguments.

    NumPy knows no modes and ignores `mode`. The style `auto` is gather on NumPy, which computes row by row, and masking
    on the others. Raises OptionError for unknown ones, ImportError for a library that is not installed.
    """
    if name not in BACKENDS:
        raise OptionError(f"backend must be one of {', '.join(BACKENDS)}, or a Backend object; found {name!r}")
    if style not in ("auto", *STYLES):
        raise OptionError(f"style must be one of auto, {', '.join(STYLES)}; found {style!r}")
    if style == "auto":
        style = "gather" if name == "numpy" else "masking"
    return _make_backend(name, "eager" if name == "numpy" else mode, style)


def with_style(backend: Backend, style: str) -> Backend:
    """A Backend object, which brings its own mode and style along. Raises OptionError where another style is asked
    for."""
    if style not in ("auto", backend.style):
        raise OptionError(f"style={style!r}, but the backend {backend.name!r} was made for {backend.style!r}")
    return backend


def has_jax() -> bool:
    """Whether JAX is installed; it is not imported."""
    return missing("jax") is None


_LIBRARIES = {"jax": ("JAX", "'batchnuts[jax]'"), "tensorflow": ("TensorFlow", "tensorflow")}
"""What is installed separately: the title and what to install, by the backend's name, which is that of the module."""


def missing(backend: str) -> str | None:
    """The library of a backend and how to install it, as the end of a sentence; None where it is installed."""
    if backend not in _LIBRARIES or importlib.util.find_spec(backend) is not None:
        return None
    title, package = _LIBRARIES[backend]
    return f"{title}, which is not installed: pip install {package}"


@functools.cache
def _make_backend(name: str, mode: str, style: str) -> Backend:
    if needed := missing(name):
        raise ImportError(f"backend={name!r} needs {needed}")
    match name:
        case "numpy":
            from batchnuts.autobatch.backends.numpy import NumpyBackend

            return NumpyBackend(style)
        case "jax":
            from batchnuts.autobatch.backends.jax.backend import JaxBackend

            return JaxBackend(mode, style)
        case _:
            import_tensorflow()
            from batchnuts.autobatch.backends.tensorflow.backend import TensorFlowBackend

            return TensorFlowBackend(mode, style)
