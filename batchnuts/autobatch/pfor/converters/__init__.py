"""The converters, by family of ops. Importing this registers all of them."""

from batchnuts.autobatch.pfor.converters import (
    branches,
    elementwise,
    gradients,
    indexing,
    lengths,
    linalg,
    lists,
    loops,
    matmul,
    networks,
    ragged,
    random,
    reductions,
    shapes,
    slices,
    state,
)

__all__ = [
    "branches",
    "elementwise",
    "gradients",
    "indexing",
    "lengths",
    "linalg",
    "lists",
    "loops",
    "matmul",
    "networks",
    "ragged",
    "random",
    "reductions",
    "shapes",
    "slices",
    "state",
]
