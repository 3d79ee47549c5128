"""Mutants: the library with one thing wrong, by hand; the tests kill each (`mutants_table.py` prints which does).

A mutant is a function of `pytest.MonkeyPatch` that breaks one rule. Those of the compiler and the machine are killed by
programs (`properties/test_mutants.py`): mutated passes rewrite what the true pass gives, so they do not depend on how
it is written. Those of all else are killed by tests that they name; most are a line of the library rewritten.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch.ir import cfg, dataflow
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    BranchOp,
    ControlFlowGraph,
    Op,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    VariableAllocation,
    WriteRowOp,
)
from batchnuts.autobatch.passes import allocate, coalesce, eliminate, inline, lower

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """One thing wrong. `costs` marks those that change no result, but how often blocks run or what gets a stack."""

    name: str
    where: str
    patch: Patch
    costs: bool = False
    killed_by: tuple[str, ...] = ()
    """Tests of the default suite, as pytest names them from the folder of tests; if none, programs kill it."""
    cheap: bool = False
    """These tests need no fixtures and take a moment: the default suite runs them on the mutant, too."""

    @property
    def option(self) -> str:
        """What `pytest --mutant` and `mutants_table.py` call it."""
        return self.patch.__name__


MUTANTS: list[Mutant] = []
"""Those that programs kill."""
KILLED_BY_TESTS: list[Mutant] = []


def mutant(where: str, *, costs: bool = False) -> Callable[[Patch], Patch]:
    """Put the function into MUTANTS; its first line of documentation is the mutant's name."""

    def add(patch: Patch) -> Patch:
        MUTANTS.append(Mutant(str(inspect.getdoc(patch)).splitlines()[0], where, patch, costs))
        return patch

    return add


def killed_by(where: str, *tests: str, cheap: bool = False) -> Callable[[Patch], Patch]:
    """Put the function into KILLED_BY_TESTS, as above."""

    def add(patch: Patch) -> Patch:
        name = str(inspect.getdoc(patch)).splitlines()[0]
        KILLED_BY_TESTS.append(Mutant(name, where, patch, killed_by=tests, cheap=cheap))
        return patch

    return add


def rewrite(patch: pytest.MonkeyPatch, function: Any, old: str, new: str) -> None:
    """Put `new` in the place of `old`, which stands once in the function's text; whoever holds the function has it."""
    function = inspect.unwrap(function)
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {function.__qualname__}"
    tree = ast.parse(text.replace(old, new))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []  # which have done their work
    module = compile(tree, f"<mutant of {function.__qualname__}>", "exec", flags=__future__.annotations.compiler_flag)
    (code,) = (constant for constant in module.co_consts if isinstance(constant, types.CodeType))
    assert code.co_freevars == function.__code__.co_freevars == ()
    patch.setattr(function, "__code__", code)


def replace_everywhere(patch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Put `new` wherever a module of the library holds `old`."""
    for module in [m for name, m in sys.modules.items() if name.startswith("batchnuts.autobatch")]:
        for name, value in list(vars(module).items()):
            if value is old:
                patch.setattr(module, name, new)


def after_pass(patch: pytest.MonkeyPatch, function: Any, change: Callable[[Program], Program]) -> None:
    """Change what a pass gives."""
    replace_everywhere(patch, function, lambda *args: change(function(*args)))


def after_lowering(patch: pytest.MonkeyPatch, change: Callable[[Program, Program], Program]) -> None:
    """Change what lowering gives, knowing what it was given."""
    true = lower.lower_function_calls
    replace_everywhere(patch, true, lambda program: change(program, true(program)))


def each_block(program: Program, change: Callable[[Block], Block]) -> Program:
    """The lowered program with every block changed."""
    return program.replace(graph=ControlFlowGraph(tuple(change(block) for block in program.graph.blocks)))


def around(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a method by `change(true_method, *arguments)`."""
    true = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **options: change(true, *args, **options))


