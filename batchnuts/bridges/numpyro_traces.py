"""Runs of a NumPyro model under handlers: its sites, and the functions of a draw that a Model has.

Imported by numpyro.py, which first looks whether the library is there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpy.typing import NDArray
from numpyro import distributions
from numpyro import handlers as effects
from numpyro.infer import init_to_uniform, init_to_value
from numpyro.infer import util as infer
from typing_extensions import override

from batchnuts.mcmc.model.variables import ModelError


@dataclass(frozen=True)
class Part:
    """The elements of a latent site that `obs_mask` leaves to be sampled, since they are not observed. The others, on
    which nothing depends, are constants."""

    batch: tuple[int, ...]
    """The shape of the site's batch, whose elements the mask is of."""
    places: tuple[int, ...]
    """The elements with a density, numbered in the batch."""

    def of(self, value: Any) -> Any:
        """The elements [elements, *event] of a value [*batch, *event]."""
        return jnp.reshape(value, (math.prod(self.batch), *value.shape[len(self.batch) :]))[np.array(self.places, int)]

    def whole(self, value: Any) -> Any:
        """The value [*batch, *event] with elements [elements, *event], and zeros elsewhere."""
        empty = jnp.zeros((math.prod(self.batch), *value.shape[1:]), value.dtype)
        return jnp.reshape(empty.at[np.array(self.places, int)].set(value), (*self.batch, *value.shape[1:]))


@dataclass(frozen=True)
class Users:
    """The user's function, and which of its latent sites are sampled only in part."""

    function: Any
    parts: Mapping[str, Part]
    empty: Mapping[str, tuple[int, ...]]
    """Shapes of the unconstrained values of sites of which nothing is sampled."""
    saved: Mapping[str, str]
    """The names of sites in files, by their own names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        return self.function(*args, **kwargs)

    def whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Unconstrained values by the names of sites, from those by `free_name`."""
        sites = {free_name(in_files): name for name, in_files in self.saved.items()}
        plain = {sites[name]: value for name, value in values.items()}
        dtype = next(iter(plain.values())).dtype
        whole = {name: self.parts[name].whole(x) if name in self.parts else x for name, x in plain.items()}
        return whole | {name: jnp.zeros(shape, dtype) for name, shape in self.empty.items()}

    def sampled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of sites' values that are sampled, by names in files."""
        return {
            self.saved.get(name, name): self.parts[name].of(value) if name in self.parts else value
            for name, value in values.items()
            if name not in self.empty
        }


Bound = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A model and its arguments."""

HANDLERS = threading.RLock()
"""NumPyro keeps the handlers in force in one list for all threads."""


def key_of(seed: int) -> NDArray[Any]:
    """A key of JAX, [2] of uint32."""
    return np.array([0, seed], "uint32")


def first_trace(bound: Bound, key: Any, strategy: Any = init_to_uniform) -> Any:
    """A trace at values that a strategy gives."""
    model, args, kwargs = bound
    with HANDLERS:
        seeded = effects.substitute(effects.seed(model, key), substitute_fn=strategy)
        return effects.trace(seeded).get_trace(*args, **kwargs)


def innermost(distribution: Any) -> Any:
    """The distribution without masks, expansions and reinterpreted axes around it."""
    wrappers = (
        distributions.Independent,
        distributions.ExpandedDistribution,
        distributions.MaskedDistribution,
    )
    while isinstance(distribution, wrappers):
        distribution = distribution.base_dist
    return distribution


def is_factor(distribution: Any) -> bool:
    """Whether a site with this distribution is a `numpyro.factor`."""
    return isinstance(innermost(distribution), distributions.Unit)


def unconstrained(site: Mapping[str, Any]) -> Any:
    """The real numbers of a site's value; its support has to have a bijection."""
    with infer.helpful_support_errors(site):
        return distributions.biject_to(site["fn"].support).inv(site["value"])


