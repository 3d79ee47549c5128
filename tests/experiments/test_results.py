"""What is made of measurements: values, verdicts, pictures, summary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_experiment import CONFIG

from batchnuts.experiments import benchmark, figure6, figure7, fsm, pfor_benchmark, scaling
from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, summary
from batchnuts.experiments.harness.provenance import note_environment, read_environments
from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.harness.rows import MeasurementsError, RowsFile
from batchnuts.experiments.harness.summary import format_figure, shown, table
from batchnuts.experiments.harness.task import Attempt, Preparation, row_of
from batchnuts.experiments.samplers.comparison import comparison_table
from batchnuts.experiments.samplers.config import load_experiment
from batchnuts.experiments.samplers.results import Results
from batchnuts.experiments.samplers.summary import SAMPLERS, size_table
from batchnuts.experiments.samplers.task import Measurement

EXPERIMENTS = {"figure6.yaml": figure6.EXPERIMENT, "figure7.yaml": figure7.EXPERIMENT, "fsm.yaml": fsm.EXPERIMENT}
AN_EXPERIMENT = Experiment(SAMPLERS, "my", "Title", "Why?", lambda _: {}, lambda _: "## Tables")


def row(task: Any, repetition: int, seconds: float = 1.0, useful: int = 100, status: Any = "ok") -> Measurement:
    figures = {
        "seconds": seconds, "useful_gradients": useful, "executed_gradients": 200, "lockstep_gradients": 400,
        "asynchronous_gradients": 100, "ess_min": 10.0, "ess_mean": 11.0, "peak_memory_mb": 1.0, "load": 0.0,
    }  # fmt: skip
    ok = status == "ok"
    attempt = Attempt(
        status, repetition, repetition, "here", "2026-01-01T00:00:00+00:00", Preparation(1.0), figures if ok else {},
        note="" if ok else "a reason",
    )  # fmt: skip
    return row_of(Measurement, task, attempt)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    (tmp_path / "my.yaml").write_text(CONFIG)
    return load_experiment(str(tmp_path / "my.yaml"))


@pytest.fixture
def results(config: Any) -> Results:
    """Curve one makes 100, 50 and 25 useful gradients per second; curve two 20, at 2 chains only."""
    rows = [row(config.task("one", "gauss", size), n, 2.0**n) for size in (1, 2, 4) for n in range(3)]
    rows += [row(config.task("two", "gauss", 2), n, 5.0) for n in range(3)]
    rows += [row(config.task("two", "gauss", 4), 0, status="missing")]
    return Results(config, rows)


def test_a_value_sums_the_repetitions_up(results: Results) -> None:
    assert results.value("rate", "one", "gauss", 2) == Value(2, 100.0, 25.0, 100.0, 3)  # the best
    assert results.value("ess_per_minute", "one", "gauss", 2) == Value(2, 300.0, 150.0, 600.0, 3)  # the median
    assert results.value("utilization", "one", "gauss", 2) == Value(2, 0.5, 0.5, 0.5, 3)
    assert results.value("lockstep_utilization", "one", "gauss", 2) == Value(2, 0.25, 0.25, 0.25, 3)
    assert results.value("rate", "two", "gauss", 4) is None
    assert [value.size for value in results.values("rate", "one", "gauss")] == [1, 2, 4]


RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
COMMITTED = {
    "benchmark": benchmark.EXPERIMENT, "figure6": figure6.EXPERIMENT, "figure7": figure7.EXPERIMENT,
    "fsm": fsm.EXPERIMENT, "pfor": pfor_benchmark.EXPERIMENT, "scaling": scaling.EXPERIMENT,
}  # fmt: skip


@pytest.mark.parametrize("name", list(COMMITTED))
def test_committed_results_answer_their_configs(name: str) -> None:
    """Tasks have the fingerprints that they had, so that nothing is measured again."""
    subject = COMMITTED[name].subject
    config = subject.load(str(RESULTS / name / "config.yaml"))
    rows = RowsFile(RESULTS / name / "measurements.csv", subject.rows).read()
    found = subject.results(config, rows)
    changed = {curve for curve, _, _, reason in found.absent() if reason == "not measured yet"}
    # BlackJAX has had options since then
    assert {config.curves[curve].sampler for curve in changed} <= {"blackjax"}
    assert found.runs()


DOUBT = ", but the runs differ enough to doubt it"


@pytest.mark.parametrize(
    ("changes", "seen", "word"),
    [
        ({"chains": 2}, Value(2, 5.0, 1.25, 5.0, 3), f"holds{DOUBT}"),
        ({"chains": 2, "at_least": 1.0}, Value(2, 5.0, 1.25, 5.0, 3), "holds"),
        ({"chains": 2, "at_most": 5.0}, Value(2, 5.0, 1.25, 5.0, 3), f"holds{DOUBT}"),
        ({"chains": 2, "at_least": 5.01}, Value(2, 5.0, 1.25, 5.0, 3), "does not hold"),
        ({"chains": 2, "at_most": 4.0}, Value(2, 5.0, 1.25, 5.0, 3), f"does not hold{DOUBT}"),
        ({"chains": 4, "over_chains": 2}, Value(4, 5.0, 1.25, 5.0, 3), f"holds{DOUBT}"),
        ({"chains": None}, Value(1, 5.0, 1.25, 5.0, 3), f"holds{DOUBT}"),
        ({"chains": 4}, None, "not measured"),
        ({"chains": 3}, None, "not measured"),
        ({"chains": 2, "over_curve": None}, Value(2, 100.0, 25.0, 100.0, 3), "holds"),
    ],
)
def test_verdicts_are_true_of_the_figures(changes: Any, seen: Any, word: str, results: Results) -> None:
    claim = results.config.claims["faster"].model_copy(update=changes)
    verdict = results.judge(claim)
    assert verdict.seen == seen
    assert verdict.word == word


def test_every_point_without_a_run_is_listed_with_its_reason(results: Results) -> None:
    assert results.absent() == [("two", "gauss", 4, "missing: a reason")]
    nothing = Results(results.config, [])
    assert {reason for *_, reason in nothing.absent()} == {"not measured yet"}


def test_tables_show_what_was_measured(results: Results) -> None:
    assert size_table(results, "rate", "gauss").splitlines() == [
        "| chains | 1 | 2 | 4 |",
        "|---|---|---|---|",
        "| first curve | 100 | 100 | 100 |",
        "| second curve | - | 20 | - |",
    ]
    assert [format_figure(x, ",.3g") for x in (123456.0, 999.4, 0.01234)] == ["123,000", "999", "0.0123"]
    assert format_figure(0.98765, ".3f") == "0.988"


def test_ours_stands_beside_the_best_peer(tmp_path: Path) -> None:
    """At each number of chains another peer may be the best; a flat one counts at larger numbers too."""
    file = tmp_path / "my.yaml"
    file.write_text(CONFIG)
    peers = [
        "curves.narrow={label: narrow, sampler: numpyro, chains: [2, 4]}",
        "curves.flat={label: flat, sampler: stan, chains: [1], flat: true}",
        "curves.longer={label: longer, sampler: batchnuts, transitions: 9, options: {backend: numpy}}",
        "curves.limit={label: limit, sampler: leapfrog_limit}",
    ]
    config = load_experiment(str(file), peers)
    seconds = {"one": 1.0, "two": 0.5, "narrow": 4.0, "flat": 2.0, "longer": 0.1, "limit": 0.1}
    rows = [
        row(config.task(*point), n, seconds[point[0]] / (4 if point[0] == "narrow" and point[2] == 4 else 1) * (1 + n))
        for point in config.points()
        for n in range(2)
    ]
    found = Results(config, rows)
    assert comparison_table(found, "ess_per_second", "gauss").splitlines() == [
        "| chains | first curve | second curve | best peer |",
        "|---|---|---|---|",
        "| 1 | 2 (1 to 4) | - | flat: 3.75 |",
        "| 2 | 2 (1 to 4) | 4 (2 to 8) | flat: 3.75 |",
        "| 4 | 1 (0.5 to 2) | 2 (1 to 4) | narrow: 7.5 |",
    ]
    assert comparison_table(Results(config, []), "ess_per_second", "gauss") == ""
    assert "## Ours over the best peer" in benchmark.EXPERIMENT.tables(found)
    points = json.loads(benchmark.EXPERIMENT.files["results.json"](found))["gauss"]["one"]
    assert points["4"]["over_best_peer"] == {
        "value": 1.0, "low": 0.5, "high": 2.0, "repetitions": 2, "peer": "narrow",
    }  # fmt: skip


def test_rounding_does_not_bring_a_figure_to_a_bound_that_it_misses() -> None:
    assert shown(Value(1, 1.9962, 1.5, 2.5, 3), ".3g", (2.0, None)) == "1.996 (1.5 to 2.5)"
    assert shown(Value(1, 0.95004, 0.9, 1.0, 3), ".3f", (0.95, None)) == "0.95004 (0.900 to 1.000)"
    assert shown(Value(1, 1.9962, 1.5, 2.5, 3), ".3g", (3.0, None)) == "2 (1.5 to 2.5)"


def test_a_run_without_an_effective_sample_size_is_no_figure(results: Results) -> None:
    rows = [replace(r, ess_min=float("nan")) if r.repetition == 1 else r for r in results.rows]
    claim = results.config.claims["faster"].model_copy(update={"measure": "ess_per_minute", "chains": 2})
    verdict = Results(results.config, rows).judge(claim)
    assert (verdict.seen, verdict.word) == (None, "not measured")


def test_text_cannot_break_a_table() -> None:
    assert table(("a|b",), [("c\nd",)]).splitlines() == ["| a\\|b |", "|---|", "| c d |"]


def test_the_summary_says_what_differs_and_what_is_incomplete(config: Any, tmp_path: Path) -> None:
    curves = {
        **config.curves,
        "two": config.curves["two"].model_copy(update={"transitions": 9, "environment": {"A": "1"}}),
    }
    changed = replace(config, curves=curves)
    rows = [row(changed.task("one", "gauss", 2), n) for n in (1, 7)]
    rows.append(row(changed.task("one", "gauss", 2), 0, status="failed"))
    (tmp_path / "environment.json").write_text("{}")
    text = summary(AN_EXPERIMENT, Results(changed, rows), tmp_path)
    assert "second curve is run with 9 transitions, A=1." in text
    assert "(fewer: first curve, 2 chains on a small Gaussian: 1, failed: a reason)" in text
    assert "- 1 runs in the environment here, which environment.json does not have." in text


def test_environments_are_read_again_and_damage_is_named(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    name = note_environment(file)
    assert note_environment(file) == name
    assert list(read_environments(file)) == [name]
    assert list(tmp_path.iterdir()) == [file]
    for damage in ("{", "[]"):
        file.write_text(damage)
        with pytest.raises(MeasurementsError, match=r"environment\.json: found .*; expected environments by name"):
            note_environment(file)


def test_a_curve_of_one_point_shows_its_range() -> None:
    _, (axes,) = plots.new_figure(1, "a title")
    plots.draw_curve(axes, [Value(4, 3.0, 2.0, 4.0, 5)], "a", 0)
    assert [[list(point) for point in line] for line in axes.collections[0].get_segments()] == [[[4, 2], [4, 4]]]


def test_dollars_of_a_label_are_dollars(tmp_path: Path) -> None:
    figure, (axes,) = plots.new_figure(1, "costs $x_{")
    plots.draw_curve(axes, [Value(1, 0.5, 0.4, 0.6, 2)], "$5 and $\\no", 0)
    plots.finish(axes, x="chains", y="y", title="$", sizes=[1], log_y=True)
    assert plots.save(figure, tmp_path, "x")[0].exists()
    assert all(tick.get_parse_math() for tick in axes.get_yticklabels())  # powers of ten are formulas


def test_experiments_draw_what_there_is(results: Results) -> None:
    assert list(figure6.EXPERIMENT.pictures(results)) == ["figure6", "figure6_utilization"]
    silent = Results(results.config, [replace(r, executed_gradients=None) for r in results.rows])
    assert list(figure6.EXPERIMENT.pictures(silent)) == ["figure6"]
    curves = {name: curve.model_copy(update={"panel": ""}) for name, curve in results.config.curves.items()}
    assert not figure7.EXPERIMENT.pictures(replace(results, config=replace(results.config, curves=curves)))


def test_the_summary_has_claims_gaps_and_the_environment(results: Results, tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(
        '{"here": {"processors_usable": 2, "processors": 4, "processor": "a chip", "memory_gib": 8.0, "gpu": null, '
        '"python": "3.11", "packages": {"numpy": "2.0", "jax": null}, "commit": null}}'
    )
    text = summary(AN_EXPERIMENT, results, tmp_path)
    assert "| one is faster than two | nobody |" in text
    assert "| - | **not measured** |" in text
    assert "| second curve | a small Gaussian | 4 | missing: a reason |" in text
    assert "12 runs on 2 of 4 processors (a chip), 8.0 GiB, GPU: none; Python 3.11, numpy 2.0, commit unknown." in text


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_pictures_of_every_experiment_have_curves_and_labels(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    config = load_experiment(name)
    rows = [row(config.task(*point), n, 1.0 + n) for point in config.points() for n in range(2)]
    results = Results(config, rows)
    for file, figure in experiment.pictures(results).items():
        shown = {line.get_label() for axes in figure.axes for line in axes.lines}
        wanted = {curve.label for curve in config.curves.values() if curve.panel or name == "fsm.yaml"}
        if file == "figure6_utilization":
            wanted -= {curve.label for curve in config.curves.values() if curve.flat}
        assert wanted <= shown
        for axes in figure.axes:
            assert axes.get_xlabel() == "chains"
            assert axes.get_ylabel()
            assert axes.get_legend() is not None
        png, pdf = plots.save(figure, tmp_path, file)
        assert png.read_bytes().startswith(b"\x89PNG")
        assert pdf.read_bytes().startswith(b"%PDF")
        assert min(png.stat().st_size, pdf.stat().st_size) > 5000
    for curve in config.curves.values():
        assert curve.label in experiment.tables(results)


def test_an_empty_panel_and_a_missing_label_are_refused(tmp_path: Path) -> None:
    figure, (axes,) = plots.new_figure(1, "a title")
    plots.finish(axes, x="chains", y="rate", title="nothing", sizes=[1, 2], log_y=True)
    with pytest.raises(plots.PlotError, match="'nothing' is empty"):
        plots.save(figure, tmp_path, "x")
    plots.draw_curve(axes, [Value(1, 1.0, 1.0, 1.0, 1)], "a", 0)
    axes.set_xlabel("")
    with pytest.raises(plots.PlotError, match="lacks the label of an axis"):
        plots.save(figure, tmp_path, "x")
    assert list(tmp_path.iterdir()) == []


def test_bands_span_the_repetitions() -> None:
    _, (axes,) = plots.new_figure(1, "a title")
    plots.draw_curve(axes, [Value(1, 3.0, 2.0, 4.0, 5), Value(2, 5.0, 4.5, 6.0, 5)], "a", 0)
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (2.0, 6.0)
    assert list(axes.lines[0].get_ydata()) == [3.0, 5.0]
