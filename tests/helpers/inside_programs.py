"""A program for tests of what runs inside of users' programs."""

from __future__ import annotations

from typing import Any

from batchnuts.autobatch import batch


@batch
def power(x: Any, n: Any) -> Any:
    if n <= 0:
        return x * 0.0 + 1.0
    return x * power(x, n - 1)
