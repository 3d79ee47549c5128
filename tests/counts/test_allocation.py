"""How many stacks and pushes are left, pinned; and the tables of docs/passes.md are what the compiler gives."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchnuts.autobatch import Program, VariableAllocation, summarize

PAGE = Path(__file__).parents[2] / "docs" / "passes.md"


def _load() -> ModuleType:
    path = Path(__file__).with_name("allocation_table.py")
    spec = importlib.util.spec_from_file_location("allocation_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES = _load()


@pytest.fixture(scope="module")
def nuts() -> dict[str, Program]:
    return TABLES.nuts_passes()


@pytest.fixture(scope="module")
def shaped() -> dict[str, Program]:
    return TABLES.shaped_passes()


def test_nuts_has_fewer_stacks_and_pushes_than_the_reference(nuts: dict[str, Program]) -> None:
    """The reference implementation of the paper has 10 FULL variables and 20 pushes."""
    last = summarize(nuts["tail_calls"])
    assert (last.full, last.pushes, last.pops, last.return_addresses) == (8, 9, 8, 2)
    vectors = [
        v
        for v, a in nuts["tail_calls"].var_alloc.items()
        if a is VariableAllocation.FULL and nuts["tail_calls"].var_defs[v].shape == (10,)
    ]
    assert len(vectors) == 5


def test_a_program_of_its_shape(shaped: dict[str, Program]) -> None:
    last = summarize(shaped["tail_calls"])
    assert (last.full, last.pushes, last.pops, last.return_addresses) == (3, 3, 3, 3)


def test_every_pass_after_lowering_leaves_no_more_than_it_found(nuts: dict[str, Program], shaped: Any) -> None:
    for passes in (nuts, shaped):
        counts = [(TABLES.stacked(passes[name]), summarize(passes[name]).pushes) for name in TABLES.LOWERED]
        assert all(b[0] <= a[0] and b[1] <= a[1] for a, b in itertools.pairwise(counts))


def test_the_tables_of_the_page_are_true(nuts: dict[str, Program], shaped: dict[str, Program]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert TABLES.table(nuts) in page
    assert TABLES.table(shaped) in page


def test_the_page_lists_every_pass_in_order(nuts: dict[str, Program]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = [
        line.split("|")[1].strip() for line in page.split("## In numbers")[0].splitlines() if line.startswith("| ")
    ]
    assert listed[1:] == list(nuts)
