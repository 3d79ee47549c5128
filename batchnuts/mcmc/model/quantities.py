"""What is computed from draws: generated quantities, pointwise log-likelihoods, predictions.

A model's functions are written for one draw (`Model.generated`, `log_likelihood`, `predictive`, `prior`). Here they are
batched over all draws, some hundred at a time, by the compiler and backend that ran the chains:

    of draws of the posterior, or of the prior:    values, seed -> generated, log_likelihood, predictive
    before them, for draws of the prior:           seed -> values
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchedFunction, batch, primitive, random
from batchnuts.autobatch.machine import (
    Identity,
    TensorType,
    Traced,
    begin_code,
    engine_with,
    recorded,
)
from batchnuts.disk_cache.folder import current, keeping
from batchnuts.mcmc.model.check_model import place_of, user_functions
from batchnuts.mcmc.model.data_argument import leaves_of, types_of
from batchnuts.mcmc.model.failures import failed_with
from batchnuts.mcmc.model.fingerprint import Fingerprint, fingerprint
from batchnuts.mcmc.model.library_choice import OPS, DensityLibrary, density_library_for, density_library_of
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.quantity_functions import FUNCTIONS, OF_DRAWS, called
from batchnuts.mcmc.model.variables import check_group, refuse_unknown_names
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.process.signals import say
from batchnuts.settings.schema import nearest

ROWS = 1024
"""Most draws that are computed at once."""

MOST_NUMBERS = 1 << 22
"""The most numbers of results that are computed at once; where a draw has many, fewer draws are."""

PRIOR_DRAWS = 1000

_MOST_OF_PRIOR = 3
"""How many times as many draws of the prior are made, at most, where values are not finite."""

_STREAMS = {"posterior": 1, "prior": 2, "prior_predictive": 3}
"""What is folded into the seed's key for their random numbers, which are not those of the chains."""

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, [n, ...] for n draws."""

Types = tuple[tuple[tuple[int, ...], str], ...]
"""The shapes and dtypes of a function's arguments, of one draw."""


@dataclass(frozen=True, eq=False)
class _TraceCache:
    """Traces of a model's functions that a check has made, for the run that it begins."""

    backend: str
    reached: Fingerprint
    """What the functions found around them after they were traced; empty where no trace is used again."""
    traced: dict[tuple[str, Types], Traced]
    """Traces, by the name of the function that is made of a model's and the types of its inputs."""


def has_quantities(model: Model) -> bool:
    """Whether a model has any function of draws, or of the prior."""
    return model.prior is not None or any(map(model.gives, OF_DRAWS))


def check_quantities(
    model: Model, density_library: DensityLibrary, position: NDArray[Any], *, whole: bool = True
) -> None:
    """Trace each function for one draw, so that a mistake is found before a run and not after it.

    position [dimension]: a start. whole: whether the model has all of its functions, of whose results `dims` and
    `coords` may be. Raises ModelError for a function that fails, and for a result or names that do not fit.
    """
    density_library = _able(model, density_library)
    traced: dict[tuple[str, Types], Traced] = {}
    of_draws: dict[str, Any] = {}
    leaves = leaves_of(model.data)
    if has_quantities(model):
        inputs = position, random.key(0), *leaves
        trace = _traced(model, density_library, "of_draw", *inputs)
        traced["of_draw", _types(*inputs)], of_draws = trace, trace.shapes
    axes = model.axes()
    for role, shapes in of_draws.items():
        arrays = {name: (model.dims_of(name, shape), shape) for name, shape in shapes.items()}
        axes |= {name: dims for name, (dims, _) in arrays.items()}
        if role == "generated" and model.reports_variables:  # they are saved together
            arrays |= {variable.name: (variable.axis_names, variable.shape) for variable in model.variables}
        check_group(f"Model {model.name!r}: its function {role}", arrays, model.labels())
    if whole and model.reports_variables:
        refuse_unknown_names(f"Model {model.name!r}", model.dims, model.coords, axes)
    variables = {variable.name for variable in model.variables if model.reports_variables}
    if clashes := of_draws.get("generated", {}).keys() & variables:
        raise ModelError(
            f"Model {model.name!r}: its function generated returns {sorted(clashes)}, which are its variables; choose "
            "other names."
        )
    generated = of_draws.get("generated", {})
    for name in sorted(model.of_data - generated.keys()):
        raise ModelError(
            f"Model {model.name!r}: of_data names {name!r}, which its function generated does not return"
            f"{nearest(name, generated)}"
        )
    if model.prior is not None:
        of_seed = random.key(0), *leaves
        trace = traced["of_prior", _types(*of_seed)] = _traced(model, density_library, "of_prior", *of_seed)
        expected = {variable.name: variable.shape for variable in model.variables}
        if trace.shapes != expected:
            raise ModelError(
                f"Model {model.name!r}: its function prior returns arrays of shapes {trace.shapes}; expected "
                f"{expected}."
            )
    has_identity = any(trace.identity is not None for trace in traced.values())
    model.cache.traces = _TraceCache(density_library.backend, _reached_by(model) if has_identity else {}, traced)


