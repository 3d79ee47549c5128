"""Runs whose compiled programs are on disk: the second start compiles nothing, and draws the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import ops
from batchnuts.mcmc.draws import Draws
from batchnuts.mcmc.execution.workers import Workers
from batchnuts.mcmc.model import Model
from batchnuts.mcmc.sampling import run_chains
from batchnuts.mcmc.settings import split_settings
from batchnuts.store.entries import Entries
from batchnuts.store.folder import current, entries_of, keeping

SMALL: dict[str, Any] = {"chains": 4, "warmup": 6, "draws": 5, "max_tree_depth": 3, "chunk_lanes": 2, "shards": 2}


def funnel() -> Model:
    def log_density(q: Any) -> Any:
        return -0.5 * q[0] * q[0] / 9.0 - 0.5 * ops.sum(q[1:] * q[1:]) * ops.exp(-q[0]) - q[0]

    return Model.from_function(log_density, dimension=3)


def run(folder: Path | str | None, **settings: Any) -> Draws:
    """Of a model that this process has not seen before."""
    cache = None if folder is None else str(folder)
    return run_chains(funnel(), *split_settings(SMALL | {"backend": "jax", "cache": cache} | settings))


def kept_in(folder: Path) -> Entries:
    kept = entries_of(str(folder))
    assert kept is not None
    return kept


def test_a_second_start_compiles_nothing_and_draws_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHNUTS_CACHE", str(tmp_path / "never"))
    alone = run(None)
    assert list(tmp_path.iterdir()) == []
    first, tally = run(tmp_path), kept_in(tmp_path).tally
    written = tally.written
    assert written >= 4, "the density alone, the density of all chains, the first step size, the machine"
    assert tally.missing == written
    second = run(tmp_path)
    assert (tally.missing, tally.written, tally.dropped) == (written, written, 0)
    assert tally.found >= written
    for draws in (first, second):
        np.testing.assert_array_equal(draws.position, alone.position)
        np.testing.assert_array_equal(draws.stats["n_steps"], alone.stats["n_steps"])
    assert kept_in(tmp_path).summary().entries == written
    assert os.listdir(tmp_path) == ["programs"]


@pytest.mark.slow
def test_damaged_programs_are_compiled_again(tmp_path: Path) -> None:
    first, tally = run(tmp_path), kept_in(tmp_path).tally
    written = tally.written
    for number, file in enumerate(sorted(kept_in(tmp_path).folder.iterdir())):
        data = bytearray(file.read_bytes())
        if number % 2:
            del data[-7:]
        else:
            data[len(data) // 2] ^= 16
        file.write_bytes(data)
    second = run(tmp_path)
    assert (tally.dropped, tally.written) == (written, 2 * written)
    np.testing.assert_array_equal(second.position, first.position)


def test_what_is_compiled_in_the_threads_of_a_run_is_kept_too(tmp_path: Path) -> None:
    """Stacks that grow make another machine, which is compiled where chains run."""
    seen: list[Entries | None] = []
    with keeping(str(tmp_path)):
        workers = Workers(1)
        workers.start(lambda: seen.append(current()))
        workers.wait()
    workers.start(lambda: seen.append(current()))
    workers.wait()
    assert seen == [kept_in(tmp_path), None]