def everyone(mask: Any) -> Any:
    return np.ones_like(mask)


# ---- lowering -------------------------------------------------------------------------------------------------------


def pushed(before: Program, block: Block) -> tuple[list[str], list[str]]:
    """The variables that a calling block pushes: those it saves, and the callee's parameters."""
    pushes = [op.var for op in block.ops if isinstance(op, PushOp)]
    (callee,) = (f for f in before.functions if f.graph.entry == block.terminator.target_label)
    saved = len(pushes) - len(callee.vars_in)
    return pushes[:saved], pushes[saved:]


def calling(program: Program) -> list[Block]:
    return [block for block in program.graph.blocks if isinstance(block.terminator, PushGotoOp)]


def without(block: Block, *ops: Op) -> Block:
    """The block without the first of each of the ops."""
    rest = list(block.ops)
    for op in ops:
        rest.remove(op)
    return replace(block, ops=tuple(rest))


@mutant("lower")
def forget_saved(patch: pytest.MonkeyPatch) -> None:
    """a call saves all live variables but the last"""

    def change(before: Program, program: Program) -> Program:
        for block in calling(program):
            for variable in pushed(before, block)[0][-1:]:
                changed = {
                    block.label: without(program.graph.block(block.label), PushOp(variable)),
                    block.terminator.resume_label: without(
                        program.graph.block(block.terminator.resume_label), PopOp(variable)
                    ),
                }
                program = each_block(program, lambda b, changed=changed: changed.get(b.label, b))
        return program

    after_lowering(patch, change)


@mutant("lower")
def restore_late(patch: pytest.MonkeyPatch) -> None:
    """a variable saved across a call gets its value back only at the end of the block after the call"""

    def change(before: Program, program: Program) -> Program:
        late = {b.terminator.resume_label: [PopOp(v) for v in pushed(before, b)[0]] for b in calling(program)}

        def restored(block: Block) -> Block:
            pops = late.get(block.label, [])
            return replace(block, ops=(*without(block, *pops).ops, *pops))

        return each_block(program, restored)

    after_lowering(patch, change)


@mutant("lower")
def sequential_copies(patch: pytest.MonkeyPatch) -> None:
    """arguments are copied one after another instead of all at once"""

    def change(block: Block) -> Block:
        ops: list[Op] = []
        for op in block.ops:
            if isinstance(op, PrimOp) and op.function is COPY:
                ops += [replace(op, vars_out=(o,), vars_in=(i,)) for o, i in zip(op.vars_out, op.vars_in)]
            else:
                ops.append(op)
        return replace(block, ops=tuple(ops))

    after_pass(patch, lower.lower_function_calls, lambda program: each_block(program, change))


@mutant("lower")
def no_frame_for_parameters(patch: pytest.MonkeyPatch) -> None:
    """a call gives the callee's first parameter no frame of its own"""

    def change(before: Program, program: Program) -> Program:
        calls = {b.label: pushed(before, b)[1][:1] for b in calling(program)}
        return each_block(program, lambda b: without(b, *map(PushOp, calls.get(b.label, []))))

    after_lowering(patch, change)


@mutant("lower")
def push_after_copy(patch: pytest.MonkeyPatch) -> None:
    """a parameter's frame is pushed after the argument was copied, not before"""

    def change(before: Program, program: Program) -> Program:
        late = {b.label: [PushOp(v) for v in pushed(before, b)[1]] for b in calling(program)}

        def moved(block: Block) -> Block:
            pushes = late.get(block.label, [])
            return replace(block, ops=(*without(block, *pushes).ops, *pushes))

        return each_block(program, moved)

    after_lowering(patch, change)


