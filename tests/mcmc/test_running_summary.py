"""Draws that are not kept: what is known of them is what the same draws give that are."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

import batchnuts
from batchnuts.mcmc.diagnostics.diagnose import diagnose
from batchnuts.mcmc.diagnostics.summary_without_draws import PROBABILITIES, summary_group
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.statistics import running_summary
from batchnuts.mcmc.statistics.nested_rhat import nested_rhat
from batchnuts.mcmc.statistics.running_summary import RunningSummary, StatisticsTotals, segments_of

SCALES, CENTRES = np.array([1.0, 10.0, 0.1]), np.array([0.0, 1e4, -3.0])


def chains(shape: tuple[int, int], memory: float = 0.5, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """[chains, draws, 3]: stationary autoregressions."""
    noise = np.random.default_rng(seed).normal(size=(shape[0], shape[1] + 100, 3))
    values = lfilter([1], [1, -memory], noise, axis=1)[:, 100:]
    return (values * SCALES + CENTRES).astype(dtype)


def summed(values: np.ndarray, planned: int | None = None, seed: int = 1) -> RunningSummary:
    """In parts of random lengths."""
    rng = np.random.default_rng(seed)
    count, draws, coefficients = values.shape
    found, at = RunningSummary(count, planned or draws, coefficients, values.dtype), 0
    while at < draws:
        rows = int(rng.integers(1, max(2, draws // 7)))
        found.add(values[:, at : at + rows])
        at += rows
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(64, 100), (4, 1003), (3, 5), (8, 3), (1, 40)], ids=str)
def test_moments_are_those_of_the_draws(shape: tuple[int, int], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_summary, "VALUES", 2000)
    values = chains(shape, dtype=dtype)
    found, exact = summed(values), values.astype(np.float64)
    flat = exact.reshape(-1, 3)
    np.testing.assert_allclose(found.pooled_mean, flat.mean(axis=0), rtol=1e-12)
    scale = flat.std(axis=0, ddof=1)
    np.testing.assert_allclose(found.covariance / np.outer(scale, scale), np.corrcoef(flat.T), atol=1e-9)
    np.testing.assert_allclose(found.variance, scale**2, rtol=1e-9)
    np.testing.assert_allclose(found.moments.mean, exact.mean(axis=1).T, rtol=1e-12)
    np.testing.assert_allclose(found.moments.variance, exact.var(axis=1).T, rtol=1e-7)
    np.testing.assert_array_equal(found.range(), [flat.min(axis=0), flat.max(axis=0)])
    monkeypatch.setattr(running_summary, "COVARIANCES", 2)
    without = summed(values)
    assert without.covariance is None
    np.testing.assert_allclose(without.variance, found.variance, rtol=1e-12)


@pytest.mark.parametrize("made", [100, 77, 24])
def test_rhat_is_that_of_the_halves_of_what_was_made(made: int) -> None:
    """Of a run that ended early, of an even number of whole segments."""
    values = chains((64, made), memory=0.9)
    found = summed(values, planned=100)
    half = made // (2 * 12) * 12
    halves = np.concatenate([values[:, :half], values[:, half : 2 * half]])
    between, within = half * halves.mean(axis=1).var(axis=0, ddof=1), halves.var(axis=1, ddof=1).mean(axis=0)
    np.testing.assert_allclose(found.rhat(), np.sqrt((between / within + half - 1) / half), rtol=1e-9)
    assert np.isnan(summed(values[:, :20], planned=100).rhat()).all()


@pytest.mark.parametrize("shape", [(1024, 100), (64, 400), (4, 5000)], ids=str)
@pytest.mark.parametrize("memory", [0.0, 0.6, -0.3])
def test_effective_sizes_are_those_of_an_autoregression(shape: tuple[int, int], memory: float) -> None:
    """(1 - rho) / (1 + rho) of all draws; of 128 batches or more, within four standard errors, of three columns."""
    found = summed(chains(shape, memory, seed=3)).precision()
    share = found.effective_size / (shape[0] * shape[1]) / ((1 - memory) / (1 + memory))
    batches = max(128, shape[0])
    assert (np.abs(share - 1) < 4 * np.sqrt(2 / batches) + 0.05).all()
    np.testing.assert_allclose(found.of_mean * np.sqrt(found.effective_size), SCALES / np.sqrt(1 - memory**2), rtol=0.1)
    if memory == 0:
        np.testing.assert_allclose(found.of_sd, SCALES / np.sqrt(2 * shape[0] * shape[1]), rtol=0.4)


def test_quantiles_are_within_the_error_of_the_sketch() -> None:
    for dtype in ("float32", "float64"):
        values = chains((64, 500), dtype=dtype)
        found = summed(values)
        flat = values.reshape(-1, 3)
        ranks = (flat[:, None] <= found.quantiles(PROBABILITIES)).mean(axis=0)
        assert np.abs(ranks - np.array(PROBABILITIES)[:, None]).max() < 2 * found.rank_error < 0.004
    found.add(np.full((64, 1, 3), np.nan))
    assert np.isnan(found.pooled_mean).all()
    assert np.isfinite(found.quantiles([0.5])).all()


def test_segments_are_halves_at_least() -> None:
    assert [segments_of(*shape) for shape in ((4096, 5000), (4, 5000), (1, 1000), (64, 5), (8, 4), (8, 3))] == [
        8, 32, 128, 2, 2, 0,
    ]  # fmt: skip


def test_memory_does_not_grow_with_draws() -> None:
    peaks = []
    values = chains((256, 25), dtype="float32")
    for parts in (16, 160):
        found = RunningSummary(256, parts * 25, 3, "float32")
        for _ in range(2):
            found.add(values)
        tracemalloc.start()
        for _ in range(parts - 2):
            found.add(values)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0], peaks


def statistics(shape: tuple[int, int], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "acceptance_rate": rng.random(shape, np.float32),
        "n_steps": rng.integers(1, 16, shape).astype(np.int32),
        "diverging": rng.random(shape) < 0.01,
        "reached_max_treedepth": rng.random(shape) < 0.02,
        "tree_depth": rng.integers(0, 5, shape).astype(np.int32),
        "energy": rng.normal(50, 3, shape).astype(np.float32),
        "lp": rng.normal(-1e7, 3, shape).astype(np.float32),
    }


def group_of(values: np.ndarray, superchains: int, may_be_constant: np.ndarray | None = None) -> Any:
    totals, stats = StatisticsTotals(len(values)), statistics(values.shape[:2])
    for start in range(0, values.shape[1], 33):
        totals.add({name: array[:, start : start + 33] for name, array in stats.items()})
    names = [f"b[{i}]" for i in range(values.shape[2])]
    numbers = np.arange(len(values))
    return summary_group(summed(values), totals, names, numbers, superchains, {"model": "m"}, may_be_constant)


def test_quantities_that_are_constant_but_for_rounding_are_left_out() -> None:
    values = chains((16, 100), dtype="float32")
    values[:, :, 0] = 1.0 + np.finfo(values.dtype).eps * np.sign(values[:, :, 1] - CENTRES[1])
    for may_be, names in ((True, ["b[1]", "b[2]"]), (False, ["b[0]", "b[1]", "b[2]"])):
        found = group_of(values[:, :, :3], 4, np.array([may_be, False, False]))
        assert found["coefficient"].values.tolist() == names


def test_the_verdict_is_that_of_the_draws() -> None:
    """But for which R-hat it is, and which effective sizes: what is shown is close to what the draws give."""
    values = chains((256, 200), memory=0.3)
    found = batchnuts.check({"summary": group_of(values, 16)})
    stats, numbers = statistics((256, 200)), superchain_of(256, 16)
    expected = diagnose(
        values, found.diagnostics.names, stats["diverging"], stats["reached_max_treedepth"], stats["lp"], numbers
    )
    for name in ("mean", "sd", "mcse_mean", "5%", "95%"):
        error = np.abs(found.diagnostics.columns[name] - expected.columns[name]) / expected.columns["sd"]
        assert (error < (1e-9 if name in ("mean", "sd") else 0.02)).all(), name
    np.testing.assert_allclose(found.diagnostics.ess, expected.columns["ess_bulk"], rtol=0.35)
    np.testing.assert_allclose(found.diagnostics.nested, nested_rhat(values, numbers), atol=2e-3)
    np.testing.assert_allclose(found.diagnostics.persistence, expected.persistence, atol=0.02)
    for name in ("chains", "draws", "divergences", "reached_max_treedepth", "rounding", "superchains", "stuck"):
        assert getattr(found.diagnostics, name) == getattr(expected, name), name
    text = str(found)
    assert "Nested R-hat of moments < 1.01" in text
    assert "Minimum ESS of a mean, by batch means: " in text
    assert not found.ok  # draws diverged


def test_failures_are_seen_in_moments_too() -> None:
    values = chains((256, 200))
    values[:, :, 1] += np.where(np.arange(256) < 128, 100.0, 0.0)[:, None]  # two modes
    found = batchnuts.check({"summary": group_of(values, 16)}).diagnostics
    assert found.persists
    assert found.converged is False
    values = chains((256, 200))
    values[7] = values[7, :1] + 1e6
    assert batchnuts.check({"summary": group_of(values, 256)}).diagnostics.stuck == (7,)


def test_what_is_constant_or_not_finite_is_left_out_of_what_is_generated() -> None:
    values = chains((64, 40))
    values[:, :, 1], values[3, 5, 2] = 2.0, np.nan
    group = group_of(values, 64, np.array([False, True, True]))
    assert group["coefficient"].values.tolist() == ["b[0]"]
    assert group["covariance"].shape == (1, 1)
    values = chains((64, 40))
    values[:, :, 1] = 2.0
    found = batchnuts.check({"summary": group_of(values, 64)})
    assert "b[1] = not defined (it never moved)" in str(found)
