"""Dispatches of a few programs, pinned: what a change of the compiler, a schedule or an executor costs or saves."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from programs import CASES, ackermann, collatz, fibonacci

SCRIPT = Path(__file__).with_name("dispatch_table.py")


def load_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dispatch_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


table = load_table()

FIB = (np.array([3, 7, 4, 5]),)
ACK = (np.array([1, 2, 0, 2]), np.array([2, 1, 4, 0]))
COL = (np.array([1, 6, 7, 27]),)

PINNED = {
    ("fibonacci", "stackless"): (96, 135),
    ("fibonacci", "earliest"): (143, 181),
    ("fibonacci", "most_active"): (145, 185),
    ("fibonacci", "sweep"): (148, 193),
    ("fibonacci", "drain"): (157, 211),
    ("ackermann", "stackless"): (34, 51),
    ("ackermann", "earliest"): (43, 51),
    ("ackermann", "most_active"): (38, 45),
    ("ackermann", "sweep"): (39, 45),
    ("ackermann", "drain"): (42, 56),
    ("collatz", "stackless"): (113, 668),
    ("collatz", "earliest"): (113, 668),
    ("collatz", "most_active"): (114, 668),
    ("collatz", "sweep"): (116, 668),
    ("collatz", "drain"): (113, 668),
}
"""Program and column: blocks, operations."""


@pytest.mark.parametrize(("program", "inputs"), [(fibonacci, FIB), (ackermann, ACK), (collatz, COL)])
@pytest.mark.parametrize("column", table.COLUMNS)
def test_dispatches_are_as_pinned(program: Any, inputs: tuple[np.ndarray, ...], column: str) -> None:
    found = table.dispatches(program, inputs, column)
    assert (found.blocks, found.operations) == PINNED[program.__name__, column]
    assert 0 < found.utilization <= 1


@pytest.mark.parametrize(("program", "inputs"), [(fibonacci, FIB), (ackermann, ACK), (collatz, COL)])
@pytest.mark.parametrize("column", table.COLUMNS)
def test_one_lane_alone_is_always_active(program: Any, inputs: tuple[np.ndarray, ...], column: str) -> None:
    assert table.dispatches(program, tuple(x[:1] for x in inputs), column).utilization == 1


PAGE = SCRIPT.parents[2] / "docs" / "dispatches.md"


def test_the_page_has_a_row_of_each_program() -> None:
    rows = [line.split(" | ")[0] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert rows[1 : rows.index("| **all**")] == [f"| {case.name}" for case in CASES], "run dispatch_table.py"


@pytest.mark.slow
def test_the_script_prints_the_whole_corpus() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=300)
    lines = done.stdout.splitlines()
    assert lines[0] == "| program | lanes | " + " | ".join(table.COLUMNS) + " |"
    assert [line.split(" | ")[0] for line in lines[2 : 2 + len(CASES)]] == [f"| {case.name}" for case in CASES]
    assert lines[2 + len(CASES)].startswith("| **all** |")
    assert done.stdout.strip() in PAGE.read_text(encoding="utf-8"), "put there what the script prints"
