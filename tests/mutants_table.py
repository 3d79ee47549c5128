"""Which test kills which mutant: `python tests/mutants_table.py`, about ten minutes; exit code 1 if one survives.

Mutants that programs kill are those of `properties/test_mutants.py`, run once. Each of the others has a process of its
own, in which pytest runs the tests that it names until one fails. `--area pfor` or names choose among the latter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

if __name__ == "__main__":  # as a script: helpers lie beside it
    sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import mutants_of_chunks  # noqa: F401  # these fill the lists
import mutants_of_language  # noqa: F401
import mutants_of_machine  # noqa: F401
import mutants_of_passes  # noqa: F401
import mutants_of_pfor  # noqa: F401
import mutants_of_scheduling  # noqa: F401
import mutants_of_storage  # noqa: F401
import mutants_of_users_code  # noqa: F401
import mutants_of_warmup  # noqa: F401
from mutants import KILLED_BY_TESTS, MUTANTS, Mutant

TESTS = Path(__file__).resolve().parent
PROGRAMS = "properties/test_mutants.py"
LIMIT = 300
"""Seconds after which a run has no end: that would be seen, too."""

BY_OPTION = {mutant.option: mutant for mutant in KILLED_BY_TESTS}
assert len(BY_OPTION) == len(KILLED_BY_TESTS), "two mutants have one name"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant. `killer`: what killed it; None if it survived."""

    mutant: Mutant
    killer: str | None
    seconds: float


class BrokenRunError(Exception):
    """pytest did not come to run the tests: the mutant or its list of tests is wrong."""


def pytest_report(arguments: Sequence[str], timeout: float | None = None) -> list[ElementTree.Element]:
    """Run pytest in a process of its own; the test cases of its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", f"--junitxml={report}"]
        command += ["-m", "", "-o", "junit_logging=system-out", *arguments]  # slow tests too
        done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=timeout)
        if done.returncode not in (0, 1):
            raise BrokenRunError(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return list(ElementTree.parse(report).iter("testcase"))


def killed_by_a_test(mutant: Mutant) -> Outcome:
    """Run the tests that the mutant names."""
    began = time.monotonic()
    try:
        cases = pytest_report(
            [f"--mutant={mutant.option}", *(f"{TESTS / test}" for test in mutant.killed_by)], timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return Outcome(mutant, f"no end after {LIMIT} s: {mutant.killed_by[0]}", LIMIT)
    failed = [case for case in cases if case.find("failure") is not None]
    killer = f"{failed[0].get('classname', '').rpartition('.')[2]}::{failed[0].get('name')}" if failed else None
    if not failed and any(case.find("error") is not None for case in cases):
        raise BrokenRunError(f"{mutant.option}: an error outside of the tests")
    return Outcome(mutant, killer, time.monotonic() - began)


def killed_by_programs() -> Iterator[Outcome]:
    """The outcomes of test_mutants.py, which says what killed each."""
    cases = {case.get("name"): case for case in pytest_report([str(TESTS / PROGRAMS), "--maxfail=1000"])}
    for mutant in MUTANTS:
        case = cases[f"test_a_mutant_is_killed[{mutant.where}: {mutant.name}]"]
        said = case.findtext("system-out") or ""
        _, _, killer = said.strip().partition(f"{mutant.name}: killed by ")
        yield Outcome(mutant, killer.partition(":")[0] or None, float(case.get("time", 0)))


def row(outcome: Outcome) -> str:
    """Of a table in Markdown."""
    killer = "**survives**" if outcome.killer is None else f"`{outcome.killer}`"
    return f"| {outcome.mutant.name} | {outcome.mutant.where} | {killer} | {outcome.seconds:.1f} |"


def main() -> int:
    """Exit code 1 where some mutant survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of functions in tests/mutants_of_*.py")
    parser.add_argument(
        "--area", action="append", help="pfor, scheduling, chunks, storage, warmup, users; may be given several times"
    )
    parser.add_argument("--only", choices=("programs", "tests"), help="those killed by programs, or by tests")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    chosen = [
        mutant
        for mutant in KILLED_BY_TESTS
        if options.only != "programs"
        and (not options.names or mutant.option in options.names)
        and (not options.area or mutant.where.partition(" ")[0] in options.area)
    ]
    by_programs = not (options.names or options.area or options.only == "tests")
    count, survivors = 0, []
    print("| mutant | where | killed by | seconds |\n|---|---|---|---|")
    with ThreadPoolExecutor(options.processes) as pool:
        for outcome in chain(killed_by_programs() if by_programs else (), pool.map(killed_by_a_test, chosen)):
            print(row(outcome), flush=True)
            count += 1
            if outcome.killer is None:
                survivors.append(outcome.mutant.option)
    print(f"\n{count} mutants, {len(survivors)} survive{': ' + ', '.join(survivors) if survivors else ''}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
