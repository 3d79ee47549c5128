"""What the bridges to libraries on top of TensorFlow Probability share: parts of a structure, and their supports."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.mcmc.model.check_model import users_place
from batchnuts.mcmc.model.model import DType, ModelError
from batchnuts.mcmc.model.supports import REAL, Support
from batchnuts.mcmc.model.tfp_bijectors import Bijector
from batchnuts.mcmc.model.variables import Labels, Variable
from batchnuts.process.quiet import import_tensorflow, without_jax

OLDEST = (0, 25)


def import_tfp() -> Any:
    """TensorFlow Probability; raises ModelError where it cannot be imported, or is too old."""
    try:
        with without_jax():
            import_tensorflow()  # TensorFlow Probability does so when something of it is used first, not quietly
            import tensorflow_probability as tfp
    except ImportError as error:
        raise ModelError(
            f"TensorFlow Probability cannot be imported ({error}); batchnuts requires it: "
            "pip install tensorflow tensorflow-probability tf-keras."
        ) from error
    require_version("tensorflow_probability", tfp.__version__, OLDEST)
    _repair_padding()
    return tfp


def require_version(package: str, version: str, oldest: tuple[int, ...]) -> None:
    """Raise ModelError where the installed version of a package is older than the required one."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[: len(oldest)])
    if numbers < oldest:
        wanted = ".".join(map(str, oldest))
        raise ModelError(
            f"{package} {version} is installed; this bridge needs {wanted} or later: "
            f"pip install -U '{package.replace('_', '-')}>={wanted}'."
        )


def installed_version(package: str) -> str | None:
    """The version of a package, or None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class _OlderNumPy:
    """NumPy, with the name that `reshape` had for its second argument until NumPy 2.3."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def reshape(a: Any, newshape: Any) -> Any:
        return np.reshape(a, newshape)


def _repair_padding() -> None:
    """TensorFlow Probability 0.25's `Pad`, and with it the bijector of simplexes, calls NumPy by an argument's name
    that NumPy 2.4 no longer has."""
    from tensorflow_probability.python.bijectors import pad

    try:
        pad.Pad()
    except TypeError:
        pad.np = _OlderNumPy()


@dataclass(frozen=True)
class Leaf:
    """One array of a structure."""

    path: tuple[str, ...]
    """Keys, names of fields or numbers, from the outside; empty where the structure is the array."""
    value: Any

    @property
    def name(self) -> str:
        """The path as one name."""
        return ".".join(self.path)


def leaves(structure: Any, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The leaves of nested mappings, named tuples, tuples and lists, in the order of `tf.nest`."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from leaves(structure[key], (*path, str(key)))
    elif hasattr(structure, "_fields") and hasattr(structure, "_asdict"):
        for key, value in structure._asdict().items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(structure, (tuple, list)):
        for number, value in enumerate(structure):
            yield from leaves(value, (*path, str(number)))
    else:
        yield Leaf(path, structure)


_DISCRETE = {
    "Bernoulli", "BetaBinomial", "Binomial", "Categorical", "DeterminantalPointProcess", "DirichletMultinomial",
    "FiniteDiscrete", "Geometric", "Multinomial", "NegativeBinomial", "OneHotCategorical", "OrderedLogistic",
    "PlackettLuce", "Poisson", "PoissonLogNormalQuadratureCompound", "ProbitBernoulli", "QuantizedDistribution",
    "Skellam", "StoppingRatioLogistic", "ZeroInflatedNegativeBinomial", "Zipf",
}  # fmt: skip
"""Classes of discrete distributions, some of whose values are floats."""


def refuse_discrete(title: str, distributions: Mapping[str, Any]) -> None:
    """Raise ModelError for distributions of integers, by the names of parts, whatever their dtype is."""
    kinds = {}
    for name, distribution in distributions.items():
        inner = distribution
        while (base := getattr(inner, "distribution", None)) is not None and type(inner).__name__ not in _DISCRETE:
            inner = base
        if any(kind.__name__ in _DISCRETE for kind in type(inner).__mro__):
            kinds[name] = type(inner).__name__
    if kinds:
        raise _discrete(title, kinds)


def _discrete(title: str, kinds: Mapping[str, str]) -> ModelError:
    listed = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    return ModelError(
        f"Model {title!r}: these parts are free and discrete: {listed}. NUTS moves real numbers only: pin them to "
        "data, or sum them out of the density (tfd.MixtureSameFamily and tfd.HiddenMarkovModel do)."
    )


def one_dtype(title: str, dtypes: Mapping[str, Any]) -> DType:
    """The dtype of all parts, by their names; raises ModelError for discrete parts, and for floats that differ."""
    import tensorflow as tf

    discrete = [name for name, dtype in dtypes.items() if not tf.as_dtype(dtype).is_floating]
    if discrete:
        raise _discrete(title, {name: tf.as_dtype(dtypes[name]).name for name in discrete})
    names = {tf.as_dtype(dtype).name for dtype in dtypes.values()}
    if names == {"float32"}:
        return "float32"
    if names == {"float64"}:
        return "float64"
    kinds = ", ".join(f"{name} {tf.as_dtype(dtype).name}" for name, dtype in dtypes.items())
    raise ModelError(
        f"Model {title!r}: its free parts have the dtypes {kinds}; expected float32 for all, or float64 for all."
    )


def support_of(bijector: Any) -> Support:
    """The support that is the image of a bijector; real numbers for the identity."""
    from tensorflow_probability import bijectors as tfb

    return REAL if isinstance(bijector, tfb.Identity) else Bijector(bijector)


def variable_of(
    name: str, shape: tuple[int, ...], support: Support, dims: Mapping[str, Any], coords: Labels
) -> Variable:
    """A variable with the names of its axes, and the labels of those that are its own."""
    axes = dims.get(name)
    named = axes if axes is not None else tuple(f"{name}_dim_{axis}" for axis in range(len(shape)))
    return Variable(name, shape, axes, {dim: coords[dim] for dim in named if dim in coords}, support)


def failed(title: str, doing: str, error: BaseException) -> ModelError:
    """The error where a user's model fails, with the last line of their code that it passed through."""
    first = next(iter(str(error).strip().splitlines()), "")
    return ModelError(f"Model {title!r}: {doing} failed with {type(error).__name__}: {first}{users_place(error)}")
