"""The arguments of the command line `python -m batchnuts.sample`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from batchnuts import __version__
from batchnuts.cli.config import CLUSTER, packaged_configs
from batchnuts.cli.describe_keys import describe_keys
from batchnuts.settings.yaml import refuse_unknown_arguments


def parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, int]:
    """The arguments, and how many draws --resume adds; ends the program where they are wrong."""
    parser = _parser(packaged_configs())
    arguments, unknown = parser.parse_known_intermixed_args(argv)
    refuse_unknown_arguments(parser, unknown)
    further = _further_draws(parser, arguments) if arguments.resume is not None else 0
    if arguments.json and arguments.dry_run:
        parser.error("argument --json: not allowed with argument --dry-run")
    return arguments, further


class _Parser(argparse.ArgumentParser):
    """One that describes the keys of configs, those of all bridges too, where help is asked for and not before."""

    def format_help(self) -> str:
        self.epilog = (self.epilog or "").replace("{keys}", describe_keys())
        return super().format_help()


def _parser(configs: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m batchnuts.sample",
        description="Sample a model with recursive NUTS, many chains at once, and save the draws as netCDF for ArviZ.",
        epilog="keys of a config (each can be given as an override, e.g. sampler.draws=1000):\n\n{keys}\n\n"
        "exit codes: 0 done; 1 the run failed; 2 the command line or the config is wrong, or names an output that "
        "cannot be written or a data file that is missing; 130 interrupted (Ctrl-C), 143 ended by SIGTERM, 129 by "
        "SIGHUP, each after saving the draws so far and a checkpoint to resume from.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_options = parser.add_mutually_exclusive_group(required=True)
    run_options.add_argument(
        "--resume",
        metavar="RUN",
        help="continue a run that was killed or interrupted, from its last checkpoint; RUN: the path of its output",
    )
    run_options.add_argument(
        "--config",
        metavar="FILE",
        help=f"YAML file: a path, or the name of a packaged config ({', '.join(configs)})",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="set a key of the config; the value is read as YAML"
    )
    parser.add_argument("--force", action="store_true", help="replace the output file if it exists")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved config as YAML and a forecast of memory and disk, check a model of your own, and stop",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--quiet", action="store_true", help="no progress and no summary; print only the file's path")
    output.add_argument(
        "--json",
        action="store_true",
        help="progress and the verdict as JSON on stdout, one object a line, instead of bars and the summary",
    )
    parser.add_argument("--version", action="version", version=f"batchnuts {__version__}")
    return parser


def _further_draws(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """How many draws --resume adds to a run that has ended; 0: it goes on with one that has not.

    Of the overrides, those of the cluster are left.
    """
    command = " ".join(["--dry-run"] * arguments.dry_run + arguments.overrides)
    of_cluster = [text for text in arguments.overrides if re.match(rf"{re.escape(CLUSTER)}[.=]", text)]
    further = [text for text in arguments.overrides if text not in of_cluster]
    arguments.overrides = of_cluster
    match [re.fullmatch(r"sampler\.draws=\+([1-9][0-9]{0,8})", override) for override in further]:
        case [] if not arguments.dry_run:
            return 0
        case [re.Match() as match] if not arguments.dry_run:
            return int(match[1])
    parser.error(
        f"--resume uses the run's own config: found {command}; expected nothing else, or sampler.draws=+N with an "
        f"integer N from 1 to 999999999, which extends a run that has finished, or {CLUSTER}=..., which names the "
        "cluster of a run that had one"
    )
