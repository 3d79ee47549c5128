"""What XLA makes of the machine's loop on JAX: random words are computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax

from batchnuts.autobatch import BatchedFunction, batch, ops, random
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend

pytestmark = needs_jax

LANES, DIMENSION = 8, 5


def compiled_text(function: BatchedFunction, **inputs: Any) -> str:
    """Of a machine of LANES lanes for the arguments, one lane's each."""
    types = [as_type(f"{np.asarray(x).dtype}{list(np.shape(x))}") for x in inputs.values()]
    machine = function.machine(tuple(types), LANES, get_backend("jax", "xla"), "sweep", 4)
    return machine.compiled_text(machine.start({f"main.{name}": np.stack([x] * LANES) for name, x in inputs.items()}))


@batch
def swapped(key, x, y, n):
    while n > 0:
        key, own = random.split(key)
        turn = random.uniform(own) < 0.5
        x, y = ops.where(turn, y, x), ops.where(turn, x, y)
        x = x + y[::-1]
        n = n - 1
    return x, y


def ciphers() -> float:
    """How many words of random bits are computed: each takes 20 rounds, each of these a rotation."""
    vector = np.ones(DIMENSION, "float32")
    text = compiled_text(swapped, key=np.zeros(2, "uint32"), x=vector, y=vector, n=np.int64(1))
    return text.count(" shift-left(") / 20


def test_random_words_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would compute them again for each array that depends on them."""
    from batchnuts.autobatch.language.libraries import jax as library

    once = ciphers()
    monkeypatch.setattr(library._once, "bind", lambda words: words)
    random._kernel.cache_clear()  # the cipher is traced once
    again = ciphers()
    monkeypatch.undo()
    random._kernel.cache_clear()
    assert once <= 4
    assert again > once
