"""The command line: `python -m batchnuts.sample --config logreg.yaml [key.path=value ...]`.

Exit codes: 0 done, 1 the run failed, 2 the command line or the config is wrong, 130 interrupted.
TensorFlow and ArviZ are imported only once everything that can be checked without them has been.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from batchnuts import __version__
from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.config import ConfigError, RunConfig, build_model, describe_keys, load_config, packaged_configs
from batchnuts.mcmc.draws import Draws
from batchnuts.mcmc.model import Model
from batchnuts.mcmc.output import check_path

_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
_PLAIN_WIDTH = 120  # of tables that do not go to a terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with `argv` (default: the process's arguments) and give back the exit code."""
    arguments = _parser().parse_intermixed_args(argv)
    try:
        config = load_config(arguments.config, arguments.overrides)
        if arguments.dry_run:
            sys.stdout.write(config.to_yaml())
            return 0
        assert config.output.path is not None  # load_config fills it in
        target = check_path(config.output.path, force=arguments.force)
        return _run(config, target, force=arguments.force, quiet=arguments.quiet)
    except ConfigError as error:
        print(f"batchnuts: the config cannot be used.\n{error}", file=sys.stderr)
        return 2
    except BatchnutsError as error:
        print(f"batchnuts: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print(
            "batchnuts: the run does not fit into memory. Its largest arrays are chains x draws x dimension; lower "
            "sampler.chains or sampler.draws.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("batchnuts: interrupted; nothing was drawn yet and no file was written.", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m batchnuts.sample",
        description="Sample a model with recursive NUTS, many chains at once, and save the draws as netCDF for ArviZ.",
        epilog=f"keys of a config (each can be given as an override, e.g. sampler.draws=1000):\n\n{describe_keys()}\n\n"
        "exit codes: 0 done; 1 the run failed; 2 the command line or the config is wrong; 130 interrupted (Ctrl-C), "
        "with the draws so far saved.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help=f"YAML file: a path, or the name of a packaged config ({', '.join(packaged_configs())})",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="set a key of the config; the value is read as YAML"
    )
    parser.add_argument("--force", action="store_true", help="replace the output file if it exists")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config as YAML and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary; print only the file's path")
    parser.add_argument("--version", action="version", version=f"batchnuts {__version__}")
    return parser


def _run(config: RunConfig, target: Path, *, force: bool, quiet: bool) -> int:
    # TensorFlow's start-up notes are not the user's concern; its errors still are. An own setting is respected.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from rich.console import Console

    from batchnuts.mcmc.output import save, to_datasets
    from batchnuts.mcmc.serving import own_threads
    from batchnuts.progress import ProgressView

    own_threads(config.sampler.chains, config.execution)
    model = build_model(config.model)
    from batchnuts.mcmc.chains import run_chains

    view = nullcontext() if quiet else ProgressView(Console(stderr=True))
    with view as progress:
        draws = run_chains(model, config.sampler, config.execution, progress)
    if draws.interrupted and not draws.done.any():
        raise KeyboardInterrupt
    started = time.monotonic()
    with _uninterrupted():
        save(to_datasets(draws, model, config.resolved()), target, force=force)
    saving = time.monotonic() - started
    if draws.interrupted:
        print(_interruption(draws, target), file=sys.stderr)
    if quiet:
        print(target)
    else:
        try:
            _report(draws, model, config, target, saving)
        except KeyboardInterrupt:
            print(f"batchnuts: the summary was interrupted; the draws are in {target}.", file=sys.stderr)
            return _INTERRUPTED
    return _INTERRUPTED if draws.interrupted else 0


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C off while the file is written: the draws of hours should not be lost to a second key press."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interruption(draws: Draws, target: Path) -> str:
    chains = len(draws.done)
    further = int(draws.done.sum()) - draws.complete * chains
    rest = f" The faster chains' further draws ({further} in all) are in its group 'unfinished'." if further else ""
    return (
        f"batchnuts: interrupted; {draws.complete} of {draws.settings.draws} draws of each of {chains} chains are "
        f"saved in {target}, which is marked as interrupted.{rest}"
    )


def _report(draws: Draws, model: Model, config: RunConfig, target: Path, saving: float) -> None:
    from rich.console import Console

    from batchnuts.mcmc.diagnostics import diagnose
    from batchnuts.progress import short

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    timings = {**draws.timings, "saving": saving}
    if draws.complete:
        started = time.monotonic()
        kept = slice(draws.complete)
        found = diagnose(
            draws.position[:, kept],
            model.coefficient_names(),
            draws.stats["diverging"][:, kept],
            draws.stats["reached_max_treedepth"][:, kept],
        )
        timings["diagnostics"] = time.monotonic() - started
        console.print(found.table(config.output.summary_rows, narrow=console.width < 105))
        console.print(found.verdict(), highlight=False, markup=False, soft_wrap=True)
    seconds = draws.timings.get("warmup", 0.0) + draws.timings.get("sampling", 0.0)
    speed = f"{short(draws.useful_gradients / seconds)} useful gradients/s, " if seconds else ""
    served = f"; {draws.arrangement}" if draws.arrangement is not None else ""
    console.print(f"Speed: {speed}utilization {draws.utilization:.2f}{served}", highlight=False, soft_wrap=True)
    spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in timings.items())
    console.print(f"Time: {spent}", highlight=False, soft_wrap=True)
    console.print(f"Draws: {target}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
