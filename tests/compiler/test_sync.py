"""`sync` from source text to the lowered program: where it makes a block, what keeps it, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from from_source import load
from gated_programs import GATED, first_thing, gated_fibonacci, two_gates

from batchnuts.autobatch import CompileError, UnsupportedSyntaxError, batch, sync
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.pipeline import compile_function

PASSES = (
    "frontend",
    "infer_types",
    "flatten_structures",
    "eliminate",
    "self_tail_calls",
    "inline",
    "if_convert",
    "duplicate_tails",
    "record_expressions",
    "lower",
    "eliminate_lowered",
    "allocate",
    "invert",
    "coalesce",
    "tail_calls",
)


def gates(function, *types: str) -> dict[str, dict[str, float]]:
    """After each pass, the gates of all blocks that have one."""
    found: dict[str, dict[str, float]] = {}

    def observe(name, program) -> None:
        blocks = [b for f in program.all_functions() for b in f.graph.blocks]
        found[name] = {b.label: b.gate for b in blocks if b.gate}

    compile_function(function, tuple(map(as_type, types)), get_backend("numpy", ""), observe)
    return found


def test_every_pass_keeps_the_gates() -> None:
    expected = {"gated_fibonacci.sync": 0.75, "gated_fibonacci.sync.2": 0.5}
    assert gates(gated_fibonacci, "int64") == dict.fromkeys(PASSES, expected)


def test_one_block_has_the_gate_though_its_function_is_inlined() -> None:
    """What comes after a call in a gated block is no part of the gate."""

    @batch
    def helper(n):
        while n > 5:
            n -= 3
        return n

    @batch
    def outer(n):
        while n > 2:
            sync(0.5)
            n = helper(n) - 1
        return n

    assert gates(outer, "int64") == {name: {"outer.sync": 0.5} for name in PASSES}


def test_a_gated_block_is_neither_skipped_nor_joined() -> None:
    assert gates(first_thing, "int64")["tail_calls"] == {
        "first_thing.sync": 1.0,
        "first_thing.sync.2": 0.5,
        "first_thing.sync.3": 1.0,
    }
    assert gates(two_gates, "int64")["tail_calls"] == {"two_gates.sync": 1.0, "two_gates.sync.2": 0.75}


def test_an_empty_gated_block_stays() -> None:
    @batch
    def waits(n):
        while n > 0:
            n -= 1
            sync(0.25)
        return n

    assert gates(waits, "int64")["tail_calls"] == {"waits.sync": 0.25}


def test_the_text_shows_the_gate() -> None:
    text = gated_fibonacci.dump("int64", backend="numpy")
    assert "  gated_fibonacci.sync: [gate 0.75]\n" in text
    assert "  gated_fibonacci.entry:\n" in text


@pytest.mark.parametrize("case", GATED, ids=lambda case: case.name)
def test_plain_python_does_nothing(case) -> None:
    found = case.function.run(*case.inputs, executor="unbatched")
    by_hand = [case.function.python_function(*map(int, lane)) for lane in zip(*case.inputs, strict=True)] if (
        case.name != "gated_fibonacci"
    ) else [3, 21, 5, 8, 1]  # fmt: skip
    np.testing.assert_array_equal(found, by_hand)


def test_static_fractions() -> None:
    half = 0.5

    @batch
    def by_name(n):
        sync(half / 2)
        n += 1
        sync(fraction=np.float32(0.5))
        n += 1
        sync(1)
        return n

    assert list(gates(by_name, "int64")["tail_calls"].values()) == [0.25, 0.5, 1.0]


@pytest.mark.parametrize("fraction", [0, -0.5, 1.5, float("nan"), True, "half", None])
def test_plain_python_refuses_what_is_no_share(fraction) -> None:
    with pytest.raises(ValueError, match=r"sync: the fraction is .*, expected a number in \(0, 1\]"):
        sync(fraction)


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("sync(0)", CompileError, r"the fraction of `sync` is 0; write a number in \(0, 1\]"),
        ("sync(1.5)", CompileError, "the fraction of `sync` is 1.5"),
        ("sync(True)", CompileError, "the fraction of `sync` is True"),
        ("sync('half')", CompileError, "the fraction of `sync` is 'half'"),
        ("sync(fraction=-1)", CompileError, "the fraction of `sync` is -1"),
        (
            "sync(n / 10)",
            UnsupportedSyntaxError,
            r"the fraction `n / 10` of `sync`, which is not known",
        ),
        ("sync(*[0.5])", UnsupportedSyntaxError, "which is not known at compile time"),
        ("sync(0.5, 0.5)", CompileError, "`sync` takes one argument, the fraction: too many positional arguments"),
        ("sync(share=0.5)", CompileError, "`sync` takes one argument, the fraction: got an unexpected keyword"),
        ("n = sync(0.5)", UnsupportedSyntaxError, "`sync` within an expression.*a statement of its own"),
        ("n = n + 1 if sync() else n", UnsupportedSyntaxError, "`sync` within an expression"),
    ],
)
def test_refusals_name_the_line(tmp_path: Path, statement: str, error: type[CompileError], message: str) -> None:
    text = f"@batch\ndef f(n):\n    n = n + 1\n    {statement}\n    return n\n"
    function = load(tmp_path, "from batchnuts.autobatch import sync\n" + text).f
    with pytest.raises(error, match=f"(?s){message}") as caught:
        function.run(np.array([1, 2]), backend="numpy")
    assert caught.value.source is not None
    assert caught.value.source.text.strip() == statement
