"""What a function of TensorFlow's computes, as one key: by which a program that contains it is found without tracing.

A function is known by its graph: all ops with their attributes, in the functions that it calls too, and all constants
and captured tensors. That says all only if the ops are TensorFlow's own and none reaches outside of the graph (Python's
functions, variables, tables, files), and if nobody else's converter makes many rows of one. Where anything is not known
for certain, there is no key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from batchnuts.autobatch.language.libraries.tensorflow_graphs import description, places_of
from batchnuts.autobatch.pfor.graphs import traced_apart
from batchnuts.autobatch.pfor.registry import LENGTHS, REGISTRY
from batchnuts.disk_cache.identity import (
    MOST_CONSTANT_BYTES,
    binaries,
    digest_of,
    is_release,
    own_sources,
    surroundings,
)

_WITH_EFFECTS = frozenset(
    ["Assert", "Case", "CheckNumerics", "CheckNumericsV2", "If", "PartitionedCall", "StatefulPartitionedCall", "While"]
)
"""Ops that TensorFlow keeps in their order, of which the graph says all: what they call, or where they stop."""

_READS_FILES = frozenset(["MatchingFiles", "ReadFile"])
"""Ops whose results are not in the graph, though TensorFlow has them for ops without effects."""


class _Unknown(Exception):
    """Something that a key cannot be made of."""


def identity_of(function: Callable[..., Any], *arrays: Any) -> str | None:
    """64 hexadecimal digits that two functions share only if they compute the same of such arrays, compiled by XLA;
    None: not known.

    Their derivatives may differ: ask for the identity of a function that computes them.
    """
    try:
        specs = [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
        traced = traced_apart(function, specs, xla=True)
        graph_def = traced.graph.as_graph_def()
        captured = _captured(traced, graph_def.ByteSize())
        _check_ops(graph_def)
        results = [_result(leaf) for leaf in tf.nest.flatten(traced.structured_outputs, expand_composites=True)]
        structure = str(tf.nest.map_structure(lambda _: 0, traced.structured_outputs))
        places = places_of(graph_def.node)
        ends = [(places[tensor.op.name], tensor.value_index) for tensor in (*traced.inputs, *traced.outputs)]
        return digest_of(repr((ends, results, structure)), *captured, *description(graph_def))
    except Exception:  # what is not known, what cannot be traced, and what is new in this TensorFlow
        return None


def _captured(traced: Any, size: int) -> Iterator[str | bytes]:
    """The types and contents of the captured tensors. size: bytes of the graph."""
    arrays = []
    for tensor in traced.captured_inputs:
        if not isinstance(tensor, tf.Tensor) or tensor.dtype in (tf.resource, tf.variant, tf.string):
            raise _Unknown
        arrays.append(np.asarray(tensor))
        size += arrays[-1].nbytes
    if size > MOST_CONSTANT_BYTES:
        raise _Unknown
    return (part for array in arrays for part in (f"{array.dtype} {array.shape}", array.tobytes()))


def _result(leaf: Any) -> str:
    if leaf is None:
        return "None"
    if not tf.is_tensor(leaf):
        raise _Unknown
    return f"{leaf.dtype.name} {leaf.shape}"


def _check_ops(graph_def: Any) -> None:
    """Raise _Unknown for a graph that does not say all of what it computes."""
    functions = {function.signature.name for function in graph_def.library.function}
    nodes = (graph_def.node, *(function.node_def for function in graph_def.library.function))
    for name in {node.op for part in nodes for node in part} - functions:
        definition = op_def_registry.get(name)
        converters = [REGISTRY[name].convert] if name in REGISTRY else []
        converters += [LENGTHS[name]] if name in LENGTHS else []
        if (
            definition is None
            or not hasattr(tf.raw_ops, name)  # of a library that the user loads
            or "PyFunc" in name
            or name in _READS_FILES
            or (definition.is_stateful and name not in _WITH_EFFECTS)
            or any(convert.__module__.partition(".")[0] != "batchnuts" for convert in converters)
        ):
            raise _Unknown


def key_by_identity(*identity: str) -> str | None:
    """The second key of a program; None where it might not say all.

    identity: all that the program depends on beside the files of this package: its text, its arguments' types, and what
    functions compute that it calls (`identity_of`).
    """
    with suppress(Exception):  # interfaces of TensorFlow that change, packages without files
        package = own_sources()
        as_numpy = hasattr(tf.Tensor, "ravel")  # tf.experimental.numpy: operators mean other things then
        if package is None or as_numpy or not is_release(tf.version.VERSION, tf.__file__):
            return None
        return digest_of("tensorflow by identity", *identity, package, np.__version__, compiler())
    return None


def compiler() -> str:
    """What the result of XLA depends on beside the graph and the settings of this process."""
    variables = sorted((n, v) for n, v in os.environ.items() if n.startswith("TF_") and not n.startswith("TF_CPP_"))
    return digest_of(
        tf.version.VERSION,
        tf.version.GIT_VERSION,
        tf.version.COMPILER_VERSION,
        binaries(str(Path(tf.__file__).parent)),
        surroundings(),
        str(variables),
    )
