"""`python -m batchnuts cache [--clear]`: the compiled programs that are kept on disk.

Exit codes: 0 done, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from batchnuts import __version__
from batchnuts.disk_cache.folder import AUTO, VARIABLE, entries_of, problem_with


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with `argv` (default: the process's arguments) and give back the exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if problem := problem_with(arguments.folder):
        parser.error(f"--folder: found {arguments.folder!r}{problem}")
    entries = entries_of(arguments.folder)
    if entries is None:
        print(f"No programs are cached: {VARIABLE} is empty, or there is no home folder.")
        return 0
    summary = entries.clear() if arguments.clear else entries.summary()
    print(f"folder: {summary.folder}")
    if problem := entries.problem():
        print(f"No programs are cached: {problem}.")
    print(f"entries: {summary.entries}{', all deleted' if arguments.clear and summary.entries else ''}")
    print(f"size: {summary.size / 1e6:.1f} MB of at most {entries.most_bytes / 1e6:.0f} MB")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m batchnuts",
        description="The compiled programs that batchnuts keeps on disk. To sample: python -m batchnuts.sample --help.",
    )
    parser.add_argument("--version", action="version", version=f"batchnuts {__version__}")
    command = parser.add_subparsers(required=True, metavar="cache").add_parser(
        "cache", help="show the folder of compiled programs, their number and size", description="Show them."
    )
    command.add_argument("--clear", action="store_true", help="delete them; the next run compiles again")
    command.add_argument(
        "--folder",
        default=AUTO,
        metavar="PATH",
        help=f"cache folder, as in `execution.cache` (default auto: {VARIABLE}, or the user's cache folder)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
