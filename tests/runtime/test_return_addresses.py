"""Return addresses: packed into words where they fit, else on a stack, which makes no difference to anybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import fibonacci

from batchnuts.autobatch import StackOverflowError, batch
from batchnuts.autobatch.api import as_type, get_backend
from batchnuts.autobatch.runtime.return_addresses import BITS, WORD, Stack, Words

BACKENDS = [("numpy", ""), ("tensorflow", "eager"), ("tensorflow", "graph"), ("tensorflow", "xla")]

everywhere = pytest.mark.parametrize(("backend", "mode"), BACKENDS, ids=["-".join(b) for b in BACKENDS])


@batch
def five_ways(n):
    """Comes back to four places: the last call hands its result on."""
    if n <= 0:
        return 1
    total = five_ways(n - 3) * 2
    total += five_ways(n - 4) * 3
    total += five_ways(n - 2) * 5
    total = total % 1000
    return five_ways(n - 5) + total


def machine(function: Any, depth: int, backend: Any, lanes: int = 4) -> Any:
    return function.machine((as_type("int64"),), lanes, backend, "earliest", depth)


def test_what_fits_is_packed() -> None:
    numpy = get_backend("numpy", "")
    words = machine(fibonacci, 16, numpy).code.addresses
    assert isinstance(words, Words)
    assert (words.base, len(words.places)) == (4, 3)
    assert isinstance(machine(fibonacci, BITS // 2, numpy).code.addresses, Words)
    assert isinstance(machine(fibonacci, BITS // 2 + 1, numpy).code.addresses, Stack)
    words = machine(five_ways, BITS // 3, numpy).code.addresses
    assert isinstance(words, Words)
    assert (words.base, len(words.places)) == (8, 5)
    assert isinstance(machine(five_ways, BITS // 3 + 1, numpy).code.addresses, Stack)


def test_a_word_is_one_and_a_digit_for_each_call() -> None:
    numpy = get_backend("numpy", "")
    made = machine(five_ways, 8, numpy)
    state = made.start({made.program.vars_in[0]: np.array([0, 2, 5, 9])})
    assert state[WORD].tolist() == [1, 1, 1, 1]
    places = made.code.addresses.places
    home = places.index(made.index["main.resume"])
    state = made.code.run(made.program.graph.entry)(state)
    assert state[WORD].tolist() == [8 + home] * 4
    state = made.advance(state, 10_000)
    assert state[WORD].tolist() == [1, 1, 1, 1]


@everywhere
@pytest.mark.parametrize("function", [fibonacci, five_ways], ids=["fibonacci", "five_ways"])
def test_both_ways_give_the_same(backend: str, mode: str, function: Any) -> None:
    n = np.array([3, 9, 0, 7, 5])
    where: Any = {"backend": backend, **({"mode": mode} if mode else {})}
    expected = function.run(n, executor="unbatched")
    for depth in (12, 70):  # in words, and on stacks
        np.testing.assert_array_equal(function.run(n, max_stack_depth=depth, **where), expected)


@everywhere
def test_a_word_that_is_full_is_an_overflow(backend: str, mode: str) -> None:
    """Of the lane that calls once too often, and of no other."""
    made = machine(fibonacci, 3, get_backend(backend, mode))
    assert isinstance(made.code.addresses, Words)
    n = np.array([1, 3, 5, 2])  # a call of depth n - 1 beneath the first
    state = made.run({made.program.vars_in[0]: n})
    fault = made.backend.to_numpy(state["fault"])
    deep = machine(fibonacci, 31, get_backend("numpy", ""))
    deepest = deep.run({deep.program.vars_in[0]: n})
    assert (deepest["fault"] == 0).all()
    assert (fault > 0).tolist() == [False, False, True, False]
    with pytest.raises(StackOverflowError, match="holds 3 frames"):
        made.check_faults(state)


def test_stacks_that_grow_leave_the_words() -> None:
    """From 16 frames on, doubled until 100 calls fit, which no word holds."""

    @batch
    def count(n):
        if n == 0:
            return 0
        return 1 + count(n - 1) * 1 + 0 * n

    n = np.array([3, 100, 50])
    np.testing.assert_array_equal(count.run(n, backend="numpy"), n)


def test_a_profile_reads_how_high_they_are() -> None:
    result, profile = fibonacci.run(np.array([3, 7, 4, 5]), backend="numpy", profile=True)
    np.testing.assert_array_equal(result, [3, 21, 5, 8])
    (run,) = profile.runs
    assert run.call_depth == 7
