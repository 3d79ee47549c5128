"""What the bridges' messages say of errors in a user's code."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import batchnuts
from batchnuts.mcmc.model.variables import ModelError


class NotInstalledError(ModelError):
    """A model's library is not installed; the message says how to get it."""


_LIBRARIES = (
    *(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")),
    str(Path(batchnuts.__file__).resolve().parent),
)

_MOST_CHARACTERS = 600
"""The maximum number of characters of an error's text in a message."""


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
"""A pattern of the sentences about our functions that JAX adds to its errors."""


def failed(title: str, stage: str, error: BaseException, remedy: str = "") -> ModelError:
    """The error where a user's function fails: `stage` says when; a remedy that is known stands in place of JAX's."""
    advice = ""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if not remedy and "ConcretizationTypeError" in kinds:
        advice = (
            ". JAX traces it: write branches on values with jax.numpy.where or jax.lax.cond, and use jax.numpy "
            "for what depends on them, in place of numpy"
        )
    if not remedy and kinds & {"TracerArrayConversionError", "TracerIntegerConversionError"}:
        advice = (
            ". JAX traces it: use jax.numpy for what depends on values, in place of numpy, and index "
            "jax.numpy.asarray(data)[i] by them, not an array of NumPy or a list"
        )
    message = text_of(error).rstrip(".")
    return ModelError(f"Model {title!r}: {stage} failed with {message}{place_in_users_code(error)}{advice}.{remedy}")


def names_in_files(title: str, kind: str, names: Iterable[str]) -> dict[str, str]:
    """By name: the name in files, which exclude slashes. `a/b` becomes `a.b`; no two become one, so that each can be
    told from its own. kind: of what they are, as "site". Raises ModelError for a name that cannot be in a file."""
    in_files: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if name in ("chain", "draw"):
            raise ModelError(f"Model {title!r}: a {kind} cannot be called {name!r}, an axis of the output; rename it.")
        in_files[name] = name.replace("/", ".")
    owners: dict[str, str] = {}
    for name, in_file in in_files.items():
        if owners.setdefault(in_file, name) != name:
            raise ModelError(
                f"Model {title!r}: the {kind}s {owners[in_file]!r} and {name!r} would both be {in_file!r} in files, "
                "where names cannot have slashes; rename one of them."
            )
    return in_files
