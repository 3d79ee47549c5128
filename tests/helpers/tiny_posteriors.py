"""A small check of posteriors for tests: a Gaussian whose truth is known, and eight schools."""

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
