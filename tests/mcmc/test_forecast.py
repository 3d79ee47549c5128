"""The forecast of memory and disk: its parts on known sizes, refusals with their remedies, and runs as they were."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchnuts import Model, sample_chains
from batchnuts.autobatch import ops
from batchnuts.files.saving import OVERHEAD
from batchnuts.mcmc.diagnostics.coefficient_parts import diagnostics_bytes
from batchnuts.mcmc.kernel.sample_statistics import draw_bytes
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.run import forecast as module
from batchnuts.mcmc.run.forecast import Forecast, Size, forecast, memory_problem
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.statistics.window_moments import moments_bytes
from batchnuts.settings.schema import SettingsError

EXECUTION = ExecutionSettings.model_validate({"expert": {"shards": 2}})


def sampler(**settings: Any) -> SamplerSettings:
    return split_settings({"chains": 256, "warmup": 50, "draws": 1000, **settings})[0]


def of(size: Size, divergences: bool = False, **settings: Any) -> Forecast:
    return forecast(sampler(**settings), EXECUTION, size, content=Content(divergences=divergences))


def problem(size: Size, divergences: bool = False, **settings: Any) -> str:
    found = memory_problem(sampler(**settings), EXECUTION, size, content=Content(divergences=divergences))
    assert found is not None
    return found


FIFTY = Size(50, "float32", values=50, largest=50)


FREES = """
import psutil
import numpy as np
from batchnuts.process.freed_memory import give_back_freed
arrays = [np.ones(10_000) for _ in range(4_000)]  # 320 MB, each too small for a mapping of its own
last = np.ones(10_000)  # above them: what is below stays
del arrays
before = psutil.Process().memory_info().rss
give_back_freed()
print(before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 200e6


def test_parts_on_known_sizes() -> None:
    found, samples = of(FIFTY), 256 * 1000
    assert found.records == samples * (4 * 50 + 6 * 4 + 14)
    assert found.values == 0
    assert found.metric == 0
    window = module._longest_window(sampler(), 256)
    assert found.moments == moments_bytes(256, window, 50) < 6e6, "of a window, bounded"
    assert found.writing == samples * 50 * 4
    assert found.diagnostics == diagnostics_bytes(256, 1000, 50, 4)
    assert found.file - found.records == OVERHEAD
    assert found.peak == found.libraries + found.records + max(found.stages.values())
    assert of(Size(10, "float64", values=12, transformed=4)).values == samples * 4 * 8
    assert of(FIFTY, divergences=True).records - found.records == samples * 50 * 4
    with_warmup = forecast(sampler(warmup=300), EXECUTION, FIFTY, content=Content(warmup=True), checkpoints=True)
    kept = 256 * 300 * draw_bytes(50, "float32")
    assert with_warmup.records - found.records == 2 * kept
    assert with_warmup.checkpoint - found.records == with_warmup.file - found.file == kept
    assert of(FIFTY, metric="dense").metric == 8 * 8 * 50**2
    assert (found.checkpoint, "checkpoints" in str(found)) == (0, False)
    checked = forecast(sampler(), EXECUTION, FIFTY, checkpoints=True)
    assert (checked.checkpoint, "of checkpoints until it ends" in str(checked)) == (found.records, True)
    assert forecast(sampler(), EXECUTION, FIFTY, streamed=True, checkpoints=True).checkpoint == 0
    assert forecast(sampler(), EXECUTION, FIFTY, backend="tensorflow").libraries > found.libraries


def test_what_grows_with_draws_chains_and_dimension() -> None:
    small, more = of(FIFTY, draws=4000), of(FIFTY, draws=8000)
    for part in ("records", "writing"):
        assert getattr(more, part) == 2 * getattr(small, part)
    assert more.sampling == small.sampling, "buffers have a bound"
    assert of(FIFTY, chains=512).sampling > 1.5 * of(FIFTY, chains=256).sampling
    assert of(Size.at_least(10_000, "float32"), max_tree_depth=10).sampling > 9e8, "stacks"
    assert of(FIFTY, until={"ess_bulk": 400}).sampling - of(FIFTY).sampling > of(FIFTY).records


def test_draws_that_are_streamed_are_not_in_memory_and_what_is_left_out_is_not_on_the_disk() -> None:
    def streamed(content: Content | None = None, **settings: Any) -> Forecast:
        return forecast(sampler(**settings), EXECUTION, FIFTY, content=content, streamed=True)

    whole, more = streamed(draws=20_000), streamed(draws=200_000)
    assert whole.records == whole.values == whole.writing == 0
    assert more.sampling == whole.sampling < of(FIFTY).sampling + 4e8
    assert more.file > 9 * whole.file == 9 * of(FIFTY, draws=20_000).file
    statistics = draw_bytes(0, "float32")
    thinned = streamed(Content(thin=10, dtype="float64"), draws=10_000)
    assert thinned.file - OVERHEAD == 256 * 1000 * (8 * 50 + statistics)
    assert streamed(until={"ess_bulk": 400}).records == of(FIFTY).records, "interim analyses look at all draws"


MANY = Size(1000, "float32", values=1000, largest=1000)


@pytest.mark.parametrize(
    ("size", "settings", "gigabytes", "remedy"),
    [
        (MANY, {"chains": 1000, "draws": 2000}, 12, "set sampler.draws to at most 1400"),
        (MANY, {"chains": 1000, "draws": 2000}, 12, "sampler.chains to at most 710"),
        (MANY, {"chains": 1000, "draws": 2000}, 12, "stop early with sampler.until"),
        (MANY, {"chains": 1000, "draws": 2000}, 12, "set output.format: zarr, so that draws are written while"),
        (MANY, {"chains": 1000, "draws": 2000, "divergences": True}, 17, "set output.divergences: false"),
        (
            Size(1000, "float64", values=1000, largest=1000),
            {"chains": 1000, "draws": 2000},
            17,
            "use float32 in the model",
        ),
        (Size.at_least(30_000, "float32"), {"chains": 1, "draws": 1, "metric": "dense"}, 8, "sampler.metric: low_rank"),
        (MANY, {"chains": 4000, "draws": 2000, "until": {"ess_bulk": 400}}, 8, "set sampler.draws to at most"),
    ],
)
def test_a_refusal_names_the_remedy(
    size: Size, settings: dict[str, Any], gigabytes: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: gigabytes * 10**9)
    said = problem(size, **settings)
    assert said.startswith("sampler.")
    assert remedy in said
    assert f"this machine has {gigabytes} GB" in said


def test_what_is_advised_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: 12 * 10**9)
    draws = int(problem(MANY, chains=1000, draws=2000).partition("sampler.draws to at most ")[2].partition(",")[0])
    assert memory_problem(sampler(chains=1000, draws=draws), EXECUTION, MANY) is None
    assert memory_problem(sampler(chains=1000, draws=2 * draws), EXECUTION, MANY) is not None


