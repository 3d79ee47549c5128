"""R-hat, effective sample sizes and Monte Carlo errors are those of ArviZ."""

from __future__ import annotations

import sys

import arviz
import numpy as np
import pytest
import xarray
from scipy import fft, special
from scipy.signal import lfilter

from batchnuts.mcmc.statistics.autocorrelation import MANY_CHAINS, length_of_transforms
from batchnuts.mcmc.statistics.chain_moments import chain_moments
from batchnuts.mcmc.statistics.convergence import STATISTICS, convergence
from batchnuts.mcmc.statistics.quantile_functions import chi_squared_exceeded, f_exceeded, normal, normal_exceeded
from batchnuts.mcmc.statistics.rank_normal import BLOCK, TABLE, NormalScores


def chains(shape: tuple[int, int], seed: int) -> np.ndarray:
    """[chains, draws, coefficients]: autoregressive, antithetic and independent draws, ties, heavy tails, trends."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(*shape, 8))
    columns = [lfilter([1], [1, -rho], noise[..., i], axis=1) for i, rho in enumerate((0.0, 0.5, 0.95, 1.0, -0.7))]
    columns.append(np.repeat(noise[..., 5], 3, axis=1)[:, : shape[1]].round(1))
    columns.append(noise[..., 6] / rng.normal(size=shape))
    columns.append(noise[..., 7] + 0.02 * np.arange(shape[1]) + np.arange(shape[0])[:, None])
    return np.stack(columns, axis=-1)


def _error_of_sd(data: xarray.Dataset) -> xarray.Dataset:
    """ArviZ's own function raises TypeError where Numba is installed beside a recent NumPy (0.23.4 and 2.4)."""
    try:
        return arviz.mcse(data, method="sd")
    except TypeError:
        squares = (data - data.mean(["chain", "draw"])) ** 2
        variance = squares.mean(["chain", "draw"])
        of_squares = (squares**2).mean(["chain", "draw"]) - variance**2
        return (of_squares / arviz.ess(squares, method="mean") / variance) ** 0.5 / 2


@pytest.mark.parametrize(
    "shape", [(2, 4), (2, 5), (4, 10), (64, 12), (3, 101), (8, 64), (40, 250), (2, 8), (15, 250)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore:divide by zero")  # ArviZ's, of chains that each stay where they are
def test_they_are_those_of_arviz(shape: tuple[int, int], dtype: str) -> None:
    draws = chains(shape, seed=sum(shape)).astype(dtype)
    found = convergence(draws, STATISTICS)
    data = xarray.Dataset({"x": (("chain", "draw", "k"), draws.astype(np.float64))})
    expected = {
        "r_hat": arviz.rhat(data, method="rank"),
        "ess_bulk": arviz.ess(data, method="bulk"),
        "ess_tail": arviz.ess(data, method="tail", prob=(0.05, 0.95)),
        "mcse_mean": arviz.mcse(data, method="mean"),
        "mcse_sd": _error_of_sd(data),
    }
    # of many chains sizes are estimated otherwise
    for name in STATISTICS if shape[0] < MANY_CHAINS else ("r_hat",):
        np.testing.assert_allclose(found[name], expected[name]["x"].values, rtol=1e-9, err_msg=name)


def test_one_chain_has_effective_sizes() -> None:
    draws = chains((1, 60), seed=3)
    found = convergence(draws, ["ess_bulk", "ess_tail"])
    data = xarray.Dataset({"x": (("chain", "draw", "k"), draws)})
    for name, options in {"ess_bulk": {}, "ess_tail": {"prob": (0.05, 0.95)}}.items():
        expected = arviz.ess(data, method=name.removeprefix("ess_"), **options)["x"].values
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, err_msg=name)


def test_what_has_no_value() -> None:
    draws = chains((4, 20), seed=0)
    draws[:, :, 0] = 2.0
    draws[1, 3, 1] = np.nan
    for values in convergence(draws, STATISTICS).values():
        assert np.isnan(values).tolist() == [True, True] + [False] * 6
    nothing = convergence(draws[:, :, :2], STATISTICS)
    assert set(nothing) == set(STATISTICS)
    for values in nothing.values():
        assert np.isnan(values).tolist() == [True, True]


def test_only_what_is_named_is_computed() -> None:
    assert set(convergence(chains((4, 20), seed=0), ["ess_tail"])) == {"ess_tail"}


def autoregression(shape: tuple[int, int, int], rho: float, seed: int = 0) -> np.ndarray:
    """Stationary draws [coefficients, chains, draws] with a variance of 1."""
    noise = np.random.default_rng(seed).normal(size=shape)
    noise[:, :, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1], [1, -rho], noise, axis=2)


