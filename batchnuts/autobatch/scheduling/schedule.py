"""Schedules: which block the machine runs next, as data.

A schedule is groups of slots. A slot names a block and may give it a gate: the share of the live lanes that should
wait at the block before it runs (without one, the gate that `sync` wrote into the program counts, mostly none). It may
also give it a width: the share of all lanes that the block computes when it runs, and so serves at most. (Without one
it computes all lanes, whether they wait or not.) The machine sweeps over all slots again and again. A block is

    open    some lane waits at it, and at least its gate's share of the live lanes does; or: some lane waits at it, and
            no block has its share
    due     it is open, and no block of an earlier group is

and in one sweep the machine runs

    choose="in_turn"      each slot in order, if its block is due when the sweep comes to it
    choose="most_active"  one block: of those that are due, the one at which most lanes wait, the earliest of equals

Progress. In a sweep at whose start some lane is live, some block runs: at least one block is open then (if none had
its share, all with a waiting lane are), so one in the earliest group with an open block is due, and it stays so until
some block runs; every block has a slot, so the sweep comes to it. A block that runs moves all lanes that wait at it, or
as many as its width allows, at least one. So each sweep takes at least one step of at least one lane, and a program in
which every lane takes finitely many steps ends, whatever the groups, gates and widths are.

No starvation. In every `patience`-th sweep of a run, gates and groups do not count: each slot runs its block if some
lane waits there when the sweep comes to it. A lane that waits at block b when such a sweep begins waits there until b
runs, b has a slot, and at that slot b runs. So of any `patience` sweeps in a row, there is one in which every lane that
is live at its start takes a step, unless all slots of b have widths. Then b serves those who wait in turn: each run
goes on, round and round, after the lane that the last one served, so it moves all who wait or passes over k others of
the n lanes, k being the slot's width in lanes. A lane is so served by the n/k-th run (rounded up, k the largest of b's
widths) at the latest, and takes a step in any `patience` times n/k sweeps. Two policies are what they are without
patience: `earliest` and `most_active`, under which a lane may wait as long as others go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from batchnuts.autobatch.ir.loops import on_cycles
from batchnuts.autobatch.ir.program import PrimOp, Program
from batchnuts.autobatch.scheduling.lane_flow import LaneFlow, Vector, counted_flow, estimated_flow
from batchnuts.autobatch.scheduling.sweep_search import DISPATCH, GATED_PATIENCE, best_sweep, drain_price, sweep_gates

POLICIES = ("auto", "earliest", "most_active", "sweep", "drain")
CHOICES = ("in_turn", "most_active")
PATIENCE = 4096
"""Sweeps within which every live lane takes a step, where nobody says otherwise (the policy `sweep` does). So many cost
nothing that can be measured: a sweep for all runs the costly blocks for few lanes."""

ENDING = 0.25
"""See `ending_early`."""

Costs = Mapping[str, float]
"""By label, what one dispatch of a block costs, in microseconds."""


@dataclass(frozen=True)
class Slot:
    """A place in a sweep: the block's label, its gate in [0, 1] (None: the program's own), its width in (0, 1]."""

    label: str
    gate: float | None = None
    width: float | None = None

    def lanes_of(self, lanes: int) -> int | None:
        """How many of so many lanes it computes; None for all."""
        count = math.ceil(_exact(self.width) * lanes) if self.width else lanes
        return count if count < lanes else None

    def __str__(self) -> str:
        said = [f"{name} {value}" for name, value in (("gate", self.gate), ("width", self.width)) if value]
        return f"{self.label} [{', '.join(said)}]" if said else self.label


@dataclass(frozen=True)
class Schedule:
    """Groups of slots in order of priority; see the module for what they mean.

    Give `groups` as sequences of labels and Slots: `Schedule([["f.entry", "f.body"], [Slot("f.sync", 0.5)]])`. A block
    may stand several times, within one group and with one gate. `policy` is what made the schedule.

    Raises ValueError for a gate outside [0, 1], a width outside (0, 1], a label in two groups or with two gates, an
    empty group, an unknown way to choose, a label that stands twice where the most active block is chosen, or a
    patience below 1.
    """

    groups: tuple[tuple[Slot, ...], ...]
    choose: str = "in_turn"
    policy: str = "custom"
    patience: int | None = None
    """In one sweep of so many gates and groups do not count; None: in none. By default PATIENCE where blocks run in
    turn; where the most active one is chosen there is no such sweep."""

    def __init__(
        self,
        groups: Iterable[Iterable[str | Slot]],
        choose: str = "in_turn",
        policy: str = "custom",
        patience: int | Literal["usual"] | None = "usual",
    ) -> None:
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
            raise ValueError(f"choose must be one of {', '.join(CHOICES)}; found {self.choose!r}")
        group_of: dict[str, int] = {}
        gate_of: dict[str, float | None] = {}
        for i, group in enumerate(self.groups):
            if not group:
                raise ValueError(f"group {i + 1} of the schedule has no blocks")
            for slot in group:
                if not isinstance(slot, Slot):
                    raise ValueError(f"a schedule consists of labels and Slots; found {slot!r}")
                if slot.gate is not None and not _is_gate(slot.gate):
                    raise ValueError(f"the gate of block {slot.label!r} is {slot.gate!r}, expected a number in [0, 1]")
                if slot.width is not None and not (_is_gate(slot.width) and slot.width > 0):
                    found = f"the width of block {slot.label!r} is {slot.width!r}"
                    raise ValueError(f"{found}, expected a number in (0, 1]")
                if group_of.setdefault(slot.label, i) != i:
                    raise ValueError(f"block {slot.label!r} stands in two groups; it may stand in one only")
                if gate_of.setdefault(slot.label, slot.gate) != slot.gate:
                    raise ValueError(f"block {slot.label!r} has two different gates")
        if self.choose == "most_active" and len(self.slots) > len(group_of):
            raise ValueError("a schedule that chooses the most active block names each block once")
        if self.patience is not None and (self.choose == "most_active" or not _is_count(self.patience)):
            expected = "None" if self.choose == "most_active" else "a whole number from 1 on, or None"
            raise ValueError(f"patience is {self.patience!r}, expected {expected} where choose={self.choose!r}")

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


def make_schedule(
    program: Program,
    schedule: str | Schedule = "auto",
    costs: Callable[[], Costs] | None = None,
    served: Mapping[str, int] | None = None,
) -> Schedule:
    """The schedule of a lowered program by a policy's name, or one made by hand; every slot has its gate.

        earliest     one group per block, in the program's order: always the earliest block, [R] Algorithm 2
        most_active  one group; always the block at which most lanes wait
        sweep        one group; how often each block stands in it, and where, are what a model of the lanes finds best;
                     what costs much waits for a third of the lanes (`scheduling/sweep_search.py`)
        drain        control blocks; then blocks with a costly primitive; then blocks on no cycle (what runs once, at
                     the end): control drains until every live lane waits for the costly primitive
        auto         where a primitive is declared costly, `sweep` or `drain`, whichever the model finds better (without
                     costs, `drain`); else `earliest`

    `costs` tells what the model takes for the blocks' costs, and is called only if it is needed. Without it, or where
    it is empty, `sweep` takes all blocks to cost the same. `served` tells how many lanes each block has served in a
    run: the model then knows where lanes go, and need not guess.

    Raises ValueError for an unknown policy, or for a schedule that leaves out a block or names an unknown one.
    """
    if isinstance(schedule, Schedule):
        return _fitted(program, schedule)
    policy = schedule
    if policy not in POLICIES:
        raise ValueError(f"schedule must be one of {', '.join(POLICIES)}, or a Schedule; found {policy!r}")
    labels, costly = program.graph.labels, costly_blocks(program)
    if policy == "auto" and not costly:
        policy = "earliest"
    match policy:
        case "earliest":
            made = Schedule(((label,) for label in labels), policy=policy, patience=None)
        case "most_active":
            made = Schedule((labels,), choose="most_active", policy=policy)
        case "sweep":
            made, _ = _sweep(program, costs() if costs is not None else {}, _flow(program, served))
        case "drain":
            made = _drain(program)
        case _:
            made = _cheaper(program, costs() if costs is not None else {}, _flow(program, served))
    return _fitted(program, made)


def _drain(program: Program) -> Schedule:
    labels, costly, cyclic = program.graph.labels, costly_blocks(program), on_cycles(program.graph)
    control = tuple(label for label in labels if label in cyclic and label not in costly)
    expensive = tuple(label for label in labels if label in cyclic and label in costly)
    final = tuple(label for label in labels if label not in cyclic)
    return Schedule((group for group in (control, expensive, final) if group), policy="drain")


def ending_early(program: Program, schedule: Schedule) -> Schedule:
    """The schedule under which lanes begin and halt soon, for whoever does something with lanes that have halted.

    A `drain` lets them wait at the end for all others, which is best unless they are waited for. Here what runs once
    stands with the control blocks, and runs when a share of ENDING of the live lanes waits for it: of n lanes, about
    1 + log(n) / ENDING times. In a `sweep` it has no gate but the program's own; what is on a cycle, and they pass on
    the way, keeps its gate. Any other schedule stays as it is.
    """
    cyclic = on_cycles(program.graph)
    if schedule.policy == "sweep":
        own = {block.label: block.gate for block in program.graph.blocks if block.label not in cyclic}
        ungated = [[replace(s, gate=own.get(s.label, s.gate)) for s in group] for group in schedule.groups]
        return Schedule(ungated, schedule.choose, schedule.policy, schedule.patience)
    if schedule.policy != "drain":
        return schedule
    ends = [replace(slot, gate=slot.gate or ENDING) for slot in schedule.slots if slot.label not in cyclic]
    groups = [[slot for slot in group if slot.label in cyclic] for group in schedule.groups]
    first, *rest = [group for group in groups if group] or [[]]
    return Schedule([[*first, *ends], *rest], schedule.choose, schedule.policy, schedule.patience)


def _flow(program: Program, served: Mapping[str, int] | None) -> LaneFlow:
    return estimated_flow(program.graph) if served is None else counted_flow(program.graph, served)


def _sweep(program: Program, costs: Costs, flow: LaneFlow) -> tuple[Schedule, float]:
    """The model's best sweep, with gates for expensive blocks, and the model's price of it without these."""
    labels = program.graph.labels
    vector = _as_vector(program, costs)
    sweep, price, gathered = best_sweep(flow, vector)
    own = {block.label for block in program.graph.blocks if block.gate}  # `sync` has said when these shall run
    gate_of = {
        label: float(gate)
        for label, gate in zip(labels, sweep_gates(sweep, vector, gathered))
        if gate and label not in own
    }
    slots = [Slot(labels[b], gate_of.get(labels[b])) for b in sweep.slots]
    patience = GATED_PATIENCE if gate_of else PATIENCE
    return Schedule([slots], policy="sweep", patience=patience), price


def _cheaper(program: Program, costs: Costs, flow: LaneFlow) -> Schedule:
    """`sweep` or `drain`, by the model's prices."""
    if costs:
        made, price = _sweep(program, costs, flow)
        costly = [program.graph.labels.index(label) for label in costly_blocks(program)]
        if price < drain_price(flow, _as_vector(program, costs), costly):
            return made
    return _drain(program)


