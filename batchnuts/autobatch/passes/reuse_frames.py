"""Pop-push cancellation ([R] section 3.2): the last recursive call takes over its caller's frame.

    f.resume:                                    f.resume:
      ... last read of f.b                         ... last read of f.b
      push f.b                          -->
      f.b = copy f.c                               f.b = copy f.c          in place
      push_goto f.resume.2 f.entry                 push_goto f.resume.2 f.entry
    f.resume.2:                                  f.resume.2:
      ... ; pop f.b ; return                       ... ; return

A formal parameter's frame is dropped when its function returns, but is not read after its last use. If the last use is
before a recursive call, dropping it there cancels with the call's push: the callee gets the frame, and drops it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace

from batchnuts.autobatch.ir.cfg import successors
from batchnuts.autobatch.ir.dataflow import Analysis, Solution, solve
from batchnuts.autobatch.ir.program import (
    Block,
    ControlFlowGraph,
    Function,
    IndirectGotoOp,
    PopOp,
    Program,
    PushGotoOp,
    PushOp,
    VariableAllocation,
    reads,
    terminator_reads,
    writes,
)
from batchnuts.autobatch.passes.allocate import classify


class _Frame(enum.Enum):
    """Whether a parameter's own frame is still there when control reaches a point of its function's body."""

    UNREACHED = enum.auto()
    PRESENT = enum.auto()
    GONE = enum.auto()
    EITHER = enum.auto()


def reuse_frames(program: Program, functions: Sequence[Function]) -> Program:
    """The allocated program in which parameters' frames are reused. `functions`: those it was lowered from."""
    for function in functions:
        for parameter in function.vars_in:
            if program.var_alloc.get(parameter) is VariableAllocation.FULL:
                program = _hand_on(program, function, parameter)
    return classify(program)


def _hand_on(program: Program, function: Function, parameter: str) -> Program:
    """The program in which recursive calls that may do so take over the parameter's frame."""
    body = ControlFlowGraph(tuple(b for b in program.graph.blocks if b.owner == function.name))
    own_live = own_frame_liveness(body, parameter, function.graph.entry)
    handing = {b.label for b in body.blocks if _can_hand_on(b, parameter, function.graph.entry, own_live)}
    if not handing:
        return program
    frames = _frames(body, handing)
    early: set[str] = set()
    while _Frame.EITHER in frames.at_start.values():
        # where paths with and without the frame meet it is not read any more: drop it on the paths that have it
        following = successors(body, through_calls=False)
        meeting = {label for label, state in frames.at_start.items() if state is _Frame.EITHER}
        dropping = {
            label
            for label, targets in following.items()
            if frames.at_end[label] is _Frame.PRESENT and meeting & set(targets)
        }
        if not dropping or any(len(following[label]) != 1 for label in dropping):
            return program  # it would need a block of its own on an edge: not worth a dispatch
        early |= dropping
        frames = _frames(body, handing | early)

    def convert(block: Block) -> Block:
        if block.owner != function.name:
            return block
        has_frame = frames.at_start[block.label] is _Frame.PRESENT
        ops = block.ops
        if has_frame and block.label in early:
            ops = (*ops, PopOp(parameter))
        if has_frame and block.label in handing:
            ops = tuple(op for op in ops if not (isinstance(op, PushOp) and op.var == parameter))
        if not has_frame and isinstance(block.terminator, IndirectGotoOp):
            ops = tuple(op for op in ops if not (isinstance(op, PopOp) and op.var == parameter))
        return replace(block, ops=ops)

    return program.replace(graph=ControlFlowGraph(tuple(map(convert, program.graph.blocks))))


def own_frame_liveness(body: ControlFlowGraph, parameter: str, entry: str) -> Solution[bool]:
    """Where in a function's body the parameter's own frame may still be read before the function drops it.

    Between a recursive call's push and its jump the top frame is the callee's, and the own one lies beneath it. An
    assignment counts as a use: it needs the frame as a place to write to.
    """

    def transfer(block: Block, own: bool) -> bool:
        calls = isinstance(block.terminator, PushGotoOp) and block.terminator.target_label == entry
        in_own = not (calls and any(isinstance(op, PushOp) and op.var == parameter for op in block.ops))
        own |= parameter in terminator_reads(block.terminator)
        passed_on = True  # the new frame as the push made it, a duplicate of the own one
        for op in reversed(block.ops):
            if isinstance(op, PushOp) and op.var == parameter:
                in_own, own = True, own or passed_on
            elif isinstance(op, PopOp) and op.var == parameter:
                own = False
            elif parameter in reads(op) or parameter in writes(op):
                own = own or in_own
                passed_on = parameter in reads(op)
        return own

    analysis = Analysis[bool](forward=False, boundary=False, bottom=False, merge=bool.__or__, transfer=transfer)
    return solve(body, analysis, through_calls=False)


def _can_hand_on(block: Block, parameter: str, entry: str, own_live: Solution[bool]) -> bool:
    """Whether the block ends in a recursive call after which its own frame of the parameter is not read."""
    if not isinstance(block.terminator, PushGotoOp) or block.terminator.target_label != entry:
        return False
    pushes = sum(isinstance(op, PushOp) and op.var == parameter for op in block.ops)
    return pushes == 1 and not own_live.at_start[block.terminator.resume_label]


def _frames(body: ControlFlowGraph, dropping: set[str]) -> Solution[_Frame]:
    """Where the own frame is, if the blocks in `dropping` give it away at their ends."""

    def transfer(block: Block, state: _Frame) -> _Frame:
        return _Frame.GONE if block.label in dropping and state is not _Frame.UNREACHED else state

    def merge(a: _Frame, b: _Frame) -> _Frame:
        if a is b or b is _Frame.UNREACHED:
            return a
        return b if a is _Frame.UNREACHED else _Frame.EITHER

    analysis = Analysis[_Frame](
        forward=True, boundary=_Frame.PRESENT, bottom=_Frame.UNREACHED, merge=merge, transfer=transfer
    )
    return solve(body, analysis, through_calls=False)
