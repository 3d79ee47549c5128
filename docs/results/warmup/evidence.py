"""Automatic warmup beside 1,000 transitions, with 256 chains, on every packaged model: gradients, and z-scores.

    python docs/results/warmup/evidence.py FOLDER [problem ...]

Each is a run of the command line in its own process, of 100 draws; the table is printed from what is in FOLDER, so the
same command goes on where it stopped. Moments are compared with the references of docs/results/posteriors.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import xarray

from batchnuts.config import build_model
from batchnuts.experiments.harness.summary import table
from batchnuts.experiments.posterior_checks.config import KNOWN, PosteriorsConfig, load_posteriors, overrides_of
from batchnuts.experiments.posterior_checks.moments import Moments, compare, decode, summarize, transformed
from batchnuts.experiments.posterior_checks.truths import known_moments

WARMUPS = ("auto", "1000")
POSTERIORS = Path(__file__).parent.parent / "posteriors"


def references() -> dict[str, str]:
    """The rows of NumPyro's runs: moments by the model's section of the config, as JSON."""
    csv.field_size_limit(sys.maxsize)
    with (POSTERIORS / "measurements.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["sampler"] == "numpyro" and row["status"] == "ok"]
    return {json.dumps(json.loads(row["problem"])["model"], sort_keys=True): row["moments"] for row in rows}


def reference(config: PosteriorsConfig, problem: str) -> Moments:
    """The moments that the posterior has."""
    resolved = config.configs[problem]
    if config.problems[problem].reference == KNOWN:
        found = known_moments(resolved.model, build_model(resolved.model))
        assert found is not None
        return found
    return decode(references()[json.dumps(resolved.resolved()["model"], sort_keys=True)])


def run(config: PosteriorsConfig, problem: str, warmup: str, file: Path) -> None:
    """One run of the command line."""
    settings = config.problems[problem]
    changes = overrides_of(settings.settings)
    changes += [
        "sampler.chains=256",
        "sampler.draws=100",
        f"sampler.warmup.transitions={warmup}",
        f"output.path={file}",
    ]
    command = [sys.executable, "-m", "batchnuts.sample", "--config", settings.config, "--force", *changes]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def figures(config: PosteriorsConfig, problem: str, file: Path) -> tuple[int, float, float, float, float, int]:
    """Transitions of warmup, its gradients for a chain, those of a draw, the largest |z|, their rms, and how many."""
    progress = xarray.load_dataset(file, group="progress", engine="h5netcdf")
    posterior = xarray.load_dataset(file, group="posterior", engine="h5netcdf")
    steps = xarray.load_dataset(file, group="sample_stats", engine="h5netcdf")["n_steps"]
    rows = progress["phase"].values.astype(object).astype(str) == "warmup"
    gradients = int(progress["useful_gradients"].values[rows][-1]) / posterior.sizes["chain"]
    draws = {str(name): array.values for name, array in posterior.data_vars.items()}
    moments, _ = summarize(transformed(draws, config.problems[problem].transforms))
    z = np.array([one.z for one in compare(moments, reference(config, problem))])
    return (
        int(posterior.attrs["warmup"]),
        gradients,
        float(steps.mean()),
        np.abs(z).max(),
        math.sqrt((z**2).mean()),
        len(z),
    )


def main(folder: Path, chosen: list[str]) -> None:
    """Run what is missing, and print the table."""
    config = load_posteriors("posteriors.yaml")
    problems = chosen or [name for name, problem in config.problems.items() if not name.startswith("gym")]
    folder.mkdir(exist_ok=True, parents=True)
    rows = []
    for problem in problems:
        files = [folder / f"{problem}-{warmup}.nc" for warmup in WARMUPS]
        for warmup, file in zip(WARMUPS, files, strict=True):
            if not file.exists():
                run(config, problem, warmup, file)
        found = [figures(config, problem, file) for file in files]
        (made, few, *_), (_, many, *_) = found
        cells = [f"{z:.2f} ({rms:.2f})" for _, _, _, z, rms, _ in found]
        steps = [f"{each:.1f}" for _, _, each, *_ in found]
        label = config.problems[problem].label
        rows.append(
            (label, str(made), f"{few:,.0f}", f"{many:,.0f}", f"{few / many:.3f}", *steps, *cells, str(found[0][-1]))
        )
        print(rows[-1], flush=True)
    head = (
        "posterior",
        "transitions",
        "gradients, auto",
        "1,000",
        "ratio",
        "n_steps, auto",
        "1,000",
        "max |z| (rms), auto",
        "1,000",
        "of",
    )
    print(table(head, rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
