"""What is asked of a key of what a function computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def assert_tells_apart(identity_of: Callable[..., str | None], make: Callable[[int], Any], *arrays: Any) -> None:
    """The same function, made twice, has the same identity, and another one has another."""
    found = [identity_of(make(n), *arrays) for n in (0, 1, 0)]
    assert found[0] is not None
    assert found[0] == found[2]
    assert found[1] not in (None, found[0])
