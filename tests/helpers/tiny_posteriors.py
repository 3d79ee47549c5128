"""A small check of posteriors for tests: a Gaussian whose truth is known, and eight schools."""

from __future__ import annotations

from typing import Any

CONFIG = """
problems:
  gauss:
    label: a small Gaussian
    config: correlated_gaussian.yaml
    settings: {model: {dimension: 2}}
    reference: known
  schools:
    label: schools
    config: eight_schools.yaml
    transforms: {tau: log}
    options: {numpyro: {draws: 30}}
run: {settings: {sampler: {chains: 4, warmup: 50, draws: 20}}}
curves:
  ours: {label: ours, sampler: batchnuts}
  numpyro: {label: theirs, sampler: numpyro, options: {chains: 3, warmup: 40, draws: 20}}
measurement: {timeout: 300}
verdict: {}
output: {folder: out}
quick:
  problems.schools: null
"""

SMALL: list[dict[str, Any]] = [
    {"name": "logistic_regression", "rows": 30, "columns": 4},
    {"name": "correlated_gaussian", "dimension": 5},
    {"name": "neal_funnel", "dimension": 5},
    {"name": "eight_schools"},
    {"name": "radon", "counties": 5, "houses": 30},
    {"name": "item_response", "persons": 6, "items": 4},
    {"name": "item_response", "persons": 6, "items": 4, "parametrization": "1PL"},
    {"name": "stochastic_volatility", "length": 20},
    {"name": "gaussian_process", "points": 9},
    {"name": "hidden_markov", "length": 20},
    {"name": "horseshoe", "rows": 20, "columns": 6, "relevant": 2},
    {"name": "lotka_volterra"},
]
"""Every packaged model, small."""
