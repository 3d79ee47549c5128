"""A model's functions of one draw as functions of arrays: of a flat position, a key and the data to arrays by role.

Whatever a user's function returns is checked here, and its arrays are those of one library (quantities.py batches
them over draws).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from batchnuts.autobatch import ops
from batchnuts.autobatch.machine import TensorLibrary, tensor_library_of
from batchnuts.mcmc.model.check_model import place_of, user_functions
from batchnuts.mcmc.model.failures import ends_nothing, failed_with
from batchnuts.mcmc.model.model import Model, ModelError

OF_DRAWS = ("generated", "log_likelihood", "predictive")
"""Functions of a draw's values."""


def _of_draw(model: Model) -> Callable[..., Any]:
    """A function of a position, a key, and the arrays of the data if there are any, to a dict of results by role, which
    are arrays of their library."""

    def of_values(library: TensorLibrary | None, position: Any, key: Any, *leaves: Any) -> dict[str, Any]:
        data = model.data_argument(*leaves)
        if model.of_draw is not None:
            at_once = model.of_draw.function(position, key, *data)
            return {role: dict(sorted(at_once[role].items())) for role in OF_DRAWS if role in model.of_draw.roles}
        values = model.constrain(position)
        inputs: dict[str, tuple[Any, ...]] = dict.fromkeys(OF_DRAWS, (values, *data))
        inputs["predictive"] = (values, _as_seed(key, library), *data)
        roles = [role for role in OF_DRAWS if getattr(model, role) is not None]
        return {role: called(model, role, inputs[role], library) for role in roles}

    def of_draw(*arrays: Any) -> Any:
        library = tensor_library_of(*arrays)
        if library is None:
            return of_values(None, *arrays)
        return library.call(functools.partial(of_values, library), *arrays)

    return of_draw


def _of_prior(model: Model) -> Callable[..., Any]:
    """A function of a key, and the arrays of the data if there are any, to a dict of values."""

    def of_seed(library: TensorLibrary | None, key: Any, *leaves: Any) -> dict[str, Any]:
        return called(model, "prior", (_as_seed(key, library), *model.data_argument(*leaves)), library)

    def of_prior(key: Any, *leaves: Any) -> Any:
        library = tensor_library_of(key)
        if library is None:
            return of_seed(None, key, *leaves)
        # the last argument only says that there are 64 bits where the model has them
        wide = library.tensor(np.zeros((), model.dtype))
        return library.call(lambda *arrays: of_seed(library, *arrays[:-1]), key, *leaves, wide)

    return of_prior


FUNCTIONS: dict[str, Callable[[Model], Callable[..., Any]]] = {"of_draw": _of_draw, "of_prior": _of_prior}
"""What is compiled of a model, by name."""


def _as_seed(key: Any, library: TensorLibrary | None) -> Any:
    """A key as the library's own functions take it: TensorFlow's `stateless` ones want signed integers."""
    return ops.bitcast(key, "int32") if library is not None and library.name == "TensorFlow" else key


def called(model: Model, role: str, inputs: tuple[Any, ...], library: TensorLibrary | None) -> dict[str, Any]:
    """What a model's function of that role gives for such arguments, by name. Raises ModelError where it fails."""
    try:
        with ends_nothing:
            result = getattr(model, role)(*inputs)
    except Exception as error:
        names = [variable.name for variable in model.variables] if role != "prior" else []
        failed = failed_with(error, place_of(error, model), names, *user_functions(model))
        raise ModelError(f"Model {model.name!r}: its function {role}, given one draw, {failed}") from error
    return _by_name(model, role, result, library)


def _by_name(model: Model, role: str, result: Any, library: TensorLibrary | None) -> dict[str, Any]:
    """A function's result as a dict of arrays: an array alone is that of the model's only observed variable."""
    if isinstance(result, Mapping):
        if not result or not all(isinstance(name, str) for name in result):
            raise ModelError(
                f"Model {model.name!r}: its function {role} returns a dict of {list(result)}; expected names and "
                "arrays."
            )
        arrays = dict(sorted(result.items()))  # as JAX has dicts
    elif role in ("log_likelihood", "predictive") and len(model.observed_data) == 1:
        arrays = {next(iter(model.observed_data)): result}
    else:
        alone = "" if role in ("prior", "generated") else "; an array alone is for models with one observed variable"
        several_of = isinstance(result, list | tuple)
        kind = "an array" if not several_of and tensor_library_of(result) is not None else f"a {type(result).__name__}"
        raise ModelError(
            f"Model {model.name!r}: its function {role} returns {kind}; expected a dict of names and arrays{alone}."
        )
    several = [
        name
        for name, value in arrays.items()
        if isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and tensor_library_of(value) is not None)
    ]
    if several:
        raise ModelError(
            f"Model {model.name!r}: its function {role} returns a {type(arrays[several[0]]).__name__} for "
            f"{several[0]!r}; expected an array. Stack its parts into one, or give each a name."
        )
    if library is None:
        return {name: np.asarray(value) for name, value in arrays.items()}
    own = library
    return {name: v if tensor_library_of(v) is own else own.tensor(np.asarray(v)) for name, v in arrays.items()}
