"""The command line of every experiment, and what it does around the measuring: exit codes, folder, progress.

    python -m batchnuts.experiments.NAME --config NAME.yaml [--quick] [--fresh] [--again CURVE] [key.path=value ...]

Exit codes: 0 done, 1 the run failed, 2 the command line or the config is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from batchnuts.autobatch import BatchnutsError
from batchnuts.experiments.harness.config import Config
from batchnuts.experiments.harness.reading import FOLDER
from batchnuts.experiments.harness.rows import MeasurementsError
from batchnuts.settings.yaml import ConfigError, packaged_configs, refuse_unknown_arguments

_INTERRUPTED = 130
_LINE_EVERY = 10.0
"""Seconds between two plain lines of progress."""

_MODULES = {"pfor": "pfor_benchmark"}
"""Modules of packaged configs that have other names."""


_LIBRARIES = {"matplotlib": "matplotlib.figure", "archspec": "archspec.cpu"}
"""Libraries of the extra `experiments`, with the modules that are used."""


class MissingLibrary(BatchnutsError):
    """A library that every experiment needs is not installed."""


Loaded = TypeVar("Loaded", bound=Config[Any])


def run_command(
    name: str,
    title: str,
    load: Callable[..., Loaded],
    run: Callable[[Loaded, Path, bool, Sequence[str]], Any],
    argv: Sequence[str] | None = None,
) -> int:
    """Run the command line of the experiment in module `name`; the exit code.

    load: (config, overrides, quick=) -> a config, or raises ConfigError; run: (config, folder, fresh, curves to measure
    again).
    """
    parser = _parser(name, title)
    arguments, unknown = parser.parse_known_intermixed_args(argv)
    refuse_unknown_arguments(parser, unknown)
    folder = None
    try:
        _check_experiment(arguments.config, name)
        config = load(arguments.config, arguments.overrides, quick=arguments.quick)
        if arguments.dry_run:
            sys.stdout.write(config.to_yaml())
            return 0
        unknown = sorted(set(arguments.again) - set(config.curves))
        if unknown:
            raise ConfigError(
                f"--again {unknown[0]}: there is no such curve; expected one of {', '.join(config.curves)}."
            )
        _check_libraries()
        folder = Path(config.output.folder)
        run(config, folder, arguments.fresh, arguments.again)
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


def _check_experiment(config: str, name: str) -> None:
    """Raise ConfigError for the packaged config of another experiment, which would be measured for hours first."""
    stem = Path(config).stem
    module = _MODULES.get(stem, stem)
    if module != name and f"{stem}.yaml" in packaged_configs(FOLDER):
        raise ConfigError(
            f"--config {config}: found the config of the experiment {stem}; expected one for {name}. Run "
            f"python -m batchnuts.experiments.{module}, or give your own config another file name."
        )


def _check_libraries() -> None:
    """Raise MissingLibrary, which says what to install: before anything is measured."""
    for library, module in _LIBRARIES.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingLibrary(
                f"experiments need {library}, which is not installed. Install it with "
                "pip install 'batchnuts[experiments]'."
            ) from error


def _how_to_go_on(arguments: argparse.Namespace, folder: Path | None) -> str:
    if folder is None:
        return " before anything was measured"
    first = f"; what was measured is in {folder}"
    options = [option for option, is_set in (("--fresh", arguments.fresh), ("--again", arguments.again)) if is_set]
    if options:
        return f"{first}, and the same command without {' and '.join(options)} continues from there"
    return f"{first}, and the same command continues from there"


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Make the folder, and keep others that measure out of it. Raises ConfigError, MeasurementsError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output.folder: {folder} cannot be created: {error.strerror}. Name another one: output.folder=FOLDER."
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


def open_log(folder: Path) -> IO[str]:
    """The file that gets what the processes print."""
    return (folder / "workers.log").open("a", encoding="utf-8")


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


def _parser(name: str, title: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m batchnuts.experiments.{name}",
        description=title,
        epilog="The same command continues where it stopped. Exit codes: 0 done; 1 the run failed; 2 the command line "
        "or the config is wrong; 130 interrupted (Ctrl-C).",
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
    parser.add_argument(
        "--fresh", action="store_true", help="discard what the folder has, and measure everything again"
    )
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="CURVE",
        help="measure this curve again (may be given repeatedly)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config as YAML and stop")
    return parser