def begin_quantities(model: Model) -> None:
    """Let LLVM begin with what the last check has traced, if that will be machine code: the processor has time for it
    while Python compiles the chains' program."""
    cache: _TraceCache | None = model.cache.traces
    if cache is not None and cache.backend == OPS:
        for trace in cache.traced.values():
            if trace.expression is not None:
                begin_code(trace.expression)


def generated_shapes(model: Model, density_library: DensityLibrary) -> dict[str, tuple[int, ...]]:
    """The shape of each quantity that a model generates from one draw. Raises ModelError for a function that fails."""
    inputs = np.zeros(model.dimension, model.dtype), random.key(0), *leaves_of(model.data)
    traced = _cached_or_traced(model, _able(model, density_library), "of_draw", *inputs)
    shapes: dict[str, tuple[int, ...]] = traced.shapes["generated"]
    return shapes


def log_likelihood_at(model: Model, density_library: DensityLibrary, positions: NDArray[Any]) -> list[Arrays]:
    """The log-likelihood of each observation, at each of some positions [n, dimension] alone.

    Raises ModelError for a function that fails.
    """
    library = _able(model, density_library).library

    def at(position: Any) -> dict[str, Any]:
        if model.of_draw is not None:
            of_draw = model.of_draw.function(position, random.key(0), *model.data_argument())
            return dict(of_draw["log_likelihood"])
        return called(model, "log_likelihood", (model.constrain(position), *model.data_argument()), library)

    try:
        compiled = library.compiled(at)
        log_likelihoods = [compiled(library.tensor(row)) for row in positions]
    except Exception as error:
        raise _failed(model, error) from error
    return [{name: np.asarray(value) for name, value in of_draw.items()} for of_draw in log_likelihoods]


class LeftOutError(Exception):
    """Raised to stop computing generated quantities after a signal."""


Between = Callable[[float], None]
"""Called with the share of the rows that is done, between two parts; may raise LeftOutError."""


