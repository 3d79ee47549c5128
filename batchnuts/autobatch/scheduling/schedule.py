"""Schedules: which block the machine runs next, as data.

A schedule is groups of slots. A slot names a block and may give it a gate: the share of the live lanes that should
wait at the block before it runs (without one, the gate that `sync` wrote into the program counts, mostly none). The
machine sweeps over all slots again and again. A block is

    open    some lane waits at it, and at least its gate's share of the live lanes does; or: some lane waits at it, and
            no block has its share
    due     it is open, and no block of an earlier group is

and in one sweep the machine runs

    choose="in_turn"      each slot in order, if its block is due when the sweep comes to it
    choose="most_active"  one block: of those that are due, the one at which most lanes wait; ties: the earliest

Progress. In a sweep at whose start some lane is live, some block runs: at least one block is open then (if none had
its share, all with a waiting lane are), so one in the earliest group with an open block is due, and it stays so until
some block runs; every block has a slot, so the sweep comes to it. A block that runs moves all lanes that wait at it.
So each sweep takes at least one step of at least one lane, and a program in which every lane takes finitely many steps
ends, whatever the groups and gates are.

No starvation. In every `patience`-th sweep of a run, gates and groups do not count: each slot runs its block if some
lane waits there when the sweep comes to it. A lane that waits at block b when such a sweep begins waits there until b
runs, b has a slot, and at that slot b runs. So of any `patience` sweeps in a row, there is one in which every lane that
is live at its start takes a step. Two policies have no patience: `earliest` and `most_active`, under
which a lane may wait as long as others go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from batchnuts.autobatch.errors import OptionError

CHOICES = ("in_turn", "most_active")
PATIENCE = 4096
"""Sweeps within which every live lane takes a step, by default (the policy `sweep` sets its own). At this rate the cost
is not measurable: a sweep for all runs the costly blocks for few lanes."""


@dataclass(frozen=True)
class Slot:
    """A place in a sweep: the block's label, and its gate in [0, 1] (None: the program's own)."""

    label: str
    gate: float | None = None

    def __str__(self) -> str:
        return f"{self.label} [gate {self.gate}]" if self.gate else self.label


@dataclass(frozen=True)
class Schedule:
    """Groups of slots in order of priority; see the module for what they mean.

    Give `groups` as sequences of labels and Slots: `Schedule([["f.entry", "f.body"], [Slot("f.sync", 0.5)]])`. A block
    may stand several times, within one group and with one gate. `policy` is what made the schedule.

    Raises OptionError for a gate outside [0, 1], a label in two groups or with two gates, an
    empty group, an unknown way to choose, a label that stands twice where the most active block is chosen, or a
    patience below 1.
    """

    groups: tuple[tuple[Slot, ...], ...]
    choose: str = "in_turn"
    policy: str = "custom"
    patience: int | None = None
    """One sweep in `patience` ignores gates and groups; None: no sweep does. By default PATIENCE where blocks run in
    turn; where the most active one is chosen there is no such sweep."""

    def __init__(
        self,
        groups: Iterable[Iterable[str | Slot]],
        choose: str = "in_turn",
        policy: str = "custom",
        patience: int | Literal["usual"] | None = "usual",
    ) -> None:
        groups = tuple(groups)
        if texts := [group for group in groups if isinstance(group, str)]:
            raise OptionError(f"a group is a sequence of labels and Slots; found {texts[0]!r}: write [[{texts[0]!r}]]")
        slots = tuple(tuple(Slot(s) if isinstance(s, str) else s for s in group) for group in groups)
        object.__setattr__(self, "groups", slots)
        object.__setattr__(self, "choose", choose)
        object.__setattr__(self, "policy", policy)
        if patience == "usual":
            patience = PATIENCE if choose == "in_turn" else None
        object.__setattr__(self, "patience", patience)
        self._check()

    def _check(self) -> None:
        if self.choose not in CHOICES:
            raise OptionError(f"choose must be one of {', '.join(CHOICES)}; found {self.choose!r}")
        group_of: dict[str, int] = {}
        gate_of: dict[str, float | None] = {}
        for i, group in enumerate(self.groups):
            if not group:
                raise OptionError(f"group {i + 1} of the schedule has no blocks")
            for slot in group:
                if not isinstance(slot, Slot):
                    raise OptionError(f"a schedule consists of labels and Slots; found {slot!r}")
                if slot.gate is not None and not _is_gate(slot.gate):
                    raise OptionError(f"the gate of block {slot.label!r} is {slot.gate!r}, expected a number in [0, 1]")
                if group_of.setdefault(slot.label, i) != i:
                    raise OptionError(f"block {slot.label!r} is in two groups; it may be in only one")
                if gate_of.setdefault(slot.label, slot.gate) != slot.gate:
                    raise OptionError(f"block {slot.label!r} has two different gates")
        if self.choose == "most_active" and len(self.slots) > len(group_of):
            raise OptionError("a schedule that chooses the most active block names each block once")
        if self.patience is not None and (self.choose == "most_active" or not _is_count(self.patience)):
            expected = "None" if self.choose == "most_active" else "a whole number from 1 on, or None"
            raise OptionError(f"patience is {self.patience!r}, expected {expected} where choose={self.choose!r}")

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, group after group."""
        return tuple(slot for group in self.groups for slot in group)

    @property
    def order(self) -> tuple[str, ...]:
        """All labels once, in the order in which they first stand; the machine numbers its blocks so."""
        return tuple(dict.fromkeys(slot.label for slot in self.slots))

    @property
    def group_of(self) -> dict[str, int]:
        """For each label, the index of its group."""
        return {slot.label: i for i, group in enumerate(self.groups) for slot in group}

    @property
    def group_starts(self) -> dict[str, int]:
        """For each label, the index in `order` of its group's first block."""
        firsts = {group[0].label for group in self.groups}
        starts: dict[str, int] = {}
        start = 0
        for i, label in enumerate(self.order):
            start = i if label in firsts else start
            starts[label] = start
        return starts

    @property
    def gates(self) -> dict[str, Fraction]:
        """The labels that have gates, with these as exact fractions (0.07 of 100 lanes is 7 lanes)."""
        return {s.label: _exact(s.gate) for s in self.slots if s.gate}

    def __str__(self) -> str:
        """One line for each group."""
        lines = [f"{self.policy}: {'each in turn' if self.choose == 'in_turn' else 'the most active block'}"]
        lines += [f"  {i + 1}. {', '.join(map(str, group))}" for i, group in enumerate(self.groups)]
        return "\n".join(lines)


def _exact(share: float) -> Fraction:
    return Fraction(float(share)).limit_denominator(1_000_000)


def _is_gate(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
