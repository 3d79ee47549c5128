"""`python -m batchnuts.report`: the page, the verdict for programs, exit codes, and bad input."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import arviz
import numpy as np
import pytest
import xarray
from fake_run import make_draws, make_history
from matplotlib.figure import Figure
from streamed_draws import CHAINS, DRAWS, drawn, records_of, run_to_end
from streamed_draws import MODEL as STREAMED

import batchnuts
from batchnuts.files.saving import save
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model, Variable
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.output.streaming import ZarrRun
from batchnuts.mcmc.settings.run_settings import SamplerSettings
from batchnuts.mcmc.storage.draws import Draws, WarmupReport, WindowTuning
from batchnuts.report import figures, summaries
from batchnuts.report.__main__ import main
from batchnuts.report.run_file import bfmi


def named(name: str, variables: tuple[Variable, ...], size: int) -> Model:
    first = variables[0].name
    return Model(
        name=name, log_density=lambda parts: parts[first], dimension=size, variables=variables, structured=True
    )


def model_of(size: int) -> Model:
    labels = {"place": [f"p{n}" for n in range(size - 1)]}
    variables = (Variable("mu $x$"), Variable("a<b", (size - 1,), ("place",), labels))
    return named("m<1>", variables, size)


MODEL = model_of(4)
GOOD = make_draws(MODEL, SamplerSettings(chains=8, draws=300))
KINDS = {"rank", "trace", "energy", "acceptance", "depth", "pair"}


def written(draws: Draws, folder: Path, model: Model = MODEL) -> Path:
    return save(to_datasets(draws, model), folder / "run.nc")


def pictures_in(page: str) -> list[str]:
    return re.findall(r'<figure data-picture="([^"]+)"><svg viewBox', page)


@pytest.fixture
def call(capsys: Any) -> Any:
    def run(*arguments: Any) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def points(monkeypatch: Any) -> list[int]:
    """Pictures are put together, and not written as SVG, which takes most of the time; how many points each has."""
    counts = []

    def draw(kind: str, caption: str, onto: Any, x: str, y: str) -> figures.Picture:
        axes = Figure().subplots()
        onto(axes)
        counts.append(sum(len(line.get_xdata()) for line in axes.lines))
        return figures.Picture(kind, '<svg viewBox="0 0 1 1"></svg>', caption)

    monkeypatch.setattr(figures, "draw", draw)
    return counts


WINDOWS = (
    WindowTuning(100, np.array([0.25, 0.5, 1.0]), np.array([4.0, 4.0, 0.01, 1.0])),
    WindowTuning(300, np.array([0.5, 2.0, 4.0]), np.array([1.0, 4.0, 0.01, 1.0])),
)


def bad_draws() -> Draws:
    """Chain 2 elsewhere in the last coefficient, some draws diverged, a metric with scales, outliers in warmup."""
    position, diverging = GOOD.position.copy(), np.zeros((8, 300), bool)
    position[2, :, 3] += 9
    diverging[1, 10:18] = True
    start = position[:, 0]
    return replace(
        GOOD,
        position=position,
        stats={**GOOD.stats, "diverging": diverging, "step_size": GOOD.stats["step_size"] * np.arange(1, 9)[:, None]},
        metric=MetricParameters("diag", np.array([1.0, 4.0, 0.01, 1.0]), np.zeros((4, 0)), np.zeros(0)),
        warmup=WarmupReport(300, "at its maximum", agreed=False, outliers=(2,), windows=WINDOWS),
        last_position=position + 1,
        start=start,
    )


def test_a_good_run_gives_a_page_that_needs_nothing_else(call: Any, tmp_path: Path) -> None:
    file = written(GOOD, tmp_path)
    code, out, err = call(file)
    assert (code, err) == (0, "")
    assert out.startswith("OK: 8 chains x 300 draws\n")
    assert out.endswith(f"Report: {tmp_path / 'run.html'}\n")
    page = (tmp_path / "run.html").read_text()
    assert '<div class="verdict good"><strong>Converged</strong>' in page
    assert "Nothing: the draws can be used" in page
    assert "m&lt;1&gt;" in page
    assert "a&lt;b[p0]" in page
    assert "a<b" not in page
    assert set(pictures_in(page)) == KINDS
    assert pictures_in(page).count("rank") == summaries.WORST
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|url\((?!#)|@import|https?:""", page.replace("xmlns", ""))
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(names)
    assert not re.findall(r"#0[123]0", page)  # what stands for colours while it is drawn
    assert "prefers-color-scheme: dark" in page
    assert "What they were during warmup is not in the file" in page


