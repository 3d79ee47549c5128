"""Where chains start, by the method that is asked for: positions, proposed again where they cannot be used."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.engine import Engine, default_engine
from batchnuts.mcmc.model import Model, ModelError
from batchnuts.mcmc.pathfinder import pathfinder_starts
from batchnuts.mcmc.quantities import Quantities
from batchnuts.mcmc.settings import ExecutionSettings, InitSettings, SamplerSettings
from batchnuts.mcmc.superchains import count_superchains, superchain_of
from batchnuts.settings.schema import SettingsError

Proposals = Callable[[int], NDArray[Any]]
"""Of the number of an attempt: positions [chains, dimension] in the model's dtype, not finite where there is none."""


def make_proposals(model: Model, sampler: SamplerSettings, execution: ExecutionSettings) -> Proposals:
    """The starts that are tried first (attempt 0), and others where the density is not finite there.

    The chains of a superchain start at the same position. Those of a seed are always the same. Raises SettingsError
    where the method does not fit the model, or a run cannot be read.
    """
    init, count = sampler.init, count_superchains(sampler)
    of_superchains = _of_superchains(model, sampler, execution, count)
    superchain = superchain_of(sampler.chain_count, count)

    first = functools.cache(lambda: made(0))  # it is checked, and then used: an initializer is called once

    def proposed(attempt: int) -> NDArray[Any]:
        return made(attempt) if attempt else first()

    def made(attempt: int) -> NDArray[Any]:
        position = of_superchains(attempt)
        if init.jitter:
            rng = np.random.default_rng((sampler.seed, attempt, _JITTER))
            position = position + init.jitter * rng.normal(size=position.shape)
        return np.asarray(position[superchain], model.dtype)

    return proposed


def positions_to_check(model: Model, sampler: SamplerSettings, proposals: Proposals) -> NDArray[Any]:
    """[chains, dimension]: where the density is tried before anything is compiled, or optimized."""
    if sampler.init.method != "pathfinder":
        return proposals(0)
    return _uniform(model, sampler.init, _rng(sampler, 0), sampler.chain_count).astype(model.dtype)


_JITTER, _RUN, _PATH = 1, 2, 3
"""What random numbers are for."""


def _of_superchains(model: Model, sampler: SamplerSettings, execution: ExecutionSettings, count: int) -> Proposals:
    """Of an attempt, [superchains, dimension]."""
    init = sampler.init
    if init.values is not None:
        rows = _given(model, init.values, count)
        return lambda attempt: rows[np.arange(count) % len(rows)]
    if init.run is not None:
        drawn = draws_of_run(model, init.run)
        return lambda attempt: _chosen(drawn, count, sampler.seed, attempt)
    if init.method == "prior":
        return _of_prior(model, sampler, execution, count)
    if init.method == "pathfinder":
        return _of_paths(model, sampler, count)
    if init.method == "auto":
        # of as many as there are chains, so that those of the first superchains do not depend on their number
        return lambda attempt: model.initial_positions(_rng(sampler, attempt), sampler.chain_count)[:count]
    return lambda attempt: _uniform(model, init, _rng(sampler, attempt), count)


def _rng(sampler: SamplerSettings, attempt: int) -> np.random.Generator:
    return np.random.default_rng((sampler.seed, attempt) if attempt else sampler.seed)


def _uniform(model: Model, init: InitSettings, rng: np.random.Generator, count: int) -> NDArray[Any]:
    return rng.uniform(-init.radius, init.radius, size=(count, model.dimension))


def _chosen(rows: NDArray[Any], count: int, seed: int, attempt: int) -> NDArray[Any]:
    """Some rows at random, each once as far as there are enough."""
    order = np.random.default_rng((seed, attempt, _RUN)).permutation(len(rows))
    return rows[order[np.arange(count) % len(rows)]]


def count_starts(model: Model, init: InitSettings) -> int:
    """How many starts `init.values` gives; 1 without them."""
    return 1 if init.values is None else _arrays(model, init.values)[1]


def _arrays(model: Model, values: Mapping[str, Any]) -> tuple[dict[str, NDArray[np.float64]], int]:
    """Values by name, [*shape] or [starts, *shape], as arrays; and the number of starts."""
    try:
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
    except (TypeError, ValueError):
        raise SettingsError("init.values: expected numbers, or lists of numbers, by the names of variables.") from None
    leads = {
        arrays[variable.name].shape[0]
        for variable in model.variables
        if variable.name in arrays and arrays[variable.name].ndim == len(variable.shape) + 1
    }
    if len(leads) > 1:
        raise SettingsError(f"init.values: found {sorted(leads)} starts; expected the same number for all variables.")
    return arrays, leads.pop() if leads else 1


