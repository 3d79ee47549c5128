"""Whole runs whose draws go to a Zarr store: the same as in memory, which they do not fill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamed_draws import assert_same_groups

import batchnuts
from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.output.streaming import ZarrRun
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage import streamed
from batchnuts.mcmc.storage.stored_run import open_zarr

RUN = """
import re, sys
from pathlib import Path
import numpy as np
from batchnuts.autobatch.machine import map_leaves
sys.path[:0] = sys.argv[3:]
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.storage import streamed
from batchnuts.mcmc.storage.contract import LaneRows
from batchnuts.mcmc.output.streaming import ZarrRun
from streamed_draws import MODEL, SAMPLER, drawn, records_of
chains, rows, draws = 64, 50, int(sys.argv[2])
streamed.BLOCK_BYTES, streamed.CHAINS_BYTES = 2_000_000, 500_000
rng = np.random.default_rng(0)
one = map_leaves(lambda a: np.ones((chains, rows, *a.shape[2:]), a.dtype), records_of(drawn()))
one = one._replace(position=rng.normal(size=one.position.shape).astype(one.position.dtype))
run = ZarrRun(Path(sys.argv[1]), MODEL, Content())
storage = run.begin(SAMPLER, drawn().execution)(one, chains, draws)
for first in range(0, draws, rows):
    begin = np.full(chains, first)
    storage.record(LaneRows.of_all(begin, begin + rows, one))
storage.finalize()
with open("/proc/self/status") as status:  # ru_maxrss begins with that of the process that started this one
    print(int(re.search("VmHWM: *([0-9]+)", status.read().replace("\t", " "))[1]) * 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_draws(tmp_path: Path) -> None:
    """Of a process that streams 10 and 100 MB: blocks on their way are 16 MB, far less than what is added."""

    def peak(draws: int) -> int:
        path = tmp_path / f"{draws}.zarr"
        places = [str(Path(__file__).parents[1])]
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(path), str(draws), *places],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=True,
        )  # fmt: skip
        assert open_zarr(path)["posterior"].sizes["draw"] == draws
        return int(done.stdout)

    few, many = peak(2500), peak(25_000)
    size = 64 * 25_000 * (6 * 4 + 70)
    assert many - few < 0.1 * size


@pytest.mark.parametrize(
    "until", [pytest.param(None, id="to the end"), pytest.param({"ess_bulk": 100}, id="until", marks=pytest.mark.slow)]
)
def test_runs_give_the_same_in_both_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Any) -> None:
    """Predictions and all that is generated too, however draws are divided into blocks."""
    monkeypatch.setattr(streamed, "SHARE", 3)
    monkeypatch.setattr(streamed, "SMALL_BLOCK", 1)
    y = np.array([0.5, -1.0, 2.0], "float32")

    def density(p: dict[str, Any]) -> Any:
        return ops.sum(pointwise(p)) - 0.5 * p["mu"] ** 2 - p["tau"]

    def pointwise(p: dict[str, Any]) -> Any:
        return -0.5 * ((y - p["mu"]) / p["tau"]) ** 2 - ops.log(p["tau"])

    model = Model.from_function(
        density,
        variables={"mu": batchnuts.real(), "tau": batchnuts.positive()},
        observed_data={"y": (("row",), y)},
        generated=lambda p: {"ratio": p["mu"] / p["tau"], "both": ops.stack([p["mu"], p["tau"]])},
        log_likelihood=pointwise,
        predictive=lambda p, seed: p["mu"] + p["tau"] * random.normal(seed, (3,)),
        prior=lambda seed: {"mu": random.normal(seed), "tau": ops.exp(random.normal(random.fold_in(seed, 1)))},
    )
    content = Content(divergences=True, unconstrained=True)
    settings = {"chains": 8, "warmup": 20, "draws": 100 if until is None else 1000, "seed": 2, "until": until}
    sampler, execution = split_settings(settings)
    run = ZarrRun(tmp_path / "a.zarr", model, content)
    groups = run.finish(run_chains(model, sampler, execution, content=content, stream=run))
    draws = run_chains(model, sampler, execution, content=content)
    expected = to_datasets(draws, model, content=content)
    for there in (groups, expected):  # what depends on time
        assert there.pop("progress")["phase"].values[-1] == "sampling"
        for name in ("compile_time", "warmup_time", "sampling_time", "sampling_ended"):
            for group in there.values():
                group.attrs.pop(name, None)
        if until is not None:  # chains had gone beyond the interim analysis, as far as threads had come
            for name in ("useful_gradients", "utilization"):
                del there["sample_stats"].attrs[name]
    assert_same_groups(groups, expected)
