"""Which array library a model's density is written in, and so which backend runs it."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import (
    EXPRESSIONS,
    Expression,
    TensorLibrary,
    engine_infos,
    engine_on,
    engine_with,
    is_family,
    missing,
    preferred_backend,
    tensor_library,
    tensor_library_of,
)
from batchnuts.mcmc.model.data_argument import leaves_of
from batchnuts.mcmc.model.density_expression import (
    NotEmitted,
    agrees,
    density_expression,
    input_types,
    is_emitted,
)
from batchnuts.mcmc.model.failures import ends_nothing
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.process.quiet import quiet_imports
from batchnuts.settings.schema import SettingsError

LIBRARIES = tuple(name for name, info in engine_infos().items() if info.differentiates)
"""By the names of their backends; the preferred one first."""

OPS = "numpy"
"""In place of one of LIBRARIES: a density written with `ops` whose gradient machine code computes."""


Evaluated = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""A position, the log-density there, and its gradient."""


@dataclass(frozen=True)
class DensityLibrary:
    """The library that differentiates a density."""

    backend: str
    """One of LIBRARIES, or OPS."""
    reason: str
    """Why it was taken, after the backend's name: "because ..."; empty where the user has chosen it."""
    in_machine_code: bool = False
    """Whether chains compute the gradient in machine code, and the library only what is evaluated elsewhere."""
    expression: Expression | None = field(default=None, compare=False, repr=False)
    """The density with its gradient, if it was recorded for that already."""

    @property
    def library(self) -> TensorLibrary:
        """The library with its functions; it is imported when it is first asked for."""
        return EXPRESSIONS if self.backend == OPS else tensor_library(self.backend)

    def has(self, value: Any) -> bool:
        """Whether a value is an array of the library."""
        if self.backend == OPS:
            return isinstance(value, (np.ndarray, np.generic))
        return tensor_library_of(value) is self.library


def written_in(model: Model, position: NDArray[Any] | None = None) -> str | None:
    """The library of a density, one of LIBRARIES; None for one that runs on either. Found out once for a model.

    position [dimension]: where to try it; otherwise at a random one.
    """
    if model.cache.library is None:
        if position is None:
            position = model.initial_positions(np.random.default_rng(0), 1)[0]
        model.cache.library = (_found_out(model, position),)
    return model.cache.library[0]


def density_library_of(model: Model, position: NDArray[Any] | None = None) -> DensityLibrary:
    """The one that `execution.backend: auto` takes. Raises ModelError where it is not installed."""
    name = written_in(model, position)
    if name is not None:
        why = f"because the log-density is {model.computed_by or f'written in {_title(name)}'}"
        return _installed(model, DensityLibrary(name, why))
    if preferred_backend() == "jax":
        return DensityLibrary("jax", "because the log-density runs on either library and JAX starts sooner")
    if missing("tensorflow"):
        either = ", or ".join(filter(None, map(missing, LIBRARIES)))
        raise ModelError(f"Model {model.name!r}: the gradient of its log-density needs {either}.")
    return DensityLibrary("tensorflow", "because JAX is not installed")


def _installed(model: Model, density_library: DensityLibrary) -> DensityLibrary:
    """The library, if it is installed; else raises ModelError."""
    needed = missing(density_library.backend)
    if needed is None:
        return density_library
    others = [_title(name) for name in LIBRARIES if written_in(model) is None and missing(name) is None]
    if others:
        needed += f"; {' or '.join(others)} is installed, and this log-density runs on it: use backend auto"
    raise ModelError(f"Model {model.name!r}: the gradient of its log-density needs {needed}.")


def library_of_gradients(backend: str) -> str | None:
    """The library, one of LIBRARIES or OPS, that differentiates densities in runs on this backend; None: the density's
    own."""
    info = engine_infos().get(backend)  # none of `auto`
    if info is None:
        return None
    return backend if info.differentiates else info.gradients or None


