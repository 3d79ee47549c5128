"""Posteriors against known truths and long runs of another sampler: what `experiments/posteriors.py` measures."""
