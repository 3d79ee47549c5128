"""A program with a mistake at the line marked `# error`, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch import CompileError, UnsupportedSyntaxError

INTS = (np.array([1, 2, 3]),)
FLOATS = (np.array([1.0, 2.0, 3.0]),)
VECTORS = (np.array([[1.0, 2.0], [3.0, 4.0]]),)


@dataclass(frozen=True)
class Mistake:
    name: str
    text: str
    """Defines a batched function `f`."""
    message: str
    kind: type[CompileError] = UnsupportedSyntaxError
    inputs: tuple[Any, ...] = INTS
    backends: tuple[str, ...] = ("numpy", "tensorflow")


def statement(name: str, lines: str, message: str) -> Mistake:
    """An unsupported statement in the middle of a function."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    rest = "import itertools\nTABLE = np.zeros(3)\nENDLESS = itertools.count()\n"
    return Mistake(name, f"@batch\ndef f(n):\n    x = n\n{body}    return x\n{rest}", message)
