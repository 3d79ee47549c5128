"""`predict`: what a fitted model says of new data, of each draw."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.api.fitted_models import fitted
from batchnuts.many.data_sets import example_of
from batchnuts.mcmc.model.model import Data, Model, ModelError
from batchnuts.mcmc.output.result import Result
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.earlier_run import positions_of
from batchnuts.settings.schema import SettingsError, shown


def predict(result: Any, data: Mapping[str, Any], *, model: Model | None = None, seed: int = 0) -> Result:
    """Predict new data from the draws of a fit: posterior predictive draws and generated quantities at these data.

    result: of `sample_chains`, or of `open_run` with `model`, the model of that run. Its functions take data (an
        argument `data` of `Model.from_function`), or it is of another library and made of arrays: arguments of a
        NumPyro model, data containers of a PyMC model, the data of a Stan program.
    data: the new ones by name (of an argument that is a dict, by its keys), of other lengths if need be; outcomes,
        which are not known, may be left out, or None. Other entries that are not given are those of the fit.
    model: the fitted one, where `result` is not what this process got of `sample_chains`, but of a file, or a part of
        it. A model of NumPyro that samples some elements of an observed site then needs draws that were saved with
        `unconstrained=True`.
    seed: of the predictive draws.

    Returns an ArviZ object with `predictions` [chain, draw, ...], of the model's function `predictive` and of its
    generated quantities those that are others at the new data than in the fit; `predictions_constant_data`, the new
    data; and `log_likelihood` where all observed data are given. Raises ModelError for data that do not fit, and a
    model that cannot have others; SettingsError for a result that is not of the model.
    """
    from batchnuts.files.groups import dataset_in, datasets_of
    from batchnuts.mcmc.model.quantities import Quantities
    from batchnuts.mcmc.output.datasets import data_group, group_of, to_arviz
    from batchnuts.mcmc.storage.layout import entries_of

    model, kept = fitted("predict", result, model)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise SettingsError(f"seed: found {shown(seed)}; expected an integer from 0 on.")
    owner = f"Model {model.name!r}"
    if not any(model.gives(role) for role in ("predictive", "generated")):
        raise ModelError(f"{owner}: it has neither a function `predictive` nor generated quantities to predict with.")
    new, unknown = _with_new(model, data)
    groups = {name: dataset_in(result, name) for name in ("unconstrained_posterior", "posterior")}
    posterior = groups["posterior"]
    if posterior is None or not {"chain", "draw"} <= set(posterior.dims):
        raise SettingsError("result: found none with the group posterior, of chains and draws; expected a run's.")
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    if kept is not None and kept.shape[:2] == shape:
        position = kept.reshape(-1, kept.shape[2])
    else:
        there = {name: group for name, group in groups.items() if group is not None}
        position = positions_of(there, model, "it", "result")
    if new.value_shapes != model.value_shapes:
        raise ModelError(
            f"{owner}: its variables have other shapes with the new data; expected a model whose variables do not "
            "depend on the number of rows that are predicted."
        )
    chains, draws = (np.asarray(posterior[dim].values, np.int64) for dim in ("chain", "draw"))
    chain, draw = (array.reshape(-1) for array in np.broadcast_arrays(chains[:, None], draws[None, :]))
    _, execution = split_settings({})
    computed = Quantities(new, execution, int(seed), checked=False).of_posterior(position, chain, draw)
    generated = computed.get("generated", {})
    changed = {name: values for name, values in generated.items() if not _is_known(posterior, name, values)}
    if not (changed or "predictive" in computed):  # data of the fit
        changed = generated
    by_group = {"predictions": {**changed, **computed.get("predictive", {})}}
    if not unknown:
        by_group["log_likelihood"] = computed.get("log_likelihood", {})
    samples, labels = {"chain": chains, "draw": draws}, new.labels()
    attributes = {"model": new.name, "inference_library": "batchnuts", "seed": int(seed)}
    made = {
        name: group_of(entries_of(new, arrays, shape), samples, labels, attributes)
        for name, arrays in by_group.items()
        if arrays
    }
    if known := _known_data(new, data, unknown):
        made["predictions_constant_data"] = data_group(known, labels, attributes)
    found: Result = to_arviz(datasets_of(made))
    return found


def _is_known(posterior: Any, name: str, values: NDArray[Any]) -> bool:
    """Whether the posterior has the same values [chains * draws, ...]: a parameter does not depend on data."""
    if name not in posterior:
        return False
    there = posterior[name].transpose("chain", "draw", ...).values
    there = there.reshape(-1, *there.shape[2:])
    return there.shape == values.shape and bool(np.allclose(there, values, rtol=1e-5, atol=0.0, equal_nan=True))


def _with_new(model: Model, data: Any) -> tuple[Model, set[str]]:
    """The model of new data, and the names of data that are not known."""
    owner, example = f"Model {model.name!r}", example_of(model)
    if not isinstance(example, Mapping):  # an array, a tuple: all of it
        return model.with_data(data), set()
    if not isinstance(data, Mapping):
        of_file = isinstance(data, str | os.PathLike)
        hint = "; read a file first: json.loads(Path(...).read_text())" if of_file else ""
        expected = f"expected some of {', '.join(example)} by name{hint}"
        raise ModelError(f"{owner}: data is {shown(data)}; {expected}.")
    given = {name: array for name, array in data.items() if array is not None}
    rows: dict[int, int] = {}
    for name, array in given.items():
        before, now = np.shape(example.get(name, ())), _rows(array)
        if before and now is not None and rows.setdefault(before[0], now) != now:
            raise ModelError(
                f"{owner}: data.{name} has {now} rows, and others {rows[before[0]]}; the fit had equally many."
            )
    lengths = {name: len(array) for name, array in example.items() if name not in given and np.ndim(array)}
    unknown = {
        name for name, length in lengths.items() if length in rows and (name in model.observed_data or name in data)
    }
    for name, length in lengths.items():
        if name not in unknown and rows.get(length, length) != length:
            raise ModelError(
                f"{owner}: data lack {name!r}, which had {length} rows in the fit, as others that now have "
                f"{rows[length]}. Give it too, or {name}=None if it is what is predicted."
            )
    # outcomes say how many there are; their values have to be possible ones, for libraries that check them
    resized = {name: np.resize(example[name], (rows[lengths[name]], *np.shape(example[name])[1:])) for name in unknown}
    return model.with_data({**example, **given, **resized}), unknown


def _rows(array: Any) -> int | None:
    try:
        return len(array)
    except TypeError:
        return None


def _known_data(model: Model, data: Any, unknown: set[str]) -> Data:
    """The data that were predicted at. Of a model of another library outcomes may have other names than what they were
    made of, and so none are here where some are not known; its other data are what was given."""
    given = {str(name): array for name, array in data.items()} if isinstance(data, Mapping) else {}
    observed = {
        name: entry for name, entry in model.observed_data.items() if not unknown or given.get(name) is not None
    }
    groups = {**model.constant_data, **observed}
    others = {
        name: (tuple(f"{name}_dim_{axis}" for axis in range(np.ndim(array))), array)
        for name, array in given.items()
        if array is not None and name not in groups
    }
    return {**groups, **others}
