"""Policies: how the schedule of a program is made from its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.ir.cfg import depth_first
from batchnuts.autobatch.ir.loops import on_cycles
from batchnuts.autobatch.ir.program import COPY, Block, PrimOp, Program
from batchnuts.autobatch.scheduling.schedule import PATIENCE, Schedule, Slot

POLICIES = ("auto", "earliest", "most_active", "sweep", "drain")

ENDING = 0.25
"""The share of the live lanes that has to wait at the end before `ending_early` lets them halt."""

GATE = 0.35
"""The gate of blocks that compute: at most two of them can have their share of the live lanes at once."""

GATED_PATIENCE = 512
"""The patience of schedules with such gates, which costs NUTS less than one per cent."""

COSTLY_WORK = 400_000
"""Multiplications and elements that the costly primitives compute for one lane above which it pays to wait for all
lanes: fewer of their runs, and up to four times as many dispatches in all (docs/decisions/0070)."""


def make_schedule(
    program: Program,
    schedule: str | Schedule = "auto",
    work: Callable[[], float | None] | None = None,
) -> Schedule:
    """The schedule of a lowered program by a policy's name, or one made by hand; every slot has its gate.

        earliest     one group per block, in the program's order: always the earliest block, [R] Algorithm 2
        most_active  one group; always the block at which most lanes wait
        sweep        one group, each block once, in the order in which lanes come to them; where the program has no
                     gates of its own, blocks on cycles that compute wait for a third of the lanes
        drain        control blocks; then blocks with a costly primitive; then blocks on no cycle (what runs once, at
                     the end): control drains until every live lane waits for the costly primitive
        auto         where a primitive is declared costly, `sweep` or, if it computes much or nobody knows how much,
                     `drain`; else `earliest`

    `work` gives what the costly primitives compute for one lane (`costly_work`); it is called only if needed.

    Raises OptionError for an unknown policy, or for a schedule that leaves out a block or names an unknown one.
    """
    if isinstance(schedule, Schedule):
        return _fitted(program, schedule)
    policy = schedule
    if policy not in POLICIES:
        raise OptionError(f"schedule must be one of {', '.join(POLICIES)}, or a Schedule; found {policy!r}")
    labels, costly = program.graph.labels, costly_blocks(program)
    if policy == "auto":
        known = work() if work is not None and costly else None
        policy = "earliest" if not costly else "drain" if known is None or known > COSTLY_WORK else "sweep"
    match policy:
        case "earliest":
            result = Schedule(((label,) for label in labels), policy=policy, patience=None)
        case "most_active":
            result = Schedule((labels,), choose="most_active", policy=policy)
        case "sweep":
            result = _sweep(program)
        case _:
            result = _drain(program)
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
    lanes, about 1 + log(n) / ENDING times. Any other schedule stays as it is.
    """
    cyclic = on_cycles(program.graph)
    if schedule.policy != "drain":
        return schedule
    ends = [replace(slot, gate=slot.gate or ENDING) for slot in schedule.slots if slot.label not in cyclic]
    groups = [[slot for slot in group if slot.label in cyclic] for group in schedule.groups]
    first, *rest = [group for group in groups if group] or [[]]
    return Schedule([[*first, *ends], *rest], schedule.choose, schedule.policy, schedule.patience)


def _sweep(program: Program) -> Schedule:
    # closed gates open where no block has its share, so further ones would open those of `sync` too early
    own = any(block.gate for block in program.graph.blocks)
    waiting = frozenset() if own else on_cycles(program.graph)
    blocks = map(program.graph.block, depth_first(program.graph))
    slots = [Slot(block.label, GATE if block.label in waiting and _computes(block) else None) for block in blocks]
    return Schedule([slots], policy="sweep", patience=PATIENCE if own else GATED_PATIENCE)


def _computes(block: Block) -> bool:
    return any(isinstance(op, PrimOp) and op.function is not COPY for op in block.ops)


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
