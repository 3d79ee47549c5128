"""Mutants of what stands for loops over sequences, assigned elements, := and functions as values; see `mutants`."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from mutants import around, mutant

from batchnuts.autobatch.frontend import builder, calls, expressions, for_loops, loop_names, sequences, walrus
from batchnuts.autobatch.language import structures


@mutant("walrus")
def what_stands_before_sees_the_new_value(patch: pytest.MonkeyPatch) -> None:
    """what stands before := sees the new value"""
    patch.setattr(walrus, "reads_before", lambda node: {})


@mutant("in_place")
def a_negative_index_is_not_counted_from_the_end(patch: pytest.MonkeyPatch) -> None:
    """x[-1] = v is a write outside the array"""
    patch.setattr(expressions, "row", lambda x, index: index)


@mutant("structures")
def tuples_of_one_length_are_equal(patch: pytest.MonkeyPatch) -> None:
    """two tuples of one length are equal, whatever is in them"""
    around(
        patch,
        structures,
        "_equal",
        lambda true, x, y, equal: len(x) == len(y) if isinstance(x, tuple) else true(x, y, equal),
    )


@mutant("sequences")
def enumerate_begins_with_zero(patch: pytest.MonkeyPatch) -> None:
    """enumerate(x, 1) begins with 0"""
    patch.setattr(sequences.Enumerate, "item", lambda self, values, k: (k, self.inner.item(values, k)))


@mutant("sequences")
def zip_goes_on_to_the_longest(patch: pytest.MonkeyPatch) -> None:
    """zip makes a round more than the shortest of its sequences has"""
    around(patch, sequences.Zip, "length", lambda true, self, lengths: true(self, lengths) + 1)


@mutant("for_loops")
def a_loop_that_may_not_run_runs(patch: pytest.MonkeyPatch) -> None:
    """every loop over a sequence makes a first round"""
    patch.setattr(for_loops, "makes_a_round", lambda sequence, learned: True)


@mutant("loop_names")
def nothing_is_carried_to_the_next_copy(patch: pytest.MonkeyPatch) -> None:
    """each copy of a body that is written out has variables of its own"""

    def own_names(loop: ast.For, function: list[ast.stmt]) -> set[str]:
        stored = (n for part in (loop.target, *loop.body) for n in ast.walk(part) if isinstance(n, ast.Name))
        return {name.id for name in stored if isinstance(name.ctx, ast.Store)}

    assert loop_names.own_names is for_loops.own_names
    patch.setattr(for_loops, "own_names", own_names)


@mutant("calls")
def a_function_is_compiled_once(patch: pytest.MonkeyPatch) -> None:
    """a function is compiled for the first function that it is given, and used for others"""
    patch.setattr(builder.Callee, "__eq__", lambda self, other: self.function == other.function)
    patch.setattr(builder.Callee, "__hash__", lambda self: hash(self.function))


@mutant("calls")
def a_function_inside_reads_nothing_around_it(patch: pytest.MonkeyPatch) -> None:
    """a function inside gets the variables around it in another order"""

    def change(true: Any, b: Any, node: ast.Call, callee: Any) -> tuple[str, ...]:
        return true(b, node, callee)[::-1]

    around(patch, calls, "captured_by", change)
