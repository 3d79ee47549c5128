"""The text of a function is found in files, cells and at prompts, and is that which Python has read."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from from_source import load
from mistake import INTS

from batchnuts.autobatch import CompileError, UndefinedVariableError, UnsupportedSyntaxError, batch

CELL = "@batch\ndef f(n):\n    if n > 1:\n        return n\n    return n + wrong\n"


@pytest.mark.parametrize("filename", ["<ipython-input-1-0>", "/tmp/ipykernel_1/2.py", "<python-input-3>"])
def test_source_of_a_cell_or_prompt_is_found(filename: str) -> None:
    """Notebooks and Python 3.13's prompt register the text of what they run in linecache."""
    linecache.cache[filename] = (len(CELL), None, CELL.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"batch": batch, "__name__": "__main__"}
    exec(compile(CELL, filename, "exec"), namespace)
    with pytest.raises(UndefinedVariableError, match="name 'wrong' is not defined") as caught:
        namespace["f"].run(*INTS, backend="numpy")
    assert str(caught.value).startswith(f"{filename}:5:16\n    {CELL.splitlines()[4]}\n")
    namespace["wrong"] = 5
    assert namespace["f"].run(*INTS, backend="numpy").tolist() == [6, 2, 3]


def test_source_from_standard_input_is_a_clear_error() -> None:
    program = (
        "import numpy as np\nfrom batchnuts.autobatch import batch, CompileError\n@batch\ndef f(n):\n    return n\n"
        "try:\n    f.run(np.array([1]), backend='numpy')\nexcept CompileError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot find the source of 'f'")
    assert "standard input" in done.stdout


CHANGED = (
    "x = 1\n",
    "@batch\ndef other(n):\n    return n\n",
    "@batch\ndef f(n:\n",
    "@batch\ndef f(n):\n    return n - 1\n",
    "@batch\ndef f(n):\n    return [k + 1 for k in (n,)][0]\n",
    "@batch\ndef f(n):\n    return n\n\ndef broken(:\n",
)


@pytest.mark.parametrize("new", CHANGED)
def test_a_file_that_changed_since_its_import_is_noticed(new: str, tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    return n\n")
    path = Path(str(module.__file__))
    head = path.read_text().split("@batch")[0]
    path.write_text(head + new)
    linecache.checkcache(str(path))
    with pytest.raises(CompileError, match="has changed since Python read it"):
        module.f.run(*INTS, backend="numpy")


def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(n):\n    return n\n", namespace)
    with pytest.raises(CompileError, match=r"cannot find the source of 'f' .* define it in a file") as caught:
        batch(namespace["f"]).run(*INTS)
    assert caught.value.source is None


def test_a_mistake_is_found_again_at_the_next_call(tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    del n  # error\n    return 1\n")
    for _ in range(2):
        with pytest.raises(UnsupportedSyntaxError):
            module.f.run(*INTS, backend="numpy")
