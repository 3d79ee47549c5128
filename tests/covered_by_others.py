"""Tests of the default suite whose branches cheaper tests all run: candidates for slow_tests.txt.

    pip install pytest-cov
    folders="--cov=batchnuts --cov=models --cov=experiments"
    python -m pytest $folders --cov-branch --cov-context=test --cov-report= --durations=0 -vv > run.log
    python tests/covered_by_others.py run.log

Prints seconds and ids. What a test asserts is not seen here, nor what a process runs that it starts: read the list.
Tests that kill a mutant are not in it.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from contextlib import closing
from pathlib import Path

Branch = tuple[int, int, int]
"""File, line, next line: as coverage numbers them."""

LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+tests/(\S+::.*)")


def covered_by_others(
    seconds: Mapping[str, float], branches: Mapping[str, Set[Branch]], always: Iterable[str], cheap: float = 0.1
) -> list[str]:
    """Those that may go, the most expensive first.

    Tests of at most `cheap` seconds and those of `always` stay; of the others, one after the other, the one that adds
    the most branches per second, until none adds any.
    """
    staying = {test for test in branches if seconds.get(test, 0.0) <= cheap} | set(always)
    run: set[Branch] = set().union(*(branches.get(test, set()) for test in staying))
    left = set(branches) - staying

    def gain(test: str) -> float:
        return len(branches[test] - run) / seconds[test]

    while left and gain(best := max(sorted(left), key=gain)) > 0:
        run |= branches[best]
        left.remove(best)
    return sorted(left, key=lambda test: (-seconds[test], test))


def seconds_of(log: str) -> dict[str, float]:
    """By test, from what `--durations=0 -vv` prints: set-up that several share counts for the first of them."""
    found: dict[str, float] = defaultdict(float)
    for line in log.splitlines():
        if match := LINE.match(line):
            found[match[2].strip()] += float(match[1])
    return dict(found)


def branches_of(path: Path) -> dict[str, set[Branch]]:
    """By test, from coverage's file; what the import of the library runs is nobody's."""
    found: dict[str, set[Branch]] = defaultdict(set)
    with closing(sqlite3.connect(path)) as file:
        rows = "select context.context, file_id, fromno, tono from arc join context on context.id = arc.context_id"
        for context, *branch in file.execute(rows):
            found[context.rpartition("|")[0].removeprefix("tests/")].add(tuple(branch))
    imported = found.pop("", set())
    return {test: run - imported for test, run in found.items()}


def killers(tests: Iterable[str]) -> set[str]:
    """Of these tests, those that a mutant names."""
    from mutants_table import KILLED_BY_TESTS

    named = {test for mutant in KILLED_BY_TESTS for test in mutant.killed_by}
    return {test for test in tests if test in named or test.partition("[")[0] in named}


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="what pytest printed")
    parser.add_argument("--coverage", type=Path, default=Path(".coverage"))
    arguments = parser.parse_args()
    seconds, branches = seconds_of(arguments.log.read_text()), branches_of(arguments.coverage)
    for test in covered_by_others(seconds, branches, killers(branches)):
        print(f"{seconds[test]:6.1f}  {test}")


if __name__ == "__main__":
    main()