def test_a_warmup_of_one_window_has_no_picture(call: Any, points: list[int], tmp_path: Path) -> None:
    call(written(replace(GOOD, warmup=WarmupReport(100, "as requested", windows=WINDOWS[:1])), tmp_path))
    page = (tmp_path / "run.html").read_text()
    assert "Warmup had one window" in page
    assert set(pictures_in(page)) == KINDS


def test_a_bad_run_says_what_is_wrong_and_what_to_do(call: Any, points: list[int], tmp_path: Path) -> None:
    file = written(bad_draws(), tmp_path)
    code, out, _ = call(file, "--quiet")
    assert (code, out) == (3, f"{tmp_path / 'run.html'}\n")
    page = (tmp_path / "run.html").read_text()
    assert "<strong>Not converged</strong>" in page
    assert set(pictures_in(page)) == {*KINDS, "step-size", "metric", "step-sizes", "scales"}
    first = page.index("<tr><td>", page.index("Worst parameters"))
    assert page[first:].startswith("<tr><td>a&lt;b[p2]</td>")
    for said in (
        "Some trajectories diverged: raise target_acceptance",
        "Warmup had not settled",
        "Far from all others at the end of warmup (1): 2",
        "Divergent draws: 8",
        "where divergent trajectories began",
        "Scales from 0.1 (a&lt;b[p1]) to 2 (a&lt;b[p0])",
        "Step sizes, one per chain: 0.5 to 4.",
        "Warmup had 2 windows",
    ):
        assert said in page, said
    assert "output.divergences=true" not in page  # they are there
    assert "Nothing: the draws" not in page


def test_speeds_over_time_are_those_of_the_history(call: Any, points: list[int], tmp_path: Path) -> None:
    history = make_history()
    call(written(replace(GOOD, history=history), tmp_path))
    page = (tmp_path / "run.html").read_text()
    assert {"gradients", "utilization"} <= set(pictures_in(page))
    assert "warmup from 2 s to 102 s, sampling from 103 s to 203 s" in page
    columns = history.columns
    found = summaries.speeds(
        columns["phase"], columns["seconds"], columns["useful_gradients"], columns["executed_gradients"]
    )
    assert [one.phase for one in found] == ["warmup", "sampling"]
    for one, speed, share in zip(found, (10, 20), (1.0, 0.5), strict=True):
        assert len(one.gradients) == summaries.INTERVALS == len(one.edges) - 1
        np.testing.assert_allclose(one.gradients, speed)
        np.testing.assert_allclose(one.utilization, share)
    (without := tmp_path / "without").mkdir()
    call(written(GOOD, without))
    assert "speeds over time are not known" in (without / "run.html").read_text()


def test_a_store_has_the_page_of_a_file(call: Any, points: list[int], tmp_path: Path) -> None:
    """With all pictures and numbers, but for how the file is called."""
    draws = replace(drawn(), history=make_history())
    save(to_datasets(draws, STREAMED), tmp_path / "run.nc")
    run = ZarrRun(tmp_path / "run.zarr", STREAMED, Content())
    run_to_end(run.begin(draws.settings, draws.execution)(records_of(draws), CHAINS, DRAWS), draws)
    run.finish(draws)
    pages = []
    for name in ("run.nc", "run.zarr"):
        code, out, _ = call(tmp_path / name, "--output", tmp_path / f"{name}.html")
        assert code == call(tmp_path / "run.nc", "--json")[0]
        assert f"Report: {tmp_path / name}.html" in out
        page = (tmp_path / f"{name}.html").read_text()
        pages.append(re.sub(r"\d{4}-\d\d-\d\dT[^<]*", "", page).replace(name, "RUN"))
    pages[1] = pages[1].replace("batchnuts.open_run(", "arviz.from_netcdf(")
    assert {"gradients", "rank"} <= set(pictures_in(pages[1]))
    assert pages[0] == pages[1]
    call(tmp_path / "run.zarr")
    assert (tmp_path / "run.html").exists()


