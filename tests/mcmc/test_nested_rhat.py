"""Nested R-hat against the paper's formulas in loops, and on draws of which it is known whether they have converged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from batchnuts.mcmc.diagnostics.diagnose import diagnose
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.statistics import nested_rhat as module
from batchnuts.mcmc.statistics import rank_normal
from batchnuts.mcmc.statistics.chain_moments import chain_moments
from batchnuts.mcmc.statistics.nested_rhat import nested_of, nested_rhat
from batchnuts.mcmc.statistics.rank_normal import NormalScores, Ranking
from batchnuts.mcmc.statistics.reductions import NESTED, in_order, reduce_draws


def by_the_paper(draws: np.ndarray, superchain: np.ndarray) -> float:
    """Of one coefficient [chains, draws]: the sums of section 2.2, one by one."""
    numbers = sorted(set(superchain.tolist()))
    length = draws.shape[1]
    of_superchains, within = [], []
    for k in numbers:
        chains = [draws[m] for m in range(len(draws)) if superchain[m] == k]
        means = [sum(chain) / length for chain in chains]
        of_superchains.append(sum(means) / len(means))
        between = sum((m - of_superchains[-1]) ** 2 for m in means) / (len(means) - 1) if len(means) > 1 else 0.0
        spread = 0.0
        if length > 1:
            spread = sum(sum((x - m) ** 2 for x in c) / (length - 1) for c, m in zip(chains, means, strict=True))
        within.append(between + spread / len(chains))
    mean = sum(of_superchains) / len(numbers)
    of_all = sum((m - mean) ** 2 for m in of_superchains) / (len(numbers) - 1)
    return math.sqrt(1 + of_all / (sum(within) / len(within)))


def scores(values: np.ndarray) -> np.ndarray:
    """Of one coefficient, by SciPy."""
    ranks = stats.rankdata(values.astype(float)).reshape(values.shape)  # newer ones keep single precision
    return np.asarray(stats.norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4)))


@pytest.mark.parametrize(("count", "each", "length"), [(4, 3, 5), (2, 1, 6), (5, 4, 1), (3, 2, 2), (16, 4, 10)])
def test_it_is_what_the_paper_defines(count: int, each: int, length: int) -> None:
    """Of the draws, of their normal scores and of those of the folded draws, the largest; chains in any order."""
    rng = np.random.default_rng(count)
    draws = rng.standard_t(3, size=(count * each, length, 3)).round(1)  # with ties
    superchain = rng.permutation(np.repeat(np.arange(count) * 3 - 1, each))
    found = nested_rhat(draws, superchain)
    for at in range(3):
        one = draws[:, :, at]
        kinds = (one, scores(one), scores(np.abs(one - np.median(one))))
        assert found[at] == pytest.approx(max(by_the_paper(kind, superchain) for kind in kinds), rel=1e-12)


@pytest.mark.parametrize("block", [2, 3, 16, 2**17])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_scores_are_those_of_scipy(dtype: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of values with ties, zeros of both signs, and of distances from the median; also of a part of the values."""
    monkeypatch.setattr(rank_normal, "BLOCK", block)
    for size in (1, 2, 3, 37, 70):
        rows = np.random.default_rng(size).normal(size=(4, size)).astype(dtype)
        rows[1], rows[2], rows[3] = rows[1].round(1), 0.0, -rows[3].round(0)
        ranking = Ranking(rows)
        for part in (rows, np.delete(rows, np.arange(3, size, 7), axis=1)):
            if part is not rows:
                if size % 7:
                    continue
                ranking.leave_out(7, 3)
            kept = np.arange(size) % 7 != 3 if part is not rows else np.ones(size, bool)
            distances = np.abs(part.astype(float) - np.median(part.astype(float), axis=1, keepdims=True))
            for put, values in ((ranking.ranks, part), (ranking.folded_ranks, distances)):
                ranks = np.full(rows.shape, 1, ranking.dtype)
                put(ranks.reshape(-1))
                found = NormalScores(part.shape[1]).of(ranks[:, kept])
                expected = [scores(row) for row in values]
                np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_normal_scores_from_a_table_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = np.arange(2, 200)
    expected = NormalScores(99).of(ranks)
    monkeypatch.setattr(rank_normal, "TABLE", 0)
    np.testing.assert_array_equal(NormalScores(99).of(ranks), expected)


