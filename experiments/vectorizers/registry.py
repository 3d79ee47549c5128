"""What loop vectorizers are compared on: computations of one example, and the ways to run them for many.

The registry of kinds. It imports neither TensorFlow nor JAX: a config is checked before they are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from batchnuts.settings.schema import Settings

Method = Literal["pfor", "tensorflow", "sequential", "by_hand", "jax"]
"""How one example's function is run for many: our pfor; `tf.vectorized_map` and `GradientTape.jacobian`; a sequential
`tf.map_fn`; code that a person batched; `jax.vmap` and `jax.jacrev`."""


class LinearOptions(Settings):
    """A matrix times each row."""

    width: int = Field(768, ge=1, description="rows and columns of the matrix")


class ConvnetOptions(Settings):
    """A small convolutional network on grey images of 28 x 28 pixels: two convolutions, two dense layers."""

    filters: list[int] = Field([16, 32], min_length=2, max_length=2, description="of the convolutions, 5 x 5")
    hidden: int = Field(64, ge=1, description="units of the first dense layer; the second has 10")


class LstmOptions(Settings):
    """One layer of LSTM cells over sequences of different lengths, uniform on 1 ... `longest`."""

    features: int = Field(32, ge=1, description="of a token")
    units: int = Field(64, ge=1, description="of the layer")
    longest: int = Field(100, ge=1, description="tokens of the longest sequence")


class LstmJacobianOptions(Settings):
    """The derivative of a linear readout of an LSTM's last state by all its input."""

    features: int = Field(32, ge=1, description="of a token")
    units: int = Field(64, ge=1, description="of the layer")
    tokens: int = Field(50, ge=1, description="of the sequence")


class VggOptions(Settings):
    """The derivative of the output of blocks of 3 x 3 convolutions, pooling and a dense layer by the image."""

    side: int = Field(32, ge=8, description="pixels along an edge of the image, which has three channels")
    filters: list[int] = Field([32, 64, 128], min_length=1, description="of each block, which has two convolutions")


class DensityOptions(Settings):
    """Leapfrog steps of each lane on its own log-density, with the gradient by GradientTape."""

    name: Literal["logistic_regression", "gaussian", "eight_schools", "hierarchical_regression", "gaussian_process"] = (
        Field(description="of the density")
    )
    steps: int = Field(ge=1, description="leapfrog steps of one call")
    step_size: float = Field(1e-3, gt=0.0, description="small, so that all ways stay together")


class NutsOptions(Settings):
    """batchnuts' sampler on a logistic regression: written for one chain (pfor), and for many (by hand)."""

    rows: int = Field(10_000, ge=1, description="observations")
    columns: int = Field(100, ge=1, description="regressors")
    transitions: int = Field(20, ge=1, description="of each chain in one call")
    step_size: float = Field(0.0025, gt=0.0, description="of the leapfrog")
    max_tree_depth: int = Field(10, ge=1, le=20, description="a trajectory doubles at most this many times")
    leapfrogs_per_leaf: int = Field(4, ge=1, description="leapfrog steps between two states of a trajectory")


@dataclass(frozen=True)
class Kind:
    """One kind of workload."""

    options: type[Settings]
    unit: str
    """The unit that one call processes, in the plural."""
    size: str
    """The things of which its sizes are numbers."""
    methods: tuple[Method, ...]


_ALL: tuple[Method, ...] = ("pfor", "tensorflow", "sequential", "by_hand", "jax")
_WITHOUT_HAND: tuple[Method, ...] = ("pfor", "tensorflow", "sequential", "jax")

KINDS: Mapping[str, Kind] = {
    "linear": Kind(LinearOptions, "GFLOP", "rows", _ALL),
    "convnet": Kind(ConvnetOptions, "images", "images", _ALL),
    "lstm": Kind(LstmOptions, "tokens", "sequences", _ALL),
    "convnet_gradients": Kind(ConvnetOptions, "gradients", "images", _WITHOUT_HAND),
    "lstm_gradients": Kind(LstmOptions, "gradients", "sequences", _WITHOUT_HAND),
    "lstm_jacobian": Kind(LstmJacobianOptions, "rows of the Jacobian", "outputs", _WITHOUT_HAND),
    "vgg_jacobian": Kind(VggOptions, "rows of the Jacobian", "outputs", _WITHOUT_HAND),
    "density": Kind(DensityOptions, "gradients", "lanes", _ALL),
    "nuts": Kind(NutsOptions, "useful gradients", "chains", ("pfor", "by_hand")),
}
