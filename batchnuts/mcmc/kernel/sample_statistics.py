"""What is recorded of each transition beside the position, declared once; `chain_program.Record` has a field for each.

The buffers of a chain (`chain_program.empty_records`), the bytes of a draw, the keys of `Draws.stats`, the variables of
the group `sample_stats` and the table in docs/output.md follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MODEL_DTYPE = "the model's"
"""Stands for the dtype of positions."""


@dataclass(frozen=True)
class SampleStatistic:
    """A number of each draw of each chain. `name` is that of ArviZ's schema for sample statistics."""

    name: str
    dtype: str
    meaning: str
    is_recorded: bool = True
    """Whether a chain records it; otherwise it is computed of records (`storage.draws.statistics`)."""

    def dtype_of(self, model_dtype: str) -> np.dtype:
        """The dtype in a run whose positions have this one."""
        return np.dtype(model_dtype if self.dtype == MODEL_DTYPE else self.dtype)


SAMPLE_STATISTICS = (
    SampleStatistic("lp", MODEL_DTYPE, "log-density at the draw, up to the model's constant"),
    SampleStatistic(
        "acceptance_rate", MODEL_DTYPE, "mean of min(1, exp(H0 - H)) over the new states of the trajectory"
    ),
    SampleStatistic("step_size", MODEL_DTYPE, "step size of the leapfrog steps"),
    SampleStatistic("tree_depth", "int32", "doublings of the trajectory that were valid"),
    SampleStatistic("n_steps", "int32", "leapfrog steps, each of which evaluates a gradient"),
    SampleStatistic("diverging", "bool", "whether the trajectory ended in a divergence"),
    SampleStatistic("energy", MODEL_DTYPE, "the Hamiltonian H at the draw"),
    SampleStatistic("energy_error", MODEL_DTYPE, "H minus H0, the Hamiltonian at the trajectory's start"),
    SampleStatistic(
        "max_energy_error",
        MODEL_DTYPE,
        "the same for the state of the trajectory where it is largest by absolute value; infinite where the density "
        "was 0 or not a number",
    ),
    SampleStatistic(
        "index_in_trajectory",
        "int32",
        "number of states from the trajectory's start to the draw, negative backwards in time; 0: the draw repeats the "
        "last one",
    ),
    SampleStatistic(
        "reached_max_treedepth",
        "bool",
        "whether the trajectory was doubled as often as allowed and did not diverge",
        is_recorded=False,
    ),
)

STATISTIC_NAMES = tuple(statistic.name for statistic in SAMPLE_STATISTICS)


def draw_bytes(dimension: int, dtype: str, divergences: bool = False) -> int:
    """Bytes of one draw of one chain with its statistics.

    dtype: of positions [dimension]. divergences: whether the end of each trajectory is recorded too.
    """
    positions = 2 * dimension if divergences else dimension
    return positions * np.dtype(dtype).itemsize + sum(s.dtype_of(dtype).itemsize for s in SAMPLE_STATISTICS)