@pytest.mark.parametrize(("each", "length"), [(16, 1), (64, 1), (16, 4)])
def test_at_stationarity_its_square_exceeds_one_by_one_over_the_draws_of_a_superchain(each: int, length: int) -> None:
    """Of independent draws, in expectation, about, which the limit allows for."""
    values = np.random.default_rng(each).normal(size=(2000, 16 * each, length))
    moments = chain_moments(lambda start, stop: values[:, start:stop], values.shape)
    rhat, scale = module._nested(moments, np.repeat(np.arange(16), each), length)
    excess = rhat**2 - 1
    error = excess.std(ddof=1) / np.sqrt(len(excess))
    # variances within chains are of all but one degree of freedom, and those between chains have the noise of means
    expected = 1 / each if length == 1 else 1 / (each * (length + 1))
    assert abs(excess.mean() - expected) < 4 * error
    assert scale.mean() == pytest.approx(expected, rel=0.05)
    noise = module._noise(scale, np.repeat(np.arange(16), each), 1)
    np.testing.assert_allclose(noise.limits_for(1.01) ** 2, 1.01**2 + scale)
    assert (rhat < noise.limits_for(1.01)).mean() > 0.75
    assert 0 <= (rhat > noise.limits(1)).mean() <= 0.016


def test_superchains_of_different_sizes() -> None:
    """As when a run ended before all chains had begun; a superchain of one chain has no variance between chains."""
    draws = np.random.default_rng(0).normal(size=(7, 50, 2))
    assert (nested_rhat(draws, np.array([0, 1, 2, 0, 1, 2, 0])) < 1.1).all()
    assert np.isfinite(nested_rhat(draws[:, :1], superchain_of(7, 5))).all()


SUPERCHAINS = superchain_of(64, 16)


def stationary(draws: int = 20) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(64, draws, 2))


def shifted(draws: int) -> np.ndarray:
    """Superchains have not forgotten where they started, by half a standard deviation."""
    starts = np.random.default_rng(2).normal(size=16)
    return stationary(draws) + 0.5 * starts[SUPERCHAINS][:, None, None]


def spread(draws: int) -> np.ndarray:
    """Half of the superchains have half of the spread."""
    return stationary(draws) * np.where(SUPERCHAINS % 2, 0.5, 1.0)[:, None, None]


def far(draws: int) -> np.ndarray:
    """One chain of 64 is far away, which ranks hardly see."""
    values = stationary(draws)
    values[5] += 1000.0
    return values


def limits(draws: np.ndarray, superchain: np.ndarray) -> np.ndarray:
    return nested_of(reduce_draws(in_order(draws), {NESTED}), superchain).noise.limits(draws.shape[2])


@pytest.mark.parametrize("failure", [shifted, spread])
def test_failures_are_seen(failure: Any) -> None:
    healthy, draws = stationary(200), failure(200)
    assert (nested_rhat(healthy, SUPERCHAINS) < limits(healthy, SUPERCHAINS)).all()
    assert (nested_rhat(draws, SUPERCHAINS) > limits(draws, SUPERCHAINS)).all()


@pytest.mark.parametrize("draws", [2, 5, 200])
def test_one_far_chain_fails_whatever_the_number_of_draws(draws: int) -> None:
    """It widens the limit of R-hat with the variance between chains, and is seen by itself."""
    assert diagnose(stationary(draws), ["a", "b"], superchain=SUPERCHAINS).converged
    assert diagnose(far(draws), ["a", "b"], superchain=SUPERCHAINS).converged is False


def test_starts_that_are_not_forgotten_are_seen_in_one_draw_of_each_chain() -> None:
    draws = np.random.default_rng(3).normal(size=(2048, 1, 20))
    superchain = superchain_of(2048, 16)
    assert (nested_rhat(draws, superchain) < limits(draws, superchain)).all()
    starts = np.random.default_rng(4).normal(size=(16, 20))
    shifted = draws + 0.6 * starts[superchain][:, None]
    assert (nested_rhat(shifted, superchain) > limits(shifted, superchain)).all()


@pytest.mark.parametrize(("chains", "superchains"), [(17, 16), (65, 64), (5, 4), (20, 16), (513, 512), (64, 16)])
def test_limits_stay_within_reason_where_superchains_have_hardly_a_chain_more(chains: int, superchains: int) -> None:
    """The variance between chains of one start is hardly known then."""
    noise = module.noise_of_superchains(np.array([1e-3, 0.1, 1e9, np.nan]), chains, superchains, 3)
    limits = noise.limits(18)
    assert (limits >= 1.01).all()
    assert (limits**2 <= 1.0201 + 8 * superchains / 200).all()


def test_what_has_no_value() -> None:
    draws = stationary(4)
    draws[:, :, 0] = 3.0
    assert np.isnan(nested_rhat(draws, SUPERCHAINS)).tolist() == [True, False]
    draws[0, 0, 0] = np.inf
    assert np.isnan(nested_rhat(draws, SUPERCHAINS)[0])
    stuck = np.repeat(np.arange(4.0), 2)[:, None, None]
    assert nested_rhat(stuck, np.repeat(np.arange(4), 2))[0] == np.inf
    with pytest.raises(ValueError, match="found 1 superchains of 64 to 64 chains with 4 draws"):
        nested_rhat(draws, np.zeros(64, int))
    with pytest.raises(ValueError, match="or two draws of each chain; found 64 superchains of 1 to 1 chains with 1"):
        nested_rhat(draws[:, :1], np.arange(64))
