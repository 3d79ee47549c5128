"""The command line: `python -m batchnuts.report RUN.nc`.

Exit codes: 0 the chains converged, 3 they did not or it cannot be assessed, 1 failure, 2 a wrong command line or a file
that is not a batchnuts run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from batchnuts import __version__
from batchnuts.process.signals import say

NOT_CONVERGED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with `argv` (default: the process's arguments) and give back the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _report(arguments)
    except KeyboardInterrupt:
        say("interrupted; no page was written.")
        return 130
    except OSError as error:  # stdout's reader is gone
        say(f"the verdict cannot be printed ({error.strerror or error}).")
        with suppress(OSError, ValueError):  # what is left in its buffer would fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Refused(Exception):
    """The command line is wrong."""


def _report(arguments: argparse.Namespace) -> int:
    from batchnuts.autobatch import BatchnutsError
    from batchnuts.report.page import write_page
    from batchnuts.report.run_file import NotARun, damage_of, read_run, verdict_of

    try:
        target = _target(arguments)
        run = read_run(arguments.run)
        if target is not None:
            write_page(run, target, force=arguments.force)
    except (NotARun, _Refused) as error:
        say(str(error))
        return 2
    except BatchnutsError as error:
        say(str(error))
        return 1
    except Exception:
        damage = damage_of(arguments.run)
        if damage is None:
            raise
        say(damage)
        return 2
    if arguments.json:
        print(json.dumps(verdict_of(run), indent=2), flush=True)
    elif not arguments.quiet:
        print(f"{run.check}\n" if run.check is not None else "No draw was completed by every chain.\n")
    if target is not None and not arguments.json:
        print(target if arguments.quiet else f"Report: {target}", flush=True)
    return 0 if run.check is not None and run.check.diagnostics.converged else NOT_CONVERGED


def _target(arguments: argparse.Namespace) -> Path | None:
    """Where the page goes, if there will be one. Raises _Refused, before anything is read."""
    from batchnuts.files.saving import OutputError, check_path
    from batchnuts.files.url import location_of
    from batchnuts.mcmc.storage.stored_run import is_zarr
    from batchnuts.report.figures import require_matplotlib
    from batchnuts.report.page import page_path

    source = location_of(arguments.run)
    if not ((isinstance(source, Path) and source.is_file()) or is_zarr(source)) or (
        arguments.json and arguments.output is None
    ):
        return None
    try:
        target = check_path(arguments.output or page_path(source), force=arguments.force, key="--output")
    except OutputError as error:
        raise _Refused(str(error)) from error
    if isinstance(source, Path) and target.exists() and target.samefile(source):
        raise _Refused(f"{target} is the run itself and is not overwritten. Set another --output.")
    require_matplotlib()
    return target


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m batchnuts.report",
        description="Write one HTML page about a finished run, and say whether its chains converged.",
        epilog="exit codes: 0 the chains converged; 3 they did not, or there are too few chains or draws to tell; 1 "
        "the report failed; 2 the command line is wrong, or the file is not a batchnuts run; 130 interrupted (Ctrl-C).",
    )
    parser.add_argument(
        "run", metavar="RUN", help="the file or Zarr store that python -m batchnuts.sample wrote, or its URL"
    )
    parser.add_argument(
        "--output", metavar="PATH", help="the page; by default RUN.html beside the run, or here for a URL"
    )
    parser.add_argument("--force", action="store_true", help="replace the page if it exists")
    parser.add_argument(
        "--json", action="store_true", help="print the verdict as JSON; the page is written only with --output"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the page's path")
    parser.add_argument("--version", action="version", version=f"batchnuts {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
