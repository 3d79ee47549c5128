"""What is computed during a run is what ArviZ computes after it."""

from __future__ import annotations

import arviz
import numpy as np
import pytest
import xarray
from scipy.signal import lfilter

from batchnuts.mcmc.running_diagnostics import effective_size, running_diagnostics

NAMES = ("r_hat", "ess_bulk", "ess_tail")


def chains(shape: tuple[int, int], seed: int) -> np.ndarray:
    """[chains, draws, coefficients]: autoregressive, antithetic and independent draws, ties, heavy tails, trends."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(*shape, 8))
    columns = [lfilter([1], [1, -rho], noise[..., i], axis=1) for i, rho in enumerate((0.0, 0.5, 0.95, 1.0, -0.7))]
    columns.append(np.repeat(noise[..., 5], 3, axis=1)[:, : shape[1]].round(1))
    columns.append(noise[..., 6] / rng.normal(size=shape))
    columns.append(noise[..., 7] + 0.02 * np.arange(shape[1]) + np.arange(shape[0])[:, None])
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("shape", [(2, 4), (2, 5), (4, 10), (64, 12), (3, 101), (8, 64), (40, 250), (2, 8)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore:divide by zero")  # ArviZ's, of chains that each stay where they are
def test_they_are_those_of_arviz(shape: tuple[int, int], dtype: str) -> None:
    draws = chains(shape, seed=sum(shape)).astype(dtype)
    found = running_diagnostics(draws, NAMES)
    data = xarray.Dataset({"x": (("chain", "draw", "k"), draws.astype(np.float64))})
    expected = {
        "r_hat": arviz.rhat(data, method="rank"),
        "ess_bulk": arviz.ess(data, method="bulk"),
        "ess_tail": arviz.ess(data, method="tail", prob=(0.05, 0.95)),
    }
    for name in NAMES:
        np.testing.assert_allclose(found[name], expected[name]["x"].values, rtol=1e-9, err_msg=name)


def test_one_chain_has_effective_sizes() -> None:
    draws = chains((1, 60), seed=3)
    found = running_diagnostics(draws, ["ess_bulk", "ess_tail"])
    data = xarray.Dataset({"x": (("chain", "draw", "k"), draws)})
    for name in found:
        expected = arviz.ess(data, method=name.removeprefix("ess_"))["x"].values
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, err_msg=name)


def test_what_has_no_value() -> None:
    draws = chains((4, 20), seed=0)
    draws[:, :, 0] = 2.0
    draws[1, 3, 1] = np.nan
    for values in running_diagnostics(draws, NAMES).values():
        assert np.isnan(values).tolist() == [True, True] + [False] * 6


def test_only_what_is_named_is_computed() -> None:
    assert set(running_diagnostics(chains((4, 20), seed=0), ["ess_tail"])) == {"ess_tail"}


def test_the_effective_size_of_an_autoregression() -> None:
    """(1 - rho) / (1 + rho) of all draws, in expectation about."""
    noise = np.random.default_rng(0).normal(size=(50, 4, 2000))
    for rho in (0.0, 0.6, -0.4):
        values = lfilter([1], [1, -rho], noise, axis=2)
        share = effective_size(values) / 8000
        assert abs(share.mean() / ((1 - rho) / (1 + rho)) - 1) < 0.08
