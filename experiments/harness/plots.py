"""Pictures of all experiments: a curve with the range of its repetitions, labelled axes, PNG and PDF."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from batchnuts.autobatch import BatchnutsError
from batchnuts.experiments.harness.results import Value

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 7.2
"""The width of every picture in inches: the text width of most journals."""

_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "font.family": "DejaVu Sans",
    "pdf.fonttype": 42,
}
_MARKERS = "osD^vP*X<>ph"


class PlotError(BatchnutsError):
    """A picture without labels or without content."""


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """`draw` in the style of our pictures, whatever the user's own settings are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


@styled
def new_figure(panels: int, title: str, height: float = 4.0) -> tuple[Any, list[Any]]:
    """A figure with some panels side by side; no display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_text(title), x=0.01, horizontalalignment="left", fontsize=9)
    axes = figure.subplots(1, panels, squeeze=False)
    return figure, list(axes[0])


@styled
def draw_curve(axes: Any, values: Sequence[Value], label: str, number: int, *, flat: bool = False) -> None:
    """A line through the points with a band over their repetitions' range; `number` picks colour and marker.

    flat: one value, drawn across the whole panel.
    """
    if not values:
        return
    colour = f"C{number % 10}"
    if flat:
        last = values[-1]
        axes.axhline(last.value, color=colour, linewidth=1.2, linestyle="--", label=_text(label))
        axes.axhspan(last.low, last.high, color=colour, alpha=0.15, linewidth=0)
        return
    sizes = [value.size for value in values]
    if len(values) == 1:  # a band would have no width
        axes.vlines(sizes, values[0].low, values[0].high, color=colour, alpha=0.5, linewidth=1.2)
    axes.fill_between(sizes, [v.low for v in values], [v.high for v in values], color=colour, alpha=0.2, linewidth=0)
    axes.plot(
        sizes,
        [value.value for value in values],
        color=colour,
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=3,
        linewidth=1.2,
        label=_text(label),
    )


@styled
def draw_bound(axes: Any, values: Sequence[Value], label: str) -> None:
    """A thin grey line that curves cannot pass."""
    if values:
        sizes, heights = [v.size for v in values], [v.value for v in values]
        axes.plot(sizes, heights, color="0.5", linewidth=0.8, linestyle=":", label=_text(label))


@styled
def finish(axes: Any, *, x: str, y: str, title: str, sizes: Iterable[int], log_y: bool) -> None:
    """Axes as powers of two (and of ten), labels, title, legend."""
    axes.set_xscale("log", base=2)
    ticks = sorted(set(sizes))
    if ticks:
        labelled = ticks[:: -(-len(ticks) // 6)]
        axes.set_xticks(labelled, [f"{tick:,}" for tick in labelled])
        axes.minorticks_off()
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.02)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(_text(title), loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.2), borderaxespad=0.0)  # below: it hides no curve


def draw_panel(axes: Any, curves: Iterable[tuple[str, Sequence[Value], bool]], **finishing: Any) -> None:
    """A panel of curves: (label, values, flat) of each; `finishing` goes to `finish`."""
    for number, (label, values, flat) in enumerate(curves):
        draw_curve(axes, values, label, number, flat=flat)
    finish(axes, **finishing)


@styled
def name_rows(axes: Sequence[Any], labels: Sequence[str], word: str) -> None:
    """Panels side by side whose vertical axis is a list of names, called `word`, from top to bottom."""
    for place in axes:
        place.set_yticks(range(len(labels)), labels)
        place.set_ylim(len(labels) - 0.5, -0.5)
        place.set_ylabel(word)
        if place is not axes[0]:
            place.tick_params(labelleft=False)


def _text(words: str) -> str:
    """A text with escaped dollar signs: matplotlib would read text between two of them as a formula."""
    return words.replace("$", "\\$")


def check(figure: Any) -> None:
    """Raise PlotError for a panel without axis labels, or without anything drawn in it."""
    for axes in figure.axes:
        if not axes.get_xlabel() or not axes.get_ylabel():
            raise PlotError(f"the panel {axes.get_title(loc='left')!r} lacks the label of an axis")
        if not axes.lines:
            raise PlotError(f"the panel {axes.get_title(loc='left')!r} is empty: summary.md says why none was measured")


@styled
def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.pdf; the same picture gives the same bytes. Raises PlotError as `check` does."""
    check(figure)
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    figure.savefig(png, dpi=200, metadata={"Software": None})
    figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]
