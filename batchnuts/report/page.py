"""The page about a run and its sections, in order: one HTML file that needs nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from batchnuts.files.saving import OutputError
from batchnuts.files.url import OutputLocation, Url
from batchnuts.mcmc.diagnostics.columns import COLUMNS, NESTED_RHAT
from batchnuts.mcmc.diagnostics.verdict import made_by
from batchnuts.mcmc.storage.draws import warmup_in_words
from batchnuts.mcmc.storage.stored_run import is_zarr
from batchnuts.process.atomic import replacing
from batchnuts.report import pictures
from batchnuts.report.figures import Picture, require_matplotlib, with_own_ids
from batchnuts.report.run_file import FinishedRun, next_steps, shortened
from batchnuts.report.table import shown
from batchnuts.settings.schema import in_words

TABLE_ROWS = 12
"""Rows of the table of coefficients: as many as the printed one has by default."""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2329; --faint: #68727d; --line: #d8dde3; --good: #14733b;
  --part: #8a5a00; --bad: #b3261e; --s0: #0b62a8; --s1: #c2500a; --s2: #0a7d5c; --s3: #a3307f; --s4: #7a6a00;
  --s5: #2c8fb8; --s6: #5b4bb5; --s7: #6b6b6b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e3e7eb; --faint: #98a3ae; --line: #343c44;
  --good: #5fd08f; --part: #e8b04a; --bad: #ff8f85; --s0: #62b3f3; --s1: #ff9d5c; --s2: #4fd1a5; --s3: #ee8fd0;
  --s4: #d9c84a; --s5: #8fd6f5; --s6: #b0a4ff; --s7: #b8b8b8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 0; }
.verdict { border-left: .4rem solid; padding: .1rem 1rem; margin: 1rem 0; white-space: pre-line; }
.verdict strong { font-size: 1.2rem; } .good { border-color: var(--good); } .part { border-color: var(--part); }
.bad { border-color: var(--bad); } .small, figcaption { color: var(--faint); font-size: .85rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.words td { text-align: left; white-space: normal; vertical-align: top; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: .5rem 1.5rem; }
.two { grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); }
figure { margin: .5rem 0; } svg { display: block; width: 100%; height: auto; }
pre { overflow-x: auto; font-size: .8rem; }
"""

_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>$style</style></head><body>
$body
</body></html>
""")


def page_path(location: OutputLocation) -> Path:
    """Where the page of a run's output is put: beside it, of a URL in the current folder; with the ending .html."""
    run = Path.cwd() / location.name if isinstance(location, Url) else location
    return run.with_name(f"{run.name}.html") if run.suffix == ".html" else run.with_suffix(".html")


def render(run: FinishedRun) -> str:
    """The whole page. Raises PicturesNeedMatplotlib."""
    require_matplotlib()
    parts = [_head(run), _advice(run), _cost(run)]
    if run.check is not None:
        parts += [_table(run), *_pictures(run)]
    parts += [_stuck(run), _settings(run)]
    title = f"{run.attributes.get('model', 'model')}: {run.path.name}"
    return _PAGE.substitute(title=escape(title), style=_STYLE, body="\n".join(parts))


