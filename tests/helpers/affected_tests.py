"""Which test files depend on files that have changed: by imports, and by the names of other files in their text.

The distance of a test file is the number of steps from it to the nearest change: 0 where it has changed itself, 1 where
it imports what has changed, and so on. Nearly every test depends on the compiler's core at some distance, so those that
are run of a commit are the nearest.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SOURCES = {"batchnuts": "batchnuts", "models": "batchnuts.models", "experiments": "batchnuts.experiments"}
"""Folder -> the name of its package."""

TEXTS = ("batchnuts", "models", "experiments", "configs", "tests", "docs", "README.md", "CONTRIBUTING.md")
"""Where changes affect tests."""


def changed_since(revision: str) -> list[str]:
    """Files, from the root, that differ from those of a revision. Raises CalledProcessError where there is none."""
    command = ["git", "diff", "--name-only", revision, "--", *TEXTS]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def modules_of(root: Path = ROOT) -> dict[str, str]:
    """Module -> its file from the root; tests and their helpers are imported by the names of their files."""
    modules = {}
    for folder, package in SOURCES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            name = ".".join((package, *(part for part in parts if part != "__init__")))
            modules.setdefault(name, path.relative_to(root).as_posix())
    for path in sorted((root / "tests").rglob("*.py")):
        modules.setdefault(path.stem, path.relative_to(root).as_posix())
    return modules


def imported(tree: ast.AST) -> Iterator[str]:
    """The names that a module may import, functions and classes among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(root: Path = ROOT) -> dict[str, frozenset[str]]:
    """File -> the files that it imports, or names: other files than Python's, by their last part."""
    modules = modules_of(root)
    files = frozenset(modules.values())
    graph = {}
    for file in files:
        text = (root / file).read_text()
        graph[file] = frozenset(modules[name] for name in imported(ast.parse(text)) if name in modules) - {file}
    return graph


def distances(changed: Iterable[str], imports: Mapping[str, frozenset[str]], root: Path = ROOT) -> dict[str, int]:
    """File -> its distance from what has changed; files that do not depend on that are missing."""
    importers: dict[str, set[str]] = {}
    for file, others in imports.items():
        for other in others:
            importers.setdefault(other, set()).add(file)
    reached, front = dict.fromkeys(changed, 0), set(changed)
    others = {Path(file).name: file for file in front if not file.endswith(".py")}
    texts = {file: (root / file).read_text() for file in imports if file.startswith("tests/")} if others else {}
    for name in others:
        importers.setdefault(others[name], set()).update(file for file, text in texts.items() if name in text)
    steps = 0
    while front:
        steps += 1
        front = {importer for file in front for importer in importers.get(file, ())} - reached.keys()
        reached.update(dict.fromkeys(front, steps))
    return reached


def nearest(files: Iterable[str], far: Mapping[str, int], most: int | None) -> frozenset[int]:
    """The numbers of the tests, given by their files, that depend on a change: of `most` the nearest files' ones.

    All tests of a file are chosen, or none.
    """
    by_file: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        by_file.setdefault(file, []).append(number)
    chosen: list[int] = []
    for file in sorted(by_file.keys() & far.keys(), key=lambda file: (far[file], file)):
        if most is None or len(chosen) + len(by_file[file]) <= most:
            chosen += by_file[file]
    return frozenset(chosen)
