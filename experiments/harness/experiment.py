"""The steps of every experiment: config -> folder -> measurements -> pictures -> summary.

The folder has config.yaml (resolved), measurements.csv (one row a run), environment.json, the pictures as PNG and PDF,
summary.md, and workers.log (what the tasks' processes printed). The same command continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.command import ProgressBar, open_log, reserved, run_command
from batchnuts.experiments.harness.config import Config
from batchnuts.experiments.harness.measuring import Measuring, Note
from batchnuts.experiments.harness.provenance import note_environment
from batchnuts.experiments.harness.results import PointResults
from batchnuts.experiments.harness.rows import Row, RowsFile
from batchnuts.experiments.harness.summary import gaps, made_with

C = TypeVar("C", bound=Config[Any])
R = TypeVar("R", bound=Row)
S = TypeVar("S", bound=PointResults[Any, Any])


@dataclass(frozen=True)
class Subject(Generic[C, R, S]):
    """The kind of thing measured, samplers or vectorizers: what all experiments with it have in common."""

    load: Callable[..., C]
    """(config, overrides, quick=) -> a config, or raises ConfigError."""
    measuring: Callable[[C, RowsFile[R], IO[str], str, Note], Measuring[R, Any]]
    """The strategy."""
    rows: type[R]
    results: Callable[[C, Sequence[R]], S]
    target: str
    """The word in a table's head for what curves are measured on."""
    sizes: str
    """The word in a table's head for sizes."""
    claims: Callable[[S], str]
    """A section of the summary with each claim and its verdict."""
    how_made: Callable[[S], list[str]]
    """Lines of the summary's end."""


@dataclass(frozen=True)
class Experiment(Generic[C, R, S]):
    """The parts of one experiment beyond the common steps."""

    subject: Subject[C, R, S]
    name: str
    """The name of its module."""
    title: str
    question: str
    """A paragraph for the summary: what is measured, how, and why."""
    pictures: Callable[[S], Mapping[str, Any]]
    """Figures by file name."""
    tables: Callable[[S], str]
    """The sections of the summary between claims and gaps, in Markdown."""
    files: Mapping[str, Callable[[S], str]] = field(default_factory=dict)
    """Other files of text that it writes, by name."""
    check: Callable[[C], None] = lambda config: None
    """Raises ConfigError for a config that this experiment cannot use; before anything is measured."""
    judge: Callable[[S, Path], None] = lambda results, folder: None
    """Raises BatchnutsError for results that are not as they should be; when all is in the folder."""


def main(experiment: Experiment[C, R, S], argv: Sequence[str] | None = None) -> int:
    """Run an experiment's command line and give back the exit code."""
    return run_command(experiment.name, experiment.title, experiment.subject.load, partial(run, experiment), argv)


def run(experiment: Experiment[C, R, S], config: C, folder: Path, fresh: bool = False, again: Sequence[str] = ()) -> S:
    """Measure what is missing, then draw and summarize everything."""
    experiment.check(config)
    with reserved(folder):
        results = _run(experiment, config, folder, fresh, again)
    experiment.judge(results, folder)
    return results


def _run(experiment: Experiment[C, R, S], config: C, folder: Path, fresh: bool, again: Sequence[str]) -> S:
    subject = experiment.subject
    file = RowsFile(folder / "measurements.csv", subject.rows)
    if fresh:
        file.path.unlink(missing_ok=True)
        (folder / "environment.json").unlink(missing_ok=True)
    forget(file, config, again)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    (folder / "summary.md").unlink(missing_ok=True)  # an earlier config's, until this one is done
    environment = note_environment(folder / "environment.json")
    with open_log(folder) as log, ProgressBar(experiment.title) as note:
        subject.measuring(config, file, log, environment, note).run()
    results = subject.results(config, file.read())
    # first: it says why, where a picture would be empty
    (folder / "summary.md").write_text(summary(experiment, results, folder), encoding="utf-8")
    for name, content in experiment.files.items():
        (folder / name).write_text(content(results), encoding="utf-8")
    for name, figure in experiment.pictures(results).items():
        plots.save(figure, folder, name)
    return results


def forget(file: RowsFile[R], config: Config[Any], curves: Sequence[str]) -> None:
    """Drop the rows of some curves, so that they are measured again."""
    tasks = {config.task(*point).fingerprint() for point in config.points() if point[0] in curves}
    if tasks:
        file.rewrite([row for row in file.read() if row.task not in tasks])


def summary(experiment: Experiment[C, R, S], results: S, folder: Path) -> str:
    """summary.md, from the results and the folder's environment.json."""
    subject = experiment.subject
    parts = [
        f"# {experiment.title}",
        experiment.question,
        subject.claims(results),
        experiment.tables(results),
        gaps(results, subject.target, subject.sizes),
        made_with(results, subject.how_made(results), folder),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
