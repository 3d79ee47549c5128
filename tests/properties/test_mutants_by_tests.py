"""Mutants of what no program shows: pfor, schedules, chunks, storage. Each is killed by the tests that it names.

Here, those whose tests take a moment; `pytest -m slow` runs the others, each in a process of its own.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
from mutants import KILLED_BY_TESTS, Mutant
from mutants_table import BY_OPTION, TESTS, killed_by_a_test
from slow_tests import SLOW_TESTS

CHEAP = [mutant for mutant in KILLED_BY_TESTS if mutant.cheap]


@pytest.fixture(scope="module")
def tests_of(request: pytest.FixtureRequest) -> Any:
    """tests_of(name): the tests of that name, or of all parameters of it, as functions without arguments."""

    @functools.cache
    def in_file(file: str) -> list[pytest.Function]:
        module = pytest.Module.from_parent(request.session, path=TESTS / file)
        return [item for item in module.collect() if isinstance(item, pytest.Function)]

    def find(name: str) -> list[Any]:
        file, _, test = name.partition("::")
        items = [item for item in in_file(file) if test in (item.name, item.originalname)]
        assert items, f"there is no test {name}"
        return [with_parameters(item) for item in items]

    return find


def with_parameters(item: pytest.Function) -> Any:
    """Raises TypeError where it needs fixtures."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    inspect.signature(item.obj).bind(**parameters)
    return functools.partial(item.obj, **parameters)


@pytest.mark.filterwarnings("ignore::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("mutant", CHEAP, ids=[f"{mutant.where}: {mutant.name}" for mutant in CHEAP])
def test_a_mutant_is_killed(mutant: Mutant, tests_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [test for name in mutant.killed_by for test in tests_of(name)]
    mutant.patch(monkeypatch)
    for test in tests:
        try:
            test()
        except Exception:
            return
    pytest.fail(f"no test notices the mutant of {mutant.where}: {mutant.name}")


@pytest.mark.parametrize("name", BY_OPTION)
def test_a_mutant_fits_the_code_that_there_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that change lines find them, without which a table of all would be needed to see that one does nothing."""
    try:
        BY_OPTION[name].patch(monkeypatch)
    except ModuleNotFoundError as error:  # of a bridge's library
        pytest.skip(str(error))


def test_killers_are_not_left_out_of_the_default_suite() -> None:
    killers = {name for mutant in KILLED_BY_TESTS for name in mutant.killed_by}
    assert not {name for name in killers if SLOW_TESTS.lines_of(name)}


def test_there_are_enough_mutants() -> None:
    areas = [mutant.where.partition(" ")[0] for mutant in KILLED_BY_TESTS]
    least = {"pfor": 10, "scheduling": 10, "chunks": 10, "storage": 10, "warmup": 5, "users": 10}
    assert {area: areas.count(area) >= least.get(area, 10) for area in areas} == dict.fromkeys(least, True)
    assert len({mutant.name for mutant in KILLED_BY_TESTS}) == len(KILLED_BY_TESTS)
    assert all(mutant.killed_by for mutant in KILLED_BY_TESTS)


@pytest.mark.release
@pytest.mark.parametrize("name", [name for name, mutant in BY_OPTION.items() if not mutant.cheap])
def test_the_tests_that_a_mutant_names_kill_it(name: str) -> None:
    """In a process of its own. `mutants_table.py` does so with those that are cheap, too."""
    assert killed_by_a_test(BY_OPTION[name]).killer is not None
