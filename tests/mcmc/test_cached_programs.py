"""Runs whose compiled programs are on disk: the second start compiles nothing, and draws the same."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from cached_tensorflow import forget_files, programs_kept

import batchnuts
from batchnuts.autobatch import api, ops
from batchnuts.autobatch.backends.jax.machine import _Program
from batchnuts.autobatch.backends.tensorflow.machine import TracedMachine
from batchnuts.autobatch.lru_cache import LruCache
from batchnuts.autobatch.native import rounds
from batchnuts.disk_cache.entries import Entries
from batchnuts.disk_cache.folder import current, entries_of, keeping
from batchnuts.mcmc.execution.workers import Workers
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws

SMALL: dict[str, Any] = {
    "chains": 4,
    "warmup": 6,
    "draws": 5,
    "max_tree_depth": 3,
    "chunk_lanes": 2,
    "expert": {"shards": 2},
}


def funnel(exp: Any = ops.exp) -> Model:
    def log_density(q: Any) -> Any:
        return -0.5 * q[0] * q[0] / 9.0 - 0.5 * ops.sum(q[1:] * q[1:]) * exp(-q[0]) - q[0]

    return Model.from_function(log_density, dimension=3)


def run(folder: Path | str | None, model: Model | None = None, **settings: Any) -> Draws:
    """Of a model that this process has not seen before."""
    cache = None if folder is None else str(folder)
    return run_chains(model or funnel(), *split_settings(SMALL | {"backend": "jax", "cache": cache} | settings))


def kept_in(folder: Path) -> Entries:
    kept = entries_of(str(folder))
    assert kept is not None
    return kept


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """One entry for each machine that is traced, where programs are found by the files of the package."""
    monkeypatch.setattr(batchnuts, "BEGAN", time.time())
    seen: list[str] = []
    by_jax, by_tensorflow = _Program._trace, TracedMachine._function_of

    def counted(program: _Program) -> None:
        seen.append("jax")
        by_jax(program)

    def counted_too(program: TracedMachine, *arguments: Any) -> Any:
        seen.append("tensorflow")
        return by_tensorflow(program, *arguments)

    monkeypatch.setattr(_Program, "_trace", counted)
    monkeypatch.setattr(TracedMachine, "_function_of", counted_too)
    with programs_kept():
        yield seen


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that the compiler's passes see, by name."""
    seen: list[str] = []
    whole = api.compile_function

    def counted(function: Any, *arguments: Any) -> Any:
        seen.append(function.__name__)
        return whole(function, *arguments)

    monkeypatch.setattr(api, "compile_function", counted)
    return seen


@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_a_second_start_compiles_and_traces_no_machine_and_draws_the_same(
    tmp_path: Path, traces: list[str], compiled: list[str], backend: str
) -> None:
    first, tally = run(tmp_path, backend=backend), kept_in(tmp_path).tally
    written = tally.written
    assert written >= 4, "the density alone, the density of all chains, the first step size, the machine"
    assert tally.missing == written
    assert traces == [backend] * 3, "the density of all chains, the first step size, the chains"
    assert len(compiled) == 3
    forget_files()
    second = run(tmp_path, backend=backend)
    assert len(traces) == len(compiled) == 3
    assert (tally.missing, tally.written, tally.dropped) == (written, written, 0)
    assert tally.found >= written
    np.testing.assert_array_equal(second.position, first.position)
    np.testing.assert_array_equal(second.stats["n_steps"], first.stats["n_steps"])
    assert kept_in(tmp_path).summary().entries == written
    assert os.listdir(tmp_path) == ["programs"]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "library"), [("native", "jax"), ("native_tensorflow", "tensorflow")])
def test_a_second_start_in_machine_code_traces_no_loop_and_draws_the_same(
    tmp_path: Path, traces: list[str], compiled: list[str], monkeypatch: pytest.MonkeyPatch, backend: str, library: str
) -> None:
    found = []
    for _ in range(2):
        monkeypatch.setattr(rounds, "_loops", LruCache(16))  # as in another process
        exp = pytest.importorskip("jax").numpy.exp if library == "jax" else tf.exp
        found.append(run(tmp_path, funnel(exp), backend=backend))
        assert traces == [library] * 2, "of four lanes where chains begin, and of two"
        assert len(compiled) == 3
        forget_files()
    np.testing.assert_array_equal(found[1].position, found[0].position)
    assert kept_in(tmp_path).tally.dropped == 0


def test_another_model_has_the_same_programs_in_machine_code(
    tmp_path: Path, traces: list[str], compiled: list[str]
) -> None:
    """Only its gradient is compiled: programs call it."""
    steep = Model.from_function(lambda q: -ops.sum(q**4), dimension=3)
    draws = [run(tmp_path, model, backend="auto") for model in (funnel(), steep)]
    assert len(compiled) == 3, "the density of some chains, the first step size, the chains"
    assert not traces
    assert np.abs(draws[1].position).max() < 4 < np.abs(draws[0].position).max(), "each has its own gradient"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_without_a_cache_nothing_is_kept_and_the_draws_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("BATCHNUTS_CACHE", str(tmp_path / "never"))
    alone = run(None, backend=backend)
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(run(tmp_path, backend=backend).position, alone.position)