def density_library_for(model: Model, backend: str) -> DensityLibrary:
    """The library that differentiates a density in runs on this backend, which need not be decided: that of `auto`, and
    of a family, goes by the density."""
    info = engine_infos().get(backend)  # none of `auto`
    if info is None or info.family == backend:
        alone = _engine_alone(model, ExecutionSettings.model_validate({"backend": backend}), None, None)
        return density_library_of(model) if alone is None else DensityLibrary(OPS, "", in_machine_code=True)
    name = library_of_gradients(backend)
    return density_library_of(model) if name is None else DensityLibrary(name, "")


def likely_backend(model: Model, execution: ExecutionSettings) -> str:
    """The backend that a run will take, as far as that is known without trying the density."""
    library = _likely_library(model, execution)
    return library if execution.backend == "auto" else engine_with(execution.backend, library)


def _likely_library(model: Model, execution: ExecutionSettings) -> str:
    if model.library is not None:
        return model.library
    loaded = [name for name in LIBRARIES if name in sys.modules]
    if len(loaded) == 1:
        return loaded[0]
    return preferred_backend(execution.expert.mode, execution.expert.style)


def choose_density_library(
    model: Model, execution: ExecutionSettings, position: NDArray[Any], chains: int | None = None
) -> tuple[DensityLibrary, ExecutionSettings]:
    """The density's library for the settings, and these with their `backend` decided.

    position [dimension]: a start. chains: of the run, if their number is known.

    Raises ModelError where the settings ask for another library than that of the density, or for one that is not
    installed, SettingsError for a mode that the library does not have.
    """
    requested, expert = execution.backend, execution.expert
    _refuse_unknown(execution)
    if (engine := _engine_alone(model, execution, position, chains)) is not None:
        reason = _alone(model) if model.computed_by or requested != engine else ""
        return DensityLibrary(OPS, reason, in_machine_code=True), execution.model_copy(update={"backend": engine})
    density_library = density_library_of(model, position)
    if requested == "auto":
        mode, style = expert.mode, expert.style
        if preferred_backend(mode, style) != "jax" and density_library.backend == "jax" and written_in(model) is None:
            which = "mode graph" if mode == "graph" else f"style {style}"
            density_library = DensityLibrary("tensorflow", f"because {which} is TensorFlow's")
        engine = engine_on(density_library.backend, mode, style, expert.schedule, expert.executor)
        if engine != density_library.backend:
            density_library = _of_gradients(density_library, model, chains)
        execution = execution.model_copy(update={"backend": engine})
        _refuse_unknown(execution)
        return density_library, execution
    engine = engine_with(requested, density_library.backend)
    if engine != requested or is_family(requested):
        return _of_gradients(density_library, model, chains), execution.model_copy(update={"backend": engine})
    library = library_of_gradients(requested)
    if library == OPS:
        raise ModelError(
            f"Model {model.name!r}: its gradient cannot be computed in machine code alone, as execution.backend "
            f"{requested} asks for: it is not written with batchnuts.autobatch.ops, calls a function that has no "
            "derivative, or is too much work. Use backend native."
        )
    if library is None:
        return density_library, execution
    if library != density_library.backend and (name := written_in(model)) is not None:
        differentiated = "" if library == requested else f", whose gradients are computed by {_title(library)}"
        raise ModelError(
            f"Model {model.name!r}: its log-density is written in {_title(name)}, but execution.backend is "
            f"{requested}{differentiated}. Use backend {name}, or auto; a density written with batchnuts.autobatch.ops "
            "runs on either."
        )
    return _installed(model, DensityLibrary(library, "")), execution


def _alone(model: Model) -> str:
    """Why no library of arrays is needed."""
    if model.computed_by:
        return f"with gradients by {model.computed_by}"
    return "with gradients in machine code, because the log-density is written with ops"


