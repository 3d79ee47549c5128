"""TensorFlow's programs on disk: what it may load was checked before, and is what the same graph was compiled to."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from cached_tensorflow import forget_files, programs_kept

from batchnuts.autobatch.backends.tensorflow.machine import TracedMachine
from batchnuts.autobatch.backends.tensorflow.session import SessionProgram
from batchnuts.autobatch.language.libraries.tensorflow_graphs import number_functions
from batchnuts.autobatch.pfor.errors import note_warning
from batchnuts.disk_cache.entries import Entries
from batchnuts.disk_cache.folder import keeping

X = np.linspace(0.1, 3.0, 17, dtype="float32")
CAPTURED = tf.constant(np.arange(17, dtype="float32"))
OWN = os.getpid() / 2**22
"""In the programs here, since another process of the tests has the same folder of TensorFlow's."""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Entries]:
    with programs_kept(), keeping(str(tmp_path)) as entries:
        assert entries is not None
        yield entries


def program(scale: float, function: Callable[..., Any] | None = None) -> SessionProgram:
    def waves(x: Any) -> list[Any]:
        _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(y) * (scale + OWN)), (0, x + CAPTURED))
        return [y, tf.cond(y[0] > 0.0, lambda: y + 1.0, lambda: y - 1.0)]

    compiled = tf.function(function or waves, jit_compile=True, autograph=False)
    return SessionProgram.of_function(compiled, [tf.TensorSpec(X.shape, X.dtype)])


