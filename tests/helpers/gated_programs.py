"""Programs with `sync`, made so that a machine which waits for the wrong lanes would wait forever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch import batch, sync


@batch
def two_gates(n):
    """Half of the lanes wait at each gate, and neither gate ever has its share."""
    if n % 2 == 0:
        sync()
        result = n * 2
    else:
        sync(fraction=0.75)
        result = n * 3
    return result


@batch
def gated_fibonacci(n):
    """Lanes wait at different depths of the recursion."""
    if n <= 1:
        return 1
    sync(0.75)
    left = gated_fibonacci(n - 2)
    right = gated_fibonacci(n - 1)
    sync(0.5)
    return left + right


@batch
def uneven(n, k):
    """Lanes reach the gate after unequal work, and halt one after another."""
    total = 0
    while n > 0:
        i = 0
        while i < (n * k) % 5:
            i += 1
        sync()
        total += i * n
        n -= 1
    return total


@batch
def uneven_without_gate(n, k):
    total = 0
    while n > 0:
        i = 0
        while i < (n * k) % 5:
            i += 1
        total += i * n
        n -= 1
    return total


@batch
def majority(n):
    """Most lanes go round and round through a gate that needs more lanes than there are of them."""
    if n < 0:
        sync(0.5)
        return 0 - n
    total = 0
    while n > 0:
        sync(0.9)
        total += n
        n -= 1
    return total


@batch
def loop_of_gates(n):
    """A lane at one gate is what the other gate misses, again and again."""
    total = 0
    while n > 0:
        if n % 3 == 0:
            sync()
            total += 1
        elif n % 3 == 1:
            sync()
            total += 10
        else:
            sync()
            total += 100
        n -= 1
    return total


@batch
def first_thing(n):
    """The gate is the first block of a function, and an empty block before a loop."""
    sync()
    while n > 3:
        sync(0.5)
        n -= 2
    sync()
    return n


@dataclass(frozen=True)
class Gated:
    """A program with gates and its inputs for all lanes."""

    function: Any
    inputs: tuple[np.ndarray, ...]

    @property
    def name(self) -> str:
        return self.function.__name__


GATED = (
    Gated(two_gates, (np.array([0, 1, 2, 3, 4, 5]),)),
    Gated(gated_fibonacci, (np.array([3, 7, 4, 5, 0]),)),
    Gated(uneven, (np.array([5, 0, 2, 7, 6]), np.array([1, 2, 3, 4, 2]))),
    Gated(majority, (np.array([30, -1, 31, 29, 30, 28, 27, 30, -2, 30]),)),
    Gated(loop_of_gates, (np.array([9, 8, 7, 0, 5]),)),
    Gated(first_thing, (np.array([2, 9, 4, 7]),)),
)