def test_json_has_the_numbers_of_check(call: Any, points: list[int], tmp_path: Path) -> None:
    for draws, expected in ((GOOD, 0), (bad_draws(), 3)):
        folder = tmp_path / str(expected)
        folder.mkdir()
        file = written(draws, folder)
        code, out, _ = call(file, "--json")
        assert code == expected
        assert list(file.parent.iterdir()) == [file]
        found, check = json.loads(out), batchnuts.check(arviz.from_netcdf(str(file)))
        assert found["ok"] is check.ok
        assert found["converged"] is check.diagnostics.converged is (expected == 0)
        assert found["worst_rhat"]["value"] == check.worst_rhat
        assert found["worst_rhat"]["name"] == check.diagnostics.names[check.diagnostics.rhat.argmax()]
        assert found["min_ess_bulk"]["value"] == check.min_ess
        assert found["min_ess_bulk"]["name"] == check.diagnostics.names[check.diagnostics.columns["ess_bulk"].argmin()]
        sizes = [found[name] for name in ("divergences", "chains", "draws", "rhat_limit")]
        assert sizes == [check.divergences, 8, 300, 1.01]
        assert found["advice"][: len(check.advice)] == list(check.advice)
    call(file, "--json", "--output", tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("draws", "said", "drawn"),
    [
        (make_draws(MODEL, SamplerSettings(chains=1, draws=50)), "Convergence cannot be assessed", KINDS),
        (make_draws(MODEL, SamplerSettings(chains=6, draws=3)), "Convergence cannot be assessed", KINDS),
        pytest.param(
            make_draws(MODEL, SamplerSettings(chains=2, draws=1)),
            "Convergence cannot be assessed",
            KINDS,
            marks=pytest.mark.slow,
        ),
        (replace(GOOD, done=np.array([0] + [5] * 7), interrupted=True), "No draw was completed by every chain", set()),
        (replace(GOOD, done=np.array([40] + [50] * 7), interrupted=True), "The run was interrupted", KINDS),
        pytest.param(
            replace(GOOD, position=np.zeros_like(GOOD.position)),
            "not defined (it never moved)",
            KINDS,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(GOOD, stats={**GOOD.stats, "diverging": np.ones((8, 300), bool)}),
            "Every draw diverged",
            KINDS,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["one chain", "three draws", "one draw", "no complete draw", "interrupted", "still", "all diverged"],
)
def test_what_cannot_be_judged_has_a_page_that_says_so(
    call: Any, points: list[int], tmp_path: Path, draws: Draws, said: str, drawn: set[str]
) -> None:
    file = written(draws, tmp_path)
    code, _, err = call(file)
    page = (tmp_path / "run.html").read_text()
    assert err == ""
    assert said in page
    assert set(pictures_in(page)) == drawn
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert code == (0 if said in ("Every draw diverged", "The run was interrupted") else 3)
    assert (json.loads(call(file, "--json")[1])["converged"] is True) is (code == 0)


def test_one_coefficient_has_no_pairs(call: Any, points: list[int], tmp_path: Path) -> None:
    model = named("m", (Variable("mu"),), 1)
    draws = make_draws(model, SamplerSettings(chains=4, draws=300))
    assert call(written(draws, tmp_path, model))[0] == 0
    assert "there is no pair of them" in (tmp_path / "run.html").read_text()


def foreign(folder: Path, what: str) -> Path:
    path = folder / "run.nc"
    posterior = xarray.Dataset({"x": (("chain", "draw"), np.zeros((2, 3)))}, attrs={"inference_library": "pymc"})
    if what == "folder":
        path.mkdir()
    elif what == "text":
        path.write_text("chain,draw\n")
    elif what == "empty":
        path.touch()
    elif what == "truncated":
        whole = written(GOOD, folder).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif what == "damaged":
        whole = bytearray(written(GOOD, folder).read_bytes())
        whole[2000 : len(whole) // 2] = bytes(len(whole) // 2 - 2000)
        path.write_bytes(whole)
    elif what == "netCDF of another kind":
        posterior.to_netcdf(path, engine="h5netcdf")
    elif what == "another program's":
        save({"posterior": posterior, "sample_stats": posterior}, path)
    elif what == "no energy":
        groups = to_datasets(GOOD, MODEL)
        save({**groups, "sample_stats": groups["sample_stats"].drop_vars("energy")}, path)
    return path


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "There is no file"),
        ("folder", "is a folder"),
        ("text", "cannot be read as netCDF"),
        ("empty", "cannot be read as netCDF"),
        ("truncated", "cannot be read as netCDF"),
        ("damaged", "cannot be read as netCDF"),
        ("netCDF of another kind", "it has no group 'posterior'"),
        ("another program's", "its attribute inference_library is 'pymc'"),
        ("no energy", "its group 'sample_stats' has no 'energy'"),
    ],
)
def test_what_is_no_run_is_refused_in_one_paragraph(call: Any, tmp_path: Path, what: str, said: str) -> None:
    path = foreign(tmp_path, what)
    for more in ((), ("--json",)):
        code, out, err = call(path, *more)
        assert (code, out) == (2, "")
        assert err.startswith("batchnuts: ")
        assert err.count("\n") == 1
        assert said in err
        assert str(path) in err
        assert "expected the netCDF file or Zarr store that python -m batchnuts.sample wrote" in err
    assert not (tmp_path / "run.html").exists()


