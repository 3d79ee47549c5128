"""Our loop vectorizer beside TensorFlow's, JAX's, a sequential loop and code batched by hand: [A], section 6, and more.

    python -m batchnuts.experiments.pfor_benchmark --config pfor.yaml

[A]: Agarwal, Ganichev, "Auto-Vectorizing TensorFlow Graphs: Jacobians, Auto-Batching and Beyond", 2019.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.command import ProgressBar, open_log, reserved, run_command
from batchnuts.experiments.harness.provenance import note_environment
from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.harness.summary import format_figure, machines, shown, table, when, written
from batchnuts.experiments.vectorizers import KINDS
from batchnuts.experiments.vectorizers.config import Claim, VectorizingConfig, load_vectorizing
from batchnuts.experiments.vectorizers.measurements import measurements_file
from batchnuts.experiments.vectorizers.measuring import Measuring
from batchnuts.experiments.vectorizers.results import VectorizingResults

TITLE = "Loop vectorizers: one example's code, run for many"

QUESTION = """\
How fast is code that a vectorizer made of one example's, beside the same code run one example after another, beside
what other vectorizers make of it, and beside what a person would write for the batch? All ways of one workload and size
are made ready first and then take turns, timing by timing, with the same data; those in TensorFlow in one process, JAX
in another. Compilation is left out. The outputs of all ways are compared: one that differs is not timed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give back the exit code."""
    return run_command("pfor_benchmark", TITLE, load_vectorizing, run, argv)


def run(config: VectorizingConfig, folder: Path, fresh: bool = False, again: Sequence[str] = ()) -> VectorizingResults:
    """Measure what is missing, then draw and summarize everything."""
    with reserved(folder):
        file = measurements_file(folder / "measurements.csv")
        if fresh:
            file.path.unlink(missing_ok=True)
            (folder / "environment.json").unlink(missing_ok=True)
        dropped = {
            config.task(curve, workload, size).fingerprint()
            for workload, size, curves in config.groups()
            for curve in set(curves) & set(again)
        }
        if dropped:
            file.rewrite([row for row in file.read() if row.task not in dropped])
        (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        (folder / "summary.md").unlink(missing_ok=True)  # an earlier config's, until this one is done
        environment = note_environment(folder / "environment.json")
        with open_log(folder) as log, ProgressBar(TITLE) as note:
            Measuring(config, file, log, environment, note).run()
        results = VectorizingResults(config, file.read())
        (folder / "summary.md").write_text(summary(results, folder), encoding="utf-8")
        for name, figure in pictures(results).items():
            plots.save(figure, folder, name)
        return results


def pictures(results: VectorizingResults) -> Mapping[str, Any]:
    """A panel for each workload; those of one picture side by side."""
    config = results.config
    named: dict[str, list[str]] = {}
    for workload, work in config.workloads.items():
        if work.picture is not None:
            named.setdefault(work.picture, []).append(workload)
    figures = {}
    for picture, workloads in named.items():
        figure, axes = plots.new_figure(
            len(workloads), f"{picture.replace('_', ' ').capitalize()}, {config.run.device.upper()}"
        )
        for workload, place in zip(workloads, axes, strict=True):
            work = config.workloads[workload]
            for number, (name, curve) in enumerate(config.curves.items()):
                if name in config.curves_of(workload):
                    plots.draw_curve(place, results.rates(name, workload), curve.label, number)
            kind = KINDS[work.kind]
            plots.finish(
                place, x=kind.size, y=f"{kind.unit} per second", title=work.label, sizes=work.sizes, log_y=True
            )
        figures[picture] = figure
    return figures


def summary(results: VectorizingResults, folder: Path) -> str:
    """summary.md."""
    parts = [f"# {TITLE}", QUESTION, claims_table(results)]
    for workload, work in results.config.workloads.items():
        kind = KINDS[work.kind]
        parts += [
            f"## {work.label}",
            f"{kind.unit[0].upper()}{kind.unit[1:]} per second, by the number of {kind.size}; in brackets, times as "
            f"fast as {results.config.curves[_first(results, workload)].label}:",
            rates_table(results, workload),
        ]
    parts += [gaps(results), made_with(results, folder)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _first(results: VectorizingResults, workload: str) -> str:
    return results.config.curves_of(workload)[0]


def claims_table(results: VectorizingResults) -> str:
    """Every claim with its verdict."""
    if not results.config.claims:
        return ""
    rows = []
    for claim in results.config.claims.values():
        least, verdict = results.judge(claim)
        seen, where = "-", "-"
        if least is not None:
            seen = shown(least.value, ".3g", (claim.at_least,))
            label = results.config.workloads[least.workload].label
            where = f"{label}, {least.value.size:,} (least of {len(results.ratios(claim))})"
        rows.append((claim.says, claim.source, _figure(results, claim), f"≥ {claim.at_least:g}", seen, where, verdict))
    head = ("claim", "source", "figure", "holds from", "seen here (range)", "where", "verdict")
    return "## Claims\n\n" + table(head, [(*row[:-1], f"**{row[-1]}**") for row in rows])


def _figure(results: VectorizingResults, claim: Claim) -> str:
    curves = results.config.curves
    return f"speed of {curves[claim.curve].label} / {curves[claim.over_curve].label}"


def rates_table(results: VectorizingResults, workload: str) -> str:
    """Curves by sizes."""
    config = results.config
    sizes, first = config.workloads[workload].sizes, _first(results, workload)
    rows = []
    for curve in config.curves_of(workload):
        cells = []
        for size in sizes:
            rate = results.rate(curve, workload, size)
            ratio = None if curve == first else results.ratio(curve, first, workload, size)
            cells.append(_cell(rate, None if ratio is None else ratio.value))
        rows.append((config.curves[curve].label, *cells))
    return table((KINDS[config.workloads[workload].kind].size, *(f"{size:,}" for size in sizes)), rows)


def _cell(rate: Value | None, ratio: Value | None) -> str:
    if rate is None:
        return "-"
    return format_figure(rate.value, ",.3g") + ("" if ratio is None else f" ({format_figure(ratio.value, '.2g')})")


def gaps(results: VectorizingResults) -> str:
    """Every point without a timing, and why."""
    config = results.config
    rows = [
        (config.curves[curve].label, config.workloads[workload].label, ", ".join(f"{s:,}" for s in sizes), reason)
        for (curve, workload, reason), sizes in results.absent().items()
    ]
    return "## Not measured\n\n" + table(("curve", "workload", "sizes", "why"), rows) if rows else ""


def made_with(results: VectorizingResults, folder: Path) -> str:
    """The environments, the days, and how the figures were summed up."""
    used = results.runs()
    lines = ["## How it was made", "", *machines(used, folder)]
    if used:
        lines.append(f"- {len(used)} timings, {when(used)}.")
        apart = max((row.difference for row in used if row.difference is not None), default=0.0)
        lines.append(f"- The outputs of all ways agree to {apart:.1g} of their norm.")
    lines.append(
        f"- Every point has {results.config.measurement.repetitions} timings, all in measurements.csv. Speeds are "
        "their median. A ratio is the median over the repetitions, each of which times all ways, in an order that "
        "changes; ranges are over all of them."
    )
    lines.append(written())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