def _as_vector(program: Program, costs: Costs) -> Vector:
    return np.array([costs.get(label, DISPATCH) for label in program.graph.labels])


def _fitted(program: Program, schedule: Schedule) -> Schedule:
    """The schedule with the program's gates where slots leave them open."""
    known, named = program.graph.labels, schedule.order
    advice = f"The program's blocks are {', '.join(known)}."
    if unknown := [label for label in named if label not in known]:
        raise ValueError(f"the schedule names blocks that the program does not have: {', '.join(unknown)}. {advice}")
    if missing := [label for label in known if label not in named]:
        raise ValueError(f"the schedule leaves out blocks, whose lanes would wait forever: {', '.join(missing)}.")
    gates = {block.label: block.gate for block in program.graph.blocks}
    groups = ((replace(s, gate=gates[s.label] if s.gate is None else s.gate) for s in g) for g in schedule.groups)
    return Schedule(groups, schedule.choose, schedule.policy, schedule.patience)


def costly_blocks(program: Program) -> tuple[str, ...]:
    """Labels of blocks that run a primitive declared costly."""
    blocks = [b for function in program.all_functions() for b in function.graph.blocks]
    return tuple(b.label for b in blocks if any(isinstance(op, PrimOp) and op.function.costly for op in b.ops))
