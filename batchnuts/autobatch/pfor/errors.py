"""What a body may not do, told at the user's line; and which line of the user's code made an op."""

from __future__ import annotations

import importlib.util
import linecache
import os
from typing import Any

from batchnuts.autobatch.errors import CompileError, Source


class PforError(CompileError):
    """A loop body that cannot be vectorized: at which line of the user's code, which op, why, and what to do."""

    ag_pass_through = True
    """Tells TensorFlow's autograph not to put an error of its own in its place."""


class FallbackWarning(UserWarning):
    """An op runs once an iteration, one after another, because no converter runs it for all at once."""


class NoRule(Exception):
    """A converter's answer to a combination of inputs that it does not know; the op then runs row by row."""


class Refused(Exception):
    """A converter's answer to what has no right result in any way of running it; the text says why and what to do."""


def source_of(op: Any) -> Source | None:
    """The innermost line of the user's code that made the op; None if it is not known."""
    for frame in reversed(op.traceback):
        if not in_library(frame.filename):
            text = linecache.getline(frame.filename, frame.lineno).rstrip("\n")
            return Source(frame.filename, frame.lineno, len(text) - len(text.lstrip()), text)
    return None


def refusal(op: Any, reason: str) -> PforError:
    """The error for an op of the body."""
    return PforError(f"pfor cannot convert op {op.name!r} ({op.type}): {reason}", source_of(op))


def _folders() -> tuple[str, ...]:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = [here]
    for name in ("tensorflow", "tensorflow_probability", "keras", "tf_keras"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found.append(os.path.dirname(spec.origin))
    return tuple(folder + os.sep for folder in found)


_LIBRARIES = _folders()


def in_library(filename: str) -> bool:
    """The file belongs to TensorFlow, its companions, this package, or is no file."""
    return filename.startswith("<") or os.path.abspath(filename).startswith(_LIBRARIES)
