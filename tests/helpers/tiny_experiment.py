"""A small experiment for tests: two curves of ours on a Gaussian of three dimensions, run by NumPy."""

CONFIG = """
problems:
  gauss:
    label: a small Gaussian
    model: {name: correlated_gaussian, dimension: 3, covariance: ar1, correlation: 0.5, dtype: float64}
    step_size: 0.5
run:
  chains: [1, 2, 4]
  transitions: 4
  measure_ess: true
curves:
  one:
    label: first curve
    panel: left
    sampler: batchnuts
    options: {backend: numpy, schedule: earliest}
  two:
    label: second curve
    panel: right
    sampler: batchnuts
    options: {backend: numpy, executor: stackless}
    chains: [2, 4]
measurement: {repetitions: 3, compile_at_once: 1}
claims:
  faster:
    says: one is faster than two
    source: nobody
    measure: rate
    curve: one
    over_curve: two
    chains: 4
    at_least: 2.0
output: {folder: out}
quick:
  run.chains: [2]
  curves.two.chains: [2]
  measurement.repetitions: 1
"""
