"""A least-recently-used cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """Keeps at most `limit` values by their keys; to make room, it drops the least recently used one.

    Thread-safe. None cannot be a value.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """The value, which becomes the most recently used one; None if there is none."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Hashable, value: Value) -> Value:
        """Keep a value, in place of the key's earlier one; returns it."""
        dropped = []  # not under the lock: freeing a value may take long, and may call this object again
        with self._lock:
            dropped.append(self._values.pop(key, None))
            self._values[key] = value
            while len(self._values) > self.limit:
                dropped.append(self._values.popitem(last=False)[1])
        return value

    def take(self, key: Hashable) -> Value | None:
        """Remove and return the value; None if there is none."""
        with self._lock:
            return self._values.pop(key, None)

    def values(self) -> list[Value]:
        """All values, the least recently used first."""
        with self._lock:
            return list(self._values.values())

    def __iter__(self) -> Iterator[Hashable]:
        """The keys, those of the least recently used values first."""
        with self._lock:
            return iter(list(self._values))

    def __len__(self) -> int:
        """The number of values."""
        return len(self._values)