def scaled(scale: Any) -> Model:
    return Model.from_function(lambda q: -0.5 * ops.sum(q * q / scale), dimension=3)


def drawn(folder: Path, scale: Any, **settings: Any) -> np.ndarray:
    options = SMALL | {"backend": "jax", "cache": str(folder)} | settings
    return run_chains(scaled(scale), *split_settings(options)).position


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "scale", "settings", "traced"),
    [
        ("jax", 3.0, {}, 3),
        ("jax", np.array([1.0, 2.0, 3.0], "float32"), {}, 3),
        ("jax", 2.0, {"divergence_threshold": 10.0}, 3),
        ("jax", 2.0, {"draws": 6, "seed": 3}, 0),
        ("tensorflow", np.array([1.0, 2.0, 3.0], "float32"), {}, 3),
        ("tensorflow", 2.0, {"draws": 6, "seed": 3}, 0),
    ],
    ids=[
        "number",
        "array",
        "setting of the transition",
        "setting of no program",
        "array of TensorFlow",
        "setting of no program of TensorFlow",
    ],
)
def test_another_density_or_setting_is_another_program(
    tmp_path: Path, traces: list[str], backend: str, scale: Any, settings: dict[str, Any], traced: int
) -> None:
    settings = settings | {"backend": backend}
    drawn(tmp_path, 2.0, backend=backend)
    drawn(tmp_path, np.array([1.0, 2.0, 3.5], "float32"), backend=backend)
    forget_files()
    del traces[:]
    found = drawn(tmp_path, scale, **settings)
    assert len(traces) == traced
    np.testing.assert_array_equal(found, drawn(tmp_path / "alone", scale, **settings))


@pytest.mark.slow
@pytest.mark.parametrize(("wide", "traced"), [(2.0, 0), (3.0, 3)], ids=["the same", "another for two lanes"])
def test_a_twin_is_known_for_each_number_of_lanes(
    tmp_path: Path, traces: list[str], compiled: list[str], wide: float, traced: int
) -> None:
    """The density's hand-batched twin, as packaged models have one."""

    def drawn_with(wide: float, folder: Path) -> np.ndarray:
        def twin(q: Any) -> Any:
            scale = 2.0 if q.shape[0] != 2 else wide
            return -0.5 * ops.sum(q * q, axis=-1) / scale, -q / scale

        model = Model(name="twin", log_density=scaled(2.0).log_density, dimension=3, batched_value_and_gradient=twin)
        options = SMALL | {"backend": "jax", "cache": str(folder), "chains": 2}
        return run_chains(model, *split_settings(options)).position

    drawn_with(2.0, tmp_path)
    del traces[:], compiled[:]
    found = drawn_with(wide, tmp_path)
    assert len(traces) == len(compiled) == traced
    np.testing.assert_array_equal(found, drawn_with(wide, tmp_path / "alone"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_density_that_changes_while_it_is_traced_is_not_found_again(
    tmp_path: Path, traces: list[str], backend: str
) -> None:
    scale = [2.0, 2.0, 2.0, 2.0]

    def changing(q: Any) -> Any:
        scale[0] += 1.0
        return -0.5 * ops.sum(q * q / scale[0])

    for _ in range(2):
        before = len(traces)
        options = SMALL | {"backend": backend, "cache": str(tmp_path)}
        run_chains(Model.from_function(changing, dimension=3), *split_settings(options))
        assert len(traces) == before + 3


@pytest.mark.slow
def test_files_that_have_changed_since_they_were_read_name_no_program(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = drawn(tmp_path, 2.0)
    monkeypatch.setattr(batchnuts, "BEGAN", 0.0)
    np.testing.assert_array_equal(drawn(tmp_path, 2.0), first)
    assert len(traces) == 6


@pytest.mark.slow
def test_a_program_that_was_deleted_is_traced_again(tmp_path: Path, traces: list[str]) -> None:
    first = drawn(tmp_path, 2.0)
    for file in kept_in(tmp_path).folder.iterdir():
        if file.stat().st_size > 1000:  # what remains are the keys of programs
            file.unlink()
    del traces[:]
    np.testing.assert_array_equal(drawn(tmp_path, 2.0), first)
    assert len(traces) == 3
    np.testing.assert_array_equal(drawn(tmp_path, 2.0), first)
    assert len(traces) == 3


@pytest.mark.slow
def test_a_machine_of_another_size_compiles_the_function_that_was_read(
    tmp_path: Path, traces: list[str], compiled: list[str]
) -> None:
    drawn(tmp_path, 2.0)
    del traces[:], compiled[:]
    found = drawn(tmp_path, 2.0, chains=6, chunk_lanes=3)
    assert sorted(compiled) == sorted(set(compiled)) != []
    assert len(traces) == len(compiled) == 3
    np.testing.assert_array_equal(found, drawn(tmp_path / "alone", 2.0, chains=6, chunk_lanes=3))


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


@pytest.mark.slow
def test_beside_a_graphics_card_no_machine_of_a_processor_is_found(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tmp_path, backend="tensorflow")
    del traces[:]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["a card"] if kind == "GPU" else [])
    second = run(tmp_path, backend="tensorflow")
    assert traces == ["tensorflow"] * 3
    np.testing.assert_allclose(second.position, first.position, rtol=1e-4)