def _given(model: Model, values: Mapping[str, Any], count: int) -> NDArray[Any]:
    """[starts, dimension], from values by name [*shape] or [starts, *shape]."""
    shapes = {variable.name: variable.shape for variable in model.variables}
    arrays, starts = _arrays(model, values)
    if starts > count:
        raise SettingsError(
            f"init.values: found {starts} starts for {count} superchains; set superchains to at least {starts}."
        )
    spread = {
        name: np.broadcast_to(array, (starts, *array.shape)) if array.shape == shapes.get(name) else array
        for name, array in arrays.items()
    }
    try:
        rows = model.unconstrain(spread)
    except ModelError as error:
        raise SettingsError(f"init.values: {error}") from None
    return np.asarray(rows).reshape(starts, model.dimension)


def draws_of_run(model: Model, path: str) -> NDArray[Any]:
    """[n, dimension]: the draws in a file of an earlier run, as positions of this model.

    From the group `unconstrained_posterior`, else from the values of the variables. Raises SettingsError for a file
    that cannot be read or does not fit.
    """
    file = Path(os.path.expanduser(path))
    import xarray

    groups: dict[str, Any] = {}
    for name in ("unconstrained_posterior", "posterior"):
        try:
            with xarray.open_dataset(file, group=name, engine="h5netcdf") as dataset:
                groups[name] = dataset.load()
        except FileNotFoundError:
            raise SettingsError(f"init.run: there is no file {path}.") from None
        except (OSError, ValueError, KeyError) as error:
            if not groups and name == "posterior":
                raise SettingsError(f"init.run: {path} is no file of an earlier run ({error}).") from error
    free = groups.get("unconstrained_posterior")
    names = [variable.name for variable in model.variables]
    if free is not None and set(names) <= set(free.data_vars):
        parts = [_rows(free[v.name], v.free, path) for v in model.variables]
        return np.concatenate(parts, axis=1)
    posterior = groups.get("posterior")
    missing = [name for name in names if posterior is None or name not in posterior.data_vars]
    if missing:
        raise SettingsError(
            f"init.run: {path} has no {missing[0]!r}; expected draws of {', '.join(names)}. A run of this model with "
            "output.unconstrained=true has them."
        )
    assert posterior is not None
    values = {v.name: _rows(posterior[v.name], v.size, path).reshape(-1, *v.shape) for v in model.variables}
    try:
        return model.unconstrain(values)
    except ModelError as error:
        raise SettingsError(f"init.run: {path} does not fit the model: {error}") from None


def _rows(array: Any, size: int, path: str) -> NDArray[Any]:
    """[draws of all chains, size] of one variable."""
    rest = [dim for dim in array.dims if dim not in ("chain", "draw")]
    values = array.transpose("chain", "draw", *rest).values
    rows: NDArray[Any] = values.reshape(values.shape[0] * values.shape[1], -1)
    if rows.shape[1] != size:
        raise SettingsError(
            f"init.run: in {path} {array.name!r} has {rows.shape[1]} numbers in each draw; expected {size}."
        )
    return rows


def _of_prior(model: Model, sampler: SamplerSettings, execution: ExecutionSettings, count: int) -> Proposals:
    if model.prior is None:
        raise SettingsError(f"init: found prior, but the model {model.name!r} has no function `prior`.")

    def proposed(attempt: int) -> NDArray[Any]:
        values, _ = Quantities(model, execution, sampler.seed + attempt).of_prior(count)
        with np.errstate(all="ignore"):
            return model.unconstrain(values)

    return proposed


def _of_paths(model: Model, sampler: SamplerSettings, count: int) -> Proposals:
    def proposed(attempt: int) -> NDArray[Any]:
        rng = _rng(sampler, attempt)
        starts = _uniform(model, sampler.init, rng, count)
        one, many = _densities(model, default_engine(model, starts[0].astype(model.dtype)))
        return pathfinder_starts(one, many, starts, np.random.default_rng((sampler.seed, attempt, _PATH)))

    return proposed


def _densities(model: Model, engine: Engine) -> tuple[Any, Any]:
    """Value and gradient at one position, and log-densities at several, in NumPy's float64."""
    library = engine.library
    differentiated, density = library.differentiated(model.flat_log_density), library.compiled(model.flat_log_density)

    def one(position: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        value, gradient = differentiated(library.tensor(position.astype(model.dtype)))
        return float(np.asarray(value)), np.asarray(gradient, np.float64)

    def many(positions: NDArray[Any]) -> NDArray[Any]:
        return np.array([float(np.asarray(density(library.tensor(row.astype(model.dtype))))) for row in positions])

    return one, many
