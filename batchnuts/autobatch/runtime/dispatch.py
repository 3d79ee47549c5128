"""From a Schedule to what a sweep looks at: which lanes may move now (`compiler.schedule` says by which rule)."""

from __future__ import annotations

from collections.abc import Callable

from batchnuts.autobatch.compiler.schedule import Schedule
from batchnuts.autobatch.runtime.backend import Array, Backend, State

View = Callable[[State], Array]


def make_view(schedule: Schedule, backend: Backend, lanes: int) -> View:
    """The view of a state for that schedule (see `SweepPlan`): pc [lanes], with `halted` for lanes that may not move.

    Without gates and choice it is the pc itself, at no cost.
    """
    view: View = _behind_open_gates(schedule, backend, lanes) if schedule.gates else lambda state: state["pc"]
    return _at_most_active(schedule, backend, lanes, view) if schedule.choose == "most_active" else view


def _behind_open_gates(schedule: Schedule, backend: Backend, lanes: int) -> View:
    """Hides the lanes at blocks whose gate has not its share, unless that would hide all that are live."""
    index = {label: i for i, label in enumerate(schedule.order)}
    gates = [(index[label], gate) for label, gate in schedule.gates.items()]
    halted = len(index)

    def view(state: State) -> Array:
        pc = state["pc"]
        is_live = pc < halted
        live = backend.count(is_live)
        free = is_live
        for block, gate in gates:
            here = pc == block
            # waiting >= gate * live, in whole numbers, so that all backends agree
            shut = backend.count(here) * gate.denominator < live * gate.numerator
            free = free & ~(here & shut)
        held = is_live & ~free & (backend.count(free) > 0)
        return backend.where(held, backend.full((lanes,), halted, "int32"), pc)

    return view


def _at_most_active(schedule: Schedule, backend: Backend, lanes: int, of: View) -> View:
    """Leaves only the lanes at one block: of the first group with any, where most are; of equals, the earliest."""
    groups = schedule.group_of
    ranks = [len(schedule.groups) - groups[label] for label in schedule.order]
    halted = len(ranks)
    places = halted + 1

    def view(state: State) -> Array:
        pc = of(state)
        best = backend.asarray(0, "int64")
        for block, rank in enumerate(ranks):
            waiting = backend.count(pc == block)
            # one number to compare: the group, then the lanes, then the place; the remainder is the place
            key = (rank * (lanes + 1) + waiting) * places + (halted - block)
            better = (waiting > 0) & (key > best)
            best = best + backend.cast(better, "int64") * (key - best)
        chosen = backend.cast(halted - best % places, "int32")
        return backend.where(pc == chosen, pc, backend.full((lanes,), halted, "int32"))

    return view
