"""Options and helpers that every test file may use."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the passes give now")


@pytest.fixture
def check_golden_text(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """check_golden_text(name, text): tests/golden/<name>.txt holds this text, or is rewritten to."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {path.name}; run pytest --update-golden and read what it wrote"
        expected = path.read_text()
        lines = expected.splitlines(), text.splitlines()
        diff = "\n".join(difflib.unified_diff(*lines, f"golden/{path.name}", "this program", lineterm=""))
        assert text == expected, f"{diff}\nIf the change is meant: pytest --update-golden, and read the diff."

    return check
