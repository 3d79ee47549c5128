"""JAX's programs on disk: what is loaded is what was compiled, bit for bit, and nothing else is ever loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import batchnuts
from batchnuts.autobatch.language.libraries import jax_programs
from batchnuts.autobatch.language.libraries.jax_programs import Jitted
from batchnuts.disk_cache.entries import Entries
from batchnuts.disk_cache.folder import keeping

X = np.linspace(0.1, 3.0, 17, dtype="float32")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entries]:
    """Where programs are found by what JAX has traced alone, and not by the files of the package."""
    monkeypatch.setattr(batchnuts, "BEGAN", 0.0)
    with keeping(str(tmp_path)) as entries:
        assert entries is not None
        yield entries


def counts(kept: Entries) -> tuple[int, int, int, int]:
    tally = kept.tally
    return tally.found, tally.missing, tally.dropped, tally.written


def waves(scale: Any = 1.0) -> Jitted:
    return Jitted(lambda x, y: {"sum": jnp.sin(x * scale) / y, "first": x})


def test_a_loaded_program_gives_the_same_bits(kept: Entries) -> None:
    compiled = waves()(X, X + 1)
    assert counts(kept) == (0, 1, 0, 1)
    program = waves()
    loaded = program(X, jnp.asarray(X + 1))
    assert counts(kept) == (1, 1, 0, 1)
    assert jax.tree.structure(loaded) == jax.tree.structure(compiled)
    for name in compiled:
        np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(compiled[name]))
        assert loaded[name].dtype == compiled[name].dtype
    program(X, X)
    assert counts(kept) == (1, 1, 0, 1), "a program is loaded once"
    expected = jax.jit(lambda x, y: {"sum": jnp.sin(x) / y, "first": x})(X, X + 1)
    np.testing.assert_array_equal(np.asarray(loaded["sum"]), np.asarray(expected["sum"]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x + np.arange(17, dtype="float32"), lambda x: x + np.arange(17, dtype="float32") ** 2),
        (lambda x: (x, x + 1), lambda x: {"a": x, "b": x + 1}),
        (lambda x: x[0] * 0 + 1.0, lambda x: jnp.asarray(1.0) + 0 * x[0]),
    ],
    ids=["literal", "array", "structure", "constant"],
)
def test_programs_that_differ_have_their_own_entries(kept: Entries, one: Any, other: Any) -> None:
    Jitted(one)(X)
    found = Jitted(other)(X)
    assert counts(kept) == (0, 2, 0, 2)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(other)(X))):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert jax.tree.structure(found) == jax.tree.structure(jax.jit(other)(X))


def test_which_argument_is_used_matters(kept: Entries) -> None:
    first = Jitted(lambda x, y: x * 2)(X, X + 1)
    second = Jitted(lambda x, y: y * 2)(X, X + 1)
    assert counts(kept) == (0, 2, 0, 2)
    np.testing.assert_array_equal(np.asarray(first), X * 2)
    np.testing.assert_array_equal(np.asarray(second), (X + 1) * 2)


@pytest.mark.parametrize(
    ("other", "lowered"),
    [(1.0, 0), (2.0, 1), (np.float32(1.0), 0), (np.ones(17, "float32"), 1)],
    ids=["the same", "a number", "the same number", "an array"],
)
def test_what_a_trace_says_is_not_lowered_again(
    kept: Entries, monkeypatch: pytest.MonkeyPatch, other: Any, lowered: int
) -> None:
    monkeypatch.setattr(batchnuts, "BEGAN", time.time())
    first, seen = waves()(X, X + 1), []
    lower = jax.stages.Traced.lower

    def counted(traced: Any, **options: Any) -> Any:
        seen.append(traced)
        return lower(traced, **options)

    monkeypatch.setattr(jax.stages.Traced, "lower", counted)
    second = waves(other)(X, X + 1)
    assert len(seen) == lowered
    np.testing.assert_array_equal(np.asarray(second["first"]), X)
    assert np.array_equal(np.asarray(second["sum"]), np.asarray(first["sum"])) == (not np.array_equal(other, 2.0))


def test_weak_types_and_dtypes_matter(kept: Entries) -> None:
    doubled = lambda x: x * 2  # noqa: E731
    results = [Jitted(doubled)(x) for x in (jnp.asarray(1.0), jnp.asarray(1.0, "float32"), np.float32([1.0]))]
    assert counts(kept) == (0, 3, 0, 3)
    assert [result.weak_type for result in results] == [True, False, False]
    assert [Jitted(doubled)(jnp.asarray(1.0)).weak_type for _ in range(2)] == [True, True]
    assert kept.tally.found == 2


@pytest.mark.parametrize("damage", ["truncated", "altered", "another program", "no program"])
def test_an_entry_of_no_use_is_compiled_again(kept: Entries, damage: str) -> None:
    expected = waves()(X, X)
    (file,) = kept.folder.iterdir()
    data = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(data[: len(data) // 2])
        case "altered":
            file.write_bytes(data[:-1000] + bytes([data[-1000] ^ 64]) + data[-999:])
        case "another program":
            waves(2.0)(X, X)
            (other,) = set(kept.folder.iterdir()) - {file}
            other.replace(file)
        case "no program":  # sound, but JAX cannot read it
            kept.put(file.stem, b"this is no program")
    before = kept.tally.written
    again = waves()(X, X)
    np.testing.assert_array_equal(np.asarray(again["sum"]), np.asarray(expected["sum"]))
    assert kept.tally.dropped == 1
    assert kept.tally.written == before + 1
    waves()(X, X)
    assert kept.tally.dropped == 1


def test_what_calls_back_into_the_process_is_not_kept(kept: Entries) -> None:
    seen: list[float] = []

    def told(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(float(v)), x[0])
        return x * 2

    def asked(x: Any) -> Any:
        return jax.pure_callback(lambda v: v * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    for function in (told, asked):
        np.testing.assert_array_equal(np.asarray(Jitted(function)(X)), X * 2)
    jax.effects_barrier()
    assert len(seen) == 1
    assert counts(kept) == (0, 0, 0, 0)


def test_large_data_is_not_kept(kept: Entries, monkeypatch: pytest.MonkeyPatch) -> None:
    data = jnp.arange(17.0) * 1.0
    monkeypatch.setattr(jax_programs, "MOST_CONSTANT_BYTES", data.nbytes - 1)
    np.testing.assert_array_equal(np.asarray(Jitted(lambda x: x + data)(X)), X + np.asarray(data))
    assert counts(kept) == (0, 0, 0, 0)


def test_inside_of_transformations_it_is_jax_jit(kept: Entries) -> None:
    squares = Jitted(lambda x: jnp.sum(x * x))
    np.testing.assert_allclose(np.asarray(jax.grad(squares)(X)), 2 * X)
    np.testing.assert_allclose(np.asarray(jax.vmap(squares)(X[None])), [np.sum(X * X)], rtol=1e-6)
    assert counts(kept) == (0, 0, 0, 0)


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    with keeping(None):
        waves()(X, X)
    assert list(tmp_path.iterdir()) == []


def test_users_settings_of_the_compiler_are_part_of_the_key(kept: Entries) -> None:
    waves()(X, X)
    before = jax.config.jax_optimization_level
    try:
        jax.config.update("jax_optimization_level", "O1")
        waves()(X, X)
    finally:
        jax.config.update("jax_optimization_level", before)
    assert counts(kept) == (0, 2, 0, 2)


def test_options_that_xla_has_in_the_process_are_part_of_the_key(
    kept: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    waves()(X, X)
    monkeypatch.setattr(jax_programs, "options_in_force", lambda: b"others")
    waves()(X, X)
    assert counts(kept) == (0, 2, 0, 2)


@pytest.fixture
def cache_of_jax(tmp_path: Path) -> Iterator[Path]:
    """JAX's own cache, which a user has set."""
    from jax.experimental.compilation_cache import compilation_cache

    before = {name: getattr(jax.config, name) for name in OF_JAX}
    for name, value in zip(OF_JAX, (str(tmp_path / "of_jax"), 0.0, 0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "of_jax"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


OF_JAX = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


def test_what_comes_from_the_cache_of_jax_is_not_kept_again(tmp_path: Path, cache_of_jax: Path) -> None:
    """XLA writes a program that it has read without its kernels: it would load, and fail when it is called."""

    def run(folder: str) -> tuple[Any, int]:
        """The result, and how many entries this folder has been given."""
        with keeping(str(tmp_path / folder)) as kept:
            assert kept is not None
            result = Jitted(lambda x: jnp.sin(x).sum() + jnp.cumsum(x)[1])(X)
            jax.clear_caches()
            return np.asarray(result), kept.tally.written

    expected, entries = run("one")
    assert entries > 0
    assert any(cache_of_jax.iterdir())
    for folder, written in (("one", entries), ("two", 0), ("two", 0), ("two", 0)):
        result, found = run(folder)
        np.testing.assert_array_equal(result, expected)
        assert found == written, folder


def test_programs_are_kept_where_the_cache_of_jax_has_a_folder_and_is_off(kept: Entries, cache_of_jax: Path) -> None:
    with jax_setting("jax_enable_compilation_cache", False):
        waves()(X, X)
    assert not cache_of_jax.exists()
    assert kept.tally.written == 1


@contextmanager
def jax_setting(name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    yield
    jax.config.update(name, before)
