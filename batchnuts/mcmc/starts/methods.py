"""Where chains start, by the method that is asked for: positions, proposed again where they cannot be used."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.library_choice import DensityLibrary, density_library_of
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.quantities import Quantities
from batchnuts.mcmc.settings.init_settings import InitSettings
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains, superchain_of
from batchnuts.mcmc.starts.pathfinder import pathfinder_starts
from batchnuts.mcmc.starts.tuning import KEY, Tuning
from batchnuts.mcmc.storage.earlier_run import draws_of_run
from batchnuts.settings.schema import SettingsError, shown

Proposals = Callable[[int], NDArray[Any]]
"""A function of the number of an attempt: positions [chains, dimension] in the model's dtype, not finite where there is
none."""


COMPLETIONS = 20
"""How often a chain tries random values of the variables without initial values, where the model refuses them."""


def make_proposals(
    model: Model, sampler: SamplerSettings, execution: ExecutionSettings, tuning: Tuning | None = None
) -> Proposals:
    """The starts that are tried first (attempt 0), and others where the density is not finite there.

    The chains of a superchain start at the same position. Those of a seed are always the same. tuning: of an earlier
    run, whose last positions are starts unless the settings say where chains start. Raises SettingsError
    where the method does not fit the model, or a run cannot be read.
    """
    init, count = sampler.init, count_superchains(sampler)
    of_superchains = _of_superchains(model, sampler, execution, count, tuning)
    superchain = superchain_of(sampler.chain_count, count)

    first = functools.cache(lambda: proposal(0))  # it is checked, and then used: an initializer is called once

    def proposed(attempt: int) -> NDArray[Any]:
        return proposal(attempt) if attempt else first()

    def proposal(attempt: int) -> NDArray[Any]:
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
"""Numbers that keep random numbers for different purposes apart."""


def _of_superchains(
    model: Model, sampler: SamplerSettings, execution: ExecutionSettings, count: int, tuning: Tuning | None
) -> Proposals:
    """Positions [superchains, dimension] of an attempt."""
    init = sampler.init
    if init.values is not None:
        return _of_values(model, sampler, init.values, count)
    if init.run is not None:
        drawn = draws_of_run(model, init.run, "sampler.init.run")
        return lambda attempt: _chosen(drawn, count, sampler.seed, attempt)
    if tuning is not None and not init.given:
        enough = len(tuning.positions) >= count
        last = tuning.positions if enough else draws_of_run(model, tuning.path, KEY)
        return lambda attempt: _chosen(last, count, sampler.seed, attempt)
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
    arrays = {}
    for name, value in values.items():
        try:
            array = np.asarray(value)
            text = array.dtype.kind in "SU"
            array = array.astype(np.float64)
        except (TypeError, ValueError):  # texts, lists of several lengths
            text = True
        if text:
            raise SettingsError(
                f"sampler.init.values.{name}: found {shown(value)}; expected numbers, or lists of numbers."
            )
        if not np.isfinite(array).all():
            raise SettingsError(
                f"sampler.init.values.{name}: found {array[~np.isfinite(array)].flat[0]}; expected finite numbers."
            )
        arrays[name] = array
    leads = {
        arrays[name].shape[0]
        for name, shape in model.value_shapes.items()
        if name in arrays and arrays[name].ndim == len(shape) + 1
    }
    if len(leads) > 1:
        raise SettingsError(
            f"sampler.init.values: found {sorted(leads)} starts; expected the same number for all variables."
        )
    return arrays, leads.pop() if leads else 1


def _of_values(model: Model, sampler: SamplerSettings, values: Mapping[str, Any], count: int) -> Proposals:
    """Positions of values by name, [*shape] or [starts, *shape]; those of variables without values are random."""
    arrays, starts = _arrays(model, values)
    shapes = model.value_shapes
    if starts > count:
        raise SettingsError(
            f"sampler.init.values: found {starts} starts for {count} superchains; set sampler.superchains to at least "
            f"{starts}."
        )
    spread = {
        name: np.broadcast_to(array, (starts, *array.shape)) if array.shape == shapes.get(name) else array
        for name, array in arrays.items()
    }

    def unconstrained(values: Mapping[str, Any]) -> NDArray[Any]:
        try:
            return np.asarray(model.unconstrain(values)).reshape(-1, model.dimension)
        except ModelError as error:
            raise SettingsError(f"sampler.init.values: {error}") from None

    def completed(rng: np.random.Generator, rows: slice = slice(None)) -> NDArray[Any]:
        if model.initializer is None:
            others = _uniform(model, sampler.init, rng, count).astype(model.dtype)
        else:
            others = model.initial_positions(rng, sampler.chain_count)[:count]
        given = {name: array[np.arange(count)[rows] % len(array)] for name, array in spread.items()}
        return unconstrained({**(model.values_at(others[rows]) or {}), **given})

    def one_completed(rng: np.random.Generator, row: int) -> NDArray[Any]:
        for _ in range(COMPLETIONS - 1):
            with contextlib.suppress(SettingsError):
                return completed(rng, slice(row, row + 1))
        return completed(rng, slice(row, row + 1))

    def all_completed(attempt: int) -> NDArray[Any]:
        try:
            return completed(_rng(sampler, attempt))
        except SettingsError:  # perhaps a random value outside of a support that depends on a value given
            rng = _rng(sampler, attempt)
        try:
            return np.concatenate([one_completed(rng, row) for row in range(count)])
        except SettingsError as error:
            if any(repr(name) in str(error) for name in spread):
                raise
            random = ", ".join(repr(name) for name in shapes if name not in spread)
            raise SettingsError(
                f"{error} Random values of {random} were tried {COMPLETIONS} times; if their supports depend on the "
                "values given, give values of all of them."
            ) from None

    if set(spread) < set(shapes):
        all_completed(0)  # values that are refused are reported before anything else
        return all_completed
    rows = unconstrained(spread)
    return lambda attempt: rows[np.arange(count) % len(rows)]


def _of_prior(model: Model, sampler: SamplerSettings, execution: ExecutionSettings, count: int) -> Proposals:
    if model.prior is None:
        raise SettingsError(f"sampler.init: found prior, but the model {model.name!r} has no function `prior`.")

    def proposed(attempt: int) -> NDArray[Any]:
        values, _ = Quantities(model, execution, sampler.seed + attempt, checked=False).of_prior(count)
        with np.errstate(all="ignore"):
            return model.unconstrain(values)

    return proposed


def _of_paths(model: Model, sampler: SamplerSettings, count: int) -> Proposals:
    def proposed(attempt: int) -> NDArray[Any]:
        rng = _rng(sampler, attempt)
        starts = _uniform(model, sampler.init, rng, count)
        at_one, at_many = _densities(model, density_library_of(model, starts[0].astype(model.dtype)))
        return pathfinder_starts(at_one, at_many, starts, np.random.default_rng((sampler.seed, attempt, _PATH)))

    return proposed


def _densities(model: Model, density_library: DensityLibrary) -> tuple[Any, Any]:
    """Value and gradient at one position, and log-densities at several, in NumPy's float64."""
    library = density_library.library
    differentiated, density = library.differentiated(model.flat_log_density), library.compiled(model.flat_log_density)

    def at_one(position: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        value, gradient = differentiated(library.tensor(position.astype(model.dtype)))
        return float(np.asarray(value)), np.asarray(gradient, np.float64)

    def at_many(positions: NDArray[Any]) -> NDArray[Any]:
        return np.array([float(np.asarray(density(library.tensor(row.astype(model.dtype))))) for row in positions])

    return at_one, at_many
