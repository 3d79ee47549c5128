"""`python -m pytest -m quick`: tests that need nothing but NumPy, in about a minute, to run while working.

A test is quick if it is in the default suite and in a file of quick_tests.txt, but for those that name TensorFlow or
JAX in their parameters, and those that the list leaves out. The array libraries cannot be imported then, so that
nothing slow comes in unseen. Importing this module decides, and processes that pytest starts inherit it.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
BLOCKED = ("tensorflow", "tensorflow_probability", "tf_keras", "jax", "jaxlib", "numpyro", "pymc", "distributed")
_ASKED = "BATCHNUTS_TESTS_QUICK"


def read_list(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The files, and the tests that are left out (lines with a minus), both named from the folder of tests."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    left_out = {line.removeprefix("- ") for line in lines if line.startswith("- ")}
    return frozenset(line for line in lines if not line.startswith("- ")), frozenset(left_out)


FILES, LEFT_OUT = read_list((HERE / "quick_tests.txt").read_text())

ARE_ASKED = _ASKED in os.environ or ("-m", "quick") in itertools.pairwise(sys.argv)
"""Whether this process runs quick tests alone."""

if ARE_ASKED:
    os.environ[_ASKED] = "1"
    for _name in BLOCKED:
        sys.modules[_name] = None  # type: ignore[assignment]


def is_in_quick_file(path: Path) -> bool:
    """Whether some tests of this file are quick."""
    return path.is_relative_to(HERE) and path.relative_to(HERE).as_posix() in FILES


def is_quick(node_id: str, marks: set[str]) -> bool:
    """Whether a test with these marks is; named as pytest does."""
    name, _, parameters = node_id.removeprefix("tests/").partition("[")
    names_a_library = "tensorflow" in parameters or "jax" in parameters
    return (
        name.partition("::")[0] in FILES
        and name not in LEFT_OUT
        and not ({"slow", "release"} & marks or names_a_library)
    )