@mutant("lower")
def one_resume_point(patch: pytest.MonkeyPatch) -> None:
    """all calls of one function body come back to the same place"""

    def change(program: Program) -> Program:
        resume: dict[str, str] = {}

        def same(block: Block) -> Block:
            if not isinstance(block.terminator, PushGotoOp):
                return block
            label = resume.setdefault(block.owner, block.terminator.resume_label)
            return replace(block, terminator=replace(block.terminator, resume_label=label))

        return each_block(program, same)

    after_pass(patch, lower.lower_function_calls, change)


@mutant("lower")
def results_in_reverse(patch: pytest.MonkeyPatch) -> None:
    """several results of a call are handed over in reverse"""
    true = lower._copy

    def change(outs: tuple[str, ...], ins: tuple[str, ...], like: Any) -> list[Op]:
        return true(outs, ins[::-1] if outs == like.vars_out else ins, like)

    patch.setattr(lower, "_copy", change)


# ---- dataflow -------------------------------------------------------------------------------------------------------


@mutant("dataflow")
def conditions_not_live(patch: pytest.MonkeyPatch) -> None:
    """liveness does not count the conditions of branches"""
    replace_everywhere(patch, dataflow.terminator_reads, lambda terminator: ())


@mutant("dataflow")
def not_through_calls(patch: pytest.MonkeyPatch) -> None:
    """liveness over a lowered program does not follow calls and returns"""
    true = dataflow.liveness

    def change(graph: Any, live_at_exit: Any, *, through_calls: bool, **options: Any) -> Any:
        return true(graph, live_at_exit, through_calls=False, **options)

    replace_everywhere(patch, true, change)


@mutant("dataflow")
def kill_before_read(patch: pytest.MonkeyPatch) -> None:
    """`i = f(i)` does not make i live before it"""
    true = dataflow.live_before_op
    replace_everywhere(patch, true, lambda op, live, **o: true(op, live, **o) - set(dataflow.writes(op)))


@mutant("dataflow")
def one_round(patch: pytest.MonkeyPatch) -> None:
    """an analysis visits each block once instead of going on to the fixpoint"""
    true = dataflow.solve

    def change(graph: ControlFlowGraph, analysis: Any, **options: Any) -> Any:
        seen: dict[str, Any] = {}

        def once(block: Block, fact: Any) -> Any:
            return seen.setdefault(block.label, analysis.transfer(block, fact))

        return true(graph, replace(analysis, transfer=once), **options)

    replace_everywhere(patch, true, change)


@mutant("dataflow", costs=True)
def pushes_always_read(patch: pytest.MonkeyPatch) -> None:
    """every push counts as a read of the frame it saves"""
    true = dataflow.live_before_op
    replace_everywhere(patch, true, lambda op, live, **options: true(op, live, **options | {"push_reads": True}))


# ---- inline, eliminate, cfg -----------------------------------------------------------------------------------------


@mutant("inline")
def inline_used_twice(patch: pytest.MonkeyPatch) -> None:
    """a function with several call sites is inlined as if it had one"""

    def change(program: Program) -> str | None:
        calls = cfg.call_graph(program)
        return next((f.name for f in program.functions if f.name not in calls[f.name]), None)

    patch.setattr(inline, "_candidate", change)


@mutant("inline")
def inline_without_arguments(patch: pytest.MonkeyPatch) -> None:
    """an inlined body does not get its arguments"""
    around(
        patch, inline, "_into", lambda true, caller, callee, resume: true(caller, replace(callee, vars_in=()), resume)
    )


@mutant("eliminate")
def drop_a_live_op(patch: pytest.MonkeyPatch) -> None:
    """one live variable of each block counts as dead"""
    around(
        patch, eliminate, "_drop_dead", lambda true, ops, live, types: true(ops, live - set(sorted(live)[:1]), types)
    )


@mutant("eliminate")
def drop_writes(patch: pytest.MonkeyPatch) -> None:
    """a write into a buffer counts as dead if it is the block's last op"""

    def change(true: Any, ops: tuple[Op, ...], live: Any, types: Any) -> tuple[Op, ...]:
        return true(ops[:-1] if ops and isinstance(ops[-1], WriteRowOp) else ops, live, types)

    around(patch, eliminate, "_drop_dead", change)


