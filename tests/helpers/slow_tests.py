"""Which tests slow_tests.txt leaves out of the default suite, and which of them `.ci/run` runs of a commit."""

from __future__ import annotations

import re
import zlib
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SlowTests:
    """Lines of slow_tests.txt."""

    by_test: dict[str, dict[str, re.Pattern[str]]]
    """test without parameters -> line -> the ids that it means, from the folder of tests."""

    @property
    def lines(self) -> set[str]:
        return {line for patterns in self.by_test.values() for line in patterns}

    def lines_of(self, node_id: str) -> set[str]:
        """Those that mean this test, named as pytest does or from the folder of tests."""
        name = node_id.removeprefix("tests/")
        patterns = self.by_test.get(name.partition("[")[0], {})
        return {line for line, pattern in patterns.items() if pattern.fullmatch(name)}

    def unknown(self, named: Set[str], collected: Set[str], root: Path) -> list[str]:
        """Lines that name no test: of files that are not there, or whose tests are others.

        named: lines that meant a test. collected: files that have tests here. The others are left out whole, for want
        of an optional library.
        """

        def is_known(line: str) -> bool:
            file = line.partition("::")[0]
            return line in named or (file not in collected and (root / file).is_file())

        return sorted(line for line in self.lines if not is_known(line))


def read_slow_tests(text: str) -> SlowTests:
    found: dict[str, dict[str, re.Pattern[str]]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            ids = re.escape(line).replace(r"\*", ".*") + ("" if "[" in line else r"(\[.*\])?")
            found.setdefault(line.partition("[")[0], {})[line] = re.compile(ids)
    return SlowTests(found)


SLOW_TESTS = read_slow_tests((Path(__file__).parents[1] / "slow_tests.txt").read_text())


def parts_of(marks: Set[str]) -> int:
    """Of the tests with these marks, a commit runs one in so many parts."""
    if "release" in marks:
        return 200
    return 1 if "each_commit" in marks else 40


EVEN = 3713
"""A start of hashes with which parts take about the same time: the best of 4,000, by the times of ten parts."""


def is_in_part(name: str, part: int, parts: int) -> bool:
    """Whether the test of this name is in this one of the parts; part: any number."""
    return zlib.crc32(name.encode(), EVEN) % parts == part % parts
