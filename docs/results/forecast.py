"""Forecasts beside what runs then took: `python docs/results/forecast.py [number ...]` prints the table.

Each run is one of the command line in its own process, without kept programs; numbers choose among RUNS, from 0. Peak
memory is what the system has counted of the process (`ru_maxrss`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from batchnuts.cli.config import build_model, load_config
from batchnuts.experiments.harness.summary import table
from batchnuts.mcmc.run.forecast import Size, forecast

GAUSSIAN = "correlated_gaussian.yaml model.dimension=50 sampler.chains=256 sampler.warmup=50"
RUNS = (
    f"{GAUSSIAN} sampler.draws=200",
    f"{GAUSSIAN} sampler.draws=4000",
    f"{GAUSSIAN} sampler.draws=2000 sampler.until.ess_bulk=1.0e+9",
    f"{GAUSSIAN} sampler.draws=1000 output.divergences=true model.dtype=float64",
    "eight_schools.yaml sampler.warmup=50 sampler.draws=1000",
    "item_response.yaml sampler.warmup=50 sampler.draws=200",
    "eight_schools.yaml sampler.draws=500 execution.backend=tensorflow",
)
HEAD = ("run", "forecast, MB", "measured, MB", "ratio", "file forecast, MB", "file, MB")


def row(run: str) -> tuple[str, ...]:
    """A row of the table, for which the run is made."""
    config_name, *overrides = run.split()
    config = load_config(config_name, overrides)
    backend = "jax" if config.execution.backend == "auto" else config.execution.backend
    size = Size.of(build_model(config.model), config.output.content)
    expected = forecast(config.sampler, config.execution, size, content=config.output.content, backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.nc"
        command = [sys.executable, "-m", "batchnuts.sample", "--config", *run.split()]
        process = subprocess.Popen([*command, "execution.cache=null", f"output.path={file}"], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{run}: the run failed")
        peak, written = 1024 * used.ru_maxrss, file.stat().st_size
    memory = (f"{expected.peak / 1e6:.0f}", f"{peak / 1e6:.0f}", f"{expected.peak / peak:.2f}")
    return (f"`{run}`", *memory, f"{expected.file / 1e6:.1f}", f"{written / 1e6:.1f}")


def main() -> None:
    """Print the table."""
    chosen = [RUNS[int(number)] for number in sys.argv[1:]] or RUNS
    print(table(HEAD, [row(run) for run in chosen]))


if __name__ == "__main__":
    main()
