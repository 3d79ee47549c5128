"""The errors that batchnuts raises for a user's mistake, with the place in the user's code.

A message is one paragraph: what was found, what was expected, what to do. `Source` says where.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class BatchnutsError(Exception):
    """Base of all errors that are the user's to fix; the command line prints them without a traceback."""


@dataclass(frozen=True)
class Source:
    """A place in the user's code. Lines count from 1, columns from 0, in characters (Python's `ast` counts bytes)."""

    filename: str
    line: int
    column: int
    text: str = ""
    """The source line itself, without its newline."""

    def __str__(self) -> str:
        place = f"{self.filename}:{self.line}:{self.column + 1}"
        if not self.text:
            return place
        return f"{place}\n    {self.text}\n    {' ' * self.column}^"


def start_of(function: Callable[..., Any]) -> Source:
    """The first line of a function, or of its decorators."""
    return start_of_line(function.__code__.co_filename, function.__code__.co_firstlineno)


def start_of_line(filename: str, line: int) -> Source:
    """The first character of a line."""
    text = linecache.getline(filename, line).rstrip("\n")
    return Source(filename, line, len(text) - len(text.lstrip()), text)


class CompileError(BatchnutsError):
    """The program cannot be batched as written. `source` is the user's line (None where there is none)."""

    def __init__(self, message: str, source: Source | None = None) -> None:
        super().__init__(message if source is None else f"{source}\n{message}")
        self.message = message
        self.source = source


class UnsupportedSyntaxError(CompileError):
    """A Python construct outside the language; the message names the rewrite."""


class UndefinedVariableError(CompileError):
    """A variable is read on a path that never assigned it."""


class TypeConflictError(CompileError):
    """Two types meet in one variable, or an operation refuses the types it got."""


def unexpected_result(actual: object, inferred: object, source: Source | None = None) -> TypeConflictError:
    """The error where a run's values gave an operation another type than stand-in values did; only NumPy finds it."""
    return TypeConflictError(
        f"an operation gave {actual} where {inferred} was inferred: its result's type depends on its inputs' values. "
        "Return one type, or branch in the batched function.",
        source,
    )


class ProgramTextError(BatchnutsError, ValueError):
    """The text of a program or a type is malformed; names line, column, and what was expected."""


class OptionError(BatchnutsError, ValueError):
    """An option of a run (`backend`, `mode`, `schedule`) or of a schedule is none of those there are."""


class AssertionWarning(UserWarning):
    """An assertion written with TensorFlow (`tf.debugging.assert_less`) is not evaluated, because XLA compiles none."""


class LaneInputError(BatchnutsError):
    """The arrays handed to a batched function do not fit it (lane counts, structure, argument count)."""


class LaneAssertionError(BatchnutsError):
    """An `assert` of the program, or a check that the language makes by itself, does not hold on some lane."""


class StackOverflowError(BatchnutsError):
    """A lane recursed deeper than `max_stack_depth`; no result of the run is given out."""


class SweepLimitError(BatchnutsError):
    """A lane of a function with a bound on its sweeps (`autobatch.jax(..., max_sweeps=...)`) had not ended then."""