def write_page(run: FinishedRun, location: Path, *, force: bool = False) -> None:
    """Write the page: it appears whole or not at all. Raises OutputError, and PicturesNeedMatplotlib."""
    text = render(run)
    try:
        if not force and os.path.lexists(location):
            raise OutputError(
                f"{location} was created in the meantime and is not overwritten. Give --force to replace it."
            )
        with replacing(location) as file:
            file.write(text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise OutputError(
            f"Cannot write {location}: {error.strerror or error}. The draws are in {run.path}."
        ) from error


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(content) + "</section>"


def _paragraphs(lines: Iterable[str]) -> str:
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def headline(run: FinishedRun) -> tuple[str, str]:
    """The verdict in a few words, and its class: good, part or bad."""
    check = run.check
    if check is None:
        return "No draw was completed by every chain", "bad"
    if check.diagnostics.converged is None:
        return "Convergence cannot be assessed", "bad"
    if not check.diagnostics.converged:
        return "Not converged", "bad"
    if not check.ok:
        return "Converged, but the draws are not good enough yet", "part"
    return "Converged", "good"


def _head(run: FinishedRun) -> str:
    words, colour = headline(run)
    attributes = run.attributes
    lines = "" if run.check is None else f"\n{escape(run.check.diagnostics.verdict())}"
    return (
        f"<h1>{escape(str(attributes.get('model', 'model')))}</h1>\n"
        f'<p class="small">{escape(str(run.path))}, made '
        f"{escape(str(attributes.get('created_at', 'at an unknown time')))}"
        f" by batchnuts {escape(str(attributes.get('inference_library_version', '')))}</p>\n"
        f'<div class="verdict {colour}"><strong>{words}</strong>{lines}</div>'
    )


def _advice(run: FinishedRun) -> str:
    steps = next_steps(run)
    if not steps:
        reader = "batchnuts.open_run" if is_zarr(run.path) else "arviz.from_netcdf"
        steps = [f"Nothing: the draws can be used. In Python: {reader}({str(run.path)!r})."]
    return _section("What to do next", _list(steps))


def _cost(run: FinishedRun) -> str:
    attributes = run.attributes
    posterior = run.groups["posterior"]
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    rows = [("chains x draws", f"{chains} x {draws}" + _missing_draws(run))]
    phases = [(phase, attributes.get(f"{phase}_time")) for phase in ("compile", "warmup", "sampling")]
    spent = [(phase, float(seconds)) for phase, seconds in phases if seconds is not None]
    rows.append(("time", ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in spent) or "not in the file"))
    gradients = attributes.get("useful_gradients")
    if gradients is not None:
        working = sum(seconds for phase, seconds in spent if phase != "compile")
        speed = f", {float(gradients) / working:,.0f} a second" if working else ""
        rows.append(("gradients", f"{int(gradients):,}{speed}, warmup and draws together"))
        if run.check is not None and np.isfinite(run.check.min_ess) and run.check.min_ess > 0:
            rows.append(
                ("gradients per effective draw", f"{float(gradients) / run.check.min_ess:,.3g} (worst parameter)")
            )
    if "utilization" in attributes:
        rows.append(("utilization", f"{float(attributes['utilization']):.2f} of the gradients computed were useful"))
    if "chunk_lanes" in attributes:
        policy = f", schedule {attributes['schedule']}" if "schedule" in attributes else ""
        threads = in_words(int(attributes.get("shards", 1)), "thread")
        chunks = (
            f"{attributes.get('chunks', 1)} x {in_words(int(attributes['chunk_lanes']), 'chain')} on {threads}{policy}"
        )
        rows.append(("arrangement", chunks))
    if "backend" in attributes:
        rows.append(("backend", str(attributes["backend"])))
    length = "? transitions"
    if "warmup" in attributes:
        length = warmup_in_words(int(attributes["warmup"]), int(attributes.get("warmup_burn_in", 0)))
    rows.append(("warmup", f"{length} ({attributes.get('warmup_ended', 'no reason in the file')})"))
    for name, key in (("sampling ended", "sampling_ended"), ("number of chains", "chains_reason")):
        if key in attributes:
            rows.append((name, str(attributes[key])))
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return _section("What it cost", f'<table class="words">{cells}</table>')


def _missing_draws(run: FinishedRun) -> str:
    attributes = run.attributes
    if not attributes.get("interrupted"):
        return ""
    begun, chains = attributes.get("chains_begun", "?"), attributes.get("chains_requested", "?")
    requested = attributes.get("draws_requested", "?")
    more = "; further draws of faster chains are in the group unfinished" if "unfinished" in run.groups else ""
    return f" (interrupted: {begun} of {chains} chains had begun, {requested} draws were asked for{more})"


