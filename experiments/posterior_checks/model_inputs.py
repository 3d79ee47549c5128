"""What another library's version of a packaged model is called with."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchnuts.mcmc.model.model import Model
from batchnuts.models.gaussian_process import JITTER


def inputs_of(options: Any, model: Model) -> dict[str, Any]:
    """By name: the model's options and arrays of data; and `jitter`, which is part of models with a kernel."""
    inputs = dict(options)
    for data in (model.constant_data, model.observed_data):
        inputs |= {name: np.asarray(array) for name, (_, array) in data.items()}
    return {**inputs, "jitter": JITTER[model.dtype]}
