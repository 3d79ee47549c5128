"""Bridges by the key that a config has for them in `model`: `model: {numpyro: package.module:model, ...}`.

Importing this module imports no bridge: most runs need none, and their schemas take half a second.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchnuts.mcmc.model.model import Model
    from batchnuts.settings.schema import Settings

_SECTIONS = "batchnuts.bridges.sections"


@dataclass(frozen=True)
class Bridge:
    """How a config's section `model` becomes a Model of another library."""

    schema: str
    """The name of its schema in sections.py."""
    builder: str
    """The name of the function there that makes the model."""
    backend: str | None
    """"jax" or "tensorflow": the array library that has to be imported before; None: none has."""

    def library(self, options: Any) -> str | None:
        """The array library for these options of its schema."""
        return "jax" if getattr(options, "engine", None) == "jax" else self.backend

    @property
    def options(self) -> type[Settings]:
        """Its schema, with the bridge's key among its fields. Importing it imports none of the libraries."""
        schema: type[Settings] = getattr(importlib.import_module(_SECTIONS), self.schema)
        return schema

    @property
    def build(self) -> Callable[[Any], Model]:
        """The function that makes the model from its options; it raises ConfigError and ModelError."""
        builder: Callable[[Any], Model] = getattr(importlib.import_module(_SECTIONS), self.builder)
        return builder

    def made(self, options: Settings) -> bool:
        """Whether these are options of its schema; imports nothing."""
        kind = type(options)
        return (kind.__module__, kind.__name__) == (_SECTIONS, self.schema)


BRIDGES: dict[str, Bridge] = {
    "jax": Bridge("JaxOptions", "build_jax", "jax"),
    "joint_distribution": Bridge("JointDistributionOptions", "build_joint_distribution", "tensorflow"),
    "inference_gym": Bridge("GymOptions", "build_gym", "tensorflow"),
    "numpyro": Bridge("NumpyroOptions", "build_numpyro", "jax"),
    "pymc": Bridge("PymcOptions", "build_pymc", "jax"),
    "stan": Bridge("StanOptions", "build_stan", None),
}
