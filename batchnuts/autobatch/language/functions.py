"""The callables that the frontend recognizes: batched functions, declared primitives, `write`, `sync`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import FrameType, FunctionType
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import TypeConflictError, UnsupportedSyntaxError, start_of, start_of_line
from batchnuts.autobatch.language.arrays import require_fits
from batchnuts.autobatch.language.pytree import map_leaves
from batchnuts.autobatch.language.shared import Shared

single_lane: ContextVar[bool] = ContextVar("single_lane", default=False)
"""True while a program runs as plain Python, one lane, without a lane axis anywhere."""


in_one_lane_code: ContextVar[bool] = ContextVar("in_one_lane_code", default=False)
"""True while the compiler traces or runs an expression on one lane's arrays."""


class LaneFunction:
    """A Python function of one lane that the compiler batches; `api.BatchedFunction` is the one users hold."""

    python_function: Callable[..., Any]
    method_of: type | None = None
    """The class whose attribute it is."""

    def __init__(self, python_function: Callable[..., Any]) -> None:
        self.python_function = python_function
        functools.update_wrapper(self, python_function)  # type: ignore[arg-type]

    @property
    def signature(self) -> inspect.Signature:
        """Its parameters, with defaults."""
        return inspect.signature(self.python_function)

    def __set_name__(self, owner: type, name: str) -> None:
        """Called when a class has the function as an attribute: a method would get no `self`."""
        self.method_of = owner  # an error here would reach users as one of `__set_name__`

    def refuse_method(self, owner: type | None) -> None:
        """Raise UnsupportedSyntaxError, at its line, if the function is a method of that class."""
        name = self.python_function.__name__
        if owner is not None and getattr(self, "__qualname__", "") == f"{owner.__qualname__}.{name}":
            raise self._no_method(owner.__name__)

    def refuse_in_class(self) -> None:
        """Raise likewise for what stands in a class and takes its `cls` or `self`, which `C.f.run(n)` does not give."""
        around = ("", "", *getattr(self, "__qualname__", "").split("."))[-2]
        if around not in ("", "<locals>") and next(iter(self.signature.parameters), "") in ("cls", "self"):
            raise self._no_method(around)

    def _no_method(self, owner: str) -> UnsupportedSyntaxError:
        name, first = self.python_function.__name__, next(iter(self.signature.parameters), "self")
        return UnsupportedSyntaxError(
            f"the method {name!r} of class {owner!r} cannot be batched: its `{first}` is not an array. Define the "
            "function outside the class, over the arrays it needs, or put @staticmethod above @batch. Methods "
            "without @batch can be called in batched functions.",
            start_of(self.python_function),
        )


_NO_FUNCTIONS = {
    "classmethod": ("a classmethod", "Define the function outside the class, or put @staticmethod above @batch"),
    "staticmethod": ("a staticmethod", "Put @staticmethod above @batch"),
    "BatchedFunction": ("one that is batched already", "Leave out the second @batch"),
    "PrimitiveFunction": ("a primitive", "Leave out @primitive, or @batch"),
}
"""By type: the description of an argument that is not a function, and the remedy."""


def require_function(function: Any, frame: FrameType) -> None:
    """Raise UnsupportedSyntaxError, at the line where the frame stands, for what `batch` cannot be put above."""
    if isinstance(function, FunctionType):
        return
    kind = type(function).__name__
    description, advice = _NO_FUNCTIONS.get(kind, (f"a {kind}", "Write a `def` that calls it, and batch that"))
    if isinstance(function, type):
        description, advice = f"the class {function.__name__!r}", "Put it above the function that is to be batched"
    raise UnsupportedSyntaxError(
        f"@batch takes a function of one lane, found {description}. {advice}.",
        start_of_line(frame.f_code.co_filename, frame.f_lineno),
    )


class PrimitiveFunction:
    """A function the compiler calls as one operation; made by `primitive`."""

    def __init__(
        self,
        function: Callable[..., Any],
        batched: bool,
        costly: bool,
        shared: tuple[Shared, ...] = (),
        record: Callable[..., Any] | None = None,
    ) -> None:
        self.function = function
        self.batched = batched
        self.costly = costly
        self.shared = shared
        self.record = record
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        """The function itself; a batched one gets a lane axis of one where plain Python runs a single lane."""
        if self.batched and in_one_lane_code.get():
            raise TypeError(
                f"the batched primitive {self.__name__!r} was called by code that is written for one lane and has no "  # type: ignore[attr-defined]
                "lane axis to give it; call it directly in the batched function"
            )
        if not (self.batched and single_lane.get()):
            return self.function(*args, *self.shared_values())
        lanes_of_one = [map_leaves(lambda leaf: np.asarray(leaf)[None], arg) for arg in args]
        return map_leaves(lambda leaf: leaf[0], self.function(*lanes_of_one, *self.shared_values()))

    def shared_values(self) -> tuple[Any, ...]:
        """Its shared arrays as they are now, which follow the arguments."""
        return tuple(array.read() for array in self.shared)