def test_a_run_until_enough_is_known_is_refused_only_for_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: 10**10)
    assert of(MANY, chains=1000, draws=2000, until={"ess_bulk": 400}).peak > 10**10
    assert memory_problem(sampler(chains=1000, draws=2000, until={"ess_bulk": 400}), EXECUTION, MANY) is None


def test_from_python_it_is_refused_before_the_model_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def density(q: Any) -> Any:
        traced.append(q)
        return -0.5 * ops.sum(q * q)

    traced: list[Any] = []
    monkeypatch.setattr(module, "machine_memory", lambda: 10**9)
    with pytest.raises(SettingsError, match=r"set sampler\.draws to at most"):
        sample_chains(Model.from_function(density, dimension=100), chains=256, draws=10_000, progress=False)
    assert not traced


ROOT = Path(__file__).resolve().parents[2]
RUN = """
import re, sys
from batchnuts.cli.config import build_model, load_config
from batchnuts.mcmc.run.forecast import Size, forecast
from batchnuts.sample import main
arguments = sys.argv[1:]
config = load_config(arguments[0], arguments[1:])
expected = forecast(config.sampler, config.execution, Size.of(build_model(config.model)))
assert main(["--config", *arguments]) == 0
with open("/proc/self/status") as status:  # ru_maxrss begins with that of the process that started this one
    peak = int(re.search("VmHWM: *([0-9]+)", status.read().replace("\t", " "))[1]) * 1024
print(expected.peak, peak, expected.file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("draws", [200, 1000])
def test_runs_take_what_was_forecast(draws: int, tmp_path: Path) -> None:
    arguments = ["correlated_gaussian.yaml", "model.dimension=50", "sampler.warmup=50", f"sampler.draws={draws}"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments, "output.path=a.nc", "execution.cache=null"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak, measured, file = map(int, done.stdout.splitlines()[-1].split())
    assert 0.8 * measured < peak < 1.2 * measured
    size = (tmp_path / "a.nc").stat().st_size
    assert 0.8 * size < file < 1.2 * size
    assert size > 256 * draws * draw_bytes(50, "float32")
