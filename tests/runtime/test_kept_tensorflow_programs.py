"""TensorFlow's programs on disk: what it may load was checked before, and is what the same graph was compiled to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch.backends.tensorflow import kept_programs
from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
from batchnuts.autobatch.backends.tensorflow.session import SessionProgram
from batchnuts.store.entries import Entries
from batchnuts.store.folder import keeping

X = np.linspace(0.1, 3.0, 17, dtype="float32")
OWN = os.getpid() / 2**22
"""In the programs here, since another process of the tests has the same folder of TensorFlow's."""
FOLDER = re.search(r"persistent_cache_directory=(\S+)", os.environ.get("TF_XLA_FLAGS", ""))
"""Where TensorFlow stores programs in this process (conftest.py)."""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entries]:
    assert FOLDER is not None
    monkeypatch.setattr(PROCESS, "programs", SimpleNamespace(name=FOLDER[1]))
    with keeping(str(tmp_path)) as entries:
        assert entries is not None
        yield entries
    forget_files()


def program(scale: float, function: Callable[..., Any] | None = None) -> SessionProgram:
    def waves(x: Any) -> list[Any]:
        _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(y) * (scale + OWN)), (0, x))
        return [y, tf.cond(y[0] > 0.0, lambda: y + 1.0, lambda: y - 1.0)]

    compiled = tf.function(function or waves, jit_compile=True, autograph=False)
    made = SessionProgram(compiled, [tf.TensorSpec(X.shape, X.dtype)])
    if made._kept is not None:
        marks.add(made._kept._mark.encode())
    return made


marks: set[bytes] = set()
"""Of the programs made here."""


def forget_files() -> None:
    """As in another process: TensorFlow's folder has no files of ours."""
    assert FOLDER is not None
    for file in Path(FOLDER[1]).glob("*.pb"):
        with suppress(FileNotFoundError):
            content = file.read_bytes()
            if file.name in kept_programs._seen or any(mark in content for mark in marks):
                file.unlink()
    kept_programs._seen.clear()


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

        inner = tf.function(loop, autograph=False)
        outer = tf.function(lambda x: inner(x) + inner(x + 1.0), autograph=False)
        graph_def = outer.get_concrete_function(tf.TensorSpec([], tf.float32)).graph.as_graph_def()
        kept_programs.number_functions(graph_def)
        return graph_def.SerializeToString(deterministic=True)

    one = graph(2.0, before=0)
    assert graph(2.0, before=7) == one
    assert graph(3.0, before=0) != one
