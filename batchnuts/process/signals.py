"""Signals that end a run and lose nothing: Ctrl-C (SIGINT), a time limit's SIGTERM, SIGHUP of a terminal that closes.

Nothing but the standard library is imported here, so that the handlers are installed before anything slow runs.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_CLOCK = getattr(signal, "SIGALRM", None)

TIME_TO_READ = 1.0
"""Seconds without a signal before another one can be an answer to a warning: keys are pressed in bursts, and so are
those that are held down."""

SAME_MOMENT = 0.05
"""Seconds within which pending handlers run one after another once the interpreter can run them."""


class StopSignals:
    """Handles the signals while it is entered; once there are draws (`hold`), none of them interrupts running code.

    Without draws, a signal raises KeyboardInterrupt where the program stands. With draws, the first one is only noted,
    and `check` raises where the run can end in order; the second is answered with what goes on; one after that, and
    after TIME_TO_READ without any, gives the draws up.

    Handlers of others are left alone, as are ignored signals (`nohup`), and threads other than the main one have none.
    """

    def __init__(self, keeping: str = "keeping the draws") -> None:
        self.first: int | None = None
        """The signal that ended the run."""
        self.count = 0
        self._keeping = keeping
        self.holding = False
        """Whether there are draws that could be lost."""
        self._warnings = 0
        self._last = -math.inf
        """The time at which the last signal was handled."""
        self._read_at: float | None = None
        """The time at which the clock said that there had been no signal for long enough."""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler in (signal.SIG_DFL, signal.default_int_handler):
                    self._handlers[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _CLOCK in self._handlers:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    @property
    def exit_code(self) -> int:
        """What a shell reports for a program that the signal ended: 130 for Ctrl-C, 143 SIGTERM, 129 SIGHUP."""
        return 128 + (self.first or signal.SIGINT)

    @property
    def name(self) -> str:
        """What ended the run, in words."""
        return "interrupted" if self.first in (None, signal.SIGINT) else f"ended by {signal.Signals(self.first).name}"

    def hold(self) -> None:
        """Note that from now on there are draws that could be lost."""
        self.holding = True

    def release(self) -> None:
        """There is nothing to lose any more."""
        self.holding = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self.first is not None:
            raise self._interrupt()

    def _interrupt(self) -> KeyboardInterrupt:
        """The interrupt to raise, which names the signal unless it is Ctrl-C."""
        return KeyboardInterrupt() if self.first in (None, signal.SIGINT) else KeyboardInterrupt(self.name)

    def _received(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        pause, self._last = now - self._last, now
        self.count += 1
        if self.first is None:
            self.first = number
        if not self.holding:
            raise self._interrupt()
        if self.count == 1:
            say(f"{self.name}; {self._keeping}.")
        elif self._warnings == 0:
            self._warn()
            self._start_clock()
        elif _CLOCK in self._handlers:
            if self._read_at is not None and now - self._read_at >= SAME_MOMENT:
                raise KeyboardInterrupt
            self._read_at = None
            signal.setitimer(signal.ITIMER_REAL, TIME_TO_READ)
        elif pause >= TIME_TO_READ:
            if self._warnings > 1:
                raise KeyboardInterrupt
            self._warn()

    def _warn(self) -> None:
        say(f"{self._keeping}; press again to quit and lose them.")
        self._warnings += 1

    def _start_clock(self) -> None:
        """Let the clock say when the warning has been read: when no signal has come for some time.

        A handler does not run when its signal comes but when the interpreter is free, which a long write delays: the
        last signal of a burst would count as an answer. The timer's signal waits in the same queue. Where other code
        uses the timer, the first signal that may be an answer prints the warning once more.
        """
        try:
            if _CLOCK is None or signal.getsignal(_CLOCK) != signal.SIG_DFL or signal.getitimer(signal.ITIMER_REAL)[0]:
                return
            self._handlers[_CLOCK] = signal.signal(_CLOCK, self._time_has_passed)
            signal.setitimer(signal.ITIMER_REAL, TIME_TO_READ)
        except ValueError:  # not the main thread
            return

    def _time_has_passed(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= TIME_TO_READ - SAME_MOMENT:  # else one came meanwhile that was handled first
            self._read_at = now


def say(text: str) -> None:
    """Write a line of ours to stderr, also from a signal's handler; errors of a closed stderr are ignored."""
    line = f"batchnuts: {text}\n"
    try:
        with suppress(OSError, ValueError, AttributeError):  # it is closed, or there is none
            sys.stderr.write(line)
            sys.stderr.flush()
    except RuntimeError:  # the handler interrupts another write
        with suppress(OSError):
            os.write(2, line.encode())
