"""Short runs of four chains under NumPy, where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mcmc_models import gaussian

from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress

MODEL = gaussian(3, covariance="ar1", correlation=0.6)
FIXED: dict[str, Any] = {"chains": 4, "warmup": 0, "draws": 9, "step_size": 0.8, "seed": 7, "backend": "numpy"}


def run(
    model: Model = MODEL,
    progress: Callable[[Progress], None] | None = None,
    divergences: bool = False,
    **settings: Any,
) -> Draws:
    return run_chains(model, *split_settings(FIXED | settings), progress, content=Content(divergences=divergences))


def assert_same(one: Draws, other: Draws, chains: slice = slice(None), draws: slice = slice(None)) -> None:
    """The same draws and statistics, bit for bit."""
    np.testing.assert_array_equal(one.position[chains, draws], other.position[chains, draws])
    for name in one.stats:
        np.testing.assert_array_equal(one.stats[name][chains, draws], other.stats[name][chains, draws], err_msg=name)