def primitive(
    function: Callable[..., Any] | None = None,
    *,
    batched: bool = False,
    costly: bool = False,
    shared: Sequence[Shared] = (),
    record: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Declare a function of arrays to be one operation of the language.

    batched: the function is already written over a leading lane axis: every argument and result has shape
        [lanes, ...], and row i of the result depends on row i of the arguments only.
    costly: the function dominates the running time; schedules gather many lanes before they run it.
    shared: arrays without a lane axis that it takes after its other arguments (see `Shared`); for batched primitives.
    record: gives, for the types of its inputs (`ir.tensor_type.TensorType`), an expression that computes the same, or
        None; engines that make instructions may take it in place of the function.

    A function that needs neither flag needs no declaration. Arguments are positional. Raises ValueError for shared
    arrays of a primitive that is not batched, or two of one name.
    """
    if function is None:
        return functools.partial(primitive, batched=batched, costly=costly, shared=shared, record=record)
    if shared and not batched:
        raise ValueError("primitive: shared arrays are read by batched primitives; write it over lanes, batched=True")
    if len({array.name for array in shared}) < len(shared):
        raise ValueError(f"primitive: two shared arrays have one name: {', '.join(array.name for array in shared)}")
    return PrimitiveFunction(function, batched, costly, tuple(shared), record)


def write(buffer: Any, index: Any, value: Any) -> Any:
    """`buffer` with row `index` along its first axis replaced by `value`; the argument itself is left alone.

    One lane: buffer [n, ...], index an integer scalar in [0, n), value [...] of the buffer's dtype; or three equal
    structures of buffers and values with one index. Inside a batched function, `buffer = write(buffer, i, value)`
    is done in place, whatever n. An index outside [0, n) is a ValueError in plain Python and writes nothing in the
    machine. Raises TypeConflictError for a value that is not of the buffer's dtype and row's shape, or a Python number
    that the dtype does not hold.
    """

    if np.ndim(index) or not np.issubdtype(np.asarray(index).dtype, np.integer):
        raise TypeConflictError(
            f"write: the index must be an integer scalar, found {index!r}. For an element of a matrix, write "
            "x[i, j] = value."
        )

    def write_leaf(rows: Any, row: Any) -> Any:
        rows = np.array(rows)
        _require_holds(rows, row)
        if not 0 <= int(index) < len(rows):
            raise ValueError(f"write: index {int(index)} is outside the buffer's {len(rows)} rows")
        rows[int(index)] = row
        return rows

    return map_leaves(write_leaf, buffer, value)


def _require_holds(rows: Any, row: Any) -> None:
    """Raise TypeConflictError where compiled programs would, for what NumPy casts in silence."""
    kinds = {bool: "b", int: "iufc", float: "fc", complex: "c"}
    value = np.asarray(row)
    fits = rows.dtype.kind in kinds[type(row)] if type(row) in kinds else rows.dtype == value.dtype
    if not rows.ndim or rows.shape[1:] != value.shape or not fits:
        raise TypeConflictError(no_row(str(rows.dtype), rows.shape, str(value.dtype), value.shape))
    try:
        require_fits(row, rows.dtype)
    except OverflowError as error:
        raise TypeConflictError(f"write: {error}.") from None


def no_row(dtype: str, shape: Sequence[int], of_value: str, its_shape: Sequence[int]) -> str:
    """The message for a value that no row of a buffer of that dtype and shape can hold."""
    if not shape:
        return f"write: a buffer is an array, found one number ({dtype}); assign the variable itself."
    buffer, row, value = (f"{d}{list(s)}" for d, s in ((dtype, shape), (dtype, shape[1:]), (of_value, its_shape)))
    advice = "The value must have the buffer's shape without the first axis"
    if tuple(shape[1:]) == tuple(its_shape):
        advice = f"Cast with autobatch.ops.cast: the value to {dtype!r}, or the buffer to {of_value!r}"
    return f"write: a row of the buffer, which is {buffer}, is {row} and cannot hold {value}. {advice}."


def sync(fraction: float = 1.0) -> None:
    """A hint, written as a statement of a batched function: gather lanes before what follows.

    The code after it, up to the next branch, loop or call, runs only when at least `fraction` of the lanes that have
    not halted wait there, or when none of them can do anything else, or in a sweep that serves all lanes, so that none
    starves (`Schedule.patience`). It changes when lanes go on, never what they compute; in plain Python it does
    nothing. Inside a batched function `fraction` is a number known at compile time.

    Raises ValueError for a fraction outside (0, 1].
    """
    if not is_share(fraction):
        raise ValueError(f"sync: the fraction is {fraction!r}, expected a number in (0, 1]")


def is_share(value: Any) -> bool:
    """Whether a value is a number in (0, 1]."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_number and bool(0 < value <= 1)
