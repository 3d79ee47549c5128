"""Imports point one way, and folders are what docs/architecture.md says."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "batchnuts"

WITHIN_AUTOBATCH = (
    ("errors", "lru_cache", "environment", "parsing"),
    ("pfor",),
    ("language",),
    ("ir",),
    ("frontend",),
    ("passes",),
    ("expression_library",),
    ("text",),
    ("scheduling",),
    ("backends",),
    ("runtime",),
    ("native",),
    ("pipeline",),
    ("engines",),
    ("cached_functions",),
    ("profiling",),
    ("explain",),
    ("inputs",),
    ("run_options",),
    ("engine_choice",),
    ("api",),
    ("lane_program", "own_threads"),
    ("machine", "prepare", "demos", "inside"),
)
"""Each imports only from those before it, and from its own folder."""

IN_BATCHNUTS = (
    ("process", "disk_cache"),
    ("autobatch",),
    ("densities",),
    ("settings",),
    ("files",),
    ("mcmc",),
    ("cluster", "progress"),
    ("models",),
    ("user_models",),
    ("many",),
    ("bridges", "report"),
    ("api",),
    ("pymc",),
    ("cli",),
    ("sample",),
    ("experiments",),
)

WITHIN_MCMC = (
    ("settings",),
    ("model",),
    ("kernel",),
    ("statistics",),
    ("storage",),
    ("execution",),
    ("starts",),
    ("warmup",),
    ("stopping",),
    ("diagnostics",),
    ("output",),
    ("checkpoint",),
    ("run",),
)


FACADE = ("batchnuts.autobatch", "batchnuts.autobatch.machine", "batchnuts.autobatch.pfor")
"""What code outside of autobatch imports of it, by public names: the language, what drives a machine step by step, and
the vectorizer of TensorFlow's loops, which is a product of its own. Only the last of them imports TensorFlow."""

WITHIN_EXPERIMENTS = (
    ("harness",),
    ("samplers",),
    ("vectorizers",),
    ("posterior_checks",),
    ("time_to_answer",),
    (
        "answer",
        "benchmark",
        "clusters",
        "figure6",
        "figure7",
        "fsm",
        "gym_targets",
        "kernels",
        "posteriordb",
        "metrics",
        "pfor_benchmark",
        "posteriors",
        "scaling",
    ),
)


def modules() -> dict[str, Path]:
    """By dotted name, with what the symlinks for models and experiments lead to."""
    files = [path for folder in (ROOT, *(ROOT / name for name in ("models", "experiments"))) for path in walk(folder)]
    return {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in files
    }


def walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from walk(path)
        elif path.suffix == ".py":
            yield path


MODULES = modules()


@functools.cache
def imports(module: str) -> frozenset[str]:
    """The modules of ours that a module imports, anywhere in it."""
    return imports_of(ast.parse(MODULES[module].read_text(encoding="utf-8")))


def imports_of(tree: ast.Module) -> frozenset[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(name for name in found if name.split(".")[0] == "batchnuts")


@pytest.mark.parametrize(
    ("package", "layers"),
    [
        ("batchnuts.autobatch", WITHIN_AUTOBATCH),
        ("batchnuts.mcmc", WITHIN_MCMC),
        ("batchnuts.experiments", WITHIN_EXPERIMENTS),
        ("batchnuts", IN_BATCHNUTS),
    ],
    ids=["autobatch", "mcmc", "experiments", "all"],
)
def test_imports_point_one_way(package: str, layers: tuple[tuple[str, ...], ...]) -> None:
    """`__init__` and `__main__` of the package itself stand above all."""
    layer = {name: number for number, names in enumerate(layers) for name in names}
    depth = package.count(".") + 1

    def part(module: str) -> str:
        return [*module.split("."), "__init__"][depth]

    inside = [module for module in MODULES if module.startswith(package + ".") and part(module) != "__main__"]
    assert {part(module) for module in inside} == set(layer), "a folder that the table of layers does not know"
    back = [
        f"{module} imports {other}"
        for module in inside
        for other in imports(module)
        if other.startswith(package + ".") and layer[part(other)] > layer[part(module)]
    ]
    assert back == []


@functools.cache
def public_names(module: str) -> set[str]:
    """What its __all__ lists."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    values = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return {name for value in values for name in ast.literal_eval(value)}


def past_the_facade(source: str) -> set[str]:
    """What a module outside of autobatch imports of it that it may not; names of modules in its texts count too."""
    tree = ast.parse(source)
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    found = {name for name in imports_of(tree) | (texts & set(MODULES)) if name.startswith("batchnuts.autobatch")}
    past = found - set(FACADE)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in FACADE and public_names(node.module):
            names = {alias.name for alias in node.names} - public_names(node.module)
            past |= {f"{node.module}.{name}" for name in names} - set(FACADE)
    return past


@pytest.mark.parametrize(
    ("source", "past"),
    [
        ("from batchnuts.autobatch import batch, machine, ops", ""),
        ("from batchnuts.autobatch.machine import Machine", ""),
        ("from batchnuts.autobatch.pfor import jacobian", ""),
        ("from batchnuts.autobatch.errors import CompileError", "batchnuts.autobatch.errors"),
        ("importlib.import_module('batchnuts.autobatch.machine')", ""),
        ("from batchnuts.autobatch.ir.program import Program", "batchnuts.autobatch.ir.program"),
        ("from batchnuts.autobatch.ir import program", "batchnuts.autobatch.ir.program"),
        ("from batchnuts.autobatch import api", "batchnuts.autobatch.api"),
        ("from batchnuts.autobatch import as_type", "batchnuts.autobatch.as_type"),
        ("from batchnuts.autobatch.machine import VirtualMachine", "batchnuts.autobatch.machine.VirtualMachine"),
        ("def f():\n    import batchnuts.autobatch.backends.numpy", "batchnuts.autobatch.backends.numpy"),
        (
            "importlib.import_module('batchnuts.autobatch.backends.tensorflow.devices')",
            "batchnuts.autobatch.backends.tensorflow.devices",
        ),
    ],
)
def test_what_reaches_past_the_facade(source: str, past: str) -> None:
    assert past_the_facade(source) == ({past} if past else set())


def test_no_import_reaches_past_the_facade_of_autobatch() -> None:
    outside = [module for module in MODULES if not (module + ".").startswith("batchnuts.autobatch.")]
    found = {module: past_the_facade(MODULES[module].read_text(encoding="utf-8")) for module in outside}
    assert {module: past for module, past in found.items() if past} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    seen: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in seen:
            seen[module] = 1
            for other in sorted(imports(module) & set(MODULES)):
                if other != "batchnuts":  # its names are loaded when they are asked for
                    visit(other, (*path, module))

    for module in MODULES:
        visit(module, ())


def test_the_page_of_modules_is_what_their_docstrings_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT.parent / "docs" / "make_modules.py"), "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_architecture_page_has_a_row_of_each_folder() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {
        name for line in page.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)(?:/|\.py)`", line)
    }
    assert {name for names in (*IN_BATCHNUTS, *WITHIN_MCMC) for name in names} <= named
