"""Which tests may leave the default suite, and which have left it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import affected_tests
import quick_tests
from covered_by_others import branches_of, covered_by_others, seconds_of
from slow_tests import is_in_part, parts_of, read_slow_tests

A, B, C = ((1, 1, 2), (1, 2, 3), (1, 3, 4))


def test_what_adds_no_branch_may_go() -> None:
    seconds = {"cheap": 0.05, "whole": 4.0, "half": 1.0, "other half": 1.5, "killer": 9.0}
    branches = {"cheap": {A}, "whole": {A, B, C}, "half": {A, B}, "other half": {C}, "killer": {A}}
    assert covered_by_others(seconds, branches, ["killer"]) == ["whole"]
    assert covered_by_others(seconds, branches, []) == ["killer", "whole"]
    assert covered_by_others({**seconds, "whole": 0.3}, branches, []) == ["killer", "other half", "half"]


def test_what_pytest_and_coverage_write_is_read(tmp_path: Path) -> None:
    log = (
        "1.50s call     tests/test_a.py::test_b[x y]\n0.25s setup    tests/test_a.py::test_b[x y]\nslowest durations\n"
    )
    assert seconds_of(log) == {"test_a.py::test_b[x y]": 1.75}
    with sqlite3.connect(tmp_path / "coverage") as file:
        file.execute("create table context (id, context)")
        file.execute("create table arc (file_id, context_id, fromno, tono)")
        file.executemany(
            "insert into context values (?, ?)",
            [(1, ""), (2, "tests/test_a.py::test_b[x y]|run"), (3, "tests/test_a.py::test_b[x y]|setup")],
        )
        file.executemany(
            "insert into arc values (?, ?, ?, ?)", [(1, 1, 1, 2), (1, 2, 1, 2), (1, 2, 2, 3), (1, 3, 3, 4)]
        )
    file.close()
    assert branches_of(tmp_path / "coverage") == {"test_a.py::test_b[x y]": {B, C}}


def test_lines_that_name_no_test_are_found(tmp_path: Path) -> None:
    """Files that are there and have no tests want an optional library."""
    (tmp_path / "test_peers.py").touch()
    lines = ["test_a.py::test_b[x]", "test_a.py::test_gone", "test_none.py::test_c", "test_peers.py::test_d[*-y]"]
    tests = read_slow_tests("\n".join(["# why", *lines]))
    named = tests.lines_of("tests/test_a.py::test_b[x]")
    assert named == {lines[0]}
    assert tests.unknown(named, {"test_a.py"}, tmp_path) == lines[1:3]


def test_commits_share_the_slow_tests() -> None:
    names = [f"test_a.py::test_b[{number}]" for number in range(1000)]
    commits = range(0x5ACBCB00, 0x5ACBCB00 + 200)
    for marks, parts in ((set(), 40), ({"slow"}, 40), ({"slow", "each_commit"}, 1), ({"slow", "release"}, 200)):
        assert parts_of(marks) == parts
        for name in names:
            assert sum(is_in_part(name, commit, parts) for commit in commits) == 200 / parts
        assert 1000 / parts / 3 < sum(is_in_part(name, commits[0], parts) for name in names) < 1000 / parts * 3


def test_the_list_of_quick_tests_names_tests() -> None:
    here = Path(__file__).parent
    assert [file for file in quick_tests.FILES if not (here / file).is_file()] == []
    for line in quick_tests.LEFT_OUT:
        file, name = line.split("::")
        assert file in quick_tests.FILES
        assert f"def {name}(" in (here / file).read_text(encoding="utf-8"), line


def test_what_is_quick() -> None:
    assert quick_tests.is_quick("tests/compiler/test_errors.py::test_a[x]", set())
    assert not quick_tests.is_quick("tests/compiler/test_errors.py::test_a[x-jax]", set())
    assert not quick_tests.is_quick("tests/compiler/test_errors.py::test_a[x]", {"slow"})
    assert not quick_tests.is_quick("tests/compiler/test_errors.py::test_unknown_options[option0]", set())
    assert not quick_tests.is_quick("tests/bridges/test_pymc.py::test_a", set())


def test_files_are_as_far_from_a_change_as_imports_are_long(tmp_path: Path) -> None:
    """Through packages and helpers; a file that is no module is named in a test's text."""
    texts = {
        "batchnuts/__init__.py": "",
        "batchnuts/core.py": "import numpy",
        "batchnuts/api.py": "from batchnuts.core import run",
        "models/eight.py": "from batchnuts import api",
        "tests/helpers/cases.py": "import batchnuts.models.eight",
        "tests/test_core.py": "def test():\n    from batchnuts import core",
        "tests/test_cases.py": "from cases import CASES",
        "tests/test_page.py": "PAGE = 'start.md'",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    imports = affected_tests.imports_of(tmp_path)
    far = affected_tests.distances(["batchnuts/core.py", "docs/start.md"], imports, tmp_path)
    tests = {name: far[name] for name in texts if "/test_" in name}
    assert tests == {"tests/test_core.py": 1, "tests/test_cases.py": 4, "tests/test_page.py": 1}
    assert affected_tests.distances(["models/eight.py"], imports, tmp_path).keys() == {
        "models/eight.py",
        "tests/helpers/cases.py",
        "tests/test_cases.py",
    }


def test_the_nearest_files_are_run_whole() -> None:
    files = ["far", "near", "near", "other", "middle"]
    far = {"near": 1, "middle": 2, "far": 3}
    assert affected_tests.nearest(files, far, None) == {0, 1, 2, 4}
    assert affected_tests.nearest(files, far, 3) == {1, 2, 4}
    assert affected_tests.nearest(files, far, 1) == {4}


def test_what_depends_on_the_representation_of_programs() -> None:
    """In the project itself: nearly all, through helpers and what is imported within functions."""
    far = affected_tests.distances(["batchnuts/autobatch/ir/program.py"], affected_tests.imports_of())
    assert far["tests/compiler/test_passes.py"] <= 2
    assert {"tests/mcmc/test_nuts.py", "tests/test_cluster.py", "tests/experiments/test_answer.py"} <= far.keys()
    assert "tests/compiler/test_parsing.py" not in far
