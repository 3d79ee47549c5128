"""R-hat, effective sample sizes and Monte Carlo errors are those of ArviZ."""

from __future__ import annotations

import arviz
import numpy as np
import pytest
import xarray
from scipy import fft, special
from scipy.signal import lfilter

from batchnuts.mcmc.chain_moments import _length_of_transforms, effective_size
from batchnuts.mcmc.convergence import STATISTICS, convergence
from batchnuts.mcmc.quantile_functions import FEW, chi_squared_exceeded, f_exceeded, normal, normal_exceeded


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


@pytest.mark.parametrize("shape", [(2, 4), (2, 5), (4, 10), (64, 12), (3, 101), (8, 64), (40, 250), (2, 8)], ids=str)
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
    for name in STATISTICS:
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


def test_the_effective_size_of_an_autoregression() -> None:
    """(1 - rho) / (1 + rho) of all draws, in expectation about."""
    noise = np.random.default_rng(0).normal(size=(50, 4, 2000))
    for rho in (0.0, 0.6, -0.4):
        values = lfilter([1], [1, -rho], noise, axis=2)
        share = effective_size(values) / 8000
        assert abs(share.mean() / ((1 - rho) / (1 + rho)) - 1) < 0.08


def test_quantiles_are_those_of_scipy() -> None:
    for count in (1, 1000, FEW + 1):  # of so many, SciPy's own
        p = (np.arange(count) + 0.5) / count
        np.testing.assert_allclose(normal(p), special.ndtri(p), rtol=1e-13, atol=1e-15)
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
    lengths = [_length_of_transforms(minimum) for minimum in range(1, 3000)]
    assert lengths == [fft.next_fast_len(minimum, real=True) for minimum in range(1, 3000)]
