"""The parts of a joint distribution of TensorFlow Probability: names, shapes, data, supports, and functions of draws.

Names of parts, and structures of them, are those that the library itself resolves (`_flat_resolve_names`,
`_model_flatten`), as its `JointDistributionPinned` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.bridges.errors import names_in_files
from batchnuts.bridges.tfp import failed, leaves, one_dtype, refuse_discrete, support_of
from batchnuts.mcmc.model.model import DType, ModelError
from batchnuts.mcmc.model.supports import Support
from batchnuts.settings.schema import nearest, sentence

Values = Mapping[str, Any]
"""Arrays by the names of leaves."""

_SEED = (1, 2)
"""The seed of the draw that shows shapes."""


@dataclass(frozen=True)
class Part:
    """A part of a joint distribution; of a nested one, several leaves."""

    name: str
    distribution: Any
    """The part's distribution, given the draw."""
    structure: Any
    """A drawn value, or the value that it is pinned to."""
    saved: str
    """Its name in files, which exclude slashes."""
    names: tuple[str, ...]
    """The names of its leaves, in files."""
    values: tuple[Any, ...]
    pinned: bool

    @property
    def nested(self) -> bool:
        """Whether its value is a structure."""
        return self.names != (self.saved,)

    def packed(self, values: Values) -> Any:
        """Its value, from values of the leaves."""
        import tensorflow as tf

        if not self.nested:
            return values[self.saved]
        return tf.nest.pack_sequence_as(self.structure, [values[leaf] for leaf in self.names])


@dataclass(frozen=True)
class Parts:
    """A joint distribution's parts, in its order."""

    title: str
    joint: Any
    all: tuple[Part, ...]
    dtype: DType

    @classmethod
    def of(cls, title: str, joint: Any, pins: Mapping[str, Any]) -> Parts:
        """The parts of a joint distribution. Raises ModelError for names, shapes, dtypes or draws that fail."""
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
                sentence(f"Model {title!r}: it has no part {unknown[0]!r} to pin{nearest(unknown[0], names)}")
                + f" Its parts are {', '.join(names)}."
            )
        all_parts = []
        saved = names_in_files(title, "part", names)
        for name, distribution, value in zip(names, flat, drawn, strict=True):
            structure = _as_drawn(title, name, pins[name], value) if name in pins else value
            inside = list(leaves(structure))
            all_parts.append(
                Part(
                    name,
                    distribution,
                    structure,
                    saved[name],
                    tuple(".".join((saved[name], *leaf.path)) for leaf in inside),
                    tuple(leaf.value for leaf in inside),
                    name in pins,
                )
            )
        free = [part for part in all_parts if not part.pinned]
        for part in free:
            if type(part.distribution).__name__ in ("Deterministic", "VectorDeterministic"):
                raise ModelError(
                    f"Model {title!r}: its part {part.name!r} is {type(part.distribution).__name__}, a point, which "
                    "cannot be sampled. Compute it within the parts that need it."
                )
        if not free:
            raise ModelError(
                f"Model {title!r}: all of its parts ({', '.join(names)}) are pinned; nothing is left to sample."
            )
        dtypes = {leaf: value.dtype for part in free for leaf, value in zip(part.names, part.values, strict=True)}
        dtype = one_dtype(title, dtypes)
        refuse_discrete(title, {part.name: part.distribution for part in free})
        parts = cls(title, joint, tuple(all_parts), dtype)
        parts.check_density()
        return parts

    @property
    def free(self) -> list[Part]:
        """The parts that are sampled."""
        return [part for part in self.all if not part.pinned]

    @property
    def pinned(self) -> list[Part]:
        """The parts that are data."""
        return [part for part in self.all if part.pinned]

    def structure(self, values: Values) -> Any:
        """The argument of the joint distribution, from the leaves of free parts."""
        flat = [part.structure if part.pinned else part.packed(values) for part in self.all]
        return self.joint._model_unflatten(flat)

    def log_density(self, values: Values) -> Any:
        """The joint log-density of the data and these leaves of the free parts."""
        return self.joint.log_prob(self.structure(values))

    def drawn(self) -> dict[str, Any]:
        """The leaves of free parts in the draw that showed the shapes."""
        return {leaf: value for part in self.free for leaf, value in zip(part.names, part.values, strict=True)}

    def check_density(self) -> None:
        """Raise ModelError unless the log-density is a scalar."""
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
        """The support of each free part; None where one depends on another part. ModelError for a part without one."""
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
                    "bijector, so its support is not known. Pin it to data, or write Model.from_function("
                    f"lambda p: joint.log_prob(**p, **data), variables={{{part.name!r}: ...}}) with a support or a "
                    "bijector of your own."
                )
            bijectors.append(bijector)
        supports = [support_of(bijector) for bijector in bijectors]
        if any(part.nested for part in self.free):
            return None
        moved = [part for part, support in zip(self.free, supports, strict=True) if support.library is not None]
        return None if moved and self.some_support_depends(moved) else supports

    def some_support_depends(self, moved: list[Part]) -> bool:
        """Whether the bijector of one of these parts depends on the value of another part, by the graph of both."""
        import tensorflow as tf

        with self.graph() as (inputs, flat):
            tensors = []
            for part in moved:
                bijector = flat[part.name].experimental_default_event_space_bijector()
                before = bijector.inverse_event_shape(part.values[0].shape)
                x = tf.zeros(before, part.values[0].dtype)
                tensors += [bijector.forward(x), bijector.forward_log_det_jacobian(x, before.rank)]
        return _depend(tensors, [x for part in self.free for x in tf.nest.flatten(inputs[part.name])])

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
        names = [part.name for part in self.pinned if all(part is not needed for needed in held)]

        def values_of(structure: Any, parts: list[Part]) -> dict[str, Any]:
            flat = dict(zip([p.name for p in self.all], self.joint._model_flatten(structure), strict=True))
            return {
                ".".join((part.saved, *leaf.path)): leaf.value for part in parts for leaf in leaves(flat[part.name])
            }

        def drawn(values: Values, seed: Any) -> Any:
            pins = {part.name: part.structure for part in held}
            pins |= {part.name: part.packed(values) for part in self.free if part.names[0] in values}
            return self.joint.sample(seed=seed, **pins)

        def prior(seed: Any) -> dict[str, Any]:
            return values_of(drawn({}, seed), self.free)

        def predictive(values: Values, seed: Any) -> dict[str, Any]:
            return values_of(drawn(values, seed), [part for part in self.pinned if part.name in names])

        def log_likelihood(values: Values) -> dict[str, Any]:
            structure = self.structure(values)
            distributions, _ = self.joint.sample_distributions(seed=_SEED, value=structure)
            flat = dict(zip([p.name for p in self.all], self.joint._model_flatten(distributions), strict=True))
            return {part.saved: _pointwise(flat[part.name], part) for part in self.pinned if part.name in names}

        functions: dict[str, Any] = {"prior": prior}
        if names:
            functions |= {"predictive": predictive, "log_likelihood": log_likelihood}
        return {role: function for role, function in functions.items() if self.works(role, function)}

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

    def needed_by_free(self) -> list[Part]:
        """Pinned parts on which a free one depends, as covariates are: they are not predicted."""
        import tensorflow as tf

        last = max(place for place, part in enumerate(self.all) if not part.pinned)
        before = [part for part in self.all[:last] if part.pinned]
        if not before:
            return []
        with self.graph() as (inputs, flat):
            densities = [flat[part.name].log_prob(inputs[part.name]) for part in self.free]
        return [part for part in before if _depend(densities, tf.nest.flatten(inputs[part.name]))]


