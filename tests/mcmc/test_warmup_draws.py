"""The draws of warmup, which are kept on request: in memory, in files of each format, of runs that are made longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from forked_runs import run

import batchnuts
from batchnuts.autobatch import BatchnutsError, ops
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws

GROUPS = ("warmup_posterior", "warmup_sample_stats")
MODEL = Model.from_function(lambda x: -0.5 * ops.sum(x * x), dimension=3)


def drawn(content: Content, **settings: Any) -> Draws:
    given = {"chains": 16, "draws": 5, "backend": "native", "seed": 2, **settings}
    return run_chains(MODEL, *split_settings(given), content=content)


@pytest.mark.parametrize("settings", [{}, {"start": "windows"}, {"warmup": 30}, {"warmup": {"pool": "none"}}])
def test_all_transitions_of_warmup_are_there(settings: dict[str, Any]) -> None:
    """Each window's step sizes follow from the one before, log-densities are those of the positions, and draws are what
    they are without them."""
    draws, without = drawn(Content(warmup=True), **settings), drawn(Content(), **settings)
    np.testing.assert_array_equal(draws.position, without.position)
    assert without.warmup.records == ()
    groups = to_datasets(draws, MODEL, content=Content(warmup=True))
    posterior, stats = (groups[name] for name in GROUPS)
    assert posterior.sizes["draw"] == stats.sizes["draw"] == draws.warmup.transitions
    positions = posterior["position"].values
    np.testing.assert_allclose(stats["lp"], -0.5 * (positions**2).sum(axis=-1), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert set(stats.data_vars) == set(groups["sample_stats"].data_vars)
    assert not set(GROUPS) & set(to_datasets(without, MODEL))
    if draws.warmup.windows and "pool" not in str(settings):
        first = draws.warmup.windows[0]
        begins = stats["step_size"].isel(draw=first.transitions).values
        np.testing.assert_allclose(begins[np.isfinite(begins)], first.step_size[1], rtol=1e-5)


def test_thinned_and_where_chains_were_left_behind() -> None:
    draws = drawn(Content(warmup=True), warmup=30)
    first, *rest = draws.warmup.records
    behind = np.where(np.arange(16) == 4, first.done - 2, first.done)
    left = replace(draws, warmup=replace(draws.warmup, records=(replace(first, done=behind), *rest)))
    content = Content(warmup=True, thin=2)
    groups = to_datasets(left, MODEL, content=content)
    length = first.records["lp"].shape[1]
    numbers = np.arange(0, 30, 2)
    missing = (np.arange(16)[:, None] == 4) & (numbers >= length - 2) & (numbers < length)
    np.testing.assert_array_equal(groups["warmup_posterior"]["draw"], numbers)
    np.testing.assert_array_equal(np.isnan(groups["warmup_posterior"]["position"].values).any(axis=2), missing)
    np.testing.assert_array_equal(np.isnan(groups["warmup_sample_stats"]["n_steps"]), missing)


def test_from_python() -> None:
    result = batchnuts.sample_chains(MODEL, chains=16, draws=5, keep_warmup=True, backend="native")
    assert result["warmup_posterior"].sizes["draw"] == result["posterior"].attrs["warmup"]
    with pytest.raises(BatchnutsError, match="keep_warmup=True, which needs the draws"):
        batchnuts.sample_chains(MODEL, keep_warmup=True, keep_draws=False)
    with pytest.raises(BatchnutsError, match="keep_warmup: found 'yes'; expected True or False"):
        batchnuts.sample_chains(MODEL, keep_warmup="yes")  # type: ignore[arg-type]


@pytest.mark.slow
def test_in_files_of_each_format_and_of_longer_runs(tmp_path: Path) -> None:
    there: dict[str, dict[str, xarray.Dataset]] = {}
    for name in ("a.nc", "a.zarr"):
        path = tmp_path / name
        common = ("sampler.chains=16", "sampler.warmup=40", "sampler.draws=8", "output.warmup=true", "--quiet")
        run("--config", "eight_schools.yaml", *common, f"output.path={path}", cwd=tmp_path)
        for extended in (False, True):
            if extended:
                run("--resume", str(path), "sampler.draws=+8", "--quiet", cwd=tmp_path)
            opened = batchnuts.open_run(path)
            there[f"{name} {extended}"] = {group: opened[group].load() for group in (*GROUPS, "posterior")}
    expected = there["a.nc False"]
    for name, groups in there.items():
        assert groups["posterior"].sizes["draw"] == (16 if "True" in name else 8)
        for group in GROUPS:
            xarray.testing.assert_equal(groups[group], expected[group])