class Quantities:
    """A model's functions, compiled for many draws at once.

    What is made of a draw depends on its row, on the numbers of its chain and draw, and on the seed only. A program is
    made of one trace of the functions, and found on disk by what was traced (decision 59).

    checked: whether traces of the last check of the model serve, if nothing has changed that can be seen.
    """

    def __init__(
        self,
        model: Model,
        execution: ExecutionSettings,
        seed: int,
        between: Between | None = None,
        *,
        checked: bool = True,
    ) -> None:
        self._model = model
        self._checked = checked
        self._between = between
        self._density_library = _able(model, density_library_for(model, execution.backend))
        backend = self._density_library.backend
        self._executor = "stackless"  # without recursion it is one compiled block
        if backend == OPS:
            backend, self._executor = engine_with("native", OPS), "virtual_machine"
        execution = execution.model_copy(update={"backend": backend})
        if execution.backend == "tensorflow":  # XLA lacks random numbers of many distributions, and takes longer
            execution = execution.with_expert(mode="graph")
        self._execution = execution
        self._seed = seed
        self._programs: dict[tuple[str, Types], tuple[BatchedFunction, Traced]] = {}
        self._width = 0
        """Draws at once; 0: not known yet."""

    def of_other(self, model: Model, seed: int) -> Quantities:
        """The same programs for the model with other data of the same types (`Model.with_data`), and another seed."""
        other = copy.copy(self)
        other._model, other._seed = model, seed
        return other

    def of_posterior(
        self, rows: NDArray[Any], chain: NDArray[np.int64] | None = None, draw: NDArray[np.int64] | None = None
    ) -> dict[str, Arrays]:
        """The quantities at positions [n, dimension], by role. Raises ModelError where a function fails.

        chain, draw [n]: the numbers of each row's chain, and of the draw in it; None: 0, where nothing is predicted.
        """
        none = np.zeros(len(rows), np.int64)
        return self._of_draws(rows, self._keys(none if chain is None else chain, none if draw is None else draw))

    def of_prior(self, count: int = PRIOR_DRAWS) -> tuple[Arrays, dict[str, Arrays]]:
        """Values drawn from the prior, and what is computed of them. Draws that are not finite are made again, and a
        line says so. Raises ModelError where a function fails, and where most draws are not finite."""
        values = self._finite_draws(count)
        if not any(map(self._model.gives, OF_DRAWS)):
            return values, {}
        keys = random.lane_keys(self._stream("prior_predictive"), count)
        return values, self._of_draws(self._model.unconstrain(values), keys)

    def _finite_draws(self, count: int) -> Arrays:
        parts: list[Arrays] = []
        accepted, attempts, without = 0, 0, ""
        while accepted < count and attempts < _MOST_OF_PRIOR * count:
            keys = random.lane_keys(self._stream("prior"), count - accepted, first=attempts)
            drawn: Arrays = self._run("of_prior", [keys], max(1, min(ROWS, MOST_NUMBERS // self._numbers_of_data)))
            finite = {name: np.isfinite(x).reshape(len(keys), -1).all(1) for name, x in drawn.items()}
            without = without or next((name for name, good in finite.items() if not good.all()), "")
            good = np.all(list(finite.values()), axis=0)
            parts.append({name: x[good] for name, x in drawn.items()})
            accepted, attempts = accepted + int(good.sum()), attempts + len(keys)
        why = f"since its {without!r} is not finite (a transformation that is not defined at a prior draw, say)"
        if accepted < count:
            raise ModelError(
                f"Model {self._model.name!r}: there are no prior draws: of {attempts}, {accepted} can be used, {why}."
            )
        if attempts > count:
            say(f"Model {self._model.name!r}: {attempts - count} of {attempts} prior draws were made again, {why}.")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _keys(self, chain: NDArray[np.int64], draw: NDArray[np.int64]) -> NDArray[np.uint32]:
        """[n, 2]: a key for each of n draws."""
        first, last = int(chain.min()), int(chain.max())
        of_chains = random.lane_keys(self._stream("posterior"), last - first + 1, first=first)  # a call costs most
        keys: NDArray[np.uint32] = random.fold_in(of_chains[chain - first], draw)
        return keys

    def _of_draws(self, rows: NDArray[Any], keys: NDArray[np.uint32]) -> dict[str, Arrays]:
        if not self._width:
            _, traced = self._program("of_draw", [rows, keys])
            numbers = sum(math.prod(shape) for shapes in traced.shapes.values() for shape in shapes.values())
            self._width = max(1, min(ROWS, MOST_NUMBERS // max(1, numbers, self._numbers_of_data)))
        results: dict[str, Arrays] = self._run("of_draw", [rows, keys], self._width)
        return results

    @property
    def _numbers_of_data(self) -> int:
        """Of the data that the functions take, at least 1."""
        return max(1, sum(leaf.size for leaf in leaves_of(self._model.data)))

    def _program(self, name: str, inputs: list[NDArray[Any]]) -> tuple[BatchedFunction, Traced]:
        """One of FUNCTIONS over draws, for such inputs [n, ...] and the model's data, and its trace."""
        first = [*(array[0] for array in inputs), *leaves_of(self._model.data)]
        place = name, _types(*first)
        if place not in self._programs:
            with keeping(self._execution.cache):
                find = _cached_or_traced if self._checked else _traced
                traced = find(self._model, self._density_library, name, *first)
            function = _over_draws(
                FUNCTIONS[name](self._model) if traced.again is None else traced.again, len(inputs), traced.expression
            )
            if (identity := traced.identity) is not None and self._execution.expert.mode == "xla":
                key_of = self._density_library.library.key_by_identity
                function.identity = Identity(lambda lanes: identity, key_of, by_lanes=False)
            self._programs[place] = function, traced
        return self._programs[place]

    def _run(self, name: str, inputs: list[NDArray[Any]], width: int) -> Any:
        """In parts of `width` rows each, the last one padded: one compiled program serves all."""
        program, _ = self._program(name, inputs)
        count, execution = len(inputs[0]), self._execution
        result: Any = None
        leaves = leaves_of(self._model.data)
        data = (tuple(np.broadcast_to(leaf, (width, *leaf.shape)) for leaf in leaves),) if leaves else ()
        for start in range(0, count, width):
            rows = np.minimum(np.arange(start, start + width), count - 1)
            try:
                with keeping(execution.cache):
                    part = program.run(
                        *(array[rows] for array in inputs),
                        *data,
                        executor=self._executor,
                        backend=execution.backend,
                        mode=execution.expert.mode,
                    )
            except Exception as error:
                raise _failed(self._model, error.__cause__ or error) from error
            if result is None:
                result = _room_for(part, count)
            _write_rows(part, result, start)
            if self._between is not None:
                self._between(min(1.0, (start + width) / count))
        return result

    def _stream(self, name: str) -> int:
        """A seed for some random numbers."""
        low, high = random.fold_in(random.key(self._seed), _STREAMS[name])
        return int(low) | int(high) << 32


def _over_draws(function: Callable[..., Any], arguments: int, expression: Any) -> BatchedFunction:
    """A function of one draw's arrays, and of data, as a batched one. expression: what it computes, if that is
    known."""

    @primitive(costly=True, record=lambda *_: expression)
    def of_one(*arrays: Any) -> Any:
        *own, data = arrays
        return function(*own, *data)

    @batch
    def draw(position: Any, key: Any, data: Any = ()) -> Any:
        result = of_one(position, key, data)
        return result

    @batch
    def prior(key: Any, data: Any = ()) -> Any:
        result = of_one(key, data)
        return result

    return draw if arguments == 2 else prior


def _room_for(part: Any, count: int) -> Any:
    """Arrays for so many draws, like those of a part of them."""
    if isinstance(part, dict):
        return {name: _room_for(child, count) for name, child in part.items()}
    return np.empty((count, *part.shape[1:]), part.dtype)


def _write_rows(part: Any, target: Any, start: int) -> None:
    """The draws of a part where they belong; what it is padded with is left out."""
    if isinstance(target, dict):
        for name, array in target.items():
            _write_rows(part[name], array, start)
    else:
        rows = target[start : start + len(part)]
        rows[:] = part[: len(rows)]


def _able(model: Model, density_library: DensityLibrary) -> DensityLibrary:
    """The library that computes a model's functions: that of the density, or where this is machine code and one of them
    is not written with `ops`, the library that would be the density's otherwise. `of_draw` is machine code."""
    if model.of_draw is not None:
        return DensityLibrary(OPS, "")
    if density_library.backend != OPS:
        return density_library
    key = TensorType("uint32", (2,))
    data = types_of(model.data)
    types = {"of_draw": (TensorType(model.dtype, (model.dimension,)), key, *data), "of_prior": (key, *data)}
    needed = ["of_draw"] * has_quantities(model) + ["of_prior"] * (model.prior is not None)
    able = all(recorded(FUNCTIONS[name](model), *types[name]) is not None for name in needed)
    return density_library if able else density_library_of(model)


def _traced(model: Model, density_library: DensityLibrary, name: str, *inputs: NDArray[Any]) -> Traced:
    """One of FUNCTIONS, traced now; where nothing is kept on disk, its shapes alone."""
    library = density_library.library
    function, tensors = library.untransformed(FUNCTIONS[name](model)), map(library.tensor, inputs)
    try:
        if current() is None:
            return Traced(library.result_shapes(function, *tensors))
        return library.traced(function, *tensors)
    except Exception as error:
        raise _failed(model, error) from error


def _cached_or_traced(model: Model, density_library: DensityLibrary, name: str, *inputs: NDArray[Any]) -> Traced:
    """The same, from the last check of the model if what its functions reach is as it was."""
    cache: _TraceCache | None = model.cache.traces
    if cache is not None and cache.backend == density_library.backend:
        traced = cache.traced.get((name, _types(*inputs)))
        if traced is not None and (traced.again is None or cache.reached == _reached_by(model)):
            return traced
    return _traced(model, density_library, name, *inputs)


def _reached_by(model: Model) -> Fingerprint:
    """What the functions find around them now, and what values of variables are made by."""
    supports = [getattr(variable.support, "__dict__", None) for variable in model.variables]
    of_draw = None if model.of_draw is None else model.of_draw.function
    return fingerprint(*(getattr(model, role) for role in (*OF_DRAWS, "prior")), of_draw, supports)


def _types(*arrays: NDArray[Any]) -> Types:
    return tuple((array.shape, array.dtype.str) for array in arrays)


def _failed(model: Model, error: BaseException) -> ModelError:
    """The error where not the function alone fails, but its trace, or its program for many draws."""
    if isinstance(error, ModelError):
        return error
    roles = [*filter(model.gives, OF_DRAWS), *(["prior"] if model.prior is not None else [])]
    return ModelError(
        f"Model {model.name!r}: what is computed from draws ({', '.join(roles)}) "
        f"{failed_with(error, place_of(error, model), (), *user_functions(model))}"
    )