def _as_drawn(title: str, name: str, data: Any, drawn: Any) -> Any:
    """Data for a part, as tensors of the dtype and shape of a draw of it; raises ModelError where they do not fit."""
    import tensorflow as tf

    if any(leaf.path for leaf in leaves(drawn)):
        try:
            tf.nest.assert_same_structure(drawn, data)
        except (TypeError, ValueError):
            raise ModelError(
                f"Model {title!r}: the data for its part {name!r} are a {type(data).__name__}; expected a structure "
                f"like {tf.nest.map_structure(lambda x: tuple(x.shape), drawn)} (shapes)."
            ) from None
        flat = [_as_drawn(title, name, g, d) for g, d in zip(tf.nest.flatten(data), tf.nest.flatten(drawn))]
        return tf.nest.pack_sequence_as(drawn, flat)
    dtype, shape = drawn.dtype, tuple(drawn.shape)
    try:
        array = np.asarray(data)
        if array.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise ModelError(
            f"Model {title!r}: the data for its part {name!r} are a {type(data).__name__}, which is not an "
            "array of numbers."
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
    with np.errstate(over="ignore"):
        converted = array.astype(dtype.as_numpy_dtype)
    if dtype.is_floating and not np.isfinite(converted).all():
        raise ModelError(
            f"Model {title!r}: the data for its part {name!r} have {array[~np.isfinite(converted)].flat[0]}, which "
            f"does not fit into {dtype.name}; rescale them."
        )
    if dtype.is_integer and not (converted == array).all():
        raise ModelError(
            f"Model {title!r}: the data for its part {name!r} have numbers that are not {dtype.name}; expected "
            "integers."
        )
    return tf.constant(converted)


def _pointwise(distribution: Any, part: Part) -> Any:
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
