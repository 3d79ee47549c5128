"""What saved draws are worth: the same judge for all samplers. It reads their files when they have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from batchnuts.mcmc.diagnostics.verdict import diagnose_groups

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class Judged:
    """Figures of the draws of all elements of all natural parameters."""

    chains: int
    draws: int
    ess: float
    """The smallest bulk ESS; NaN where there is none."""
    ess_of: str
    rhat: float
    """The largest of that which decides: nested R-hat where the file says that its chains form superchains."""
    rhat_limit: float
    """The limit that R-hat must be below: 1.01, or what chance allows (`rhat_noise.py`)."""
    converged: bool

    def reached(self, goal: int) -> bool:
        """Whether there are enough effective draws, and R-hat is below its limit."""
        return self.converged and self.ess >= goal


def judge(file: Path, parameters: Sequence[str]) -> Judged:
    """The draws of some parameters in a file, netCDF with a group `posterior` or .npz.

    Raises KeyError for a parameter that it lacks.
    """
    diagnostics = diagnose_groups(read_draws(file)[list(parameters)], None)
    ess = diagnostics.columns["ess_bulk"]
    worst = int(np.nanargmin(ess)) if np.isfinite(ess).any() else 0
    return Judged(
        chains=diagnostics.chains,
        draws=diagnostics.draws,
        ess=float(ess[worst]),
        ess_of=diagnostics.names[worst],
        rhat=float(diagnostics.deciding_rhat[diagnostics.worst_first()[0]]),
        rhat_limit=diagnostics.limit,
        converged=bool(diagnostics.converged),
    )


def read_draws(file: Path) -> xarray.Dataset:
    """Arrays [chain, draw, ...] by the names of parameters."""
    import xarray

    if file.suffix == ".nc":
        with xarray.open_dataset(file, group="posterior") as opened:
            loaded: xarray.Dataset = opened.load()
            return loaded
    with np.load(file) as arrays:
        return xarray.Dataset(
            {
                name: (("chain", "draw", *(f"{name}_{axis}" for axis in range(array.ndim - 2))), array)
                for name, array in arrays.items()
            }
        )