def _table(run: FinishedRun) -> str:
    assert run.check is not None
    diagnostics = run.check.diagnostics
    order = [int(index) for index in diagnostics.most_suspect_first()[:TABLE_ROWS]]
    columns = [*COLUMNS] if diagnostics.nested is None else [*COLUMNS, NESTED_RHAT]
    values = (
        dict(diagnostics.columns)
        if diagnostics.nested is None
        else {**diagnostics.columns, NESTED_RHAT: diagnostics.nested}
    )
    head = "<th></th>" + "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(
        f"<tr><td>{escape(diagnostics.names[i])}</td>"
        + "".join(f"<td>{shown(n, values[n][i])}</td>" for n in columns)
        + "</tr>"
        for i in order
    )
    kind = "R-hat" if diagnostics.nested is None else "nested R-hat"
    left_out = len(diagnostics.names) - len(order)
    more = f"; {left_out} more {'is' if left_out == 1 else 'are'} not shown" if left_out else ""
    note = (
        f'<p class="small">Worst {kind} first (below 1.01, or what chance allows for so few draws, is good){more}.</p>'
    )
    return _section("Worst parameters", note, f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>')


def _pictures(run: FinishedRun) -> list[str]:
    count = 0

    def panels(items: Sequence[Picture], more: str = "") -> str:
        nonlocal count
        parts = []
        for picture in items:
            count += 1
            svg = with_own_ids(picture, count)
            words = f"<figcaption>{escape(picture.caption)}</figcaption>"
            parts.append(f'<figure data-picture="{picture.kind}">{svg}{words}</figure>')
        return f'<div class="panels{more}">{"".join(parts)}</div>'

    drawn = pictures.draws_of_worst(run)
    of_each = pictures.of_parameters(run, drawn)
    parameters = [f"<h3>{escape(name)}</h3>{panels(items, ' two')}" for name, items in of_each]
    pair_words, pairs = pictures.of_pairs(run, drawn)
    del drawn
    words, tuned = pictures.of_tuning(run)
    over_time, speeds = pictures.of_progress(run)
    return [
        _section("Ranks and traces of the worst parameters", *parameters),
        _section("Energy, acceptance and trees", panels(pictures.of_energy(run))),
        _section("Pairs and divergences", _paragraphs([pair_words]), panels(pairs)),
        _section(
            "Step size and metric",
            _paragraphs(words),
            panels(tuned),
        ),
        _section("Gradients and utilization over time", _paragraphs(over_time), panels(speeds)),
    ]


def _stuck(run: FinishedRun) -> str:
    lines = []
    if run.check is not None and run.check.diagnostics.stuck:
        numbers = shortened(", ".join(map(str, run.check.diagnostics.stuck)))
        count = len(run.check.diagnostics.stuck)
        lines.append(f"Never mixed with the other chains while sampling ({count}): {numbers}")
    if outliers := str(run.attributes.get("outlier_chains", "")):
        lines.append(f"Far from all others at the end of warmup ({outliers.count(',') + 1}): {shortened(outliers)}")
    if run.check is not None and run.check.diagnostics.late:
        numbers = shortened(", ".join(map(str, run.check.diagnostics.late)))
        lines.append(f"Have draws far from all others ({len(run.check.diagnostics.late)}): {numbers}")
    if restarted := made_by(run.attributes).restarted:
        lines.append(restarted)
    return _section("Stuck chains", _list(lines) if lines else "<p>None was found.</p>")


def _config(run: FinishedRun) -> dict[str, Any]:
    try:
        config = json.loads(str(run.attributes.get("config", "{}")))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _settings(run: FinishedRun) -> str:
    text = json.dumps(_config(run), indent=2)
    return _section("Settings", f"<details><summary>The resolved config</summary><pre>{escape(text)}</pre></details>")
