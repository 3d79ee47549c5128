"""A chain program of five chains, what drives it, and how its results are compared."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from mcmc_models import quartic, quartic_alone

from batchnuts.autobatch import random
from batchnuts.mcmc.execution import chunk
from batchnuts.mcmc.execution.chunk_runner import make_runner
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult, make_chain
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, start_adaptation
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, ExpertSettings

LANES, CAPACITY = 5, 12


def inputs(transitions: int, step: float = 1.0, first: int = 0, lanes: int = LANES) -> ChainInputs:
    position = np.random.default_rng(0).normal(size=(lanes, 2))
    values, gradients = (np.array(x) for x in zip(*map(quartic_alone, position), strict=True))
    return ChainInputs.begin(
        random.lane_keys(4, lanes), position, values, gradients, np.ones((lanes, 2)),
        start_adaptation(np.full(lanes, np.log(step))), np.full(lanes, False),
        first=np.full(lanes, first, "int64"), transitions=np.full(lanes, transitions, "int64"), max_tree_depth=8,
    )  # fmt: skip


@functools.cache  # a process compiles it once for each capacity
def make_program(capacity: int = CAPACITY) -> Any:
    """NUTS on the quartic density, with buffers of so many rows."""
    return make_chain(
        make_nuts(quartic, NutsOptions(8, dtype="float64")),
        DualAveragingAdaptation(0.8),
        capacity,
        2,
        "float64",
        divergences=True,
    )


def slice_for(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """Machines are left, and runs report, after so long. No program depends on it: they are found on disk as before."""
    patch.setitem(vars(chunk), "SLICE_SECONDS", seconds)


def drive(program: Any, transitions: int = CAPACITY, depth: int = 8, **execution: Any) -> tuple[Any, list[Any]]:
    """execution: settings, those of `expert` too."""
    expert = {name: execution.pop(name) for name in [*execution] if name in ExpertSettings.model_fields}
    settings = ExecutionSettings(**{"backend": "numpy", "expert": expert, **execution})
    made = make_runner(program, inputs(0), settings, depth)
    return made, list(made.run(inputs(transitions), transitions))


def assert_same(one: ChainResult, other: ChainResult, rows: int = CAPACITY) -> None:
    for name in ("position", "log_density", "gradient", "done", "divergences"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name, array in one.records._asdict().items():
        np.testing.assert_array_equal(array[:, :rows], getattr(other.records, name)[:, :rows], err_msg=name)