def confirmed(model: Model, density_library: DensityLibrary, at_start: Evaluated) -> DensityLibrary:
    """The library, which computes gradients itself where what it has recorded for machine code gives others than it has
    given at a start. at_start: position, log-density and gradient there."""
    expression = density_library.expression
    if expression is None or agrees(expression, leaves_of(model.data), *at_start):
        return density_library
    text = f"with gradients by {_title(density_library.backend)}, because what it records for machine code differs"
    return DensityLibrary(density_library.backend, text)


def runs_alone(model: Model, execution: ExecutionSettings, chains: int | None = None) -> bool:
    """Whether a run needs no library of arrays for the density. chains: of the run, if their number is known."""
    return _engine_alone(model, execution, None, chains) is not None


def _engine_alone(
    model: Model, execution: ExecutionSettings, position: NDArray[Any] | None, chains: int | None
) -> str | None:
    """The engine that needs no library of arrays for a density written with `ops`; None where another one is taken."""
    requested, expert = execution.backend, execution.expert
    if requested == "auto":
        engine = engine_on(OPS, expert.mode, expert.style, expert.schedule, expert.executor)
    else:
        engine = engine_with(requested, OPS)
    if library_of_gradients(engine) != OPS or written_in(model, position) is not None:
        return None
    return engine if is_emitted(model, chains) else None


def _of_gradients(density_library: DensityLibrary, model: Model, chains: int | None) -> DensityLibrary:
    """The library where an engine of another name runs the chains: it computes their gradients, or tells machine code
    what these are."""
    name = density_library.backend
    try:
        expression = density_expression(model, input_types(model), chains, density_library.library)
    except NotEmitted as why:
        reason = f"with gradients by {_title(name)}, {density_library.reason}; not in machine code, because of {why}"
        return DensityLibrary(name, reason)
    reason = f"with gradients in machine code, because it can be made of what {_title(name)} traces of the log-density"
    return DensityLibrary(name, reason, in_machine_code=True, expression=expression)


def _refuse_unknown(execution: ExecutionSettings) -> None:
    """Raise SettingsError for a mode or style that the backend does not have."""
    expert = execution.expert
    if execution.backend == "jax" and expert.mode == "graph":
        raise SettingsError(
            "expert.mode: found 'graph', which only TensorFlow has; on the backend jax expected 'xla' or 'eager'."
        )
    info = engine_infos().get(execution.backend)  # none of `auto`
    if expert.style == "gather" and info is not None and (info.name == "jax" or info.is_compiled(expert.mode)):
        raise SettingsError(
            "expert.style: found 'gather', which computes as many rows as there are active lanes; compiled programs "
            "have a fixed number. Expected 'masking' or 'auto', backend numpy, or mode eager of tensorflow."
        )


def _title(backend: str) -> str:
    return engine_infos()[backend].title


def _found_out(model: Model, position: NDArray[Any]) -> str | None:
    """That of a support, if one has a library. Else by what it makes of NumPy's numbers: an array of its library; if it
    refuses them, by the library it accepts."""
    if model.library is not None:
        return model.library
    lanes = np.resize(position, (3, model.dimension))
    twin = model.batched_value_and_gradient
    needed = [variable.support.library for variable in model.variables if variable.support.library is not None]
    if needed:
        return needed[0]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(), quiet_imports():
            warnings.simplefilter("ignore")
            values = [model.flat_log_density(position), *(ends_nothing(twin)(lanes) if twin is not None else ())]
        library = tensor_library_of(*values)
        return None if library is None else _name_of(library)
    except Exception:  # then check_density says what is wrong, if anything is
        pass
    loaded = [name for name in LIBRARIES if name in sys.modules]
    for name in loaded:
        library = tensor_library(name)
        try:
            value = library.call(model.flat_log_density, library.tensor(position))
            if tensor_library_of(value) is library:
                return name
        except Exception:
            continue
    return loaded[0] if len(loaded) == 1 else "tensorflow" if "tensorflow" in loaded else None


def _name_of(library: TensorLibrary) -> str:
    return next(name for name in LIBRARIES if _title(name) == library.name)
