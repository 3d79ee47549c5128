"""`python -m batchnuts.experiments`: which experiments there are, listed by hand, and how each is run.

Exit codes: 0 they are listed, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

FROM_A_CONFIG: Mapping[str, str] = {
    "figure6": "useful gradients per second against the number of chains",
    "figure7": "utilization of the gradient against the number of chains",
    "fsm": "effective samples per minute beside BlackJAX",
    "pfor_benchmark": "loop vectorizers",
    "benchmark": "batchnuts and other samplers on four targets",
    "scaling": "what a gradient costs against chains, dimension, length of trajectories and draws",
    "posteriors": "whether the posteriors of the packaged models are right",
    "answer": "seconds from the command until draws are worth what is asked for",
    "clusters": "threads beside worker processes, and a calculation for many machines",
}
"""By module: what it measures. The config has the module's name, but for that of pfor_benchmark."""

WITHOUT: Mapping[str, str] = {
    "kernels": "where the time of the sampler goes, kernel by kernel",
    "metrics": "the metrics compared",
    "gym_targets": "the targets of the Inference Gym",
}
"""Experiments without a picture, which print a table."""

PREPARE: Mapping[str, str] = {
    "posteriordb": "configs of `posteriors` and `answer` for the posteriors of posteriordb, from a clone of it",
}
"""What writes configs for others."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the list; `argv` (default: the process's arguments) may ask for help only."""
    argparse.ArgumentParser(
        prog="python -m batchnuts.experiments",
        description="List the experiments, each a module of its own. They need the extras experiments and peers.",
    ).parse_args(argv)
    for module, measures in FROM_A_CONFIG.items():
        config = f"{module.removesuffix('_benchmark')}.yaml"
        print(f"python -m batchnuts.experiments.{module} --config {config}\n    {measures}")
    for module, prints in WITHOUT.items():
        print(f"python -m batchnuts.experiments.{module} --help\n    {prints}; prints a table")
    for module, writes in PREPARE.items():
        print(f"python -m batchnuts.experiments.{module} --help\n    writes {writes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
