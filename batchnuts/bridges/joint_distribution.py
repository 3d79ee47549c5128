"""Joint distributions of TensorFlow Probability as a Model.

parts                    pinned to data           free
distribution, in order   observed_data            variables, with the supports of the default bijectors
                                                  or, where a part's support depends on other parts, real numbers,
                                                  of which the joint bijector makes the parts (`generated`)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from batchnuts.bridges.joint_parts import Parts, Values
from batchnuts.bridges.tfp import failed, import_tfp, leaves, variable_of
from batchnuts.mcmc.model.data_argument import Remade
from batchnuts.mcmc.model.model import Model, ModelError, Variable
from batchnuts.mcmc.model.supports import Support
from batchnuts.mcmc.model.variables import Labels, checked_dims, checked_labels
from batchnuts.settings.schema import nearest, sentence

Initializer = Callable[[np.random.Generator, int], Any]


def from_joint_distribution(
    distribution: Any,
    pinned: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    dims: Mapping[str, Any] | None = None,
    coords: Labels | None = None,
    initializer: Initializer | None = None,
    **named: Any,
) -> Model:
    """`Model.from_joint_distribution`: a Model of a joint distribution of TensorFlow Probability."""
    import_tfp()
    joint, pins = _unpinned(distribution)
    title = name or str(joint.name)
    new_pins = {**dict(pinned or {}), **named}
    if repeated := sorted(new_pins.keys() & pins.keys()):
        raise ModelError(f"Model {title!r}: {repeated[0]!r} is pinned already; leave it out, or unpin it first.")
    parts = Parts.of(title, joint, {**pins, **new_pins})
    axes, labels = checked_dims(f"Model {title!r}", dims), checked_labels(f"Model {title!r}", coords)
    names = [leaf for part in parts.all for leaf in part.names]
    if unknown := [key for key in axes if key not in names]:
        raise ModelError(
            sentence(f"Model {title!r}: dims has {unknown[0]!r}, which is not a part{nearest(unknown[0], names)}")
            + f" The parts are {', '.join(names)}."
        )
    observed = {
        leaf: (axes.get(leaf, tuple(f"{leaf}_dim_{axis}" for axis in range(np.ndim(value)))), np.asarray(value))
        for part in parts.pinned
        for leaf, value in zip(part.names, part.values, strict=True)
    }
    supports = parts.supports()
    functions = parts.functions_of_draws()
    fields = (
        _of_real_numbers(parts, functions, initializer)
        if supports is None
        else {**_of_parts(parts, supports, axes, labels), **functions, "initializer": initializer}
    )
    pinned_arrays = {
        part.name: np.asarray(part.values[0])
        for part in parts.pinned
        if len(part.values) == 1 and part.name in new_pins
    }

    options: dict[str, Any] = {"name": title, "dims": dims, "coords": coords, "initializer": initializer}
    remake = functools.partial(_remade, distribution, new_pins, options)
    return Model(
        name=title,
        dtype=parts.dtype,
        observed_data=observed,
        remade=Remade(pinned_arrays, remake) if pinned_arrays else None,
        coords=labels,
        dims=axes,
        structured=True,
        **fields,
    )


def _remade(distribution: Any, pins: Mapping[str, Any], options: Mapping[str, Any], data: Mapping[str, Any]) -> Model:
    """The model with other values pinned."""
    return from_joint_distribution(distribution, {**pins, **data}, **options)


def _unpinned(distribution: Any) -> tuple[Any, dict[str, Any]]:
    """A joint distribution, and the values that it is pinned to, by part. Raises ModelError for anything else."""
    from tensorflow_probability import distributions as tfd
    from tensorflow_probability import experimental as tfe

    if isinstance(distribution, tfe.distributions.JointDistributionPinned):
        return distribution.distribution, dict(distribution.pins)
    if isinstance(distribution, tfd.JointDistribution):
        return distribution, {}
    type_name = f"{type(distribution).__module__}.{type(distribution).__name__}"
    if "substrates.jax" in type_name:
        advice = "It is one for JAX: give its log_prob to Model.from_function"
    elif callable(distribution) and not isinstance(distribution, tfd.Distribution):
        advice = "Decorate a generator function with @tfd.JointDistributionCoroutineAutoBatched, and give the result"
    else:
        advice = "A single distribution has log_prob: give it to Model.from_function"
    raise ModelError(
        f"Model.from_joint_distribution takes a joint distribution of TensorFlow Probability "
        f"(tfd.JointDistributionNamed, ...Coroutine, ...Sequential, their AutoBatched variants, or a pinned one), "
        f"found {type_name}. {advice}."
    )


def _of_parts(parts: Parts, supports: list[Support], axes: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    """Fields of a model whose variables are the free parts."""
    variables = []
    for part, support in zip(parts.free, supports, strict=True):
        variables.append(variable_of(part.saved, tuple(part.values[0].shape), support, axes, labels))

    def log_density(values: Values) -> Any:
        return parts.log_density(values)

    return {
        "variables": tuple(variables),
        "dimension": sum(variable.free for variable in variables),
        "log_density": log_density,
    }


def _of_real_numbers(
    parts: Parts, functions: Mapping[str, Callable[..., Any]], initializer: Initializer | None
) -> dict[str, Any]:
    """Fields of a model whose variables are real numbers, of which the joint bijector makes the free parts.

    functions: those of draws, of the parts' values.
    """
    real = _RealNumbers(parts)

    def log_density(values: Values) -> Any:
        return real.log_density(values)

    def of_draw(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda values, *seed: function(real.natural(values), *seed)

    def starts(rng: np.random.Generator, chains: int) -> Any:
        assert initializer is not None
        values = initializer(rng, chains)
        return real.inverse_of_starts(values) if isinstance(values, Mapping) else values

    fields = {role: of_draw(function) for role, function in functions.items() if role != "prior"}
    if "prior" in functions:
        fields["prior"] = lambda seed: real.inverse(functions["prior"](seed))
    return {
        "variables": real.variables,
        "dimension": sum(variable.free for variable in real.variables),
        "log_density": log_density,
        "generated": real.natural,
        "natural_scale": lambda: real.natural_scale,
        "reports_variables": False,
        "initializer": None if initializer is None else starts,
        **fields,
    }


class _RealNumbers:
    """The joint bijector of the free parts, with its structures as values by the names of leaves."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        held = {part.name: part.structure for part in parts.pinned}
        self.pinned_joint = parts.joint.experimental_pin(**held) if held else parts.joint
        try:
            self.bijector = self.pinned_joint.experimental_default_event_space_bijector()
            self.like = self.bijector.inverse_event_shape(self.pinned_joint.event_shape)
            self.ranks = [len(shape) for shape in self._shapes()]
        except Exception as error:
            raise failed(parts.title, "the joint bijector of its parts", error) from error
        self.names = [leaf for part in parts.free for leaf in part.names]
        self.variables = tuple(Variable(name, shape) for name, shape in zip(self.names, self._shapes(), strict=True))

    def _shapes(self) -> list[tuple[int, ...]]:
        return [
            tuple(int(n) for n in leaf.value)
            for part in self.pinned_joint._model_flatten(self.like)
            for leaf in leaves(part)
        ]

    def _structure(self, flat: list[Any]) -> Any:
        """The nested structure of the arrays of all leaves, one for each free part."""
        rest = iter(flat)
        packed = [part.packed({leaf: next(rest) for leaf in part.names}) for part in self.parts.free]
        return self.pinned_joint._model_unflatten(packed)

    def _flat(self, structure: Any) -> dict[str, Any]:
        values = [leaf.value for part in self.pinned_joint._model_flatten(structure) for leaf in leaves(part)]
        return dict(zip(self.names, values, strict=True))

    def natural(self, values: Values) -> dict[str, Any]:
        """The values of the parts."""
        return self._flat(self.bijector.forward(self._structure([values[name] for name in self.names])))

    def natural_scale(self, values: Values) -> tuple[dict[str, Any], Any]:
        """The values of the parts, and the log-density of these."""
        natural = self.natural(values)
        return natural, self.parts.log_density(natural)

    def inverse(self, values: Values) -> dict[str, Any]:
        """The real numbers that the parts' values come from."""
        return self._flat(self.bijector.inverse(self._structure([values[name] for name in self.names])))

    def inverse_of_starts(self, values: Values) -> dict[str, Any]:
        """The real numbers [chains, ...] of starts by name. Raises ModelError where there are not values of all."""
        if set(values) != set(self.names):
            raise ModelError(
                f"Model {self.parts.title!r}: its initializer returned values for {sorted(values)}; expected "
                f"{sorted(self.names)}."
            )
        dtype = self.parts.dtype
        return {
            name: np.asarray(x)
            for name, x in self.inverse({n: np.asarray(v, dtype) for n, v in values.items()}).items()
        }

    def log_density(self, values: Values) -> Any:
        """The log-density with the Jacobian."""
        x = self._structure([values[name] for name in self.names])
        log_jacobian = self.bijector.forward_log_det_jacobian(x, self._structure(self.ranks))
        return self.parts.log_density(self._flat(self.bijector.forward(x))) + log_jacobian
