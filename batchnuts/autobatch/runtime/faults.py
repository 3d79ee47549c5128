"""What can go wrong on a lane while a program runs, and the error that tells the user.

A lane with a fault stops; the others go on, and the run raises at its end. So no mode ever gives a wrong number out.
"""

from __future__ import annotations

import enum
import linecache
import traceback
from dataclasses import dataclass

import numpy as np

from batchnuts.autobatch.errors import BatchnutsError, LaneAssertionError, Source, StackOverflowError
from batchnuts.autobatch.runtime.storage import RETURN_ADDRESS

LARGEST_STACK_DEPTH = 1 << 16
"""How deep calls may nest where the user gives no limit."""


class FaultKind(enum.Enum):
    """Why a lane had to stop."""

    STACK_OVERFLOW = "stack overflow"
    CALL_DEPTH = "calls nested too deep"
    OUTSIDE_BUFFER = "write outside a buffer"
    ASSERTION = "assertion"


@dataclass(frozen=True)
class Fault:
    """One thing that can go wrong at one place of a program."""

    kind: FaultKind
    subject: str
    """The variable whose stack or buffer it is; the function called too deep; of an assertion, its message."""
    source: Source | None = None

    def error(self, faulty: np.ndarray, stack_depth: int | None = None) -> BatchnutsError:
        """The error to raise; `faulty` [lanes] marks all lanes that stopped, the first of them with this fault."""
        lane = int(np.flatnonzero(faulty)[0])
        count = f" ({int(faulty.sum())} of {len(faulty)} lanes in all)"
        place = f"{self.source}\n" if self.source else ""
        match self.kind:
            case FaultKind.ASSERTION:
                return LaneAssertionError(f"{place}lane {lane}: {self.subject}{count}.")
            case FaultKind.OUTSIDE_BUFFER:
                return BatchnutsError(
                    f"{place}lane {lane} wrote outside its buffer {self.subject!r}{count}. "
                    "The index must lie within the buffer's first axis."
                )
            case FaultKind.STACK_OVERFLOW:
                function, _, identifier = self.subject.partition(".")
                what = "return addresses" if identifier == RETURN_ADDRESS else f"variable {identifier!r}"
                return StackOverflowError(
                    f"lane {lane} recursed too deep in {function!r}: the stack of {what} holds {stack_depth} frames"
                    f"{count}. Give a larger max_stack_depth, or None to let the stack grow."
                )
            case FaultKind.CALL_DEPTH:
                remedy = "Give a larger max_stack_depth, or None for the largest."
                if stack_depth is None:
                    remedy = "On this lane the recursion probably never reaches its base case."
                return StackOverflowError(
                    f"lane {lane} recursed too deep in {self.subject!r}: calls may nest "
                    f"{stack_depth or LARGEST_STACK_DEPTH} deep{count}. {remedy}"
                )


def assertion_of_python(error: AssertionError, lane: int) -> LaneAssertionError:
    """The error for an `assert` that plain Python found not to hold on a lane, at the place of that statement."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = Source(
        frame.filename,
        frame.lineno or 0,
        frame.colno or 0,
        linecache.getline(frame.filename, frame.lineno or 0).rstrip("\n"),
    )
    text = f" ({error})" if str(error) else ""
    return LaneAssertionError(f"{place}\nlane {lane}: assertion failed{text}.")
