"""Joint distributions of TensorFlow Probability as a Model.

    parts                    pinned to data           free
    distribution, in order   observed_data            variables, with the supports of the default bijectors
                                                      or, where a part's support depends on other parts, real numbers,
                                                      of which the joint bijector makes the parts (`generated`)

Names of parts, and structures of them, are those that the library itself resolves (`_flat_resolve_names`,
`_model_flatten`), as its `JointDistributionPinned` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from batchnuts.bridges.tfp import failed, import_tfp, leaves, one_dtype, support_of, variable_of
from batchnuts.data import read_columns
from batchnuts.mcmc.model import DType, Model, ModelError, Variable
from batchnuts.mcmc.supports import Support
from batchnuts.mcmc.variables import Labels
from batchnuts.settings.schema import Settings, nearest
from batchnuts.settings.yaml import ConfigError
from batchnuts.target import DataOptions
from batchnuts.users_code import imported, refuse_other_than_place

Values = Mapping[str, Any]
"""By the name of a leaf: its array."""

Initializer = Callable[[np.random.Generator, int], Any]

_SEED = (1, 2)
"""For the draw that shows shapes."""


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
    """See Model.from_joint_distribution."""
    import_tfp()
    joint, pins = _unpinned(distribution)
    title = name or str(joint.name)
    given = {**dict(pinned or {}), **named}
    if again := sorted(given.keys() & pins.keys()):
        raise ModelError(f"Model {title!r}: {again[0]!r} is pinned already; leave it out, or unpin it before.")
    parts = _Parts.of(title, joint, {**pins, **given})
    axes = {key: (given,) if isinstance(given, str) else tuple(given) for key, given in (dims or {}).items()}
    labels = coords or {}
    known = [leaf for part in parts.all for leaf in part.names]
    if unknown := [key for key in axes if key not in known]:
        raise ModelError(
            f"Model {title!r}: dims has {unknown[0]!r}, which is no part{nearest(unknown[0], known)}. The parts are "
            f"{', '.join(known)}."
        )
    observed = {
        leaf: (axes.get(leaf, tuple(f"{leaf}_dim_{axis}" for axis in range(np.ndim(value)))), np.asarray(value))
        for part in parts.pinned
        for leaf, value in zip(part.names, part.values, strict=True)
    }
    supports = parts.supports()
    functions = parts.functions_of_draws()
    made = (
        _of_real_numbers(parts, functions, initializer)
        if supports is None
        else {**_of_parts(parts, supports, axes, labels), **functions, "initializer": initializer}
    )
    return Model(
        name=title, dtype=parts.dtype, observed_data=observed, coords=labels, dims=axes, structured=True, **made
    )


class JointDistributionOptions(Settings):
    """The section `model` of a config."""

    joint_distribution: str = Field(
        description="a joint distribution of TensorFlow Probability, or a function that gives one, as "
        "package.module:name (the current folder is importable)"
    )
    pinned: dict[str, Any] = Field(
        default_factory=dict, description="by part: its data, as numbers, or the name of a column of `data`"
    )
    data: DataOptions | None = Field(
        None, description="a file whose columns the function gets as its argument `data`: {path, columns}"
    )
    dtype: DType = Field("float32", description="of the columns of `data`; that of the model is that of its parts")
    dims: dict[str, list[str]] = Field(default_factory=dict, description="by part: names of its axes")
    coords: dict[str, list[Any]] = Field(default_factory=dict, description="labels by the name of an axis")

    @model_validator(mode="after")
    def _place(self) -> JointDistributionOptions:
        refuse_other_than_place("joint_distribution", self.joint_distribution)
        return self


def build(options: JointDistributionOptions) -> Model:
    """The model of a config; raises ConfigError, which names the key."""
    import_tfp()
    found = imported("joint_distribution", options.joint_distribution, function=False)
    columns = None if options.data is None else read_columns(options.data.path, options.data.asked(), options.dtype)
    arrays = {} if columns is None else columns.arrays
    if inspect.isfunction(found):
        found = _called(options, found, arrays if options.data is not None else None)
    pinned = {}
    for part, given in options.pinned.items():
        if isinstance(given, str) and given not in arrays:
            hint = nearest(given, arrays) or (f"; the columns are {', '.join(arrays)}" if arrays else "")
            raise ConfigError(f"model.pinned.{part}: found {given!r}, which is no column of model.data{hint}.")
        pinned[part] = arrays[given] if isinstance(given, str) else given
    labels = {} if columns is None else dict(columns.labels)
    try:
        return from_joint_distribution(
            found, pinned, name=options.joint_distribution, dims=options.dims, coords={**labels, **options.coords}
        )
    except ModelError as error:
        raise ConfigError(f"model.joint_distribution: {error}") from error


def _called(options: JointDistributionOptions, function: Callable[..., Any], data: Values | None) -> Any:
    """What the user's function gives, which gets the columns of the data if it takes them."""
    takes = inspect.signature(function).parameters
    needed = [p.name for p in takes.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if unknown := [argument for argument in needed if argument != "data" or data is None]:
        raise ConfigError(
            f"model.joint_distribution: {options.joint_distribution} takes ({', '.join(takes)}), but "
            f"{unknown[0]!r} is not given; expected a function without arguments, or with `data` where the config has "
            "model.data."
        )
    try:
        return function(**({"data": data} if "data" in takes and data is not None else {}))
    except Exception as error:
        raise ConfigError(
            f"model.joint_distribution: {failed(options.joint_distribution, 'the function', error)}"
        ) from error


def _unpinned(distribution: Any) -> tuple[Any, dict[str, Any]]:
    """A joint distribution, and the values that it is pinned to, by part. Raises ModelError for anything else."""
    from tensorflow_probability import distributions as tfd
    from tensorflow_probability import experimental as tfe

    if isinstance(distribution, tfe.distributions.JointDistributionPinned):
        return distribution.distribution, dict(distribution.pins)
    if isinstance(distribution, tfd.JointDistribution):
        return distribution, {}
    found = f"{type(distribution).__module__}.{type(distribution).__name__}"
    if "substrates.jax" in found:
        advice = "It is one for JAX: give its log_prob to Model.from_function"
    elif callable(distribution) and not isinstance(distribution, tfd.Distribution):
        advice = "Decorate a generator function with @tfd.JointDistributionCoroutineAutoBatched, and give the result"
    else:
        advice = "A single distribution has log_prob: give it to Model.from_function"
    raise ModelError(
        f"Model.from_joint_distribution takes a joint distribution of TensorFlow Probability "
        f"(tfd.JointDistributionNamed, ...Coroutine, ...Sequential, their AutoBatched variants, or a pinned one), "
        f"found {found}. {advice}."
    )


@dataclass(frozen=True)
class _Part:
    """A part of a joint distribution; of a nested one, several leaves."""

    name: str
    distribution: Any
    """Given the draw."""
    structure: Any
    """A drawn value, or what it is pinned to."""
    names: tuple[str, ...]
    """Of its leaves."""
    values: tuple[Any, ...]
    pinned: bool

    @property
    def nested(self) -> bool:
        """Whether its value is a structure."""
        return self.names != (self.name,)

    def packed(self, values: Values) -> Any:
        """Its value, of those of the leaves."""
        import tensorflow as tf

        if not self.nested:
            return values[self.name]
        return tf.nest.pack_sequence_as(self.structure, [values[leaf] for leaf in self.names])


@dataclass(frozen=True)
class _Parts:
    """A joint distribution's parts, in its order."""

    title: str
    joint: Any
    all: tuple[_Part, ...]
    dtype: DType

    @classmethod
    def of(cls, title: str, joint: Any, pins: Mapping[str, Any]) -> _Parts:
        """Raises ModelError for names, shapes and dtypes that do not fit, and for a model that cannot be drawn from."""
        try:
            names = list(joint._flat_resolve_names())
            distributions, draw = joint.sample_distributions(seed=_SEED)
            flat, drawn = joint._model_flatten(distributions), joint._model_flatten(draw)
        except Exception as error:
            raise failed(
                title, "a draw from the joint distribution, made to find the shapes of its parts,", error
            ) from error
        if unknown := sorted(pins.keys() - set(names)):
            raise ModelError(
                f"Model {title!r}: it has no part {unknown[0]!r} to pin{nearest(unknown[0], names)}. Its parts are "
                f"{', '.join(names)}."
            )
        found = []
        for name, distribution, value in zip(names, flat, drawn, strict=True):
            structure = _as_drawn(title, name, pins[name], value) if name in pins else value
            inside = list(leaves(structure))
            found.append(
                _Part(
                    name,
                    distribution,
                    structure,
                    tuple(".".join((name, *leaf.path)) for leaf in inside),
                    tuple(leaf.value for leaf in inside),
                    name in pins,
                )
            )
        free = [part for part in found if not part.pinned]
        if not free:
            raise ModelError(
                f"Model {title!r}: all of its parts ({', '.join(names)}) are pinned; nothing is left to sample."
            )
        dtypes = {leaf: value.dtype for part in free for leaf, value in zip(part.names, part.values, strict=True)}
        parts = cls(title, joint, tuple(found), one_dtype(title, dtypes))
        parts.check_density()
        return parts

    @property
    def free(self) -> list[_Part]:
        """Those that are sampled."""
        return [part for part in self.all if not part.pinned]

    @property
    def pinned(self) -> list[_Part]:
        """Those that are data."""
        return [part for part in self.all if part.pinned]

    def structure(self, values: Values) -> Any:
        """What the joint distribution takes, of the leaves of free parts."""
        flat = [part.structure if part.pinned else part.packed(values) for part in self.all]
        return self.joint._model_unflatten(flat)

    def log_density(self, values: Values) -> Any:
        """Of the leaves of free parts, together with the data."""
        return self.joint.log_prob(self.structure(values))

    def drawn(self) -> dict[str, Any]:
        """The leaves of free parts in the draw that showed the shapes."""
        return {leaf: value for part in self.free for leaf, value in zip(part.names, part.values, strict=True)}

    def check_density(self) -> None:
        """Raise ModelError unless it is a scalar."""
        try:
            value = self.log_density(self.drawn())
        except Exception as error:
            raise failed(self.title, "its log_prob, of a draw and the data,", error) from error
        if value.shape.rank != 0:
            batches = [
                f"{part.name} {tuple(part.distribution.batch_shape)}"
                for part in self.all
                if not part.nested and part.distribution.batch_shape.rank != 0
            ]
            raise ModelError(
                f"Model {self.title!r}: its log_prob has shape {tuple(value.shape)}; expected a scalar. These parts "
                f"have a batch shape: {', '.join(batches)}. Use the AutoBatched variant of the joint distribution, or "
                "tfd.Independent(..., reinterpreted_batch_ndims=1) and tfd.Sample for them."
            )

    def supports(self) -> list[Support] | None:
        """One for each free part; None where one depends on another part. Raises ModelError for one without."""
        bijectors = []
        for part in self.free:
            try:
                bijector = part.distribution.experimental_default_event_space_bijector()
            except NotImplementedError:
                bijector = None
            except Exception as error:
                raise failed(self.title, f"the default bijector of the part {part.name!r}", error) from error
            if bijector is None:
                raise ModelError(
                    f"Model {self.title!r}: the part {part.name!r} ({type(part.distribution).__name__}) has no default "
                    "bijector, so it is not known where its values lie. Pin it to data, or write Model.from_function("
                    f"lambda p: joint.log_prob(**p, **data), variables={{{part.name!r}: ...}}) with a support or a "
                    "bijector of yours."
                )
            bijectors.append(bijector)
        supports = [support_of(bijector) for bijector in bijectors]
        if any(part.nested for part in self.free):
            return None
        moved = [part for part, support in zip(self.free, supports, strict=True) if support.library is not None]
        return None if moved and self.some_support_depends(moved) else supports

    def some_support_depends(self, moved: list[_Part]) -> bool:
        """Whether the bijector of one of these parts depends on the value of another part, by the graph of both."""
        import tensorflow as tf

        with self.graph() as (inputs, flat):
            made = []
            for part in moved:
                bijector = flat[part.name].experimental_default_event_space_bijector()
                before = bijector.inverse_event_shape(part.values[0].shape)
                x = tf.zeros(before, part.values[0].dtype)
                made += [bijector.forward(x), bijector.forward_log_det_jacobian(x, before.rank)]
        return _depend(made, [x for part in self.free for x in tf.nest.flatten(inputs[part.name])])

    @contextmanager
    def graph(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """A graph in which the values of all parts are inputs: these, and the distributions, by part."""
        import tensorflow as tf

        with tf.__internal__.FuncGraph("parts").as_default():
            inputs = {
                part.name: tf.nest.map_structure(lambda x: tf.compat.v1.placeholder(x.dtype, x.shape), part.structure)
                for part in self.all
            }
            structure = self.joint._model_unflatten(list(inputs.values()))
            distributions, _ = self.joint.sample_distributions(seed=_SEED, value=structure)
            yield inputs, dict(zip(inputs, self.joint._model_flatten(distributions), strict=True))

    def functions_of_draws(self) -> dict[str, Any]:
        """The fields `prior`, `predictive` and `log_likelihood`, as far as the distributions have what they need."""
        held = self.needed_by_free()
        names = [part.name for part in self.pinned if all(part is not other for other in held)]

        def values_of(structure: Any, parts: list[_Part]) -> dict[str, Any]:
            flat = dict(zip([p.name for p in self.all], self.joint._model_flatten(structure), strict=True))
            return {".".join((part.name, *leaf.path)): leaf.value for part in parts for leaf in leaves(flat[part.name])}

        def drawn(values: Values, seed: Any) -> Any:
            given = {part.name: part.structure for part in held}
            given |= {part.name: part.packed(values) for part in self.free if part.names[0] in values}
            return self.joint.sample(seed=seed, **given)

        def prior(seed: Any) -> dict[str, Any]:
            return values_of(drawn({}, seed), self.free)

        def predictive(values: Values, seed: Any) -> dict[str, Any]:
            return values_of(drawn(values, seed), [part for part in self.pinned if part.name in names])

        def log_likelihood(values: Values) -> dict[str, Any]:
            structure = self.structure(values)
            distributions, _ = self.joint.sample_distributions(seed=_SEED, value=structure)
            flat = dict(zip([p.name for p in self.all], self.joint._model_flatten(distributions), strict=True))
            return {part.name: _pointwise(flat[part.name], part) for part in self.pinned if part.name in names}

        found: dict[str, Any] = {"prior": prior}
        if names:
            found |= {"predictive": predictive, "log_likelihood": log_likelihood}
        return {role: function for role, function in found.items() if self.works(role, function)}

    def works(self, role: str, function: Callable[..., Any]) -> bool:
        """Whether a function of a draw can be computed; a distribution may have no sampler that takes a seed."""
        import tensorflow as tf

        seed = tf.constant(_SEED, tf.int32)
        inputs = {"prior": (seed,), "predictive": (self.drawn(), seed), "log_likelihood": (self.drawn(),)}[role]
        try:
            function(*inputs)
        except NotImplementedError:
            return False
        except Exception as error:
            raise failed(self.title, f"what was made of it for the group of its {role}", error) from error
        return True

    def needed_by_free(self) -> list[_Part]:
        """Pinned parts on which a free one depends, as covariates are: they are not predicted."""
        import tensorflow as tf

        last = max(place for place, part in enumerate(self.all) if not part.pinned)
        before = [part for part in self.all[:last] if part.pinned]
        if not before:
            return []
        with self.graph() as (inputs, flat):
            densities = [flat[part.name].log_prob(inputs[part.name]) for part in self.free]
        return [part for part in before if _depend(densities, tf.nest.flatten(inputs[part.name]))]


def _of_parts(parts: _Parts, supports: list[Support], axes: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    """Fields of a model whose variables are the free parts."""
    variables = []
    for part, support in zip(parts.free, supports, strict=True):
        variables.append(variable_of(part.name, tuple(part.values[0].shape), support, axes, labels))

    def log_density(values: Values) -> Any:
        return parts.log_density(values)

    return {
        "variables": tuple(variables),
        "dimension": sum(variable.free for variable in variables),
        "log_density": log_density,
    }


def _of_real_numbers(
    parts: _Parts, functions: Mapping[str, Callable[..., Any]], initializer: Initializer | None
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
        given = initializer(rng, chains)
        return real.inverse_of_starts(given) if isinstance(given, Mapping) else given

    made = {role: of_draw(function) for role, function in functions.items() if role != "prior"}
    if "prior" in functions:
        made["prior"] = lambda seed: real.inverse(functions["prior"](seed))
    return {
        "variables": real.variables,
        "dimension": sum(variable.free for variable in real.variables),
        "log_density": log_density,
        "generated": real.natural,
        "reports_variables": False,
        "initializer": None if initializer is None else starts,
        **made,
    }


class _RealNumbers:
    """The joint bijector of the free parts, with its structures as values by the names of leaves."""

    def __init__(self, parts: _Parts) -> None:
        self.parts = parts
        held = {part.name: part.structure for part in parts.pinned}
        self.given = parts.joint.experimental_pin(**held) if held else parts.joint
        try:
            self.bijector = self.given.experimental_default_event_space_bijector()
            self.like = self.bijector.inverse_event_shape(self.given.event_shape)
            self.ranks = [len(shape) for shape in self._shapes()]
        except Exception as error:
            raise failed(parts.title, "the joint bijector of its parts", error) from error
        self.names = [leaf for part in parts.free for leaf in part.names]
        self.variables = tuple(Variable(name, shape) for name, shape in zip(self.names, self._shapes(), strict=True))

    def _shapes(self) -> list[tuple[int, ...]]:
        return [
            tuple(int(n) for n in leaf.value) for part in self.given._model_flatten(self.like) for leaf in leaves(part)
        ]

    def _structure(self, flat: list[Any]) -> Any:
        """Of the arrays of all leaves, one for each free part, nested as they are."""
        rest = iter(flat)
        packed = [part.packed({leaf: next(rest) for leaf in part.names}) for part in self.parts.free]
        return self.given._model_unflatten(packed)

    def _flat(self, structure: Any) -> dict[str, Any]:
        found = [leaf.value for part in self.given._model_flatten(structure) for leaf in leaves(part)]
        return dict(zip(self.names, found, strict=True))

    def natural(self, values: Values) -> dict[str, Any]:
        """The values of the parts."""
        return self._flat(self.bijector.forward(self._structure([values[name] for name in self.names])))

    def inverse(self, values: Values) -> dict[str, Any]:
        """The real numbers of the parts' values."""
        return self._flat(self.bijector.inverse(self._structure([values[name] for name in self.names])))

    def inverse_of_starts(self, values: Values) -> dict[str, Any]:
        """The real numbers [chains, ...] of starts by name. Raises ModelError where there are not values of all."""
        if set(values) != set(self.names):
            raise ModelError(
                f"Model {self.parts.title!r}: its initializer gave values for {sorted(values)}; expected "
                f"{sorted(self.names)}."
            )
        dtype = self.parts.dtype
        return {
            name: np.asarray(x)
            for name, x in self.inverse({n: np.asarray(v, dtype) for n, v in values.items()}).items()
        }

    def log_density(self, values: Values) -> Any:
        """With the Jacobian."""
        x = self._structure([values[name] for name in self.names])
        log_jacobian = self.bijector.forward_log_det_jacobian(x, self._structure(self.ranks))
        return self.parts.log_density(self._flat(self.bijector.forward(x))) + log_jacobian


def _as_drawn(title: str, name: str, given: Any, drawn: Any) -> Any:
    """Data for a part, as tensors of the dtype and shape of a draw of it; raises ModelError where they do not fit."""
    import tensorflow as tf

    if any(leaf.path for leaf in leaves(drawn)):
        try:
            tf.nest.assert_same_structure(drawn, given)
        except (TypeError, ValueError):
            raise ModelError(
                f"Model {title!r}: the data for its part {name!r} are a {type(given).__name__}; expected a structure "
                f"like {tf.nest.map_structure(lambda x: tuple(x.shape), drawn)} (shapes)."
            ) from None
        flat = [_as_drawn(title, name, g, d) for g, d in zip(tf.nest.flatten(given), tf.nest.flatten(drawn))]
        return tf.nest.pack_sequence_as(drawn, flat)
    dtype, shape = drawn.dtype, tuple(drawn.shape)
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise ModelError(
            f"Model {title!r}: the data for its part {name!r} are a {type(given).__name__}, which is no array of "
            "numbers."
        ) from None
    if array.shape != shape:
        raise ModelError(
            f"Model {title!r}: the data for its part {name!r} have shape {array.shape}; the part has shape {shape}. "
            "Give data of that shape, or the part as many elements as there are data: "
            "tfd.Sample(..., n), or parameters of shape (n,) in an AutoBatched joint distribution."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ModelError(
            f"Model {title!r}: the data for its part {name!r} have {array[place]} at {list(place)}; expected finite "
            "numbers. Leave such observations out."
        )
    converted = array.astype(dtype.as_numpy_dtype)
    if dtype.is_integer and not (converted == array).all():
        raise ModelError(
            f"Model {title!r}: the data for its part {name!r} have numbers that are no {dtype.name}; expected integers."
        )
    return tf.constant(converted)


def _pointwise(distribution: Any, part: _Part) -> Any:
    """The log-density of each observation of a part: of the distribution that `Independent` and `Sample` repeat."""
    from tensorflow_probability import distributions as tfd

    while isinstance(distribution, (tfd.Independent, tfd.Sample)):
        if isinstance(distribution, tfd.Sample) and distribution.distribution.batch_shape.rank != 0:
            break
        distribution = distribution.distribution
    return distribution.log_prob(part.structure)


def _depend(tensors: list[Any], inputs: list[Any]) -> bool:
    """Whether one of the tensors is computed from one of the inputs. What is read of static shapes alone does not
    count."""
    import tensorflow as tf

    wanted = {tensor.op.name for tensor in inputs}
    todo = [tensor.op for tensor in tensors if tf.is_symbolic_tensor(tensor)]
    seen: set[str] = set()
    while todo:
        op = todo.pop()
        if op.name in wanted:
            return True
        if op.name in seen or op.type in ("Shape", "Size", "Rank"):
            continue
        seen.add(op.name)
        todo += [tensor.op for tensor in op.inputs]
    return False
