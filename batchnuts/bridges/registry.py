"""Bridges by the key that a config has for them in `model`: `model: {numpyro: package.module:model, ...}`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchnuts.bridges.sections import (
    GymOptions,
    JaxOptions,
    JointDistributionOptions,
    NumpyroOptions,
    PymcOptions,
    build_gym,
    build_jax,
    build_joint_distribution,
    build_numpyro,
    build_pymc,
)
from batchnuts.mcmc.model import Model
from batchnuts.settings.schema import Settings


@dataclass(frozen=True)
class Bridge:
    """How a config's section `model` becomes a Model of another library."""

    options: type[Settings]
    """Its schema, with the bridge's key among its fields. Importing it imports none of the libraries."""
    build: Callable[[Any], Model]
    """Makes the model from its options; raises ConfigError and ModelError."""
    backend: str
    """"jax" or "tensorflow": the library of arrays that has to be there before."""


BRIDGES: dict[str, Bridge] = {
    "jax": Bridge(JaxOptions, build_jax, "jax"),
    "joint_distribution": Bridge(JointDistributionOptions, build_joint_distribution, "tensorflow"),
    "inference_gym": Bridge(GymOptions, build_gym, "tensorflow"),
    "numpyro": Bridge(NumpyroOptions, build_numpyro, "jax"),
    "pymc": Bridge(PymcOptions, build_pymc, "jax"),
}
