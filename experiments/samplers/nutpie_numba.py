"""nutpie, PyMC's sampler in Rust: a thread for each chain, densities compiled by Numba, float64, one leapfrog per leaf.

PyMC's Numba backend gives nutpie two functions of C, which it calls without Python's lock. The same is done here
without PyMC. (nutpie's `from_pyfunc` calls Python for each gradient, with its lock: two chains of the funnel then make
some 70,000 gradients a second on two cores, in place of 4 million.)

nutpie adapts. What undoes that:

- `step_size_adapt_method` with a number as text is a fixed step size, and `step_size_jitter=None` keeps it;
- `tune=1`, the fewest it accepts: one transition changes neither step size nor metric. It is a transition as any other,
  so it is the run's first one;
- its first metric is made of the gradient at a chain's start, which is evaluated for that alone, before anything else.
  That one evaluation is answered with ones, of which nutpie makes the identity.

`step_size` of every run and the metric of the first one are compared with what was asked.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.samplers.jax_densities import missing
from batchnuts.experiments.samplers.numba_densities import density
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import NutpieOptions
from batchnuts.experiments.samplers.task import Outcome, Prepared, Task, require_plain

Array = NDArray[np.float64]


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare nutpie. Draws are recorded, asked for or not."""
    options = NutpieOptions.model_validate(task.options)
    require_plain("nutpie", task)
    for package in ("nutpie", "numba"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise missing("nutpie", package) from error
    import nutpie

    model = make_model(problem, task.chains)

    def sample(starts: Array, chain_of: Callable[[int], int], **settings: Any) -> Traces:
        begin(model.user_data, starts)
        started = dataclasses.replace(model, initial_point_func=lambda seed: starts[chain_of(seed)])
        raw = nutpie.sample(
            started,
            chains=task.chains,
            tune=1,
            step_size_jitter=None,
            progress_bar=False,
            return_raw_trace=True,
            **settings,
        )
        return Traces(*raw.get_arrow_trace())

    def random_seeds(starts: Array, seed: int) -> list[int]:
        """The seeds with which nutpie asks for first positions, in the order of chains: it names no chain."""
        requested: list[int] = []

        def next_chain(of_nutpie: int) -> int:
            requested.append(of_nutpie)
            return len(requested) - 1

        moved = sample(starts, next_chain, seed=seed, cores=1, draws=1, maxdepth=1, step_size_adapt_method="1e-12")
        distances = np.abs(moved.column("position")[:, :1] - starts).sum(axis=2)  # [chains, starts]
        return [requested[nearest] for nearest in distances.argmin(axis=1)]

    def lay_out(seed: int) -> Callable[[], Outcome]:
        starts = problem.starts(task.start, task.chains, seed).astype("float64")
        chains = {of_nutpie: chain for chain, of_nutpie in enumerate(random_seeds(starts, seed))}
        return lambda: run(starts, chains, seed)

    def run(starts: Array, chains: Mapping[int, int], seed: int, **settings: Any) -> Outcome:
        traces = sample(
            starts,
            chains.__getitem__,
            seed=seed,
            cores=options.cores,
            draws=task.transitions - 1,
            maxdepth=task.max_tree_depth,
            step_size_adapt_method=repr(task.step_size),
            **settings,
        )
        _check("step size", traces.column("step_size"), task.step_size)
        if settings:
            _check("inverse metric", traces.column("mass_matrix_inv"), 1.0)
        return Outcome(
            leapfrogs=traces.column("n_steps").astype("int64"),
            executed_gradients=None,
            draws=traces.column("position") if task.measure_ess else None,
        )

    starts = problem.starts(task.start, task.chains, 0).astype("float64")
    run(
        starts,
        {seed_of_nutpie: chain for chain, seed_of_nutpie in enumerate(random_seeds(starts, 0))},
        0,
        store_mass_matrix=True,
    )
    return lay_out


@dataclass(frozen=True)
class Traces:
    """What nutpie returns: a table for each chain, in Arrow's format."""

    draws: Sequence[Any]
    statistics: Sequence[Any]

    def column(self, name: str) -> NDArray[Any]:
        """One column of all chains [chains, transitions, ...]."""
        tables = self.draws if name == "position" else self.statistics
        return np.stack([_array(table.column(name), table.num_rows) for table in tables])


def _array(column: Any, rows: int) -> NDArray[Any]:
    import pyarrow

    values = pyarrow.array(column)
    if not pyarrow.types.is_large_list(values.type):
        return np.asarray(values)
    return np.asarray(values.flatten()).reshape(rows, -1)


def _check(quantity: str, values: NDArray[Any], expected: float) -> None:
    if not np.allclose(values, expected, rtol=1e-12, atol=0):
        raise AssertionError(f"nutpie's {quantity} was {values.min()} to {values.max()}, asked {expected}")


def make_model(problem: Problem, chains: int) -> Any:
    """Compiled functions of C as nutpie has them from PyMC; `begin` its `user_data` before each run."""
    import numba
    from numba import types
    from nutpie.compile_pymc import CompiledPyMCModel

    target = density(problem)
    evaluate, dimension = target.function, problem.dimension
    starts_at, data_at = 1 + chains, 1 + chains + chains * dimension
    memory = np.concatenate([np.zeros(data_at), target.data])
    size = len(memory)

    @numba.njit  # type: ignore[untyped-decorator]
    def is_first_of_chain(x: Any, memory: Any) -> bool:
        if memory[0] == 0.0:
            return False
        awaited = False
        for chain in range(chains):
            if memory[1 + chain] == 0.0:
                continue
            start = memory[starts_at + chain * dimension : starts_at + (chain + 1) * dimension]
            if np.array_equal(x, start):
                memory[1 + chain] = 0.0
                return True
            awaited = True
        if not awaited:
            memory[0] = 0.0
        return False

    numbers = types.CPointer(types.double)

    @numba.cfunc(types.int64(types.uint64, numbers, numbers, numbers, types.voidptr))  # type: ignore[untyped-decorator]
    def log_density(_: Any, at_x: Any, at_gradient: Any, at_value: Any, at_memory: Any) -> int:
        x, gradient = numba.carray(at_x, (dimension,)), numba.carray(at_gradient, (dimension,))
        value, memory = numba.carray(at_value, (1,)), numba.carray(at_memory, (size,), np.float64)
        if is_first_of_chain(x, memory):
            gradient[:] = 1.0
            value[0] = 0.0
            return 0
        value[0] = evaluate(x, gradient, memory[data_at:])
        return 0 if np.isfinite(value[0]) and np.all(np.isfinite(gradient)) else 3  # 3: the trajectory diverges

    @numba.cfunc(types.int64(types.uint64, types.uint64, numbers, numbers, types.voidptr))  # type: ignore[untyped-decorator]
    def draw(_: Any, __: Any, at_x: Any, at_draw: Any, at_memory: Any) -> int:
        numba.carray(at_draw, (dimension,))[:] = numba.carray(at_x, (dimension,))
        return 0

    return CompiledPyMCModel(
        dims={},
        compiled_logp_func=log_density,
        compiled_expand_func=draw,
        initial_point_func=None,
        shared_data={},
        user_data=memory,
        n_expanded=dimension,
        shape_info=(["position"], [slice(0, dimension)], [(dimension,)]),
        logp_func=None,
        expand_func=None,
        _n_dim=dimension,
        _shapes={"position": (dimension,)},
        _coords={},
    )


def begin(memory: Array, starts: Array) -> None:
    """Write into a model's memory that no chain has evaluated its start [chains, dimension] yet."""
    chains = len(starts)
    memory[: 1 + chains] = 1.0
    memory[1 + chains : 1 + chains + starts.size] = starts.ravel()
