"""What was made lately, up to a number of things: who asks for many different ones keeps the last few of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """At most `limit` values by their keys; to make room, the one that was asked for longest ago is dropped.

    Threads may share one. None is no value.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """The value, which now is the one asked for last; None if there is none."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Hashable, value: Value) -> Value:
        """Keep a value, in place of that which the key had; gives it back."""
        dropped = []  # not under the lock: what goes with a value may take its time, and may come back here
        with self._lock:
            dropped.append(self._values.pop(key, None))
            self._values[key] = value
            while len(self._values) > self.limit:
                dropped.append(self._values.popitem(last=False)[1])
        return value

    def take(self, key: Hashable) -> Value | None:
        """The value, which is kept no longer; None if there is none."""
        with self._lock:
            return self._values.pop(key, None)

    def values(self) -> list[Value]:
        """All of them, the one asked for longest ago first."""
        with self._lock:
            return list(self._values.values())

    def __iter__(self) -> Iterator[Hashable]:
        """Their keys, in that order."""
        with self._lock:
            return iter(list(self._values))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)
