"""Mutants of the passes that make programs shorter; see `mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mutants import after_pass, around, each_block, mutant, replace_everywhere

from batchnuts.autobatch.frontend import speculation
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushGotoOp,
)
from batchnuts.autobatch.passes import (
    duplicate_tails,
    if_convert,
    invert,
    self_tail_calls,
    tail_calls,
)


@mutant("self_tail_calls")
def arguments_one_after_another(patch: pytest.MonkeyPatch) -> None:
    """the arguments of a self tail call are assigned one after another"""

    def change(true: Any, function: Any, block: Block) -> Block:
        made = true(function, block)
        if made is block or not isinstance(made.ops[-1], PrimOp):
            return made
        last = made.ops[-1]
        singly = tuple(PrimOp((o,), COPY, (i,), last.source) for o, i in zip(last.vars_out, last.vars_in))
        return replace(made, ops=made.ops[:-1] + singly)

    around(patch, self_tail_calls, "_without_tail_call", change)


@mutant("self_tail_calls")
def any_call_is_a_tail_call(patch: pytest.MonkeyPatch) -> None:
    """whatever a block returns, its last self call counts as a tail call"""

    def change(true: Any, function: Any, block: Block) -> Any:
        calls = [op for op in block.ops if getattr(op, "function", None) == function.name]
        return calls[-1] if calls else true(function, block)

    around(patch, self_tail_calls, "tail_call", change)


@mutant("if_convert")
def arms_exchanged(patch: pytest.MonkeyPatch) -> None:
    """a select takes the other arm's values"""

    def select(condition: Any, *values: Any) -> Any:
        half = len(values) // 2
        return if_convert._select(condition, *values[half:], *values[:half])

    patch.setattr(if_convert, "SELECT", Primitive("select", select, speculable=True))


@mutant("if_convert")
def arm_sees_the_other(patch: pytest.MonkeyPatch) -> None:
    """both arms write to the same variables"""
    patch.setattr(if_convert, "fresh_name", lambda wanted, taken: wanted.rpartition(".")[0])


@mutant("if_convert", costs=True)
def everything_may_be_speculated(patch: pytest.MonkeyPatch) -> None:
    """arms that call functions or index arrays are converted too"""
    around(patch, speculation, "is_speculable", lambda true, node, static: True)


@mutant("invert")
def not_undone(patch: pytest.MonkeyPatch) -> None:
    """what a call took off a parameter is not added back"""
    patch.setattr(invert, "_undo", lambda parameter, step: [])


@mutant("invert")
def undone_twice(patch: pytest.MonkeyPatch) -> None:
    """what a call took off a parameter is added back twice"""
    around(patch, invert, "_undo", lambda true, *args: true(*args) * 2)


@mutant("invert")
def assigned_parameters_too(patch: pytest.MonkeyPatch) -> None:
    """a parameter is inverted although its function assigns it"""
    patch.setattr(invert, "any", lambda values: False, raising=False)


@mutant("tail_calls")
def frames_kept_at_a_jump(patch: pytest.MonkeyPatch) -> None:
    """a tail call keeps the frames its function had still to drop"""

    def change(program: Program) -> Program:
        def undropped(block: Block) -> Block:
            jumps_out = isinstance(block.terminator, GotoOp) and not block.terminator.label.startswith(
                block.owner + "."
            )
            return (
                replace(block, ops=tuple(op for op in block.ops if not isinstance(op, PopOp))) if jumps_out else block
            )

        return each_block(program, undropped)

    after_pass(patch, tail_calls.tail_calls, change)


@mutant("tail_calls")
def every_call_a_jump(patch: pytest.MonkeyPatch) -> None:
    """a call whose resume block still computes becomes a jump"""

    true = tail_calls.tail_calls

    def of_pops_alone(program: Program) -> Program:
        calls = [block for block in program.graph.blocks if isinstance(block.terminator, PushGotoOp)]
        resumed = {block.terminator.resume_label for block in calls if block.owner != "main"}

        def pops_alone(block: Block) -> Block:
            if block.label not in resumed or not isinstance(block.terminator, IndirectGotoOp):
                return block
            return replace(block, ops=tuple(op for op in block.ops if isinstance(op, PopOp)))

        return true(each_block(program, pops_alone))

    replace_everywhere(patch, true, of_pops_alone)


@mutant("duplicate_tails", costs=True)
def no_block_is_small(patch: pytest.MonkeyPatch) -> None:
    """a loop's test is not repeated at the end of its body"""
    patch.setattr(duplicate_tails, "_is_small", lambda block: False)
