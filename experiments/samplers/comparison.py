"""Our sampler beside the best of its peers, at each number of chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.harness.summary import format_figure, shown, table
from batchnuts.experiments.samplers.config import Measure
from batchnuts.experiments.samplers.registry import REGISTRY
from batchnuts.experiments.samplers.results import QUANTITIES, Results, ratio


@dataclass(frozen=True)
class Best:
    """The largest value of a measure among the peers."""

    curve: str
    value: Value


def curves_of(results: Results, role: str, problem: str) -> list[str]:
    """Names of the curves of samplers of a role (see registry.Registered) on a problem."""
    config = results.config
    return [name for name in config.curves_of(problem) if REGISTRY[config.curves[name].sampler].role == role]


def best_peer(results: Results, measure: Measure, problem: str, chains: int) -> Best | None:
    """At a number of chains; None where no peer was measured.

    A flat curve counts at its own number of chains and at larger ones, since its chains come one after another.
    """
    peers = []
    for name in curves_of(results, "peer", problem):
        flat = results.config.curves[name].flat
        values = [
            value
            for value in results.values(measure, name, problem)
            if value.size == chains or (flat and value.size < chains)
        ]
        if values:
            peers.append(Best(name, values[-1]))
    return max(peers, key=lambda best: best.value.value, default=None)


@dataclass(frozen=True)
class Compared:
    """One of our curves at one number of chains."""

    curve: str
    chains: int
    ratio: Value
    """Our value over the peer's."""
    best: Best


def compared(results: Results, measure: Measure, problem: str) -> Iterator[Compared]:
    """Every point of our curves at which a peer was measured too; curves with transitions of their own are left out."""
    for name in curves_of(results, "ours", problem):
        if results.config.curves[name].transitions is not None:
            continue
        for value in results.values(measure, name, problem):
            best = best_peer(results, measure, problem, value.size)
            over = ratio(value, None if best is None else best.value)
            if best is not None and over is not None:
                yield Compared(name, value.size, over, best)


def comparison_table(results: Results, measure: Measure, problem: str) -> str:
    """A row for each number of chains, a column for each of our curves; empty if nothing can be compared."""
    config = results.config
    points = {(point.curve, point.chains): point for point in compared(results, measure, problem)}
    names = list(dict.fromkeys(curve for curve, _ in points))
    rows = []
    for chains in sorted({chains for _, chains in points}):
        row_points = [points.get((name, chains)) for name in names]
        best = next(point.best for point in row_points if point is not None)
        peer = f"{config.curves[best.curve].label}: {format_figure(best.value.value, QUANTITIES[measure].digits)}"
        rows.append(
            (f"{chains:,}", *("-" if point is None else shown(point.ratio, ",.3g") for point in row_points), peer)
        )
    if not rows:
        return ""
    return table(("chains", *(config.curves[name].label for name in names), "best peer"), rows)
