"""What is said of an exception that a user's function has raised: where, which one, and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

from batchnuts.settings.schema import nearest

_NO_VALUE = {
    "TracerBoolConversionError": "if",
    "OperatorNotAllowedInGraphError": "if",
    "ConcretizationTypeError": "number",
    "TracerArrayConversionError": "number",
    "TracerIntegerConversionError": "number",
}
"""Errors of JAX and TensorFlow for a value that is asked for while there is none, and what usually asks."""

_ADVICE = {
    "if": (
        "A Python `if`, `while`, `and` or `not` cannot decide by the value of a parameter, which differs between "
        "chains: write batchnuts.autobatch.ops.where(condition, x, y)"
    ),
    "number": (
        "NumPy's functions, float() and int() cannot take the value of a parameter: use functions of the array library "
        "or of batchnuts.autobatch.ops"
    ),
}


class EndsNothing(ContextDecorator):
    """Within, code of a user cannot end the program: what it raises besides errors and interrupts, as sys.exit does,
    becomes an error of the same name, with the same traceback. Else it would pass all that reports errors."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (Exception, KeyboardInterrupt)):
            return
        text = "; ".join(filter(None, [str(error), "a model's code may raise errors, but must not exit the program"]))
        error_type = type(type(error).__name__, (RuntimeError,), {})
        raise error_type(text).with_traceback(trace) from error


ends_nothing = EndsNothing()


def failed_with(error: BaseException, place: str, names: Iterable[str], *functions: Any) -> str:
    """The end of a sentence: "failed with KeyError: ... at file:line".

    place: " at file:line", or nothing. names: the parameters. functions: those of the user, which may have failed.
    """
    text, advice = str(error), ""
    first = text.strip().partition("\n")[0]
    asks = _NO_VALUE.get(type(error).__name__)
    parameters = list(names)
    if isinstance(error, TypeError) and asks != "if" and (foreign := foreign_arrays(*functions)):
        known_cause = asks or "pandas" in text or "xarray" in text
        detail = "" if known_cause else f" What was raised: {type(error).__name__}: {first}"
        return f"failed{place}: {foreign}{detail}"
    if asks:
        text, advice = first.removesuffix("."), f". {_ADVICE[asks]}."
    elif isinstance(error, KeyError) and parameters and (key := next(iter(error.args), None)) not in parameters:
        advice = f". The model's parameters are {', '.join(parameters)}{nearest(str(key), parameters) or '.'}"
    elif not place and isinstance(error, TypeError) and "positional argument" in text:  # it has not begun
        called = [f for f in functions if inspect.isfunction(f) and f"{f.__qualname__}()" in text]
        place = "".join(f" at {f.__code__.co_filename}:{f.__code__.co_firstlineno}" for f in called[:1])
        if called and len(parameters) > 1:
            advice = f". One dict has the values of all variables: {', '.join(parameters)}."
    return f"failed with {type(error).__name__}: {text}{place}{advice}"


def foreign_arrays(*functions: Any) -> str:
    """What to do about a pandas or xarray object that a function of the user reads, if it reads one."""
    for function in functions:
        if not inspect.isfunction(function):
            continue
        closure = inspect.getclosurevars(function)
        for name, value in {**closure.globals, **closure.nonlocals}.items():
            library, kind = type(value).__module__.partition(".")[0], type(value).__name__
            if library in ("pandas", "xarray") and hasattr(value, "to_numpy"):
                description = f"a pandas {kind}" if library == "pandas" else f"an xarray {kind}"
                return f"`{name}` is {description}, which cannot be combined with a parameter: use `{name}.to_numpy()`."
    return ""
