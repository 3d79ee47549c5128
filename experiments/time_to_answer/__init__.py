"""Seconds from a command to an answer, for batchnuts and its peers: what `experiments/answer.py` measures."""
