"""The pictures of a report: small SVGs whose colours are CSS variables, so that one picture serves light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.progress.words import short
from batchnuts.report.summaries import Curves, Floats, Speed, histogram

SIZE = (3.4, 2.3)
"""Inches. One panel for each picture: on a phone, panels side by side would have letters that cannot be read."""

_INK, _FAINT = "#010101", "#020202"
_SERIES = tuple(f"#0300{number:02x}" for number in range(8))
COLOURS = {_INK: "var(--ink)", _FAINT: "var(--faint)", **{c: f"var(--s{n})" for n, c in enumerate(_SERIES)}}
"""What stands for the page's colours while Matplotlib draws; no other colour is used."""

_STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "grid.color": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "batchnuts",
    "text.parse_math": False,
    "axes.formatter.useoffset": False,
    "font.family": "DejaVu Sans",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}


class PicturesNeedMatplotlib(BatchnutsError):
    """Matplotlib is not installed; ArviZ 1.x does not bring it."""


@dataclass(frozen=True)
class Picture:
    """One panel: its kind, the SVG element, and what stands below it, in plain text."""

    kind: str
    svg: str
    caption: str


def require_matplotlib() -> None:
    """Raise PicturesNeedMatplotlib where it cannot be imported."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise PicturesNeedMatplotlib(
            "A report has pictures, and Matplotlib is not installed: pip install 'batchnuts[plot]'."
        )


def draw(kind: str, caption: str, onto: Callable[[Any], None], x: str, y: str) -> Picture:
    """A panel that `onto` draws on its axes, with labels of both axes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's browser has it
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        onto(axes)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(
                loc="lower left",  # above the panel, where it hides nothing
                bbox_to_anchor=(0.0, 1.0),
                ncols=3,
                handlelength=1.2,
                labelspacing=0.2,
                columnspacing=1.0,
                borderpad=0.1,
            )
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return Picture(kind, _inline(file.getvalue()), caption)


def _inline(svg: str) -> str:
    """The element alone, in the page's colours, its size left to the page."""
    head, body = svg[svg.index("<svg") :].strip().split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    for colour, variable in COLOURS.items():
        body = body.replace(colour, variable)
    return f'<svg {box.group(0)} role="img">{body}'


def with_own_ids(picture: Picture, number: int) -> str:
    """The SVG with names that no other picture of the page has."""
    mark = f"picture-{number}-"
    svg = picture.svg.replace(' id="', f' id="{mark}').replace("url(#", f"url(#{mark}")
    return svg.replace('href="#', f'href="#{mark}')


def _curves(axes: Any, curves: Curves, *, steps: bool = False, over: str = "chains") -> None:
    style: dict[str, Any] = {"drawstyle": "steps-mid"} if steps else {}
    if curves.bands is not None:
        low, lower, middle, upper, high = curves.bands
        fill: dict[str, Any] = {"step": "mid"} if steps else {}
        axes.fill_between(curves.x, low, high, color=_SERIES[0], alpha=0.2, linewidth=0, label=f"90% of {over}", **fill)
        axes.fill_between(curves.x, lower, upper, color=_SERIES[0], alpha=0.35, linewidth=0, label="50%", **fill)
        axes.plot(curves.x, middle, color=_SERIES[0], linewidth=1.2, **style)
    first = 0 if curves.bands is None else 1
    for number, (name, line) in enumerate(curves.lines):
        label = name if len(curves.lines) <= 4 else None
        axes.plot(curves.x, line, color=_SERIES[first + number], linewidth=0.7, alpha=0.9, label=label, **style)


def rank_plot(curves: Curves, chance: tuple[float, float], caption: str) -> Picture:
    """`summaries.rank_curves`, with the range within which independent draws are."""

    def onto(axes: Any) -> None:
        for height in chance:
            axes.axhline(height, color=_FAINT, linewidth=0.9, linestyle=":")
        _curves(axes, curves, steps=True)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)

    return draw("rank", caption, onto, "rank among all draws", "share / expected")


def trace_plot(curves: Curves, caption: str) -> Picture:
    """A picture of `summaries.traces`."""
    return draw("trace", caption, lambda axes: _curves(axes, curves), "draw", "value")


def _stairs(axes: Any, values: NDArray[Any], series: int, label: str | None, span: Any = None) -> None:
    edges, density = histogram(values, span)
    axes.stairs(density, edges, color=_SERIES[series], fill=True, alpha=0.3)
    axes.stairs(density, edges, color=_SERIES[series], linewidth=1.0, label=label)


def energy_plot(energies: Floats, changes: Floats, caption: str) -> Picture:
    """Energies of some draws less their mean, and changes from draw to draw."""

    def onto(axes: Any) -> None:
        span = float(np.quantile(np.abs(energies), 0.999))  # a few far states would leave one bar of all others
        span = max(span, 1e-9)
        _stairs(axes, energies, 0, "energy", (-span, span))
        if len(changes):
            _stairs(axes, changes, 1, "change", (-span, span))

    return draw("energy", caption, onto, "energy minus its mean", "density")


