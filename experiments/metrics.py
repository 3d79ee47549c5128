"""Metrics compared: `python -m batchnuts.experiments.metrics [TARGET ...]` prints a table.

Of each target and metric: gradients in sampling for each effective draw (the least bulk ESS over the real numbers that
the sampler moves), from the same seeds. Beside the metrics of `sampler.metric` two other estimators of a diagonal one:
`variance` is Stan's, from positions alone: pooled variances, shrunk towards 1e-3 with the weight of five draws;
`fisher` is that of least Fisher divergence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

TARGETS: dict[str, dict[str, Any]] = {
    "gaussian, scales": {"name": "correlated_gaussian", "dimension": 50, "covariance": "diagonal"},
    "gaussian, rotated": {"name": "correlated_gaussian", "dimension": 50, "covariance": "rotated"},
    "gaussian, equicorrelated": {"name": "correlated_gaussian", "dimension": 50, "covariance": "equicorrelated"},
    "logistic regression": {"name": "logistic_regression", "rows": 1000, "columns": 25},
    "eight schools": {"name": "eight_schools"},
    "radon": {"name": "radon"},
    "item response": {"name": "item_response"},
    "Gaussian process": {"name": "gaussian_process"},
    "stochastic volatility": {"name": "stochastic_volatility"},
    "horseshoe": {"name": "horseshoe"},
    "hidden Markov": {"name": "hidden_markov"},
}
"""Options of packaged models."""

METRICS = ("variance", "fisher", "diag", "low_rank", "dense")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m batchnuts.experiments.metrics", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=f"of {'; '.join(TARGETS)}; default: all")
    for name, default, meaning in (
        ("chains", 64, "chains of a run"),
        ("warmup", 100, "transitions of warmup"),
        ("draws", 100, "draws of each chain"),
        ("seeds", 2, "runs of each target and metric; the table has medians"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default {default})")
    options = parser.parse_args(argv)
    names = options.names or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}; expected some of {'; '.join(TARGETS)}")
    print(f"| target | dimension | {' | '.join(METRICS)} |\n|{'---|' * (2 + len(METRICS))}", flush=True)
    for name in names:
        model = build(name)
        size = {"chains": options.chains, "warmup": options.warmup, "draws": options.draws}
        cells = [cell(model, metric, options.seeds, **size) for metric in METRICS]
        print(f"| {name} | {model.dimension} | {' | '.join(cells)} |", flush=True)
    return 0


def build(name: str) -> Any:
    """A target's model, in float64."""
    from batchnuts.models.registry import REGISTRY

    options = {**TARGETS[name], "dtype": "float64"}
    packaged = REGISTRY[options["name"]]
    return packaged.build(packaged.options(**options))


def cell(model: Any, metric: str, seeds: int, **settings: int) -> str:
    """The median over seeds of the gradients per effective draw; with the share of divergences, if there are any."""
    from batchnuts.mcmc.diagnostics.diagnose import bulk_ess
    from batchnuts.mcmc.run.sampling import run_chains
    from batchnuts.mcmc.settings.run_settings import split_settings

    costs, divergences = [], []
    kind = "diag" if metric in DIAGONAL else metric
    for seed in range(seeds):
        with estimated_by(metric) if metric in DIAGONAL else nullcontext():
            draws = run_chains(model, *split_settings({**settings, "metric": kind, "seed": seed}))
        costs.append(draws.stats["n_steps"].sum() / np.nanmin(bulk_ess(draws.position)))
        divergences.append(draws.stats["diverging"].mean())
    share = float(np.mean(divergences))
    return f"{float(np.median(costs)):.3g}" + (f" ({100 * share:.2g} % diverge)" if share > 0 else "")


@contextmanager
def estimated_by(name: str) -> Iterator[None]:
    """Within, `diag` is estimated in the other way of that name."""
    with mock.patch("batchnuts.mcmc.warmup.pooling.estimate", DIAGONAL[name]):
        yield


def variance_estimate(kind: str, positions: NDArray[Any], gradients: NDArray[Any], rank: int) -> Any:
    """Stan's: n/(n+5) var + 5/(n+5) 1e-3."""
    n = len(positions)
    return _diagonal_metric((n * positions.astype(np.float64).var(axis=0, ddof=1) + 5e-3) / (n + 5.0))


def fisher_estimate(kind: str, positions: NDArray[Any], gradients: NDArray[Any], rank: int) -> Any:
    """sqrt(var x / var g), shrunk where draws are few."""
    from batchnuts.mcmc.kernel.metric_estimates import fisher_diagonal

    centred = (draws - draws.mean(axis=0) for draws in (positions.astype(np.float64), gradients.astype(np.float64)))
    return _diagonal_metric(fisher_diagonal(*centred))


def _diagonal_metric(inverse_mass: NDArray[np.float64]) -> Any:
    from batchnuts.mcmc.kernel.metric_estimates import MetricParameters

    return MetricParameters("diag", inverse_mass, np.zeros((len(inverse_mass), 0)), np.zeros(0))


DIAGONAL = {"variance": variance_estimate, "fisher": fisher_estimate}
"""Other estimators of a diagonal metric."""


if __name__ == "__main__":
    sys.exit(main())
