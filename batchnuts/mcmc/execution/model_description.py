"""A model in words and digests, and the versions that a run's numbers depend on: by them a changed one is found."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from batchnuts.autobatch.machine import engine_infos
from batchnuts.files.sealed_file import digest
from batchnuts.mcmc.model.data_argument import leaves_of
from batchnuts.mcmc.model.fingerprint import fingerprint
from batchnuts.mcmc.model.model import DATA_GROUPS, Model
from batchnuts.mcmc.model.variables import variables_in_words

FUNCTIONS = ("log_density", "generated", "log_likelihood", "predictive", "prior")
"""The functions of a model."""


def made_with(backend: str) -> dict[str, str]:
    """The versions that a run's numbers depend on, by name, and the kind of machine."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2]), "machine": platform.machine()}
    engine = engine_infos().get(backend)  # None where draws were made without one: in a test, say
    for package in ("batchnuts", *(engine.packages if engine else ("numpy",))):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def described(model: Model) -> dict[str, str]:
    """A model in words and digests, by which a changed one is found; its density's values are compared besides."""
    data = [
        f"{group} {name} {dims} {digest(np.asarray(array))}"
        for group in DATA_GROUPS
        for name, (dims, array) in sorted(getattr(model, group).items())
    ]
    data += [f"argument {number} {digest(leaf)}" for number, leaf in enumerate(leaves_of(model.data))]
    functions = {name: getattr(model, name) for name in FUNCTIONS}
    functions["of_draw"] = None if model.of_draw is None else model.of_draw.function
    return {
        "name": model.name,
        "dtype": model.dtype,
        "variables": "; ".join(variables_in_words(model.variables)),
        "labels": _digest(repr(sorted(model.labels().items()))),
        "data": _digest("\n".join(data)),
        **{f"function {name}": _of_code(function) for name, function in functions.items() if function is not None},
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_code(function: Any) -> str:
    """A digest of a function's code, and of what it finds around it that does not change by itself."""
    digests = fingerprint(function, lasting=True)
    return _digest("\n".join(f"{key} {digest.hex()}" for key, digest in sorted(digests.items())))