def acceptance_plot(rate: NDArray[Any], target: float | None, caption: str) -> Picture:
    """Acceptance rates of all draws, with the target of warmup where it is known."""

    def onto(axes: Any) -> None:
        _stairs(axes, rate, 0, None, (0.0, 1.0))
        axes.axvline(float(np.mean(rate)), color=_INK, linewidth=0.9, label="mean")
        if target is not None:
            axes.axvline(target, color=_SERIES[1], linewidth=0.9, linestyle="--", label="target")

    return draw("acceptance", caption, onto, "acceptance rate", "density")


def depth_plot(depths: NDArray[np.int64], counts: NDArray[np.int64], caption: str) -> Picture:
    """How many trees had which depth."""

    def onto(axes: Any) -> None:
        axes.bar(depths, counts / counts.sum(), color=_SERIES[0], width=0.8)
        axes.set_xticks(depths[:: -(-len(depths) // 8)])

    return draw("depth", caption, onto, "tree depth (doublings)", "share of draws")


def step_size_plot(step: Floats, caption: str) -> Picture:
    """Step sizes of chains that have their own."""
    return draw("step-size", caption, lambda axes: _stairs(axes, step, 0, None), "step size", "density")


def step_sizes_plot(transitions: Floats, steps: Floats, caption: str) -> Picture:
    """The lowest, median and highest step size [windows, 3] after each window of warmup."""

    def onto(axes: Any) -> None:
        if (steps[:, 0] < steps[:, 2]).any():
            axes.fill_between(transitions, steps[:, 0], steps[:, 2], color=_SERIES[0], alpha=0.2, linewidth=0)
        axes.plot(transitions, steps[:, 1], color=_SERIES[0], marker=".", markersize=4, linewidth=1.2)
        axes.set_ylim(bottom=0)

    return draw("step-sizes", caption, onto, "transitions of warmup", "step size")


def scales_over_warmup_plot(curves: Curves, caption: str) -> Picture:
    """Quantiles over coefficients of their scale as a share of the last one, after each window of warmup."""

    def onto(axes: Any) -> None:
        _curves(axes, curves, over="coefficients")
        axes.axhline(1.0, color=_FAINT, linewidth=0.9, linestyle=":")
        assert curves.bands is not None
        _log_scale(axes, curves.bands)

    return draw("scales", caption, onto, "transitions of warmup", "scale / last scale")


def scales_plot(scales: Floats, caption: str) -> Picture:
    """The scales that the metric gives coefficients, in increasing order."""

    def onto(axes: Any) -> None:
        axes.plot(np.arange(1, len(scales) + 1), scales, color=_SERIES[0], marker=".", markersize=3, linewidth=0.8)
        _log_scale(axes, scales)

    return draw("metric", caption, onto, "coefficient, by scale", "scale")


def _log_scale(axes: Any, values: Floats) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()
    ticks = np.geomspace(values.min(), values.max(), 4)  # powers of ten may be none, or too many
    axes.set_yticks(ticks, [f"{tick:.2g}" for tick in ticks])


def speed_plot(speeds: Sequence[Speed], caption: str) -> Picture:
    """Useful gradients a second over the time of a run, phases in colours of their own."""
    return _over_time("gradients", speeds, [speed.gradients for speed in speeds], "useful gradients/s", caption)


def utilization_plot(speeds: Sequence[Speed], caption: str) -> Picture:
    """The useful share of the gradients executed, over the time of a run."""
    return _over_time("utilization", speeds, [speed.utilization for speed in speeds], "utilization", caption, top=1.0)


def _over_time(
    kind: str, speeds: Sequence[Speed], values: Sequence[Floats], label: str, caption: str, top: float | None = None
) -> Picture:
    def onto(axes: Any) -> None:
        for number, (speed, value) in enumerate(zip(speeds, values, strict=True)):
            axes.stairs(value, speed.edges, color=_SERIES[number], linewidth=1.2, baseline=None, label=speed.phase)
            axes.axvspan(speed.edges[0], speed.edges[-1], color=_SERIES[number], alpha=0.08, linewidth=0)
        axes.set_xlim(0, speeds[-1].edges[-1])
        axes.set_ylim(0, top)
        axes.yaxis.set_major_formatter(lambda value, _: short(value))

    return draw(kind, caption, onto, "seconds since the run began", label)


def pair_plot(draws: Floats, marked: Sequence[tuple[str, Floats]], labels: tuple[str, str], caption: str) -> Picture:
    """Draws [points, 2], and on top of them named points [points, 2], such as those that diverged."""

    def onto(axes: Any) -> None:
        axes.plot(*draws.T, linestyle="", marker=".", markersize=2.5, color=_SERIES[0], alpha=0.5, markeredgewidth=0)
        for series, (name, points) in enumerate(marked, 1):
            axes.plot(*points.T, linestyle="", marker="x", markersize=3.5, color=_SERIES[series], label=name)

    return draw("pair", caption, onto, *(_short(label) for label in labels))


def _short(label: str, most: int = 28) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"
