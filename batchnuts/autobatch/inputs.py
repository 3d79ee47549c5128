"""Arguments of a call: what one lane has of each, and all lanes' values."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import LaneInputError
from batchnuts.autobatch.ir.program import TensorType
from batchnuts.autobatch.language.arrays import tensor_library_of
from batchnuts.autobatch.language.pytree import flatten, map_leaves
from batchnuts.autobatch.passes.infer_types import WEAK_DTYPES


@dataclass(frozen=True)
class Inputs:
    """A call's arguments, in parameter order: leaves [lanes, ...] and the type of one lane."""

    values: tuple[Any, ...]
    types: tuple[Any, ...]
    lanes: int

    @property
    def leaves(self) -> tuple[np.ndarray, ...]:
        """All arrays in order."""
        return tuple(leaf for value in self.values for leaf in flatten(value)[0])


def bind(bound: inspect.BoundArguments) -> Inputs:
    """The arguments of a call that fits the signature, with defaults. Raises LaneInputError for what is no array
    [lanes, ...], and where numbers of lanes differ."""
    explicit = dict(bound.arguments)
    bound.apply_defaults()
    lane_counts: dict[int, str] = {}
    for name, value in explicit.items():
        numbers = flatten(value)[0] if isinstance(value, list) else []
        if numbers and all(type(leaf) in WEAK_DTYPES for leaf in numbers):
            raise LaneInputError(
                f"argument {name!r} is a list of numbers, which is a structure of {len(numbers)} numbers here, not "
                f"{len(value)} lanes. Give numpy.array({name}) for one number per lane."
            )
        for leaf in flatten(value)[0]:
            shape = as_array(name, leaf).shape
            if type(leaf) in WEAK_DTYPES:
                continue
            if not shape:
                raise LaneInputError(
                    f"argument {name!r} has an array without a lane axis; give shape [lanes, ...], or a Python "
                    "number for the same value on every lane."
                )
            lane_counts.setdefault(shape[0], name)
    many = [count for count in lane_counts if count != 1]
    if len(many) > 1:
        shown = " and ".join(f"{count} in {lane_counts[count]!r}" for count in many)
        raise LaneInputError(f"arguments have different numbers of lanes: {shown}. Their first axes must agree.")
    lanes = many[0] if many else 1
    values, types = [], []
    for name, value in bound.arguments.items():
        # a default is what one lane has: the same on all
        type_, array = (lane_type, on_lanes) if name in explicit else (default_type, default_on_lanes)
        types.append(map_leaves(functools.partial(type_, name), value))
        values.append(map_leaves(functools.partial(array, lanes, name), value))
    return Inputs(tuple(values), tuple(types), lanes)


def as_array(name: str, leaf: Any) -> np.ndarray:
    """An argument's leaf as an array of a dtype that every backend supports; LaneInputError if it holds no numbers."""
    try:
        array = np.asarray(leaf)
    except Exception as error:
        if (library := tensor_library_of(leaf)) is not None and library.trace_of(leaf) is not None:
            inside = f"autobatch.{library.name.lower()}(function, max_stack_depth=..., check=False)"
            raise LaneInputError(
                f"argument {name!r} has no values yet, since {library.name} is tracing the program that this call is "
                f"in. Create {inside} outside of that program, and call that inside it."
            ) from None
        if not isinstance(error, (ValueError, TypeError)):
            raise
        raise LaneInputError(f"argument {name!r} is not an array: {error}") from None
    if isinstance(leaf, np.ma.MaskedArray):
        raise LaneInputError(
            f"argument {name!r} is a masked array, whose mask would be lost. Give `x.filled(...)`, and `x.mask` as "
            "another argument."
        )
    if type(leaf) is int and array.dtype != np.int64:
        raise LaneInputError(f"argument {name!r} is {leaf}, which an int64 cannot hold.")
    if array.dtype.kind not in "biufc":
        if leaf is None:
            raise LaneInputError(
                f"argument {name!r} holds None, expected numbers or booleans. Give a number that no value can be "
                "(such as -1 or NaN) in its place."
            )
        scalar_object = array.dtype == object and not array.ndim
        held_type = type(leaf).__name__ if scalar_object else array.dtype
        instead = " Give arrays, in tuples, dicts, namedtuples or frozen dataclasses." if scalar_object else ""
        if str(held_type).startswith(("bfloat16", "float8")):
            instead = f" Give {name}.astype('float32'): arithmetic in {held_type} is not supported."
        raise LaneInputError(f"argument {name!r} holds {held_type}, expected numbers or booleans.{instead}")
    if array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        raise LaneInputError(f"argument {name!r} holds {array.dtype}; give a dtype of 64 bits at most (complex: 128).")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def lane_type(name: str, leaf: Any) -> TensorType:
    """The type that one lane has of an argument's leaf [lanes, ...], or of a number for all lanes."""
    if type(leaf) in WEAK_DTYPES:
        return TensorType(WEAK_DTYPES[type(leaf)], (), weak=True)
    array = as_array(name, leaf)
    return TensorType(array.dtype.name, array.shape[1:])


def default_type(name: str, leaf: Any) -> TensorType:
    """The type that one lane has of a default's leaf, which is what each lane has."""
    if type(leaf) in WEAK_DTYPES:
        return lane_type(name, leaf)
    array = as_array(name, leaf)
    return TensorType(array.dtype.name, array.shape)


def default_on_lanes(lanes: int, name: str, leaf: Any) -> np.ndarray:
    """A default on all lanes: [lanes, ...]."""
    array = as_array(name, leaf)
    return np.broadcast_to(array, (lanes, *array.shape))


def on_lanes(lanes: int, name: str, leaf: Any) -> np.ndarray:
    """An argument's leaf on all lanes: [lanes, ...]."""
    array = as_array(name, leaf)
    if not array.ndim:
        return np.full(lanes, array)
    return np.broadcast_to(array, (lanes, *array.shape[1:]))
