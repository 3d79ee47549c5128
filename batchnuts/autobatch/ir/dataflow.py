"""Dataflow analyses over control-flow graphs: one worklist, and analyses as values given to it.

Liveness is the most used one: a variable is live where its top frame may be read before it is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from batchnuts.autobatch.errors import CompileError, UndefinedVariableError
from batchnuts.autobatch.ir.cfg import predecessors, successors
from batchnuts.autobatch.ir.program import (
    Block,
    ControlFlowGraph,
    Function,
    IndirectGotoOp,
    Op,
    PopOp,
    Program,
    PushOp,
    reads,
    terminator_reads,
    writes,
)
from batchnuts.autobatch.ir.undefined_paths import first_reader

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Analysis(Generic[Fact]):
    """A dataflow problem.

    forward: the direction facts travel. boundary: the fact that enters at the program's start (forward), or at the
    blocks without successors (backward). bottom: the fact before anything is known. merge: joins facts where paths
    meet. transfer: the fact on the far side of a block, from the one on its near side.
    """

    forward: bool
    boundary: Fact
    bottom: Fact
    merge: Callable[[Fact, Fact], Fact]
    transfer: Callable[[Block, Fact], Fact]


@dataclass(frozen=True)
class Solution(Generic[Fact]):
    """Facts at both ends of each block, in program order whatever the direction of the analysis."""

    at_start: Mapping[str, Fact]
    at_end: Mapping[str, Fact]


def solve(graph: ControlFlowGraph, analysis: Analysis[Fact], *, through_calls: bool) -> Solution[Fact]:
    """The least fixpoint of the analysis; `through_calls` as in `cfg.successors`."""
    after = successors(graph, through_calls=through_calls)
    before = predecessors(graph, through_calls=through_calls)
    sources, sinks = (before, after) if analysis.forward else (after, before)
    blocks = {block.label: block for block in graph.blocks}
    near: dict[str, Fact] = {}
    far: dict[str, Fact] = dict.fromkeys(graph.labels, analysis.bottom)
    order = list(graph.labels) if analysis.forward else list(reversed(graph.labels))
    todo = dict.fromkeys(order)
    while todo:
        label = next(iter(todo))
        del todo[label]
        at_boundary = label == graph.entry if analysis.forward else not after[label]
        fact = analysis.boundary if at_boundary else analysis.bottom
        for source in sources[label]:
            fact = analysis.merge(fact, far[source])
        near[label] = fact
        result = analysis.transfer(blocks[label], fact)
        if result != far[label]:
            far[label] = result
            todo.update(dict.fromkeys(sinks[label]))
    return Solution(near, far) if analysis.forward else Solution(far, near)


Variables = frozenset[str]


def live_before_op(op: Op, live: Variables, *, push_reads: bool = True) -> Variables:
    """Variables live before an op, given those live after it.

    A pop exposes the frame beneath it, so a variable live after its own pop is counted as live before. A push reads
    the frame it saves; with `push_reads` False only reads of the top frame count (see `allocate.needs_stack`).
    """
    if isinstance(op, PushOp) and not push_reads:
        return live
    return (live - set(writes(op))) | set(reads(op))


def live_after_ops(ops: Sequence[Op], live: Variables) -> list[Variables]:
    """For each op of a sequence, the variables live after it; `live` are those live after the last one."""
    after = []
    for op in reversed(ops):
        after.append(live)
        live = live_before_op(op, live)
    return after[::-1]


@dataclass(frozen=True)
class BlockLiveness:
    """What a block does to live variables: those at its start are exposed | (those at its end - assigned).

    exposed: variables that it reads before it assigns them. assigned: those that it assigns.
    """

    exposed: Variables
    assigned: Variables

    def before(self, live: Variables) -> Variables:
        """Variables live at the block's start, given those live at its end."""
        return self.exposed | (live - self.assigned)


def block_liveness(block: Block, *, push_reads: bool = True, pop_exposes: bool = True) -> BlockLiveness:
    """The effects of a block's ops, as `live_before_op` has them, one after another from its end.

    With `pop_exposes` False it is top frames alone that are live: one that is popped unread is not.
    """
    exposed, assigned = set(terminator_reads(block.terminator)), set[str]()
    for op in reversed(block.ops):
        if isinstance(op, PushOp) and not push_reads:
            continue
        written = (op.var,) if isinstance(op, PopOp) and not pop_exposes else writes(op)
        assigned.update(written)
        exposed.difference_update(written)
        exposed.update(reads(op))
    return BlockLiveness(frozenset(exposed), frozenset(assigned))


def liveness(
    graph: ControlFlowGraph,
    live_at_exit: Variables,
    *,
    through_calls: bool,
    push_reads: bool = True,
    pop_exposes: bool = True,
) -> Solution[Variables]:
    """Live variables at both ends of every block; `live_at_exit` are read after the last block returns."""

    effects = {b.label: block_liveness(b, push_reads=push_reads, pop_exposes=pop_exposes) for b in graph.blocks}

    def transfer(block: Block, live: Variables) -> Variables:
        leaves = isinstance(block.terminator, IndirectGotoOp) and (not through_calls or block.owner == "main")
        return effects[block.label].before(live | live_at_exit if leaves else live)

    analysis = Analysis[Variables](
        forward=False, boundary=frozenset(), bottom=frozenset(), merge=frozenset.union, transfer=transfer
    )
    return solve(graph, analysis, through_calls=through_calls)


def function_liveness(function: Function) -> Solution[Variables]:
    """Liveness within one body before lowering."""
    return liveness(function.graph, frozenset(function.vars_out), through_calls=False)


def check_assigned(program: Program) -> None:
    """Raise for a variable that some path reads before assigning it, and for a path that returns no value."""
    for function in program.all_functions():
        live = function_liveness(function).at_start[function.graph.entry]
        for variable in sorted(live - set(function.vars_in)):
            if variable in function.vars_out:
                raise CompileError(
                    f"function {function.name!r} can reach its end without returning a value. "
                    "Add a return statement to every path.",
                    function.source,
                )
            where, when = first_reader(function, variable)
            identifier = variable.split(".", 1)[1]
            raise UndefinedVariableError(
                f"variable {identifier!r} of {function.name!r} may be read here before it is assigned: {when}, no "
                "assignment comes before this line. Give it a value on every path.",
                where,
            )
