"""What the bridges' messages say of errors in a user's code."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import batchnuts
from batchnuts.mcmc.variables import ModelError


class NotInstalledError(ModelError):
    """A model's library is not installed; the message says how to get it."""


_LIBRARIES = (
    *(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")),
    str(Path(batchnuts.__file__).resolve().parent),
)

_MOST_CHARACTERS = 600
"""Of an error's text in a message."""


def place_in_users_code(error: BaseException) -> str:
    """The last line outside of libraries that an error passed through, as ` at file:line`; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*_LIBRARIES, sys.prefix, "<frozen"))]
    own = [f for f in own if f.filename.endswith((".py", ">"))]  # not what PyTensor writes into files of its own
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def text_of(error: BaseException) -> str:
    """An error's kind and text in one line, shortened where it is long."""
    text = " ".join(re.split(_OF_TRACING, str(error))[0].split())
    return f"{type(error).__name__}: {text[:_MOST_CHARACTERS]}{'...' if len(text) > _MOST_CHARACTERS else ''}"


_OF_TRACING = "The error occurred while tracing|This concrete value was not available|See https://docs.jax.dev"
"""What JAX adds to its errors; it is about our functions."""


def failed(title: str, what: str, error: BaseException) -> ModelError:
    """The error where a user's function fails: `what` says when."""
    advice = ""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"ConcretizationTypeError", "TracerArrayConversionError"}:
        advice = (
            ". JAX traces it: write branches on values with jax.numpy.where or jax.lax.cond, and use jax.numpy "
            "for what depends on them, in place of numpy"
        )
    return ModelError(f"Model {title!r}: {what} failed with {text_of(error)}{place_in_users_code(error)}{advice}.")


def refuse_names(title: str, kind: str, names: Iterable[str], remedy: str = "") -> None:
    """Raise ModelError for a name that the output cannot have. kind: of what they are, as "site"."""
    for name in names:
        if name in ("chain", "draw"):
            raise ModelError(f"Model {title!r}: a {kind} cannot be called {name!r}, an axis of the output; rename it.")
        if "/" in name:
            raise ModelError(f"Model {title!r}: its {kind} {name!r} has a slash, which netCDF files exclude{remedy}.")


def require(title: str, module: str, oldest: tuple[int, ...], extra: str) -> None:
    """Import a library. Raises NotInstalledError, and ModelError where it cannot be imported, or is too old."""
    install = f"pip install 'batchnuts[{extra}]'"
    try:
        version = importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        raise NotInstalledError(f"A model of {title} needs {title}, which is not installed: {install}.") from None
    if tuple(int(part) for part in re.findall(r"\d+", version)[: len(oldest)]) < oldest:
        needed = ".".join(map(str, oldest))
        raise ModelError(f"{title} {version} is too old; batchnuts works with {needed} and later: {install}.")
    try:
        importlib.import_module(module)
    except Exception as error:
        raise ModelError(
            f"{title} {version} cannot be imported: {text_of(error)}. A newer one may do: {install}."
        ) from error