def counts(kept: Entries) -> tuple[int, int, int, int]:
    tally = kept.tally
    return tally.found, tally.missing, tally.dropped, tally.written


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_loaded_program_gives_the_same_bits(kept: Entries) -> None:
    with keeping(None):
        plain = program(1.25)
        assert plain._kept is None
        expected = plain(X)
    first = program(1.25)
    same(first(X), expected)
    assert counts(kept) == (0, 1, 0, 1)
    same(first(X), expected)
    forget_files()
    same(program(1.25)(X), expected)
    assert counts(kept) == (1, 1, 0, 1), "loaded; TensorFlow wrote no file"
    forget_files()
    program(1.5)(X)
    assert counts(kept) == (1, 2, 0, 2)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-100],
    "altered": lambda data: data[:-3000] + bytes([data[-3000] ^ 1]) + data[-2999:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_never_reaches_tensorflow(kept: Entries, damage: str) -> None:
    expected = program(1.25)(X)
    (file,) = kept.folder.iterdir()
    sound = file.read_bytes()
    file.write_bytes(DAMAGES[damage](sound))
    forget_files()
    same(program(1.25)(X), expected)
    assert counts(kept) == (0, 2, 1, 2)


@pytest.mark.parametrize("content", ["no program", "another program", "no name", "a name outside of the folder"])
def test_an_entry_that_tensorflow_does_not_take_is_compiled_again(kept: Entries, content: str, tmp_path: Path) -> None:
    expected = program(1.25)(X)
    (file,) = kept.folder.iterdir()
    name, _, data = (kept.get(file.stem) or b"").partition(b"\n")
    match content:
        case "no program":
            kept.put(file.stem, name + b"\n" + b"garbage" * 1000)
        case "another program":
            program(1.5)(X)
            (other,) = set(kept.folder.iterdir()) - {file}
            kept.put(file.stem, name + b"\n" + (kept.get(other.stem) or b"").partition(b"\n")[2])
        case "no name":
            kept.put(file.stem, b"")
        case "a name outside of the folder":
            kept.put(file.stem, str(tmp_path / "outside.pb").encode() + b"\n" + data)
    forget_files()
    written = kept.tally.written
    same(program(1.25)(X), expected)
    assert kept.tally.written == written + 1
    assert not (tmp_path / "outside.pb").exists()
    forget_files()
    same(program(1.25)(X), expected)
    assert kept.tally.written == written + 1, "the entry is sound again"


def test_an_error_of_the_program_itself_remains_one(kept: Entries) -> None:
    def wrong(x: Any) -> list[Any]:
        return [tf.raw_ops.Bincount(arr=tf.cast(x, tf.int32), size=tf.shape(x)[0], weights=tf.zeros([3]))]

    for _ in range(2):
        with pytest.raises(tf.errors.OpError):
            program(1.0, wrong)(X)
    assert kept.tally.written == 0


def test_functions_are_numbered_by_use() -> None:
    def graph(scale: float, before: int) -> bytes:
        for number in range(before):
            tf.function(lambda x, n=number: x + n).get_concrete_function(tf.TensorSpec([], tf.float32))

        @tf.custom_gradient
        def scaled(y: Any) -> Any:
            return y * scale, lambda up: up

        def loop(x: Any) -> Any:
            return tf.while_loop(lambda y, z: y < 9.0, lambda y, z: (scaled(y) + z, z), (x, x * x))[0]

        captured = tf.constant(5.0)
        inner = tf.function(lambda x: loop(x) + captured, autograph=False)
        outer = tf.function(lambda x: inner(x) + inner(x + 1.0) * captured, autograph=False)
        graph_def = outer.get_concrete_function(tf.TensorSpec([], tf.float32)).graph.as_graph_def()
        number_functions(graph_def)
        return graph_def.SerializeToString(deterministic=True)

    one = graph(2.0, before=0)
    assert graph(2.0, before=7) == one
    assert graph(3.0, before=0) != one


def traced_machine(by: float, key: str | None = "a" * 64, **settings: Any) -> TracedMachine:
    """(a [3], b [2]), s -> (a + s * by, b), s + 1; found by the key."""

    def step(state: dict[str, Any], s: Any) -> tuple[dict[str, Any], Any]:
        if settings.get("warns"):
            note_warning("of something in it")
        return {"a": state["a"] + tf.cast(s, "float32") * (by + OWN), "b": state["b"]}, s + 1

    def compiled(function: Callable[..., Any]) -> Any:
        return tf.function(function, jit_compile=True, autograph=False)

    return TracedMachine(step, compiled, True, lambda types: key, settings.get("unchanged", lambda: True))


STATE: dict[str, Any] = {"a": np.arange(3, dtype="float32"), "b": np.ones(2, "int32")}


def stepped(function: TracedMachine) -> list[np.ndarray]:
    forget_files()
    after, taken = function(STATE, np.asarray(3))
    assert list(after) == ["a", "b"]
    return [*after.values(), taken]


def test_a_machine_that_is_known_is_found_without_a_trace(kept: Entries) -> None:
    with keeping(None):
        expected = stepped(traced_machine(2.0))
    first = traced_machine(2.0)
    same(stepped(first), expected)
    assert first.traces == 1
    assert counts(kept) == (0, 2, 0, 2), "the machine, and what XLA made of it"
    second = traced_machine(2.0)
    same(stepped(second), expected)
    assert second.traces == 0
    assert counts(kept) == (2, 2, 0, 2)
    assert second.graph(STATE, np.asarray(3)).inputs, "traced for who asks for it"
    assert "ENTRY" in second.compiled_text(STATE, np.asarray(3))


@pytest.mark.parametrize(
    "settings", [{"key": None}, {"warns": True}, {"unchanged": lambda: False}], ids=["no key", "warning", "changed"]
)
def test_a_machine_that_is_not_known_for_certain_is_traced_at_each_start(
    kept: Entries, settings: dict[str, Any]
) -> None:
    """Where a trace warns, each start warns."""
    expected = stepped(traced_machine(2.0, **settings))
    again = traced_machine(2.0, **settings)
    same(stepped(again), expected)
    assert again.traces == 1


def test_a_machine_that_does_not_run_is_not_kept(kept: Entries) -> None:
    def wrong(state: dict[str, Any], s: Any) -> tuple[dict[str, Any], Any]:
        weights = tf.zeros([tf.size(state["b"]) + 1])
        return {"a": tf.raw_ops.Bincount(arr=state["b"], size=tf.constant(3), weights=weights)}, s

    machine = TracedMachine(
        wrong, lambda f: tf.function(f, jit_compile=True, autograph=False), True, lambda _: "a" * 64
    )
    with pytest.raises(tf.errors.OpError):
        machine(STATE, np.asarray(3))
    assert kept.get("a" * 64) is None


@pytest.mark.parametrize("entry", ["garbage", "another format", "no graph"])
def test_a_machine_that_cannot_be_read_is_traced_again(kept: Entries, entry: str) -> None:
    expected = stepped(traced_machine(2.0))
    key = "a" * 64
    sound = kept.get(key)
    assert sound is not None
    with np.load(io.BytesIO(sound)) as arrays:
        parts = dict(arrays)
    file = io.BytesIO()
    text = b"{}" if entry == "another format" else parts.pop("text").tobytes()
    graph = b"garbage" if entry == "no graph" else parts.pop("graph").tobytes()
    np.savez(file, text=np.frombuffer(text, "uint8"), graph=np.frombuffer(graph, "uint8"))
    kept.put(key, b"garbage" if entry == "garbage" else file.getvalue())
    for traces in (1, 0):
        again = traced_machine(2.0)
        same(stepped(again), expected)
        assert again.traces == traces
