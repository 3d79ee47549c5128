"""Runs that keep no draws: what they save is what the same draws give that are kept, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import streamed_draws as streaming
import xarray

import batchnuts
from batchnuts import Model
from batchnuts.autobatch import ops
from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.saving import save
from batchnuts.mcmc.diagnostics.verdict import coefficients
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.output.summarizing import SummaryRun
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage import streamed
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.stored_run import is_interrupted
from batchnuts.settings.schema import SettingsError

CONTENT = Content(draws=False)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "SHARE", 6)  # 8 draws each
    monkeypatch.setattr(streamed, "SMALL_BLOCK", 1)


def begun(folder: Path, draws: Draws, **options: Any) -> tuple[SummaryRun, Any]:
    run = SummaryRun(folder, streaming.MODEL, CONTENT, **options)
    like = map_leaves(lambda array: array[:1, :1], streaming.records_of(draws))
    return run, run.begin(streaming.SAMPLER, draws.execution)(like, streaming.CHAINS, streaming.DRAWS)


def kept(draws: Draws, model: Model = streaming.MODEL) -> tuple[list[str], np.ndarray]:
    """Names of the coefficients that the run would report, and their values [chains, draws, coefficients]."""
    blocks, names = coefficients(to_datasets(draws, model)["posterior"])
    return names, np.concatenate([block[:, :, :] for block in blocks], axis=2).astype(np.float64)


def assert_is_of(summary: xarray.Dataset, names: list[str], values: np.ndarray) -> None:
    assert summary["coefficient"].values.tolist() == names
    flat = values.reshape(-1, values.shape[2])
    np.testing.assert_allclose(summary["mean"], flat.mean(axis=0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(summary["sd"], flat.std(axis=0, ddof=1), rtol=1e-6)
    np.testing.assert_allclose(summary["covariance"], np.cov(flat.T), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(summary["chain_mean"], values.mean(axis=1), rtol=1e-6, atol=1e-7)
    slack, wanted = summary.attrs["rank_error"] + 1 / len(flat), summary["quantile"].values[:, None]
    assert ((flat[:, None] < summary["quantiles"].values).mean(axis=0) <= wanted + slack).all()
    assert ((flat[:, None] <= summary["quantiles"].values).mean(axis=0) >= wanted - slack).all()


@pytest.mark.parametrize(
    "done", [None, streaming.INTERRUPTED, [16, 0, 0, 20, 0, 9]], ids=["ended", "interrupted", "some chains"]
)
def test_a_summary_is_that_of_the_draws(tmp_path: Path, done: list[int] | None) -> None:
    """With the groups that a run has otherwise; of the draws that every chain has which had begun."""
    draws = streaming.drawn(done)
    run, storage = begun(tmp_path / "blocks", draws)
    streaming.run_to_end(storage, draws)
    groups = run.finish(draws)
    assert not (tmp_path / "blocks").exists()
    assert_is_of(groups["summary"], *kept(draws))
    assert set(groups) == {"summary", "adaptation", "observed_data", "constant_data"}
    expected = to_datasets(draws, streaming.MODEL)
    xarray.testing.assert_allclose(groups["adaptation"], expected["adaptation"])
    stats = expected["sample_stats"]
    assert groups["summary"]["diverging"].values.tolist() == stats["diverging"].sum("draw").values.tolist()
    assert groups["summary"]["tree_depth"].values.sum() == stats["tree_depth"].size
    path = save(groups, tmp_path / "a.nc")
    assert is_interrupted(path) is (done is not None)
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        found = batchnuts.check(tree)
    assert found.interrupted is (done is not None)
    assert found.diagnostics.names == tuple(kept(draws)[0])
    assert found.divergences == int(stats["diverging"].sum())


def test_a_run_goes_on_from_what_was_flushed(tmp_path: Path) -> None:
    """From the last flush or the one before, which have blocks that were reduced and others that were not."""
    draws, folder = streaming.drawn(), tmp_path / "blocks"
    records = streaming.records_of(draws)
    at = [np.array(streaming.INTERRUPTED), np.array([31, 35, 47, 40, 26, 30])]
    for flushes in (1, 2):
        _, storage = begun(folder, draws)
        for done in at[:flushes]:
            streaming.feed(storage, records, done)
            storage.flush()
        storage.close()
        run, storage = begun(folder, draws, resumed=True)
        storage.resume(at[0])
        streaming.feed(storage, records, at[1], seed=1)
        storage.flush()
        streaming.feed(storage, records, draws.done, seed=2)
        groups = run.finish(draws, keep=True)
        assert_is_of(groups["summary"], *kept(draws))
        assert groups["summary"]["n_steps"].values.tolist() == draws.stats["n_steps"].sum(axis=1).tolist()
    run.discard()
    assert not folder.exists()


def test_a_run_without_draws_is_the_run_with_them() -> None:
    """The same seed; what is generated too, but for what is constant. Nothing is computed of observations."""

    def pointwise(p: dict[str, Any]) -> Any:
        return -0.5 * (np.ones(3, "float32") - p["mu"]) ** 2

    model = Model.from_function(
        lambda p: ops.sum(pointwise(p)) - p["tau"],
        variables={"mu": batchnuts.real(), "tau": batchnuts.positive()},
        generated=lambda p: {"ratio": p["mu"] / p["tau"], "one": 0.0 * p["mu"] + 1.0},
        log_likelihood=pointwise,
        observed_data={"y": (("row",), np.ones(3, "float32"))},
    )
    settings: dict[str, Any] = {"chains": 8, "warmup": 20, "draws": 60, "seed": 2}
    found = batchnuts.sample_chains(model, keep_draws=False, progress=False, **settings)
    there = [
        name for name in ("summary", "adaptation", "observed_data", "posterior", "log_likelihood") if name in found
    ]
    assert there == ["summary", "adaptation", "observed_data"]
    names, values = kept(run_chains(model, *split_settings(settings)), model)
    assert names == ["mu", "tau", "ratio"]
    assert_is_of(found["summary"], names, values)
    assert batchnuts.check(found).diagnostics.running


def test_what_takes_draws_is_refused() -> None:
    model = Model.from_function(lambda q: -0.5 * ops.sum(q * q), dimension=2)
    for given in ({"keep_draws": "no"}, {"unconstrained": "a"}, {"divergences": 1}):
        with pytest.raises(SettingsError, match=f"{next(iter(given))}: found .*; expected True or False"):
            batchnuts.sample_chains(model, **given)
    with pytest.raises(SettingsError, match="keep_draws: found False with divergences=True"):
        batchnuts.sample_chains(model, keep_draws=False, divergences=True)
    with pytest.raises(SettingsError, match=r"sampler\.until: found conditions, which need all draws"):
        batchnuts.sample_chains(model, keep_draws=False, until={"ess_bulk": 400})
