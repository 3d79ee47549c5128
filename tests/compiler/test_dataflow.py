"""Liveness on small graphs, and what it decides: which variables get a stack."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs
import pytest

from batchnuts.autobatch import (
    Block,
    BranchOp,
    ControlFlowGraph,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushOp,
    VariableAllocation,
    batch,
)
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir.cfg import predecessors, reachable, simplify_graph, successors
from batchnuts.autobatch.ir.dataflow import liveness
from batchnuts.autobatch.ir.program import COPY
from batchnuts.autobatch.passes.allocate import invariants, needs_stack
from batchnuts.autobatch.passes.eliminate import eliminate
from batchnuts.autobatch.pipeline import compile_function


def op(out: str, *inputs: str) -> PrimOp:
    return PrimOp((out,), Primitive(f"f({', '.join(inputs)})", lambda *values: values[:1]), inputs)


LOOP = ControlFlowGraph(
    (
        Block("entry", (op("i", "n"), op("total")), GotoOp("test")),
        Block("test", (op("more", "i"),), BranchOp("more", "body", "end")),
        Block("body", (op("total", "total", "i"), op("i", "i")), GotoOp("test")),
        Block("end", (op("result", "total"),), IndirectGotoOp()),
    )
)


def passes(function: Any, *types: Any) -> dict[str, Program]:
    found: dict[str, Program] = {}
    compile_function(function, tuple(map(as_type, types)), get_backend("numpy", "eager"), found.__setitem__)
    return found


def full(function: Any, *types: Any) -> set[str]:
    allocation = passes(function, *types)["allocate"].var_alloc
    return {v for v, a in allocation.items() if a is VariableAllocation.FULL}


# ---- graphs --------------------------------------------------------------------------------------------------------


def test_edges() -> None:
    assert successors(LOOP) == {"entry": ("test",), "test": ("body", "end"), "body": ("test",), "end": ()}
    assert predecessors(LOOP) == {"entry": (), "test": ("entry", "body"), "body": ("test",), "end": ("test",)}
    assert reachable(LOOP) == {"entry", "test", "body", "end"}


def test_liveness_of_a_loop() -> None:
    live = liveness(LOOP, frozenset({"result"}), through_calls=False)
    assert live.at_start == {"entry": {"n"}, "test": {"i", "total"}, "body": {"i", "total"}, "end": {"total"}}
    assert live.at_end["test"] == {"i", "total"}
    assert live.at_end["end"] == set()


def test_a_pop_exposes_the_frame_beneath() -> None:
    """The value before `push x; x = f(); pop x` is live: it comes back."""
    graph = ControlFlowGraph((Block("entry", (PushOp("x"), op("x"), PopOp("x"), op("y", "x")), IndirectGotoOp()),))
    assert liveness(graph, frozenset({"y"}), through_calls=True).at_start["entry"] == {"x"}


def test_simplify_skips_empty_blocks_and_joins_chains() -> None:
    graph = ControlFlowGraph(
        (
            Block("a", (op("x"),), GotoOp("b")),
            Block("b", (), GotoOp("c")),
            Block("c", (op("y", "x"),), IndirectGotoOp()),
            Block("unreached", (), GotoOp("a")),
        )
    )
    (block,) = simplify_graph(graph).blocks
    assert block == Block("a", graph.blocks[0].ops + graph.blocks[2].ops, IndirectGotoOp())


def test_simplify_keeps_an_endless_loop() -> None:
    graph = ControlFlowGraph((Block("a", (), GotoOp("b")), Block("b", (), GotoOp("b"))))
    assert simplify_graph(graph).block("b").terminator == GotoOp("b")


# ---- elimination ---------------------------------------------------------------------------------------------------


def eliminated(*ops: Any, out: tuple[str, ...] = ("a", "b"), types: dict[str, Any] | None = None) -> tuple[Any, ...]:
    block = Block("main.entry", ops, IndirectGotoOp())
    return eliminate(Program(ControlFlowGraph((block,)), (), ("a", "b"), out, types or {})).graph.blocks[0].ops


def copy(outs: tuple[str, ...], ins: tuple[str, ...]) -> PrimOp:
    return PrimOp(outs, COPY, ins)


def test_eliminate_computes_in_place() -> None:
    made = op("t", "a")
    (result,) = eliminated(made, copy(("b",), ("t",)))
    assert (result.vars_out, result.function, result.vars_in) == (("b",), made.function, ("a",))


def test_eliminate_keeps_a_parallel_copy_that_still_reads_the_target() -> None:
    """t = f(a); a, b = t, a is not a = f(a); b = a."""
    ops = (op("t", "a"), copy(("a", "b"), ("t", "a")))
    assert eliminated(*ops) == ops


def test_eliminate_reads_originals_until_they_change() -> None:
    reader = op("b", "t")
    assert [o.vars_in for o in eliminated(copy(("t",), ("a",)), reader, out=("b",))] == [("a",)]
    changed = (copy(("t",), ("a",)), op("a", "b"), reader)
    assert eliminated(*changed) == changed


def test_eliminate_keeps_copies_to_another_type() -> None:
    """Such a copy is a cast."""
    ops = (copy(("t",), ("a",)), op("b", "t"))
    assert eliminated(*ops, out=("b",), types={"t": as_type("float32"), "a": as_type("int64")}) == ops


def test_eliminate_drops_dead_code() -> None:
    assert eliminated(op("unused", "a"), op("unused", "b")) == ()


# ---- stacks ----------------------------------------------------------------------------------------------------------


def test_fibonacci_stacks_only_n_and_left() -> None:
    assert full(programs.fibonacci, "int64") == {"fibonacci.n", "fibonacci.left"}


@pytest.mark.parametrize("program", [programs.gcd, programs.collatz, programs.early_return, programs.unpacks_results])
def test_without_recursion_nothing_is_stacked(program: Any) -> None:
    parameters = program.__wrapped__.__code__.co_argcount
    assert full(program, *["int64"] * parameters) == set()


@pytest.mark.parametrize(("program", "parameters"), [(programs.is_even, 1), (programs.pass_through, 2)])
def test_tail_recursion_stacks_nothing(program: Any, parameters: int) -> None:
    assert full(program, *["int64"] * parameters) == set()


def test_a_parameter_passed_on_unchanged_is_a_register() -> None:
    """`x` and `scaled` are read after the first recursive call, but all their frames are equal; `n` needs its own."""
    lowered = passes(programs.same_argument, "float64", "int64")["eliminate_lowered"]
    assert invariants(lowered) == {"same_argument.x", "same_argument.scaled"}
    allocation = passes(programs.same_argument, "float64", "int64")["allocate"].var_alloc
    assert allocation["same_argument.x"] is VariableAllocation.REGISTER
    assert allocation["same_argument.n"] is VariableAllocation.FULL


def test_a_parameter_that_one_call_changes_is_stacked() -> None:
    @batch
    def changes(x, n):
        if n <= 0:
            return x
        first = changes(x, n - 1)
        return first + changes(x + 1.0, n - 2) + x

    assert "changes.x" in full(changes, "float64", "int64")
    x, n = np.array([1.0, 2.0]), np.array([3, 5])
    np.testing.assert_array_equal(changes.run(x, n, backend="numpy"), changes.run(x, n, executor="unbatched"))


def test_a_parameter_that_a_mutual_recursion_changes_is_stacked() -> None:
    @batch
    def first(x, n):
        return x if n <= 0 else second(x, n - 1) + x

    @batch
    def second(y, n):
        return y if n <= 0 else first(y + 1, n - 1) * 2

    assert "first.x" in full(first, "int64", "int64")
    x, n = np.array([1, 2, 3]), np.array([3, 5, 0])
    np.testing.assert_array_equal(first.run(x, n, backend="numpy"), first.run(x, n, executor="unbatched"))


def test_an_inlined_functions_variable_live_across_the_recursion_is_stacked() -> None:
    @batch
    def helper(n):
        return n * 2

    @batch
    def recursive(n):
        if n <= 0:
            return 0
        kept = helper(n)
        return recursive(n - 1) + kept

    assert len(full(recursive, "int64")) == 1
    np.testing.assert_array_equal(recursive.run(np.array([0, 3, 9]), backend="numpy"), [0, 12, 90])


def test_needs_stack_counts_only_frames_read_after_a_pop() -> None:
    lowered = passes(programs.fibonacci, "int64")["eliminate_lowered"]
    pushed = {o.var for b in lowered.graph.blocks for o in b.ops if isinstance(o, PushOp)}
    assert pushed == {"fibonacci.n", "fibonacci.left", "fibonacci.return"}
    assert needs_stack(lowered) == {"fibonacci.n", "fibonacci.left"}
