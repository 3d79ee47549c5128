"""Which line of the user's own code made a primitive fail, and what may fix it."""

from __future__ import annotations

import difflib
import os
import re
import sysconfig
import traceback
from pathlib import Path

from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.language import ops

_PACKAGE = Path(__file__).resolve().parents[2]
_NOT_THE_USERS = (
    *(f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    *(f"{_PACKAGE / folder}{os.sep}" for folder in ("autobatch", "mcmc")),
)

_OF_TENSORFLOW = "SymbolicTensor|symbolic `?tf.Tensor"
_OF_A_SHAPE = (
    r"sequence of integers or a single integer, got .*(Tracer|Tensor|Placeholder)"
    r"|the values decide the result's type: \w+(\[[^]]*\]) or \w+(?!\2;)\["
)
_OF_JAX = "Tracer|tracer value|traced array"


def deepest_frame(error: BaseException, called_from: Source | None) -> str:
    """A line that names the innermost line of the user's files an exception went through.

    Empty where that is the expression itself, whose place the message begins with.
    """
    frame = _innermost(error)
    if frame is None or _is_at(frame, called_from):
        return ""
    return f"\nIt was raised in {frame.name!r}, {frame.filename}:{frame.lineno}:\n    {frame.line}"


def _innermost(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the user's files; None where the exception went through none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if _is_users(frame.filename)), None)


def _is_at(frame: traceback.FrameSummary, place: Source | None) -> bool:
    return place is not None and (frame.filename, frame.lineno) == (place.filename, place.line)


def _is_users(filename: str) -> bool:
    return not str(Path(filename).resolve()).startswith(_NOT_THE_USERS) and not filename.startswith("<frozen")


def _went_through(error: BaseException, package: str) -> bool:
    """Whether code of an installed package raised the exception, or had it pass."""
    files = [Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__)]
    return any("site-packages" in parts and package in parts for parts in files)


def _post_init_names(kind: type, attribute: str) -> bool:
    """Whether the `__post_init__` of a class, or of a base, mentions an attribute, which it may set then."""
    codes = (getattr(vars(base).get("__post_init__"), "__code__", None) for base in kind.__mro__)
    return any(attribute in (*code.co_names, *code.co_consts) for code in codes if code is not None)


def message_of(error: BaseException) -> str:
    """An exception's text; of JAX's, which go on with lines of its own and ours, the first line."""
    return str(error).partition("\n")[0] if type(error).__module__.partition(".")[0] == "jax" else str(error)


def hint(error: BaseException, called_from: Source | None = None) -> str:
    """What to do about an exception that libraries are known to raise for one reason; often empty."""
    text = str(error)
    if (known := _misspelled(error) or _of_a_helper(error, called_from) or _of_numpy(error)) is not None:
        return known
    if re.search(_OF_A_SHAPE, text):
        return (
            "\nA shape must be known when the program is compiled. Make an array of the largest shape that any lane "
            "needs, and count how much of it is used."
        )
    for of_library, library, other in ((_OF_TENSORFLOW, "TensorFlow", "JAX"), (_OF_JAX, "JAX", "TensorFlow")):
        if re.search(of_library, text):
            if _went_through(error, other.lower()) or (other == "JAX" and "as an abstract array" in text):
                return (
                    f"\nThis function of {other} was given an array of {library}: run with backend={other.lower()!r}, "
                    "or use batchnuts.autobatch.ops, whose functions run on both."
                )
            return (
                f"\nThis function needs values, but {library} traces it before there are any. Use "
                f"batchnuts.autobatch.ops or a function of {library}, branch in the batched function itself, or run "
                "with backend='numpy'."
            )
    if isinstance(error, AttributeError) and _post_init_names(type(error.obj), error.name or ""):
        return (
            f"\nIf `__post_init__` of {type(error.obj).__name__} sets `{error.name}`: it stopped before that, since "
            f"fields have no values while a function is compiled. Set `{error.name}` before what needs values, or make "
            "it a field or a property."
        )
    if "is read-only" in text or "not writable" in text:
        return (
            "\nArrays that a helper is given are read-only, since a change in place would change a variable: write "
            "`v = v - 1`, not `v -= 1`, or work on `v.copy()`."
        )
    if isinstance(error, TypeError) and re.search("dtype|match type|has type|of type", text):
        return "\nIf dtypes are mixed here, cast with autobatch.ops.cast."
    return ""


def _misspelled(error: BaseException) -> str | None:
    """Of a name that `ops` does not have, the nearest that it has."""
    if isinstance(error, AttributeError) and error.obj is ops and error.name is not None:
        near = difflib.get_close_matches(error.name, _FUNCTIONS, 1)
        return f"\nDid you mean ops.{near[0]}?" if near else "\nIts functions are listed in docs/ops.md."
    return None


def _of_a_helper(error: BaseException, called_from: Source | None) -> str | None:
    """Where an ordinary function of the user branches on a value."""
    frame = _innermost(error)
    if type(error).__name__ not in _OF_BRANCHES or frame is None or _is_at(frame, called_from):
        return None
    if not frame.name.isidentifier():  # a lambda
        return None
    return (
        f"\n{frame.name!r} is an ordinary function of Python, which cannot branch on the values of lanes. Decorate it "
        "with @autobatch.batch; if it was batched under another name, as in "
        f"`batched = autobatch.batch({frame.name})`, it still calls itself by its own."
    )


def _of_numpy(error: BaseException) -> str | None:
    """Where a function of NumPy or of `math` is given a value that there is none of yet."""
    frame = _innermost(error)
    if type(error).__name__ not in _OF_VALUES or frame is None:
        return None
    for library, name in re.findall(r"\b(np|numpy|math)\.(\w+)\(", frame.line or ""):
        ours = _OTHER_NAMES.get(name, name)
        if ours in _FUNCTIONS:
            return (
                f"\nWrite ops.{ours}(...), of batchnuts.autobatch, in place of {library}.{name}(...), which needs "
                "values: there are none while the program is compiled."
            )
    return None


_OF_BRANCHES = ("TracerBoolConversionError", "OperatorNotAllowedInGraphError")
_OF_VALUES = ("TracerArrayConversionError", "ConcretizationTypeError", "TypeError", "NotImplementedError")
_OTHER_NAMES = {"fabs": "abs", "array": "stack", "asarray": "stack", "lgamma": "gammaln", "vstack": "stack"}
"""Names of functions in NumPy and `math` that have another one in `ops`."""
_FUNCTIONS = [name for name, value in vars(ops).items() if getattr(value, "__module__", "") == ops.__name__]
