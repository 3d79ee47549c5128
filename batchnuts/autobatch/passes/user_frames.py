"""Which line of the user's own code made a primitive fail, and what may fix it."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from pathlib import Path

from batchnuts.autobatch.errors import Source

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
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_users(frame.filename):
            continue
        if called_from is not None and (frame.filename, frame.lineno) == (called_from.filename, called_from.line):
            return ""
        return f"\nIt was raised in {frame.name!r}, {frame.filename}:{frame.lineno}:\n    {frame.line}"
    return ""


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


def hint(error: BaseException) -> str:
    """What to do about an exception that libraries are known to raise for one reason; often empty."""
    text = str(error)
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
