"""Targets of the Inference Gym as a Model, with their ground truths.

The reported values are those of the target's sample transformations, by name: of the transformation `identity` the
names of its own parts (`mu`, or `identity` where it gives one array), of another one `test_nll`, say. Ground truths of
the same names go into the group `ground_truth`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from batchnuts.bridges.errors import NotInstalledError
from batchnuts.bridges.tfp import (
    failed,
    import_tfp,
    installed_version,
    leaves,
    one_dtype,
    require_version,
    support_of,
    variable_of,
)
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.variables import Labels, checked_dims, checked_labels
from batchnuts.process.quiet import quiet_imports, without_jax
from batchnuts.settings.schema import nearest, sentence

OLDEST = (0, 0, 5)

OFFLINE: dict[str, dict[str, Any]] = {
    "Banana": {},
    "BrownianMotionMissingMiddleObservations": {},
    "BrownianMotionUnknownScalesMissingMiddleObservations": {},
    "ConvectionLorenzBridge": {},
    "ConvectionLorenzBridgeUnknownScales": {},
    "EightSchools": {},
    "IllConditionedGaussian": {},
    "NealsFunnel": {},
    "NonIdentifiableQuarticMeasurementModel": {},
    # of 2,516 scalar parts otherwise, which the gym itself takes minutes to make
    "StochasticVolatilitySP500": {"use_markov_chain": True},
    "StochasticVolatilitySP500Small": {},
    "SyntheticItemResponseTheory": {},
    "SyntheticLogGaussianCoxProcess": {},
    "SyntheticPlasmaSpectroscopy": {},
    "SyntheticPlasmaSpectroscopyWithBump": {},
    "VectorizedStochasticVolatilityLogSP500": {},
    "VectorizedStochasticVolatilityLogSP500Small": {},
    "VectorizedStochasticVolatilitySP500": {},
    "VectorizedStochasticVolatilitySP500Small": {},
}
"""Targets whose data are made, or ship with the package: by name, the arguments that they are made with here."""

STATISTICS = ("mean", "mean_standard_error", "standard_deviation", "standard_deviation_standard_error")
"""Labels of the axis `statistic` of ground truths."""


def offline_targets() -> dict[str, Callable[[], Any]]:
    """By name: what makes the target. All targets whose data ship with the package or are synthetic."""

    def maker(name: str) -> Callable[[], Any]:
        return lambda: make_target(name)

    return {name: maker(name) for name in OFFLINE}


def make_target(name: str, **arguments: Any) -> Any:
    """A target by the name of its class. Raises ModelError for unknown names, one that takes data, or a download."""
    targets = import_targets()
    names = sorted(n for n in targets.__all__ if hasattr(targets, n))
    if name not in names:
        close = nearest(name, names) or nearest(name.lower(), {n.lower(): n for n in names})
        named = {n.lower(): n for n in names}
        for lower, right in named.items():
            close = close.replace(repr(lower), repr(right))
        raise ModelError(
            sentence(f"the Inference Gym has no target {name!r}{close}")
            + f" Those that need no download: {', '.join(OFFLINE)}."
        )
    constructor = getattr(targets, name)
    options = {**OFFLINE.get(name, {}), **arguments}
    takes = inspect.signature(constructor).parameters
    if unknown := sorted(options.keys() - takes.keys()):
        raise ModelError(
            sentence(f"the target {name} takes ({', '.join(takes)}), not {unknown[0]!r}{nearest(unknown[0], takes)}")
        )
    needed = [p.name for p in takes.values() if p.default is p.empty and p.name not in options]
    if needed:
        raise ModelError(
            f"the target {name} is made with data of your own ({', '.join(needed)}): make it in Python, and give it to "
            "Model.from_inference_gym."
        )
    _refuse_download(name)
    try:
        return constructor(**options)
    except Exception as error:
        raise failed(name, "the target's constructor", error) from error


def import_targets() -> Any:
    """`inference_gym.using_tensorflow.targets`.

    Raises NotInstalledError, and ModelError where it cannot be imported, or is too old.
    """
    version = installed_version("inference_gym")
    if version is None:
        raise NotInstalledError("inference_gym is not installed: pip install 'batchnuts[gym]', or inference_gym.")
    require_version("inference_gym", version, OLDEST)
    import_tfp()
    try:
        with without_jax(), quiet_imports():
            return importlib.import_module("inference_gym.using_tensorflow").targets
    except Exception as error:
        raise ModelError(
            f"inference_gym {version} cannot be imported ({type(error).__name__}: {error}). Known to work: "
            "inference_gym 0.0.5 with tensorflow-probability 0.25."
        ) from error


def from_inference_gym(
    target: Any, *, name: str | None = None, dims: Mapping[str, Any] | None = None, coords: Labels | None = None
) -> Model:
    """`Model.from_inference_gym`: a Model of a target of the Inference Gym."""
    if isinstance(target, str):
        target = make_target(target)
    import_tfp()
    needed = ("unnormalized_log_prob", "default_event_space_bijector", "event_shape", "sample_transformations")
    if isinstance(target, type) or not all(hasattr(target, field) for field in needed):
        hint = " (call it: it is a class)" if isinstance(target, type) else ""
        raise ModelError(
            f"Model.from_inference_gym takes a target, found {target!r}{hint}. Expected one of "
            "inference_gym.using_tensorflow.targets, or the name of one."
        )
    if "backend_jax" in type(target).__module__ or "backend_numpy" in type(target).__module__:
        raise ModelError(
            f"the target {target.name!r} is one for JAX or NumPy; expected one of inference_gym.using_tensorflow."
        )
    _refuse_download(type(target).__name__ if hasattr(type(target), "GROUND_TRUTH_MODULE") else "")
    title = name or str(target.name)
    owner = f"Model {title!r}"
    return _Gym(target, title, checked_dims(owner, dims), checked_labels(owner, coords)).model()


class _Gym:
    """A target, its parts and what is reported."""

    def __init__(self, target: Any, title: str, dims: Mapping[str, Any], coords: Labels) -> None:
        self.target, self.title, self.dims, self.coords = target, title, dims, coords
        dtypes = list(leaves(target.dtype))
        self.shapes = [tuple(int(n) for n in leaf.value) for leaf in leaves(target.event_shape)]
        self.parts = [leaf.name or "identity" for leaf in dtypes]
        self.dtype = one_dtype(title, dict(zip(self.parts, (leaf.value for leaf in dtypes), strict=True)))
        self.bijectors = self._bijectors()
        self.same: dict[str, str] = {}
        """By part that a transformation gives as it is: the reported name."""
        tried = self._try_transformations()
        self.arrays = {key: list(arrays) for key, arrays in tried.items()}
        self.reported = {name: value for arrays in tried.values() for name, value in arrays.items()}

    def _bijectors(self) -> list[Any]:
        bijectors = [leaf.value for leaf in leaves(self.target.default_event_space_bijector)]
        if len(bijectors) != len(self.parts):
            raise ModelError(
                f"Model {self.title!r}: it has {len(self.parts)} parts and {len(bijectors)} bijectors; expected one "
                "for each part. Wrap it in VectorModel, or write its density with Model.from_function."
            )
        return bijectors

    def packed(self, values: Mapping[str, Any]) -> Any:
        """The structure of the target, from values by the names of its parts."""
        import tensorflow as tf

        flat = [values[part] for part in self.parts]
        return tf.nest.pack_sequence_as(self.target.dtype, flat) if _nested(self.target.dtype) else flat[0]

    def transformed(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """By transformation: its arrays for one draw, by the names that are reported."""
        structure = self.packed(values)
        return {
            key: {_reported_name(key, leaf.path): leaf.value for leaf in leaves(transformation(structure))}
            for key, transformation in self.target.sample_transformations.items()
        }

    def _try_transformations(self) -> dict[str, dict[str, Any]]:
        """`transformed` of some values; raises ModelError where a transformation fails."""
        import tensorflow as tf

        values = {}
        for part, shape, bijector in zip(self.parts, self.shapes, self.bijectors, strict=True):
            before = bijector.inverse_event_shape(shape)
            # of its own each, so that a part that is reported as it is can be recognized
            values[part] = tf.identity(bijector.forward(tf.zeros(before, self.dtype)))
        try:
            results = self.transformed(values)
        except Exception as error:
            raise failed(self.title, "one of its sample transformations", error) from error
        for part in self.parts:
            name = next((n for arrays in results.values() for n, v in arrays.items() if v is values[part]), None)
            if name is not None:
                self.same[part] = name
        return results

    def model(self) -> Model:
        """The target as a Model."""
        reports = len(self.same) == len(self.parts)
        renamed = {part: self.same[part] if reports else part for part in self.parts}
        variables = tuple(
            variable_of(renamed[part], shape, support_of(bijector), self.dims, self.coords)
            for part, shape, bijector in zip(self.parts, self.shapes, self.bijectors, strict=True)
        )
        further = [n for n in self.reported if not (reports and n in renamed.values())]

        def by_part(values: Mapping[str, Any]) -> dict[str, Any]:
            return {part: values[renamed[part]] for part in self.parts}

        def log_density(values: Mapping[str, Any]) -> Any:
            return self.target.unnormalized_log_prob(self.packed(by_part(values)))

        def generated(values: Mapping[str, Any]) -> dict[str, Any]:
            by_transformation = self.transformed(by_part(values))
            return {n: v for arrays in by_transformation.values() for n, v in arrays.items() if n in further}

        truths, labels = self.ground_truth()
        return Model(
            name=self.title,
            log_density=log_density,
            dimension=sum(variable.free for variable in variables),
            dtype=self.dtype,
            variables=variables,
            structured=True,
            reports_variables=reports,
            generated=generated if further else None,
            dims={n: (d,) if isinstance(d, str) else tuple(d) for n, d in self.dims.items()},
            coords={**self.coords, **labels},
            ground_truth=truths,
        )

    def ground_truth(self) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """By reported name: axes, and an array [statistic, *shape] in which unknown numbers are NaN."""
        tables: dict[str, Any] = {}
        for key, transformation in self.target.sample_transformations.items():
            for row, statistic in enumerate(STATISTICS):
                for name, value in self._truths(key, getattr(transformation, f"ground_truth_{statistic}")).items():
                    shape = tuple(self.reported[name].shape)
                    table = tables.setdefault(name, np.full((len(STATISTICS), *shape), np.nan))
                    table[row] = value
        truths = {}
        for name, table in tables.items():
            axes = self.dims.get(name, tuple(f"{name}_dim_{axis}" for axis in range(table.ndim - 1)))
            truths[name] = (("statistic", *((axes,) if isinstance(axes, str) else axes)), table)
        return truths, {"statistic": list(STATISTICS)} if truths else {}

    def _truths(self, transformation: str, truth: Any) -> dict[str, Any]:
        """The ground truths of a transformation, by reported name. Raises ModelError where one has another shape."""
        if truth is None:
            return {}
        arrays = {_reported_name(transformation, leaf.path): np.asarray(leaf.value) for leaf in leaves(truth)}
        names = self.arrays[transformation]
        if (
            list(arrays) == [transformation] != names
        ):  # of parts that the truth has in one array (ConvectionLorenzBridge)
            arrays = dict(zip(names, arrays[transformation], strict=True))
        for name, value in arrays.items():
            shape = tuple(self.reported[name].shape) if name in names else None
            if value.shape != shape:
                raise ModelError(
                    f"Model {self.title!r}: the ground truth of {name!r} has shape {value.shape}; its transformation "
                    f"{transformation!r} gives {', '.join(names)}, of shape {shape}."
                )
        return arrays


def _reported_name(transformation: str, path: tuple[str, ...]) -> str:
    """The reported name of an array that a transformation gives at a place of its result."""
    own = ".".join(path)
    if transformation == "identity":
        return own or transformation
    return f"{transformation}.{own}" if own else transformation


def _nested(structure: Any) -> bool:
    return any(leaf.path for leaf in leaves(structure))


def _refuse_download(name: str) -> None:
    """Raise ModelError where the target's data come by a package that is not installed."""
    if name.startswith(("GermanCredit", "RadonContextualEffects")) and installed_version("tensorflow-datasets") is None:
        raise ModelError(
            f"the target {name} needs a download, by TensorFlow Datasets, which is not installed: "
            f"pip install tensorflow-datasets. Targets that need none: {', '.join(OFFLINE)}."
        )
