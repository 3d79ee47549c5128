"""Automatic warmup beside 1,000 transitions, with 256 chains, on packaged models: gradients, and z-scores.

    python docs/results/warmup/evidence.py FOLDER [problem ...]

Each is a run of the command line in its own process, of 100 draws; the table is printed from the files in FOLDER, so
the same command goes on where it stopped, and replaces files of another config. Moments are compared with the
references of docs/results/posteriors. Problems are those of posteriors.yaml; default: all packaged models.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray

from batchnuts.cli.config import RunConfig, build_model, load_config
from batchnuts.experiments.harness.rows import RowsFile
from batchnuts.experiments.harness.run_configs import overrides_of
from batchnuts.experiments.harness.summary import table
from batchnuts.experiments.posterior_checks.config import KNOWN, PosteriorsConfig, load_posteriors
from batchnuts.experiments.posterior_checks.moments import Moments, compare, summarize, transformed
from batchnuts.experiments.posterior_checks.results import PosteriorResults
from batchnuts.experiments.posterior_checks.task import Measurement
from batchnuts.experiments.posterior_checks.truths import known_moments
from batchnuts.mcmc.storage.stored_run import is_complete

WARMUPS = ("auto", "1000")
MEASURED = Path(__file__).parent.parent / "posteriors" / "measurements.csv"
HEAD = (
    "posterior",
    "transitions",
    "gradients for a chain, auto",
    "1,000 transitions",
    "ratio",
    "n_steps, auto",
    "1,000",
    "largest z (rms), auto",
    "1,000",
    "comparisons",
)


class Costs(NamedTuple):
    """The costs of one run."""

    transitions: int
    """Transitions of warmup."""
    gradients: float
    """Gradients of warmup per chain."""
    steps: float
    """Mean number of leapfrog steps of a draw."""
    z: np.ndarray
    """float64 [comparisons]"""


def reference_of(config: PosteriorsConfig, problem: str) -> Moments:
    """The moments that the posterior has. Ends the script where there are none."""
    if config.problems[problem].reference == KNOWN:
        model = config.configs[problem].model
        found: Moments | str | None = known_moments(model, build_model(model))
    else:
        found = PosteriorResults(config, RowsFile(MEASURED, Measurement).read()).reference_of(problem)
    if found is None or isinstance(found, str):
        sys.exit(f"{problem}: {found or 'nothing is known of this model'}")
    return found


def overrides(config: PosteriorsConfig, problem: str, warmup: str) -> list[str]:
    """What the command line is given besides the problem's config and the path of the file."""
    mine = ["sampler.chains=256", "sampler.draws=100", f"sampler.warmup.transitions={warmup}"]
    return [*overrides_of(config.problems[problem].settings), *mine]


def run(config: PosteriorsConfig, problem: str, warmup: str, folder: Path) -> Costs:
    """What the run cost and gave; made by the command line, unless its file has this config."""
    settings, file = config.problems[problem], folder / f"{problem}-{warmup}.nc"
    changes = [*overrides(config, problem, warmup), f"output.path={file}"]
    wanted: RunConfig = load_config(settings.config, changes)
    if not is_complete(file, wanted.resolved()):
        command = [sys.executable, "-m", "batchnuts.sample", "--config", settings.config, "--force", *changes]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    progress = xarray.load_dataset(file, group="progress", engine="h5netcdf")
    posterior = xarray.load_dataset(file, group="posterior", engine="h5netcdf")
    steps = xarray.load_dataset(file, group="sample_stats", engine="h5netcdf")["n_steps"]
    rows = progress["phase"].values.astype(object).astype(str) == "warmup"
    gradients = int(progress["useful_gradients"].values[rows][-1]) / posterior.sizes["chain"]
    draws = {str(name): array.values for name, array in posterior.data_vars.items()}
    moments, _ = summarize(transformed(draws, settings.transforms))
    z = np.array([one.z for one in compare(moments, reference_of(config, problem))])
    return Costs(int(posterior.attrs["warmup"]), gradients, float(steps.mean()), z)


def row(label: str, auto: Costs, long: Costs) -> tuple[str, ...]:
    """A row of the table."""
    both = (auto, long)
    return (
        label,
        str(auto.transitions),
        *(f"{one.gradients:,.0f}" for one in both),
        f"{auto.gradients / long.gradients:.3f}",
        *(f"{one.steps:.1f}" for one in both),
        *(f"{np.abs(one.z).max():.2f} ({math.sqrt((one.z**2).mean()):.2f})" for one in both),
        str(len(auto.z)),
    )


def main() -> None:
    """Run what is missing, and print the table."""
    config = load_posteriors("posteriors.yaml")
    packaged = [name for name in config.problems if not name.startswith("gym")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where files are, and go")
    parser.add_argument("problems", nargs="*", metavar="problem", help=f"of {', '.join(config.problems)}")
    arguments = parser.parse_args()
    problems = arguments.problems or packaged
    if unknown := [name for name in problems if name not in config.problems]:
        parser.error(f"there is no problem {unknown[0]!r}; expected some of {', '.join(config.problems)}")
    arguments.folder.mkdir(exist_ok=True, parents=True)
    rows = []
    for problem in problems:
        auto, long = (run(config, problem, warmup, arguments.folder) for warmup in WARMUPS)
        rows.append(row(config.problems[problem].label, auto, long))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
