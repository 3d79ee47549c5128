"""Errors of a body, reported at the user's line; and the line of the user's code that made an op."""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from batchnuts.autobatch.errors import AssertionWarning, CompileError, Source
from batchnuts.autobatch.pfor.graphs import with_called


class PforError(CompileError):
    """A loop body that cannot be vectorized: at which line of the user's code, which op, why, and what to do."""

    ag_pass_through = True
    """Prevents TensorFlow's autograph from replacing the error by its own."""


class FallbackWarning(UserWarning):
    """An op runs once per iteration, one after another, because no converter runs it for all at once."""


class NoRule(Exception):
    """Raised by a converter for a combination of inputs that it does not handle; the op then runs row by row."""


class Refused(Exception):
    """Raised by a converter for an op that cannot have a correct result; the text says why and what to do."""


def source_of(op: Any) -> Source | None:
    """The innermost line of the user's code that made the op; None if it is not known, as of a loaded model's."""
    for frame in reversed(op.traceback or ()):
        if not in_library(frame.filename):
            text = linecache.getline(frame.filename, frame.lineno).rstrip("\n")
            return Source(frame.filename, frame.lineno, len(text) - len(text.lstrip()), text)
    return None


def caller() -> Source | None:
    """The line of the user's code that called pfor, or what calls it."""
    for frame in reversed(traceback.extract_stack()):
        if not in_library(frame.filename):
            text = (frame.line or "").strip()
            return Source(frame.filename, frame.lineno or 0, 0, text)
    return None


def refusal(op: Any, reason: str) -> PforError:
    """The error for an op of the body."""
    return PforError(f"pfor cannot convert op {op.name!r} ({op.type}): {reason}", source_of(op))


_noted: ContextVar[list[str]] = ContextVar("batchnuts_pfor_warnings")


@contextmanager
def noting_warnings() -> Iterator[list[str]]:
    """Collects what a trace within warns of, also where Python has shown that warning before."""
    noted: list[str] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def note_warning(text: str) -> None:
    """Called beside each warning of a trace."""
    _noted.get([]).append(text)


LEFT_OUT = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
"""Ops that stop a graph of TensorFlow's, for which XLA compiles nothing."""

_told: dict[Any, Any] = {}
"""Python's registry of warnings: the lines that were reported already."""


def warn_of_assertions(ops: Iterable[Any]) -> None:
    """Warn of the lines of these ops, which XLA compiles, and of the functions that they call, whose assertions it
    leaves out; of each once in a process, unless Python's filters of warnings say otherwise."""
    places = {source_of(op): op for op in with_called(ops) if op.type in LEFT_OUT and not _is_of_gradient(op)}
    for source, op in places.items():
        place = f"{source.filename}:{source.line}" if source is not None else f"the op {op.name!r}"
        filename, line = (source.filename, source.line) if source is not None else ("<graph>", 0)
        text = (
            f"The assertion at {place} is not evaluated: XLA compiles none. Write tf.where(condition, value, bad) with "
            "a value that shows where it fails (NaN; -inf for a log-density), or run with mode='graph', which stops "
            "there and is slower."
        )
        note_warning(text)
        warnings.warn_explicit(text, AssertionWarning, filename, line, registry=_told)


def _is_of_gradient(op: Any) -> bool:
    """Whether a check is the gradient of a check of numbers, which is made at no line of the user's."""
    return op.type != "Assert" and b"detected in gradient" in op.get_attr("message")


def _folders() -> tuple[str, ...]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [package, os.path.join(os.path.dirname(package), "mcmc")]
    for name in ("tensorflow", "tensorflow_probability", "keras", "tf_keras"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(os.path.dirname(spec.origin))
    return tuple(folder + os.sep for folder in folders)


_LIBRARIES = _folders()


def in_library(filename: str) -> bool:
    """Whether a file belongs to TensorFlow, its companions or this package, or is no file."""
    return (
        filename.startswith("<")
        or "__autograph_generated_file" in filename
        or os.path.abspath(filename).startswith(_LIBRARIES)
    )


def of_tracing(error: Exception) -> PforError | None:
    """The error for a body that does with a tensor what only a number can do, at the user's line; None for any other
    error."""
    remedy = next((advice for pattern, advice in _OF_NUMBERS if re.search(pattern, str(error), re.DOTALL)), None)
    return None if remedy is None else PforError(remedy, _innermost(error))


def _innermost(error: Exception) -> Source | None:
    """The innermost line of the user's code that the error passed through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not in_library(frame.filename):
            text = linecache.getline(frame.filename, frame.lineno or 0).rstrip("\n")
            column = frame.colno
            return Source(
                frame.filename, frame.lineno or 0, len(text) - len(text.lstrip()) if column is None else column, text
            )
    return None


_DECORATE = "or decorate the function that pfor is given with @tf.function, whose autograph writes {} over tensors so"
_OF_NUMBERS = (
    (
        "symbolic .*as a Python `bool`",
        "Python's `if`, `while`, `and`, `or`, `not` or `assert` needs a bool, and found a tensor, which may differ "
        "between iterations. Write tf.where(condition, a, b) or tf.cond(condition, lambda: a, lambda: b) for a branch, "
        "tf.while_loop for a loop, tf.logical_and and the like for conditions; " + _DECORATE.format("`if` and `while`"),
    ),
    (
        "Iterating over a symbolic",
        "Python's `for` (or an unpacking) needs an iterable, and found a tensor. Write tf.unstack(x) where "
        "the length is known, tf.map_fn, tf.scan or tf.while_loop where not; " + _DECORATE.format("`for`"),
    ),
    (
        "SymbolicTensor' object cannot be interpreted as an integer|not '?SymbolicTensor",
        "Python needs a number here (range, int, float, an index of a list), and found a tensor, which may differ "
        "between iterations. Write tf.range with tf.while_loop for a loop, tf.cast for int and float, tf.gather for an "
        "index",
    ),
    (
        "len is not well defined for a symbolic",
        "Python's `len` needs a tensor's values, and the body is traced once for all iterations, so there are none. "
        "Write `x.shape[0]`, the first extent",
    ),
    (
        "'SymbolicTensor' object has no attribute 'numpy'|Cannot convert a symbolic tf.Tensor",
        "NumPy needs the numbers of a tensor here, and the body is traced once for all iterations, so there are none. "
        "Write it with TensorFlow's functions (tf.sin in place of np.sin); what is the same for all iterations can be "
        "computed before the loop",
    ),
    (
        "gradient registry has no entry for: XlaDynamicUpdateSlice",
        "TensorFlow has no second derivative of tf.slice under XLA. Write x[a:b] in its place",
    ),
)
"""Patterns of TensorFlow's and Python's messages, and our messages for them."""
