"""What was emitted of a program, as it is kept on disk: a later start emits nothing, and runs and fails in the same
way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts.autobatch import BatchedFunction, LaneAssertionError, batch, ops
from batchnuts.autobatch.backends.backend import Identity
from batchnuts.autobatch.expression_library import LIBRARY
from batchnuts.autobatch.native import machine
from batchnuts.disk_cache.entries import Entries
from batchnuts.disk_cache.folder import keeping

N = np.arange(8)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entries]:
    monkeypatch.setattr(batchnuts, "BEGAN", time.time())
    with keeping(str(tmp_path)) as entries:
        assert entries is not None
        yield entries


@pytest.fixture
def emissions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are emitted."""
    emitted: list[Any] = []
    emit = machine.emit_program

    def counted(program: Any, *others: Any) -> Any:
        emitted.append(program)
        return emit(program, *others)

    monkeypatch.setattr(machine, "emit_program", counted)
    return emitted


def counter(step: int, most: int = 100) -> BatchedFunction:
    """One of a new start."""

    @batch
    def count(n: Any) -> Any:
        total = n * 0
        while n < 9:
            n = n + step
            total = total + ops.cast(ops.exp(ops.cast(n, "float64")), "int64")
            assert n < most, "too many"
        return total

    count.identity = Identity(lambda lanes: "count", LIBRARY.key_by_identity).with_text(repr((step, most)))
    return count


def run(function: BatchedFunction) -> Any:
    return function.run(N, backend="native_numpy")


def notes_of(kept: Entries) -> list[tuple[str, dict[str, Any]]]:
    """The entries of programs, by their keys."""
    contents = [(file.stem, kept.get(file.stem)) for file in kept.folder.iterdir()]
    return [(key, json.loads(content)) for key, content in contents if content and content.startswith(b'{"code"')]


def test_a_later_start_emits_nothing(kept: Entries, emissions: list[Any]) -> None:
    first = run(counter(2))
    assert len(emissions) == 1
    np.testing.assert_array_equal(run(counter(2)), first)
    assert len(emissions) == 1
    run(counter(3))
    assert len(emissions) == 2, "what the function depends on is part of the key"


def test_an_error_names_the_same_place(kept: Entries, emissions: list[Any]) -> None:
    found = []
    for _ in range(2):
        with pytest.raises(LaneAssertionError, match="too many") as error:
            run(counter(2, most=5))
        found.append(str(error.value))
    assert found[0] == found[1]
    assert 'assert n < most, "too many"' in found[0]
    assert len(emissions) == 1


def test_where_its_machine_code_is_gone_it_is_emitted_again(kept: Entries, emissions: list[Any]) -> None:
    first = run(counter(2))
    ((_, notes),) = notes_of(kept)
    kept.drop(notes["code"])
    np.testing.assert_array_equal(run(counter(2)), first)
    assert len(emissions) == 2


def test_notes_that_cannot_be_read_are_dropped(kept: Entries, emissions: list[Any]) -> None:
    first = run(counter(2))
    ((key, notes),) = notes_of(kept)
    kept.put(key, json.dumps(notes | {"faults": [["none of ours", "", None]]}).encode())
    np.testing.assert_array_equal(run(counter(2)), first)
    assert len(emissions) == 2
    assert notes_of(kept) == [(key, notes)]


def test_code_with_checks_is_not_that_without(
    kept: Entries, emissions: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(counter(2))
    monkeypatch.setenv("BATCHNUTS_NATIVE_CHECKS", "1")
    np.testing.assert_array_equal(run(counter(2)), first)
    assert len(emissions) == 2
