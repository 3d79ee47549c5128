"""What is recorded of each transition, declared once: the fields of `Record`, with dtype and meaning of each statistic.

The buffers of a chain (`empty_records`), the bytes of a draw, the keys of `Draws.stats`, the variables of the group
`sample_stats` and the table in docs/output.md follow from it. A new statistic is a field here, its value in
`chain_program.run_chain`, where it is computed of the state before and after and of the `Transition`, and a row of that
table. What only a trajectory knows is a field of `Transition` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

import numpy as np

Array = Any

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


class Record(NamedTuple):
    """The record of a transition: positions, and between them the statistics that a chain records, each with its dtype
    and meaning.

    In the buffers of a run every array has a leading transition axis.
    """

    position: Array
    """The new one."""
    lp: Annotated[Array, MODEL_DTYPE, "log-density at the draw, up to the model's constant"]
    energy: Annotated[Array, MODEL_DTYPE, "the Hamiltonian H at the draw"]
    acceptance_rate: Annotated[Array, MODEL_DTYPE, "mean of min(1, exp(H0 - H)) over the new states of the trajectory"]
    step_size: Annotated[Array, MODEL_DTYPE, "step size of the leapfrog steps"]
    tree_depth: Annotated[Array, "int32", "doublings of the trajectory that were valid"]
    n_steps: Annotated[Array, "int32", "leapfrog steps, each of which evaluates a gradient"]
    diverging: Annotated[Array, "bool", "whether the trajectory ended in a divergence"]
    energy_error: Annotated[Array, MODEL_DTYPE, "H minus H0, the Hamiltonian at the trajectory's start"]
    max_energy_error: Annotated[
        Array,
        MODEL_DTYPE,
        "the same for the state of the trajectory where it is largest by absolute value; infinite where the density "
        "was 0 or not a number",
    ]
    index_in_trajectory: Annotated[
        Array,
        "int32",
        "number of states from the trajectory's start to the draw, negative backwards in time; 0: the draw repeats the "
        "last one",
    ]
    last_position: Array
    """Transition.last_position where asked for, else ()."""


def _recorded() -> tuple[SampleStatistic, ...]:
    """The annotated fields of Record."""
    hints = get_type_hints(Record, include_extras=True)
    return tuple(
        SampleStatistic(name, *hint.__metadata__) for name, hint in hints.items() if get_origin(hint) is Annotated
    )


SAMPLE_STATISTICS = (
    *_recorded(),
    SampleStatistic(
        "reached_max_treedepth",
        "bool",
        "whether the trajectory was doubled as often as allowed and did not diverge",
        is_recorded=False,
    ),
)

STATISTIC_NAMES = tuple(statistic.name for statistic in SAMPLE_STATISTICS)


def empty_records(capacity: int, dimension: int, dtype: str, divergences: bool = False) -> Record:
    """Buffers for one chain, all zero: positions [capacity, dimension], the others [capacity].

    divergences: whether last positions are recorded.
    """
    arrays = {s.name: np.zeros(capacity, s.dtype_of(dtype)) for s in SAMPLE_STATISTICS if s.is_recorded}
    positions = np.zeros((capacity, dimension), dtype)
    return Record(position=positions, last_position=positions.copy() if divergences else (), **arrays)


def draw_bytes(dimension: int, dtype: str, divergences: bool = False) -> int:
    """Bytes of one draw of one chain with its statistics.

    dtype: of positions [dimension]. divergences: whether the end of each trajectory is recorded too.
    """
    positions = 2 * dimension if divergences else dimension
    return positions * np.dtype(dtype).itemsize + sum(s.dtype_of(dtype).itemsize for s in SAMPLE_STATISTICS)
