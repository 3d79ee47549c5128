"""Assertions in a density that XLA leaves out: found in its graph, and reported."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

from batchnuts.mcmc.model import Model
from batchnuts.mcmc.settings import ExecutionSettings

ASSERTING = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
"""Ops that stop a TensorFlow graph, for which XLA compiles nothing."""


class AssertionWarning(UserWarning):
    """An assertion in a model's density is not evaluated while it is sampled."""


def warn_of_assertions(model: Model, execution: ExecutionSettings) -> None:
    """Warn of each line of the density whose assertions XLA leaves out; other modes evaluate them."""
    if execution.mode != "xla" or execution.backend != "tensorflow":
        return
    for place in sorted(set(_assertions(model))):
        warnings.warn(
            f"Model {model.name!r}: the assertion at {place} is not evaluated: XLA compiles none. It was only at the "
            "first chain's start. To be -inf where it fails, write tf.where(condition, log_density, -inf); to stop the "
            "run there, sample with execution.mode=graph, which is slower.",
            AssertionWarning,
            stacklevel=2,
        )


def _assertions(model: Model) -> Iterator[str]:
    """The places of ops that assert, themselves or within the functions that they call, as file:line."""
    import tensorflow as tf

    density = tf.function(model.flat_log_density, autograph=False)
    try:
        traced = density.get_concrete_function(tf.TensorSpec([model.dimension], model.dtype))
    except Exception:  # it cannot be traced, which is reported where it is compiled
        return
    library = {f.signature.name: f.node_def for f in traced.graph.as_graph_def().library.function}
    asserting: set[str] = set()
    while more := {
        name
        for name, nodes in library.items()
        if name not in asserting and any(node.op in ASSERTING or _functions(node) & asserting for node in nodes)
    }:
        asserting |= more
    for op in traced.graph.get_operations():
        if op.type in ASSERTING or _functions(op.node_def) & asserting:
            yield _place(op)


def _functions(node: Any) -> set[str]:
    """The functions that a node calls, or has for branches and bodies."""
    given = [f for attribute in node.attr.values() for f in (attribute.func, *attribute.list.func)]
    return {node.op, *(f.name for f in given if f.name)}


def _place(op: Any) -> str:
    """The innermost line outside TensorFlow and of this package at which the op was made."""
    import tensorflow as tf

    ours = (os.path.dirname(tf.__file__), os.path.dirname(os.path.dirname(__file__)) + os.sep)
    frames = [f for f in op.traceback or () if not f.filename.startswith(ours)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else f"the op {op.name!r}"
