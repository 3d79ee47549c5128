"""Policies: how the schedule of a program is made from its blocks, what they cost, and where lanes go between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.ir.loops import on_cycles
from batchnuts.autobatch.ir.program import PrimOp, Program
from batchnuts.autobatch.scheduling.lane_flow import LaneFlow, Vector, counted_flow, estimated_flow
from batchnuts.autobatch.scheduling.schedule import PATIENCE, Schedule, Slot
from batchnuts.autobatch.scheduling.sweep_search import DISPATCH, GATED_PATIENCE, best_sweep, drain_price, sweep_gates

POLICIES = ("auto", "earliest", "most_active", "sweep", "drain")

ENDING = 0.25
"""The share of the live lanes that has to wait at the end before `ending_early` lets them halt."""

Costs = Mapping[str, float]
"""By label, what one dispatch of a block costs, in microseconds."""


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
                     expensive blocks wait for a third of the lanes (`scheduling/sweep_search.py`)
        drain        control blocks; then blocks with a costly primitive; then blocks on no cycle (what runs once, at
                     the end): control drains until every live lane waits for the costly primitive
        auto         where a primitive is declared costly, `sweep` or `drain`, whichever the model finds better (without
                     costs, `drain`); else `earliest`

    `costs` gives the costs of blocks for the model, and is called only if needed. Without it, or where it is empty,
    `sweep` assumes that all blocks cost the same. `served` is the number of lanes that each block has served in a run:
    the model then uses these counts in place of guesses.

    Raises OptionError for an unknown policy, or for a schedule that leaves out a block or names an unknown one.
    """
    if isinstance(schedule, Schedule):
        return _fitted(program, schedule)
    policy = schedule
    if policy not in POLICIES:
        raise OptionError(f"schedule must be one of {', '.join(POLICIES)}, or a Schedule; found {policy!r}")
    labels, costly = program.graph.labels, costly_blocks(program)
    if policy == "auto" and not costly:
        policy = "earliest"
    match policy:
        case "earliest":
            result = Schedule(((label,) for label in labels), policy=policy, patience=None)
        case "most_active":
            result = Schedule((labels,), choose="most_active", policy=policy)
        case "sweep":
            result, _ = _sweep(program, costs() if costs is not None else {}, _flow(program, served))
        case "drain":
            result = _drain(program)
        case _:
            result = _cheaper(program, costs() if costs is not None else {}, _flow(program, served))
    return _fitted(program, result)


def _drain(program: Program) -> Schedule:
    labels, costly, cyclic = program.graph.labels, costly_blocks(program), on_cycles(program.graph)
    control = tuple(label for label in labels if label in cyclic and label not in costly)
    expensive = tuple(label for label in labels if label in cyclic and label in costly)
    final = tuple(label for label in labels if label not in cyclic)
    return Schedule((group for group in (control, expensive, final) if group), policy="drain")


def ending_early(program: Program, schedule: Schedule) -> Schedule:
    """The schedule under which lanes start and halt soon, for callers that reuse lanes which have halted.

    Under `drain` they wait at the end for all others, which is best unless their lanes are reused. Here blocks that run
    once are in the group of the control blocks, and run when a share of ENDING of the live lanes waits for them: with n
    lanes, about 1 + log(n) / ENDING times. In a `sweep` they have no gate except the program's own; blocks on a cycle
    keep their gates. Any other schedule stays as it is.
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
    own = {block.label for block in program.graph.blocks if block.gate}  # `sync` has set when these run
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
        sweep, price = _sweep(program, costs, flow)
        costly = [program.graph.labels.index(label) for label in costly_blocks(program)]
        if price < drain_price(flow, _as_vector(program, costs), costly):
            return sweep
    return _drain(program)


def _as_vector(program: Program, costs: Costs) -> Vector:
    return np.array([costs.get(label, DISPATCH) for label in program.graph.labels])


def _fitted(program: Program, schedule: Schedule) -> Schedule:
    """The schedule with the program's gates where slots leave them open."""
    labels, named = program.graph.labels, schedule.order
    advice = f"The program's blocks are {', '.join(labels)}."
    if unknown := [label for label in named if label not in labels]:
        raise OptionError(f"the schedule names blocks that the program does not have: {', '.join(unknown)}. {advice}")
    if missing := [label for label in labels if label not in named]:
        raise OptionError(f"the schedule leaves out blocks, whose lanes would wait forever: {', '.join(missing)}.")
    gates = {block.label: block.gate for block in program.graph.blocks}
    groups = ((replace(s, gate=gates[s.label] if s.gate is None else s.gate) for s in g) for g in schedule.groups)
    return Schedule(groups, schedule.choose, schedule.policy, schedule.patience)


def costly_blocks(program: Program) -> tuple[str, ...]:
    """Labels of blocks that run a primitive declared costly."""
    blocks = [b for function in program.all_functions() for b in function.graph.blocks]
    return tuple(b.label for b in blocks if any(isinstance(op, PrimOp) and op.function.costly for op in b.ops))
