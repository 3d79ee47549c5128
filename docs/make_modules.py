"""docs/modules.md, one line for each module from its docstring: `python docs/make_modules.py [--check]`.

--check writes nothing, and ends with 1 where the page is not what the docstrings say.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "batchnuts"
PAGE = ROOT / "docs" / "modules.md"

ORDER = (
    *("process", "disk_cache", "autobatch", "densities", "settings", "files", "mcmc", "cluster", "progress", "models"),
    *("user_models", "many", "bridges", "report", "api", "cli", "experiments"),
)
WITHIN_MCMC = (
    *("settings", "model", "kernel", "statistics", "storage", "execution", "starts", "warmup", "stopping"),
    *("diagnostics", "output", "checkpoint", "run"),
)
"""Folders in the order in which imports point (tests/test_structure.py); those within others follow by name."""


def sentence_of(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", first)[0].rstrip(".").replace("|", r"\|")


def folders() -> Iterator[Path]:
    """Every folder of modules, in order."""
    yield PACKAGE
    for name in ORDER:
        folder = PACKAGE / name
        yield folder
        inner = sorted(path.parent for path in folder.glob("**/__init__.py") if path.parent != folder)
        if name == "mcmc":
            inner.sort(key=lambda path: WITHIN_MCMC.index(path.name))
        yield from inner


def page() -> str:
    """The whole page."""
    lines = [
        "# Modules",
        "",
        "One line for each module, from its docstring (`python docs/make_modules.py`). Folders stand in the order in",
        "which imports point: a module imports from folders above its own. How they work together:",
        "[architecture](architecture.md).",
    ]
    for folder in folders():
        name = folder.relative_to(PACKAGE).as_posix()
        title = "batchnuts" if name == "." else name
        lines += ["", f"## {title}", ""]
        if name != ".":
            lines += [f"{sentence_of(folder / '__init__.py')}.", ""]
        rows = [
            f"| `{path.name}` | {sentence_of(path)} |"
            for path in sorted(folder.glob("*.py"))
            if path.name != "__init__.py"
        ]
        if name == ".":
            rows.insert(0, "| `__init__.py` | The public names of `batchnuts`, each imported when it is first used |")
        lines += ["| module | what it does |", "|---|---|", *rows] if rows else [f"Its modules are in `{name}/*/`."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or compare it."""
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/modules.md is not what the docstrings say: run python docs/make_modules.py")
        return
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
