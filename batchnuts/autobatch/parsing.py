"""Python's parser, for one thread at a time."""

from __future__ import annotations

import ast
import threading
from typing import Any

_parsing = threading.RLock()
"""Before CPython 3.11.8 and 3.12.2 a parse that another thread's came between ended with a SystemError (gh-106905)."""


def parse(text: str, mode: str = "exec") -> Any:
    """`ast.parse` of the text."""
    with _parsing:
        return ast.parse(text, mode=mode)