def test_draws_that_are_not_finite_are_a_failure(call: Any, tmp_path: Path) -> None:
    position = GOOD.position.copy()
    position[1, 2, 0] = np.nan
    file = written(replace(GOOD, position=position), tmp_path)
    code, _, err = call(file)
    assert code == 1
    assert "cannot be diagnosed: Some draws are NaN or infinite" in err


def test_existing_pages_stay_without_force(call: Any, points: list[int], tmp_path: Path) -> None:
    file = written(GOOD, tmp_path)
    page = tmp_path / "run.html"
    page.write_text("precious")
    code, out, err = call(file)
    assert (code, out) == (2, "")
    assert "Give --force to replace it, or another --output." in err
    assert page.read_text() == "precious"
    before = file.read_bytes()
    code, _, err = call(file, "--force", "--output", file)
    assert code == 2
    assert "is the run itself" in err
    assert file.read_bytes() == before
    assert call(file, "--output", tmp_path / "no" / "a.html")[0] == 2
    assert call(file, "--force")[0] == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.nc"]


def test_without_matplotlib_it_is_said_what_to_install(call: Any, tmp_path: Path, monkeypatch: Any) -> None:
    file = written(GOOD, tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = call(file)
    assert code == 1
    assert "Matplotlib is not installed: pip install 'batchnuts[plot]'" in err


@pytest.mark.parametrize("largest", [1.15, 3e6])
def test_scales_have_ticks_that_can_be_read(largest: float) -> None:
    """Also where no power of ten lies between them."""
    picture = figures.scales_plot(np.geomspace(1.05, largest, 20), "")
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", picture.svg)
    assert {"1.1", f"{largest:.2g}"} <= set(labels)
    assert not any("$" in label for label in labels)


def test_numbers_of_pictures_against_their_definitions() -> None:
    rng = np.random.default_rng(3)
    values, numbers = rng.normal(size=(20, 100)), np.arange(20)
    ranks = summaries.rank_curves(values, numbers)
    assert ranks.bands is not None
    assert len(ranks.x) == 20
    # every bin has the same share of all draws, so the mean over chains is 1
    whole = summaries.rank_curves(values[:8], numbers)
    assert whole.bands is None
    np.testing.assert_allclose(np.mean([line for _, line in whole.lines], axis=0), 1.0)
    for ties in (values, values.round(), np.zeros_like(values)):  # equal draws have ranks in the order of their chains
        of_all = np.empty(ties.size, np.int64)
        of_all[np.argsort(ties, axis=None, kind="stable")] = np.arange(ties.size)
        bins = (of_all * 20 // ties.size).reshape(ties.shape)
        shares = np.stack([(bins == number).sum(axis=1) * 0.2 for number in range(20)], axis=1)
        curves = summaries.rank_curves(ties, numbers)
        np.testing.assert_array_equal(curves.bands, np.quantile(shares, summaries.BANDS, axis=0))
        for name, line in curves.lines:
            np.testing.assert_array_equal(line, shares[int(name.removeprefix("chain "))])
    one = summaries.rank_curves(np.zeros((1, 1)), numbers[:1])  # all below the middle
    np.testing.assert_array_equal(one.lines[0][1], [2.0, 0.0])
    away = values.copy()
    away[4] += 50
    assert summaries.traces(away, numbers).lines[-1][0] == "chain 4"
    low, high = summaries.chance_of_ranks(100, 20)
    assert (low, high) == (0.4, 1.8)  # 2 and 9 of 5 expected: quantiles of the binomial distribution
    walk = np.cumsum(rng.normal(size=(4, 400)), axis=1)
    assert bfmi(walk) < 0.3 < 1.8 < bfmi(values) < 2.2
    assert math.isnan(bfmi(values[:, :5]))
    for length, most, expected in ((7, 3, [0, 3, 6]), (3, 5, [0, 1, 2]), (1, 5, [0]), (0, 5, [])):
        assert summaries.thinned(length, most).tolist() == expected
    depths, counts = summaries.counts_of(np.array([[3, 0, 3], [5, 3, 0]], np.int32))
    assert (depths.tolist(), counts.tolist()) == ([0, 3, 5], [2, 3, 1])
    marked = np.zeros(2000, bool)
    marked[:30] = True
    columns = rng.normal(size=(2000, 3))
    columns[marked, 1] += 3
    assert summaries.most_different(columns, marked)[0] == 1


def test_histograms_of_long_runs_take_some_draws(monkeypatch: Any) -> None:
    """Changes of energy are between neighbours of one chain, all of them where these are few."""
    energy = np.random.default_rng(0).normal(5, 2, (30, 70)).cumsum(axis=1)
    centred, changes = summaries.energies(energy)
    np.testing.assert_allclose(centred, (energy - energy.mean()).ravel())
    np.testing.assert_array_equal(changes, np.diff(energy, axis=1).ravel())
    monkeypatch.setattr(summaries, "HISTOGRAM_VALUES", 100)
    some, few = summaries.energies(energy)
    assert len(some) == len(few) == 100
    assert set(some) <= set(centred)
    assert set(few) <= set(changes)
    _, density = summaries.histogram(np.r_[np.zeros(99), np.ones(99), 2.0], (-0.5, 1.5))
    np.testing.assert_allclose(density[density > 0], 10, rtol=0.02)  # two bins of 40 from -0.5 to 1.5
    assert [len(part) for part in summaries.energies(energy[:, :1])] == [30, 0]
    assert not summaries.histogram(np.array([3.0]), (-0.5, 1.5))[1].any()  # none within the range


def many_chains(chains: int, draws: int, size: int) -> tuple[Draws, Model]:
    """One of them elsewhere in a<b[p1]; half of them diverged once."""
    model = model_of(size)
    made = make_draws(model, SamplerSettings(chains=chains, draws=draws))
    position = made.position.copy()
    position[7, :, 2] += 30
    diverging = np.zeros((chains, draws), bool)
    diverging[::2, 5] = True
    return replace(made, position=position, stats={**made.stats, "diverging": diverging}), model


def test_pictures_of_many_chains_have_few_points(call: Any, points: list[int], tmp_path: Path) -> None:
    """And the parameters of stuck chains are shown, which R-hat does not see."""
    made, model = many_chains(500, 12, 5)
    assert call(written(made, tmp_path, model))[0] == 3
    page = (tmp_path / "run.html").read_text()
    assert f"{summaries.PAIR_POINTS} of 6000 draws" in page
    assert "<h3>a&lt;b[p1]</h3>" in page
    assert max(points) == summaries.PAIR_POINTS + summaries.MARKED_POINTS
    assert sum(points) < 10_000


@pytest.mark.slow
def test_the_page_of_thousands_of_chains_is_small(call: Any, tmp_path: Path) -> None:
    made, model = many_chains(4096, 100, 50)
    assert call(written(made, tmp_path, model))[0] == 3
    page = (tmp_path / "run.html").read_text()
    assert set(pictures_in(page)) == KINDS
    assert "chain 7<" in page
    assert len(page) < 1_000_000
