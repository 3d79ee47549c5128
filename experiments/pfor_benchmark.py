"""Our loop vectorizer beside TensorFlow's, JAX's, a sequential loop and code batched by hand: [A], section 6, and more.

    python -m batchnuts.experiments.pfor_benchmark --config pfor.yaml

[A]: Agarwal, Ganichev, "Auto-Vectorizing TensorFlow Graphs: Jacobians, Auto-Batching and Beyond", 2019.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.harness.summary import format_figure, table
from batchnuts.experiments.vectorizers.registry import KINDS
from batchnuts.experiments.vectorizers.results import VectorizingResults
from batchnuts.experiments.vectorizers.summary import VECTORIZERS

QUESTION = """\
How fast is code that a vectorizer made of one example's, beside the same code run one example after another, beside
what other vectorizers make of it, and beside what a person would write for the batch? All ways of one workload and size
are made ready first and then take turns, timing by timing, with the same data; those in TensorFlow in one process, JAX
in another. Compilation is left out. The outputs of all ways are compared: one that differs is not timed."""


def pictures(results: VectorizingResults) -> Mapping[str, Any]:
    """A panel for each workload; those of one picture side by side."""
    config = results.config
    by_picture: dict[str, list[str]] = {}
    for workload, work in config.workloads.items():
        if work.picture is not None:
            by_picture.setdefault(work.picture, []).append(workload)
    figures = {}
    for picture, workloads in by_picture.items():
        figure, axes = plots.new_figure(
            len(workloads), f"{picture.replace('_', ' ').capitalize()}, {config.run.device.upper()}"
        )
        for workload, place in zip(workloads, axes, strict=True):
            work = config.workloads[workload]
            kind = KINDS[work.kind]
            known = config.curves_of(workload)
            drawn = [  # also those without values, so that a curve has one colour in all panels
                (curve.label, results.rates(name, workload) if name in known else [], False)
                for name, curve in config.curves.items()
            ]
            plots.draw_panel(
                place, drawn, x=kind.size, y=f"{kind.unit} per second", title=work.label, sizes=work.sizes, log_y=True
            )
        figures[picture] = figure
    return figures


def tables(results: VectorizingResults) -> str:
    """A section for each workload."""
    parts = []
    for workload, work in results.config.workloads.items():
        kind = KINDS[work.kind]
        parts += [
            f"## {work.label}",
            f"{kind.unit[0].upper()}{kind.unit[1:]} per second, by the number of {kind.size}; in brackets, times as "
            f"fast as {results.config.curves[_first(results, workload)].label}:",
            rates_table(results, workload),
        ]
    return "\n\n".join(parts)


def _first(results: VectorizingResults, workload: str) -> str:
    return results.config.curves_of(workload)[0]


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
            cells.append(_cell(rate, ratio))
        rows.append((config.curves[curve].label, *cells))
    return table((KINDS[config.workloads[workload].kind].size, *(f"{size:,}" for size in sizes)), rows)


def _cell(rate: Value | None, ratio: Value | None) -> str:
    if rate is None:
        return "-"
    return format_figure(rate.value, ",.3g") + ("" if ratio is None else f" ({format_figure(ratio.value, '.2g')})")


EXPERIMENT = Experiment(
    VECTORIZERS, "pfor_benchmark", "Loop vectorizers: one example's code, run for many", QUESTION, pictures, tables
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
