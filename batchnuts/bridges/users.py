"""What the bridges' messages say of errors in a user's code."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

import batchnuts
from batchnuts.mcmc.variables import ModelError

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
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def text_of(error: BaseException) -> str:
    """An error's kind and text in one line, shortened where it is long."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_MOST_CHARACTERS]}{'...' if len(text) > _MOST_CHARACTERS else ''}"


def failed(title: str, what: str, error: BaseException) -> ModelError:
    """The error where a user's function fails: `what` says when."""
    return ModelError(f"Model {title!r}: {what} failed with {text_of(error)}{place_in_users_code(error)}")
