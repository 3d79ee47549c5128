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


def hint(error: BaseException) -> str:
    """What to do about an exception that libraries are known to raise for one reason; often empty."""
    text = str(error)
    if re.search("SymbolicTensor|symbolic `?tf.Tensor", text):
        return (
            "\nThis function needs values, but TensorFlow traces it before there are any. Use batchnuts.autobatch.ops "
            "or a function of TensorFlow, branch in the batched function itself, or run with backend='numpy'."
        )
    if isinstance(error, TypeError) and re.search("dtype|match type|has type|of type", text):
        return "\nIf dtypes are mixed here, cast with autobatch.ops.cast."
    return ""
