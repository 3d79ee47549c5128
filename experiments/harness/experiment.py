"""What every experiment with samplers does: config -> folder -> measurements -> pictures -> summary.

The folder has config.yaml (resolved), measurements.csv (one row a run), environment.json, the pictures as PNG and PDF,
summary.md, and workers.log (what the samplers' processes printed). The same command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.command import ProgressBar, open_log, reserved, run_command
from batchnuts.experiments.harness.config import ExperimentConfig, load_experiment
from batchnuts.experiments.harness.measuring import Measuring
from batchnuts.experiments.harness.provenance import note_environment
from batchnuts.experiments.harness.results import Results
from batchnuts.experiments.harness.rows import RowsFile
from batchnuts.experiments.harness.summary import write_summary
from batchnuts.experiments.samplers.measurements import Measurement, measurements_file


@dataclass(frozen=True)
class Experiment:
    """What one experiment adds to what all of them do."""

    name: str
    """Of its module."""
    title: str
    question: str
    """A paragraph for the summary: what is measured, how, and why."""
    pictures: Callable[[Results], Mapping[str, Any]]
    """Figures by file name."""
    tables: Callable[[Results], str]
    """The sections of the summary between claims and gaps, in Markdown."""
    files: Mapping[str, Callable[[Results], str]] = field(default_factory=dict)
    """Other files of text that it writes, by name."""
    check: Callable[[ExperimentConfig], None] = lambda config: None
    """Raises ConfigError for what this experiment cannot make anything of; before anything is measured."""


def main(experiment: Experiment, argv: Sequence[str] | None = None) -> int:
    """Run an experiment's command line and give back the exit code."""
    return run_command(experiment.name, experiment.title, load_experiment, partial(run, experiment), argv)


def run(
    experiment: Experiment, config: ExperimentConfig, folder: Path, fresh: bool = False, again: Sequence[str] = ()
) -> Results:
    """Measure what is missing, then draw and summarize everything."""
    experiment.check(config)
    with reserved(folder):
        return _run(experiment, config, folder, fresh, again)


def _run(experiment: Experiment, config: ExperimentConfig, folder: Path, fresh: bool, again: Sequence[str]) -> Results:
    file = measurements_file(folder / "measurements.csv")
    if fresh:
        file.path.unlink(missing_ok=True)
        (folder / "environment.json").unlink(missing_ok=True)
    forget(file, config, again)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    (folder / "summary.md").unlink(missing_ok=True)  # an earlier config's, until this one is done
    environment = note_environment(folder / "environment.json")
    with open_log(folder) as log, ProgressBar(experiment.title) as note:
        Measuring(config, file, log, environment, note).run()
    results = Results(config, file.read())
    # first: it says why, where a picture would be empty
    write_summary(experiment.title, experiment.question, experiment.tables(results), results, folder)
    for name, content in experiment.files.items():
        (folder / name).write_text(content(results), encoding="utf-8")
    for name, figure in experiment.pictures(results).items():
        plots.save(figure, folder, name)
    return results


def forget(file: RowsFile[Measurement], config: ExperimentConfig, curves: Sequence[str]) -> None:
    """Drop the rows of some curves, so that they are measured again."""
    tasks = {config.task(*point).fingerprint() for point in config.points() if point[0] in curves}
    if tasks:
        file.rewrite([row for row in file.read() if row.task not in tasks])
