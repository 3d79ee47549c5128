"""What every experiment's command does: config -> folder -> measurements -> pictures -> summary.

    python -m batchnuts.experiments.NAME --config NAME.yaml [--quick] [--fresh] [--again CURVE] [key.path=value ...]

The folder has config.yaml (resolved), measurements.csv (one row a run), environment.json, the pictures as PNG and PDF,
summary.md, and workers.log (what the samplers' processes printed). The same command goes on where it stopped.
Exit codes: 0 done, 1 the run failed, 2 the command line or the config is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.experiments import plots
from batchnuts.experiments.config import FOLDER, ExperimentConfig, load_experiment
from batchnuts.experiments.environment import note_environment
from batchnuts.experiments.measurements import MeasurementsError, MeasurementsFile
from batchnuts.experiments.measuring import Measuring, open_log
from batchnuts.experiments.results import Results
from batchnuts.experiments.summary import write_summary
from batchnuts.yaml_settings import ConfigError, packaged_configs

_INTERRUPTED = 130
_LINE_EVERY = 10.0
"""Seconds between two plain lines of progress."""


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


def main(experiment: Experiment, argv: Sequence[str] | None = None) -> int:
    """Run an experiment's command line and give back the exit code."""
    arguments = _parser(experiment).parse_intermixed_args(argv)
    folder = None
    try:
        _check_experiment(arguments.config, experiment)
        config = load_experiment(arguments.config, arguments.overrides, quick=arguments.quick)
        if arguments.dry_run:
            sys.stdout.write(config.to_yaml())
            return 0
        unknown = sorted(set(arguments.again) - set(config.curves))
        if unknown:
            raise ConfigError(
                f"--again {unknown[0]}: there is no such curve; expected one of {', '.join(config.curves)}."
            )
        plots.need_matplotlib()
        folder = Path(config.output.folder)
        run(experiment, config, folder, fresh=arguments.fresh, again=arguments.again)
    except ConfigError as error:
        print(f"batchnuts: the config cannot be used.\n{error}", file=sys.stderr)
        return 2
    except (BatchnutsError, OSError) as error:
        print(f"batchnuts: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"batchnuts: interrupted{_how_to_go_on(arguments, folder)}.", file=sys.stderr)
        return _INTERRUPTED
    print(folder / "summary.md")
    return 0


def run(
    experiment: Experiment, config: ExperimentConfig, folder: Path, *, fresh: bool = False, again: Sequence[str] = ()
) -> Results:
    """Measure what is missing, then draw and summarize everything."""
    with _reserved(folder):
        return _run(experiment, config, folder, fresh, again)


def _check_experiment(config: str, experiment: Experiment) -> None:
    """Raise ConfigError for the packaged config of another experiment, which would be measured for hours first."""
    stem = Path(config).stem
    if stem != experiment.name and f"{stem}.yaml" in packaged_configs(FOLDER):
        raise ConfigError(
            f"--config {config}: found the config of the experiment {stem}; expected one for {experiment.name}. Run "
            f"python -m batchnuts.experiments.{stem}, or give your own config another file name."
        )


def _how_to_go_on(arguments: argparse.Namespace, folder: Path | None) -> str:
    if folder is None:
        return " before anything was measured"
    first = f"; what was measured is in {folder}"
    anew = [option for option, given in (("--fresh", arguments.fresh), ("--again", arguments.again)) if given]
    if anew:
        return f"{first}, and the same command without {' and '.join(anew)} goes on from there"
    return f"{first}, and the same command goes on from there"


@contextmanager
def _reserved(folder: Path) -> Iterator[None]:
    """Make the folder, and keep others that measure out of it. Raises ConfigError, MeasurementsError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output.folder: {folder} cannot be made: {error.strerror}. Name another one: output.folder=FOLDER."
        ) from error
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise MeasurementsError(
            f"{folder}: another command measures into this folder. Wait for its end, or name another one: "
            "output.folder=FOLDER."
        ) from error
    finally:
        os.close(lock)


def _run(experiment: Experiment, config: ExperimentConfig, folder: Path, fresh: bool, again: Sequence[str]) -> Results:
    file = MeasurementsFile(folder / "measurements.csv")
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
    for name, figure in experiment.pictures(results).items():
        plots.save(figure, folder, name)
    return results


def forget(file: MeasurementsFile, config: ExperimentConfig, curves: Sequence[str]) -> None:
    """Drop the rows of some curves, so that they are measured again."""
    tasks = {config.task(*point).fingerprint() for point in config.points() if point[0] in curves}
    if tasks:
        file.rewrite([row for row in file.read() if row.task not in tasks])


class ProgressBar:
    """What is done and what is left: a live bar on a terminal, now and then a plain line elsewhere."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.console = Console(stderr=True)
        self.title = title
        self.shown_at = -_LINE_EVERY
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left:"), TimeRemainingColumn(), console=self.console,
        )  # fmt: skip
        self.line = self.bar.add_task(title, total=None)

    def __enter__(self) -> ProgressBar:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Show how far it is."""
        self.bar.update(self.line, description=doing, completed=done, total=total)
        if not self.console.is_terminal and time.monotonic() - self.shown_at >= _LINE_EVERY:
            self.shown_at = time.monotonic()
            self.console.print(f"{self.title}: {done} of {total} runs; {doing}", highlight=False, soft_wrap=True)


def _parser(experiment: Experiment) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m batchnuts.experiments.{experiment.name}",
        description=experiment.title,
        epilog="The same command goes on where it stopped. Exit codes: 0 done; 1 the run failed; 2 the command line or "
        "the config is wrong; 130 interrupted (Ctrl-C).",
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help=f"YAML file: a path, or the name of a packaged config ({', '.join(packaged_configs(FOLDER))})",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="set a key of the config; the value is read as YAML"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the config's section quick: a picture in about two minutes"
    )
    parser.add_argument("--fresh", action="store_true", help="drop what the folder has, and measure everything anew")
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="CURVE",
        help="measure this curve anew (may be given repeatedly)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config as YAML and stop")
    return parser
