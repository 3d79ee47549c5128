"""Panels of pictures of experiments with samplers: a measure of some curves on one problem, against chains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.samplers.config import Measure
from batchnuts.experiments.samplers.results import QUANTITIES, Results


def draw_measure(
    axes: Any,
    results: Results,
    measure: Measure,
    problem: str,
    *,
    title: str,
    curves: Iterable[str] | None = None,
    sizes: Iterable[int] | None = None,
    log_y: bool = True,
) -> None:
    """Draw the curves (default: all); the axis has the sizes (default: those of most curves)."""
    config = results.config
    names = list(config.curves if curves is None else curves)
    drawn = [
        (config.curves[name].label, results.values(measure, name, problem), config.curves[name].flat) for name in names
    ]
    sizes = config.run.chains if sizes is None else sizes
    plots.draw_panel(axes, drawn, x="chains", y=QUANTITIES[measure].axis, title=title, sizes=sizes, log_y=log_y)
