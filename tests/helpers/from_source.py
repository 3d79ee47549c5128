"""Programs from text: written to a file and imported, so that the compiler finds their source as it does a user's."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

HEAD = """\
from typing import NamedTuple
import numpy as np
from batchnuts import autobatch
from batchnuts.autobatch import batch, ops, primitive, write
"""

_numbers = itertools.count()


def load(folder: Path, text: str) -> ModuleType:
    """The module with that text after the imports that every program uses."""
    name = f"program_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def marked_line(module: ModuleType, marker: str = "# error") -> int:
    """The number of the one line that ends in the marker."""
    lines = Path(str(module.__file__)).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(marker)]
    return number