@mutant("eliminate")
def stale_originals(patch: pytest.MonkeyPatch) -> None:
    """a copy's original is read even after it was assigned again"""
    true = eliminate._read_originals

    def change(ops: tuple[Op, ...], types: Any) -> tuple[Op, ...]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(eliminate, "writes", lambda op: ())
            return true(ops, types)

    patch.setattr(eliminate, "_read_originals", change)


@mutant("eliminate")
def in_place_though_live(patch: pytest.MonkeyPatch) -> None:
    """a value is computed in its copy's place though it is read afterwards"""
    true = eliminate._compute_in_place
    patch.setattr(eliminate, "_compute_in_place", lambda ops, live, types: true(ops, frozenset(), types))


@mutant("cfg")
def skip_merges_branches(patch: pytest.MonkeyPatch) -> None:
    """skipping an empty block makes a branch go to its first target both ways"""
    true = cfg.relabel

    def change(terminator: Any, renaming: dict[str, str]) -> Any:
        result = true(terminator, renaming)
        if isinstance(result, BranchOp) and renaming:
            return replace(result, false_label=result.true_label)
        return result

    replace_everywhere(patch, true, change)


# ---- allocation -----------------------------------------------------------------------------------------------------


@mutant("allocate")
def full_to_register(patch: pytest.MonkeyPatch) -> None:
    """the first variable that needs a stack gets a register"""
    around(patch, allocate, "needs_stack", lambda true, program: frozenset(sorted(true(program))[1:]))


@mutant("allocate")
def register_to_temporary(patch: pytest.MonkeyPatch) -> None:
    """the last register that crosses blocks becomes a temporary"""

    def change(program: Program) -> Program:
        fixed = {*program.vars_in, *program.vars_out}
        register = [v for v, a in program.var_alloc.items() if a is VariableAllocation.REGISTER and v not in fixed]
        changed = dict.fromkeys(register[-1:], VariableAllocation.TEMPORARY)
        return program.replace(var_alloc={**program.var_alloc, **changed})

    after_pass(patch, allocate.classify, change)


@mutant("allocate")
def everything_static(patch: pytest.MonkeyPatch) -> None:
    """every parameter counts as one that no call changes"""

    def change(true: Any, program: Program) -> frozenset[str]:
        return frozenset(op.var for b in program.graph.blocks for op in b.ops if isinstance(op, PopOp))

    around(patch, allocate, "invariants", change)


@mutant("allocate")
def pops_kept_pushes_dropped(patch: pytest.MonkeyPatch) -> None:
    """the pushes of a variable go, its pops stay"""

    def change(program: Program) -> Program:
        first = sorted({op.var for b in program.graph.blocks for op in b.ops if isinstance(op, PushOp)})[:1]
        return each_block(
            program, lambda b: replace(b, ops=tuple(op for op in b.ops if op not in [PushOp(v) for v in first]))
        )

    after_pass(patch, allocate.allocate, change)


@mutant("allocate", costs=True)
def stack_for_all(patch: pytest.MonkeyPatch) -> None:
    """every variable that is pushed somewhere gets a stack"""

    def change(true: Any, program: Program) -> frozenset[str]:
        return frozenset(op.var for b in program.graph.blocks for op in b.ops if isinstance(op, PushOp))

    around(patch, allocate, "needs_stack", change)


@mutant("coalesce")
def no_interference(patch: pytest.MonkeyPatch) -> None:
    """variables that are live together may share a register"""
    patch.setattr(coalesce, "_interference", lambda program: {v: set() for v in program.var_alloc})


@mutant("coalesce")
def first_result_only(patch: pytest.MonkeyPatch) -> None:
    """interference looks at each op's first result only"""
    true = coalesce.writes
    patch.setattr(coalesce, "writes", lambda op: true(op)[:1])
