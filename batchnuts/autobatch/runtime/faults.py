"""Faults of a lane while a program runs, and the errors that report them.

A lane with a fault stops; the others continue, and the run raises at its end. So no mode ever returns a wrong number.
"""

from __future__ import annotations

import enum
import linecache
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from batchnuts.autobatch.errors import BatchnutsError, LaneAssertionError, Source, StackOverflowError, SweepLimitError
from batchnuts.autobatch.ir.program import RETURN_ADDRESS, identifier

LARGEST_STACK_DEPTH = 1 << 16
"""How deep calls may nest where the user gives no limit."""


class FaultKind(enum.Enum):
    """Why a lane had to stop."""

    STACK_OVERFLOW = "stack overflow"
    CALL_DEPTH = "calls nested too deep"
    ASSERTION = "assertion"
    TOO_MANY_SWEEPS = "not finished within the given sweeps"


@dataclass(frozen=True)
class Fault:
    """One possible fault at one place of a program."""

    kind: FaultKind
    subject: str
    """The variable whose stack it is; the function called too deep; of an assertion or a write outside its buffer, its
    message; the number of sweeps."""
    source: Source | None = None

    def error(
        self, faulty: np.ndarray, stack_depth: int | None = None, is_given: bool = True, can_grow: bool = True
    ) -> BatchnutsError:
        """The error to raise; `faulty` [lanes] marks all lanes that stopped, the first of them with this fault.

        stack_depth: the limit (None: LARGEST_STACK_DEPTH); is_given: by the user, not by ourselves.
        can_grow: whether stacks grow without a limit from the user.
        """
        is_given = is_given and stack_depth is not None
        depth = LARGEST_STACK_DEPTH if stack_depth is None else stack_depth
        lane = int(np.flatnonzero(faulty)[0])
        count = f" ({int(faulty.sum())} of {len(faulty)} lanes in all)"
        place = f"{self.source}\n" if self.source else ""
        match self.kind:
            case FaultKind.ASSERTION:
                return LaneAssertionError(f"{place}lane {lane}: {self.subject}{count}.")
            case FaultKind.STACK_OVERFLOW:
                function, name = self.subject.partition(".")[0], identifier(self.subject)
                or_none = ", or None to let the stack grow" if can_grow else ""
                contents = "return addresses" if name == RETURN_ADDRESS else f"variable {name!r}"
                return StackOverflowError(
                    f"{place}lane {lane} recursed too deep in {function!r}: the stack of {contents} holds {depth} "
                    f"frames{count}. " + (f"Give a larger max_stack_depth{or_none}." if is_given else _at_most(depth))
                )
            case FaultKind.TOO_MANY_SWEEPS:
                return SweepLimitError(
                    f"lane {lane} had not finished after {self.subject} sweeps over the program's blocks{count}. Give "
                    "a larger max_sweeps."
                )
            case FaultKind.CALL_DEPTH:
                return StackOverflowError(
                    f"{place}lane {lane} recursed too deep in {self.subject!r}: calls may nest {depth} deep{count}. "
                    + ("Give a larger max_stack_depth." if is_given else _at_most(depth))
                )


def number_of(fault: Fault) -> int:
    """An int32 above 0 for this fault, the same in all programs and processes: a checksum of its kind, its subject, and
    its place, wherever the file lies."""
    source = fault.source
    place = (Path(source.filename).name, source.line, source.column, source.text) if source else ()
    return zlib.crc32(repr((fault.kind.name, fault.subject, place)).encode()) % (2**31 - 1) + 1


def _at_most(depth: int) -> str:
    return (
        f"Without a max_stack_depth no lane may go deeper. If the recursion ends deeper, give a larger "
        f"number, such as max_stack_depth={2 * depth}; it may also be infinite: does every call get closer to a base "
        "case?"
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
