"""From a Schedule to the rule of a sweep: which blocks are due (defined in `scheduling.schedule`).

The rule depends only on how many lanes wait at each block. It is arithmetic on these few numbers, written with
operators that the arrays of all libraries have, so that a compiled sweep makes one or two small operations of it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.scheduling.schedule import Schedule

Array = Any


class Reductions(Protocol):
    """What the rule needs besides operators."""

    def count(self, mask: Array) -> Array:
        """How many entries of a mask [n] hold: an int64 scalar."""

    def largest(self, values: Array, mask: Array) -> Array:
        """The largest of int64 [n], none below 0, where the mask [n] holds; 0 if it holds nowhere."""


class OnHost(Reductions):
    """The reductions of NumPy."""

    @override
    def count(self, mask: Any) -> Any:
        return np.count_nonzero(mask)

    @override
    def largest(self, values: Any, mask: Any) -> Any:
        return np.max(values, initial=0, where=mask)


class Rule:
    """Which blocks of a schedule are due. `waiting` is int64 [blocks + 1]: lanes at each block, and those halted."""

    def __init__(self, schedule: Schedule, lanes: int) -> None:
        order, gates = schedule.order, schedule.gates
        fractions = [gates.get(label, 0) for label in order]
        groups = schedule.group_of
        self.lanes = lanes
        self.numerators = np.array([f.numerator for f in fractions], "int64")
        self.denominators = np.array([f.denominator for f in fractions], "int64")
        self.ranks = np.array([len(schedule.groups) - groups[label] for label in order], "int64")
        self.numbers = np.arange(len(order), dtype="int64")

    def open(self, waiting: Array, reductions: Reductions) -> Array:
        """bool [blocks]: some lane waits there, and enough of the live lanes do, or nowhere do enough."""
        counts, live = waiting[:-1], self.lanes - waiting[-1]
        some = counts > 0
        if not self.numerators.any():
            return some
        # counts >= gate * live, in whole numbers, so that all backends agree
        enough = counts * self.denominators >= live * self.numerators
        return some & (enough | (reductions.count(some & enough) == 0))

    def is_due(self, block: int, group_start: int, waiting: Array, reductions: Reductions) -> Array:
        """Where each slot is served in turn: whether the block is open, and none of an earlier group."""
        is_open = self.open(waiting, reductions)
        if group_start == 0:
            return is_open[block]
        return is_open[block] & (reductions.count(is_open[:group_start]) == 0)

    def most_active(self, waiting: Array, reductions: Reductions) -> Array:
        """The block where most lanes wait, in the first group with an open block; ties: the earliest.

        The number of blocks if none is open.
        """
        halted = len(self.numbers)
        places = halted + 1
        # one number to compare: the group, then the lanes, then the place; the remainder is the place
        keys = (waiting[:-1] + self.ranks * (self.lanes + 1)) * places + (halted - self.numbers)
        return halted - reductions.largest(keys, self.open(waiting, reductions)) % places
