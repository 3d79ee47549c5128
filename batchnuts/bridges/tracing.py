"""What the bridges to libraries on JAX share: whether a function can be traced, and the dtype of what it does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import tensor_library
from batchnuts.bridges.errors import place_in_users_code, text_of
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.process.signals import say

LIBRARY: Any = tensor_library("jax")
"""Imported before a library makes an array, so that XLA's options are set first."""


def can_be_traced(title: str, group: str, function: Callable[..., Any], *inputs: NDArray[Any]) -> bool:
    """Whether a function of arrays can be; where it cannot, a line says that there is no `group`, and why."""
    try:
        LIBRARY.result_shapes(function, *inputs)
    except Exception as error:
        say_none(title, group, text_of(error), place_in_users_code(error), function.__module__)
        return False
    return True


def taking_data(
    made: Model, data: Mapping[str, NDArray[Any]], functions: Mapping[str, Callable[..., Any]]
) -> Model | None:
    """A model made of data, with functions in place of its own that take them as their last argument; None, with a
    line, where one of these needs their numbers when it is traced.

    functions: by their names among those of the model, of values by name (and a seed).
    """
    values = {variable.name: np.zeros(variable.shape, made.dtype) for variable in made.variables}

    def run(role: str, *arrays: Any) -> Any:
        own, seed, rest = arrays[: len(values)], arrays[len(values) : -len(data)], arrays[-len(data) :]
        return functions[role](dict(zip(values, own, strict=True)), *seed, dict(zip(data, rest, strict=True)))

    for role in functions:
        seed = [np.zeros(2, "uint32")] * (role == "predictive")
        try:
            LIBRARY.result_shapes(functools.partial(run, role), *values.values(), *seed, *data.values())
        except Exception as error:  # of Python, which has asked for numbers
            say_made_again(made.name, text_of(error), place_in_users_code(error))
            return None
    of_draws: dict[str, Any] = dict(functions)
    return replace(made, data=dict(data), remade=None, prior=None, natural_scale=None, parameters=None, **of_draws)


def say_made_again(title: str, reason: str, place: str = "") -> None:
    """Say that a model takes no data as an argument, and why in one sentence."""
    say(f"Model {title!r} is made and compiled again for each data set, since {_first_sentence(reason)}{place}.")


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!])\s", text)[0].rstrip(".")


INSTEAD = {
    (
        "numpyro",
        "posterior predictive draws",
    ): "numpyro.infer.Predictive(model, {name: values of `posterior`})(key, ...)",
    ("numpyro", "prior draws"): "numpyro.infer.Predictive(model, num_samples=1000)(key, ...)",
    ("pymc", "posterior predictive draws"): "pymc.sample_posterior_predictive(draws, model=model)",
    ("pymc", "prior draws"): "pymc.sample_prior_predictive(model=model)",
}
"""The library's own function for a missing group, by the module of the bridge and the group."""


def say_none(title: str, group: str, reason: str, place: str, bridge: str) -> None:
    """Say that a run will lack a group, why in one sentence, and what to call in its place."""
    call = INSTEAD.get((bridge.rpartition(".")[2], group))
    instead = f" Posterior draws are not affected; for the missing ones, call {call} afterwards." if call else ""
    say(f"Model {title!r}: there will be no {group}, since {_first_sentence(reason)}{place}.{instead}")


def in_dtype(function: Callable[[Any], Any], dtype: DType, seed: Any) -> Any:
    """A function of a seed, which has 32 bits, computed with the dtypes of a model: 64 bits if `dtype` is float64."""
    return LIBRARY.call(lambda seed, _: function(seed), seed, LIBRARY.tensor(np.zeros((), dtype)))


def around(center: NDArray[Any], radius: float, rng: np.random.Generator, chains: int) -> NDArray[Any]:
    """Starts [chains, dimension] within a distance of a position [dimension], in each number."""
    return center + rng.uniform(-radius, radius, size=(chains, center.size))