def unconstrained_values(bound: Bound, names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
    """The real numbers of the values of latent sites. names: of the sites, by which `values` are in that order."""
    there = dict(zip(names, values.values(), strict=True))
    with HANDLERS:
        trace = first_trace(bound, key_of(0), init_to_value(values=there))
        return [unconstrained(trace[name]) for name in names]


# Handlers


class _DefaultKey(numpyro.primitives.Messenger):  # type: ignore[misc]
    """A key for `numpyro.prng_key` statements, as NumPyro's samplers give them."""

    @override
    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = jax.random.key(0)


class WholePlates(numpyro.primitives.Messenger):  # type: ignore[misc]
    """Refuses plates that take a subsample of their rows."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    @override
    def process_message(self, msg: dict[str, Any]) -> None:
        """Raise ModelError for a plate with a random subsample."""
        if msg["type"] == "plate" and msg["args"][1] is not None and msg["args"][1] < msg["args"][0]:
            raise ModelError(
                f"Model {self._title!r}: its plate {msg['name']!r} takes a random subsample of {msg['args'][1]} of "
                f"{msg['args'][0]} rows, and the posterior given all of them cannot be sampled that way; "
                "leave out subsample_size."
            )


class _Unobserved(numpyro.primitives.Messenger):  # type: ignore[misc]
    """Draws observed sites, in place of their data: as many numbers, also where one distribution is that of all."""

    @override
    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not is_factor(msg["fn"]):
            data, distribution = jnp.shape(msg["value"]), msg["fn"]
            batch = data[: len(data) - distribution.event_dim]
            if batch != distribution.batch_shape:
                msg["fn"] = distribution.expand(jnp.broadcast_shapes(batch, distribution.batch_shape))
            msg["is_observed"] = False
            msg["value"] = None


# Functions of a draw: each takes the user's function, its arguments, and unconstrained values by name (`free_name`).


def free_name(name: str) -> str:
    """The name of a site's unconstrained value."""
    return f"unconstrained({name})"


def log_density(model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any]) -> Any:
    """The log-density with the Jacobians of all transformations."""
    with HANDLERS:
        return -infer.potential_energy(_DefaultKey(model), args, kwargs, model.whole(values))


def constrained(
    model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of latent and deterministic sites at unconstrained `values`."""
    with HANDLERS:
        sites: dict[str, Any] = infer.constrain_fn(
            _DefaultKey(model), args, kwargs, model.whole(values), return_deterministic=True
        )
    return model.sampled(sites)


def natural_scale(
    model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Latent sites, and the log-density of these: the sum of the sites' own, without Jacobians."""
    with HANDLERS:
        keyed = _DefaultKey(model)
        latent = infer.constrain_fn(keyed, args, kwargs, model.whole(values))
        density, _ = infer.log_density(keyed, args, kwargs, latent)
    return model.sampled(latent), density


def _trace_at(
    model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any], seed: Any = None
) -> Any:
    """The trace at a draw's values; with a seed, observed sites are drawn again, and deterministic ones computed from
    these."""
    keyed = _DefaultKey(model)
    latent = infer.constrain_fn(keyed, args, kwargs, model.whole(values))
    inner = keyed if seed is None else effects.seed(_Unobserved(model), seed)
    return effects.trace(effects.substitute(inner, data=latent)).get_trace(*args, **kwargs)


def log_likelihood(
    model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The log-likelihood of each observation, by site."""
    with HANDLERS:
        trace = _trace_at(model, args, kwargs, values)
        observed = {name: site for name, site in trace.items() if _is_observed(site)}
        return {model.saved[name]: site["fn"].log_prob(site["value"]) for name, site in observed.items()}


def predictive(
    model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any], seed: Any
) -> dict[str, Any]:
    """Observed sites, drawn again."""
    with HANDLERS:
        names = [name for name, site in _trace_at(model, args, kwargs, values).items() if _is_observed(site)]
        trace = _trace_at(model, args, kwargs, values, seed)
        return {model.saved[name]: trace[name]["value"] for name in names}


def drawn_again(
    model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any], names: list[str], seed: Any
) -> list[Any]:
    """Deterministic sites, computed from observed sites that are drawn again."""
    with HANDLERS:
        trace = _trace_at(model, args, kwargs, values, seed)
        drawn = {model.saved[name]: site["value"] for name, site in trace.items() if name in model.saved}
        return [drawn[name] for name in names]


def prior(model: Users, args: tuple[Any, ...], kwargs: dict[str, Any], seed: Any) -> dict[str, Any]:
    """Unconstrained values of a run of the model without its data."""
    with HANDLERS:
        plain = effects.trace(effects.seed(model, seed)).get_trace(*args, **kwargs)
        trace = effects.trace(effects.seed(_Unobserved(model), seed)).get_trace(*args, **kwargs)
        latent = [name for name, site in plain.items() if site["type"] == "sample" and not site["is_observed"]]
        drawn = model.sampled({name: unconstrained(trace[name]) for name in latent})
        return {free_name(name): value for name, value in drawn.items()}


def _is_observed(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and site["is_observed"] and not is_factor(site["fn"])
