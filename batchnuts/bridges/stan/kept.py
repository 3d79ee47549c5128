"""What was found out of a Stan program and its data: who computes the density, and what the translation computes.

It is kept on disk beside compiled programs. So a second start translates and times nothing, and where the translation
could be recorded for machine code, it does not import JAX.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from batchnuts.autobatch.machine import Expression
from batchnuts.disk_cache.folder import for_models
from batchnuts.disk_cache.identity import digest_of, own_sources, surroundings

VERSIONS = ("numpy", "scipy", "jax", "jaxlib", "diffrax", "tensorflow-probability")
"""Packages on which a translation, or its speed, depends."""


@dataclass(frozen=True)
class Kept:
    """How a choice ended."""

    translated: bool
    """Whether the translation is taken; else Stan's C function."""
    note: str
    """Why, for the run's summary."""
    gradient: Expression | None = None
    """The log-density with its gradient at a position, in float64, where the translation is taken and was recorded."""


def key_of(*parts: str) -> str | None:
    """The key of a choice that depends on these parts, on this package, on what it calls and on the processor; None
    where that might not be all."""
    with suppress(Exception):  # a package without files
        if (package := own_sources()) is not None:
            return digest_of("stan", *parts, package, surroundings(), *map(_version, VERSIONS))
    return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def read(key: str | None) -> Kept | None:
    """What was kept; None where nothing is."""
    entries = for_models()
    if key is None or entries is None or (content := entries.get(key)) is None:
        return None
    try:
        kept = pickle.loads(content)  # only its owner can write to the folder (entries.py)
    except Exception:
        kept = None
    if not isinstance(kept, Kept):
        entries.drop(key)
        return None
    return kept


def keep(key: str | None, kept: Kept) -> None:
    """Keep it, where that can be done."""
    entries = for_models()
    if key is not None and entries is not None:
        entries.put(key, pickle.dumps(kept, pickle.HIGHEST_PROTOCOL))