def effective_share(rho: float, draws: int) -> float:
    """Of all draws, for the variance of the mean of so many draws of a chain."""
    lags = np.arange(1, draws)
    return float(1 / (1 + 2 * ((1 - lags / draws) * rho**lags).sum()))


@pytest.mark.parametrize("shape", [(4, 2000), (16, 500), (64, 200), (256, 10), (64, 14), (1024, 6)], ids=str)
def test_the_effective_size_of_an_autoregression(shape: tuple[int, int]) -> None:
    """Of few long chains and of many short ones; the worst of coefficients is not far below the truth either."""
    for rho in (0.0, 0.6, -0.4, 0.9):
        values = autoregression((60, *shape), rho)
        found = chain_moments(lambda start, stop, x=values: x[:, start:stop], values.shape, effective_size=True)
        share = found.effective_size / (shape[0] * shape[1]) / effective_share(rho, shape[1])
        assert abs(share.mean() - 1) < 0.08, rho
        assert share.min() > (0.6 if shape[0] >= MANY_CHAINS else 0.4), rho


def test_effective_sizes_of_many_chains_see_what_their_means_show() -> None:
    """A trend that all chains have, and chains that each stay in a place of their own."""
    values = autoregression((2, 64, 50), 0.0)
    values[0] += np.linspace(0, 3, 50)
    values[1] += 3 * np.random.default_rng(1).normal(size=(64, 1))
    found = chain_moments(lambda start, stop: values[:, start:stop], values.shape, effective_size=True)
    assert found.effective_size is not None
    assert found.effective_size[0] < 400
    assert found.effective_size[1] == pytest.approx(64 * values[1].var() / values[1].mean(axis=1).var(ddof=1), rel=0.1)
    # the mean of a chain's own draws hides where the chain is
    own = chain_moments(lambda start, stop: values[:, start:stop], values.shape, own_mean=True).own_mean_size
    assert own is not None
    assert own[1] == pytest.approx(64 * 50, rel=0.2)


def test_scores_of_many_draws_are_not_computed_one_by_one() -> None:
    """Where there are too many for a table: a call of Python for each took most of the time of diagnostics."""
    scores, calls = NormalScores(TABLE + 2), []
    ranks = np.arange(1, BLOCK + 1).reshape(1, 1, -1)  # as many as are looked at together
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        found = scores.of(ranks)
    finally:
        sys.setprofile(None)
    assert len(calls) < 1000
    np.testing.assert_allclose(found, special.ndtri((ranks / 2 - 3 / 8) / (TABLE + 2 + 1 / 4)), rtol=1e-12)


def test_quantiles_are_those_of_scipy() -> None:
    for count in (1, 1000, 100_001):
        p = (np.arange(count) + 0.5) / count
        np.testing.assert_allclose(normal(p), special.ndtri(p), rtol=1e-13, atol=1e-15)
    far = 10.0 ** -np.arange(1.0, 300.0)
    p = np.concatenate([far, 1.0 - far[:16], [0.075, 0.925]])
    np.testing.assert_allclose(normal(p), special.ndtri(p), rtol=1e-13)
    assert normal(np.full((2, 3), 0.5)).shape == (2, 3)
    for p in (1e-12, 0.05, 0.5, 0.9):
        assert normal_exceeded(p) == pytest.approx(-special.ndtri(p), rel=1e-12)
        for first, second in ((1, 6), (3, 12), (63, 192), (1, 10_000), (16_383, 49_152)):
            # of 1 - p SciPy has no more digits
            assert f_exceeded(p, first, second) == pytest.approx(special.fdtri(first, second, 1 - p), rel=1e-4)
            tail = special.betainc(second / 2, first / 2, second / (second + first * f_exceeded(p, first, second)))
            assert tail == pytest.approx(p, rel=1e-9)
    for freedom in (7, 31, 1023):
        for p in (5e-6, 0.01, 0.25):
            assert chi_squared_exceeded(p, freedom) == pytest.approx(special.chdtri(freedom, p), rel=0.03)


def test_transforms_have_lengths_that_are_fast() -> None:
    lengths = [length_of_transforms(minimum) for minimum in range(1, 3000)]
    assert lengths == [fft.next_fast_len(minimum, real=True) for minimum in range(1, 3000)]
