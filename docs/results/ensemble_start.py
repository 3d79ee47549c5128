"""Gradients and seconds before the first draw, with `sampler.start: windows` and `ensemble`, of many posteriors.

    python docs/results/ensemble_start.py [--config posteriors.yaml ...] [--chains 64 256 4096] [--only NAME ...]
        [--seeds 3] [--starts windows ensemble] [--csv FILE]

The posteriors are the problems of configs of `batchnuts.experiments.posteriors`, with their own settings but for the
number of chains. Each is warmed up once before it is measured, so nothing is compiled meanwhile. A line for each
posterior, start and seed goes to the CSV file; at the end a table of medians.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

from batchnuts.cli.config import build_model
from batchnuts.experiments.posterior_checks.config import load_posteriors
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.storage.draws import Draws

STARTS = ("windows", "ensemble")


@dataclass(frozen=True)
class Warmup:
    """One run until its first draw."""

    problem: str
    dimension: int
    chains: int
    start: str
    seed: int
    gradients: float
    """Of each chain, on average."""
    seconds: float
    transitions: int
    agreed: bool
    reason: str


def gradients_of(draws: Draws) -> float:
    """Useful gradients of warmup for each chain, on average."""
    columns = draws.history.columns
    counted = columns["useful_gradients"][columns["phase"] == "warmup"]
    return float(counted[-1]) / draws.settings.chain_count


def warm_up(model: Model, sampler: SamplerSettings, execution: ExecutionSettings, problem: str) -> Warmup:
    """A run of one draw."""
    began = time.perf_counter()
    draws = run_chains(model, sampler, execution)
    seconds = time.perf_counter() - began
    report = draws.warmup
    return Warmup(
        problem, model.dimension, sampler.chain_count, sampler.start, sampler.seed,
        gradients_of(draws), seconds, report.transitions, bool(report.agreed), report.reason,
    )  # fmt: skip


def measured(asked: argparse.Namespace) -> Iterator[Warmup]:
    """Every posterior, both starts in turn for each seed."""
    for name in asked.config:
        config = load_posteriors(name)
        for problem, settings in config.problems.items():
            if asked.only and problem not in asked.only:
                continue
            run = config.configs[problem]
            try:
                model = build_model(run.model)
                for chains in asked.chains:
                    given = {"chains": chains, "draws": 1, "until": None}
                    for seed in (-1, *range(asked.seeds)):
                        for start in asked.starts:
                            changes = {**given, "start": start, "seed": max(seed, 0)}
                            sampler = run.sampler.model_copy(update=changes)
                            result = warm_up(model, sampler, run.execution, settings.label)
                            if seed >= 0:
                                yield result
            except Exception as error:
                print(f"{problem}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


def table(results: list[Warmup]) -> str:
    """Medians over seeds, and of the ratios over all posteriors."""
    lines = [
        "| posterior | dimension | chains | windows | ensemble | ratio | windows [s] | ensemble [s] |",
        "|---" * 8 + "|",
    ]
    ratios: dict[int, list[float]] = {}
    for problem, chains in dict.fromkeys((each.problem, each.chains) for each in results):
        of = {
            start: [e for e in results if (e.problem, e.chains, e.start) == (problem, chains, start)]
            for start in STARTS
        }
        if not all(of.values()):
            continue
        before, after = (median(e.gradients for e in of[start]) for start in STARTS)
        seconds = " | ".join(f"{median(e.seconds for e in of[start]):.2f}" for start in STARTS)
        ratios.setdefault(chains, []).append(after / before)
        dimension = of["windows"][0].dimension
        lines.append(
            f"| {problem} | {dimension} | {chains} | {before:,.0f} | {after:,.0f} | {after / before:.2f} | {seconds} |"
        )
    for chains, values in ratios.items():
        lines.append(
            f"| **median of {len(values)}** | | {chains} | | | {median(values):.2f} | | |\n"
            f"| largest | | {chains} | | | {max(values):.2f} | | |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", nargs="+", default=["posteriors.yaml"])
    parser.add_argument("--chains", nargs="+", type=int, default=[256])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--csv", type=Path, default=Path("ensemble_start.csv"))
    asked = parser.parse_args()
    results = []
    with asked.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Warmup)])
        for result in measured(asked):
            results.append(result)
            writer.writerow([getattr(result, field.name) for field in fields(Warmup)])
            file.flush()
            print(
                f"{result.problem}, {result.chains} chains, {result.start}: {result.gradients:,.0f} gradients, "
                f"{result.seconds:.2f} s, {result.transitions} transitions; {result.reason}",
                flush=True,
            )
    print(table(results))


if __name__ == "__main__":
    main()
