"""What backends share when they evaluate primitives abstractly: stand-in values and the types of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.language import builtins
from batchnuts.autobatch.language.functions import LaneFunction
from batchnuts.autobatch.language.libraries.type_rules import Typed
from batchnuts.autobatch.language.pytree import flatten, map_leaves, unflatten
from batchnuts.autobatch.passes.infer_types import WEAK_DTYPES, AbstractResult
from batchnuts.autobatch.passes.join_types import NoArrayError

StandIns = Mapping[str, Any]
"""A value for each dtype kind, in place of one that is not known at compile time."""

USUAL: StandIns = {"b": True, "i": 5, "u": 5, "f": 0.5, "c": 0.5}
OTHER: StandIns = {"b": False, "i": 2, "u": 2, "f": -1.5, "c": -1.5}
ZEROS: StandIns = {"b": False, "i": 0, "u": 0, "f": 0.0, "c": 0.0}

TRACED_LANES = 1009
"""Lanes that a batched primitive is traced with: an extent that no real array has, so that a missing lane axis is
detected."""


def stand_in(type_: TensorType, values: StandIns) -> Any:
    """A Python number for a weak type, else an array of that type."""
    value = values[np.dtype(type_.dtype).kind]
    if type_.weak:
        return value
    return np.full(type_.shape, value, type_.dtype)[()]


def trace_with_literals(
    trace: Callable[[Primitive, tuple[Any, ...], StandIns], tuple[AbstractResult, ...]],
    function: Primitive,
    arguments: tuple[Any, ...],
) -> tuple[AbstractResult, ...]:
    """`trace` with usual values in place of literals, or with zeros where it fails with those.

    A literal may be an index, and zero may be valid where five is not. If both fail, the first failure is raised. What
    consists of the language's own functions need not be traced, if all of them have rules for types.
    """
    if function.recordable:
        with suppress(Exception):  # no rule, or an error of the user's, which the trace will have too
            return typed(function, arguments, USUAL)
    try:
        return trace(function, arguments, USUAL)
    except Exception:
        if not any(leaf.weak for t in arguments for leaf in flatten(t)[0]):
            raise
        try:
            return trace(function, arguments, ZEROS)
        except Exception:
            pass
        raise


def typed(function: Primitive, arguments: tuple[Any, ...], literals: StandIns) -> tuple[AbstractResult, ...]:
    """The results for arrays that have types only. Raises whatever it may where that is not enough."""
    types = [leaf for t in arguments for leaf in flatten(t)[0]]
    stand_ins = [
        stand_in(t, literals) if t.weak else Typed(t.dtype, t.shape, frozenset([i])) for i, t in enumerate(types)
    ]
    position = {id(array): i for i, array in enumerate(stand_ins) if isinstance(array, Typed)}
    leaves = iter(stand_ins)
    with np.errstate(all="ignore"):
        results = [
            flatten(value) for value in function.call(*[map_leaves(lambda _: next(leaves), t) for t in arguments])
        ]
    used = {i for i, t in enumerate(types) if t.weak}
    for flat, _ in results:
        for leaf in flat:
            if isinstance(leaf, Typed) and id(leaf) not in position:
                used |= leaf.reads
    abstract = []
    for flat, tree in results:
        leaf_types = [
            TensorType(leaf.static_dtype.name, leaf.static_shape) if isinstance(leaf, Typed) else type_of_value(leaf)
            for leaf in flat
        ]
        sources = tuple(position.get(id(leaf)) for leaf in flat)
        abstract.append(AbstractResult(unflatten(tree, leaf_types), sources, frozenset(used)))
    return tuple(abstract)


def type_of_value(value: Any) -> TensorType:
    """The type of one array, or the weak type of a Python number. Raises NoArrayError for anything else."""
    if type(value) in WEAK_DTYPES:
        return TensorType(WEAK_DTYPES[type(value)], (), weak=True)
    array = np.asarray(value)
    if array.dtype.kind not in USUAL:
        raise NoArrayError(f"a variable holds arrays and numbers, found {_shown(value)}.")
    return TensorType(array.dtype.name, array.shape)


def _shown(value: Any) -> str:
    """What was found in place of an array or number, and what to write."""
    if isinstance(value, (str, bytes)):
        return (
            f"the string {value!r}. Strings must be known when the program is compiled, as must functions that they "
            "select in a table: write `if` and `else` around what they select, or use numbers"
        )
    if callable(value) or isinstance(value, LaneFunction):
        name = getattr(value, "__name__", "")
        if getattr(value, "__module__", "") == builtins.__name__:  # what stands for one of Python's own
            name = name.removeprefix("python_")
        kind = type(value).__name__ if not name else "class" if isinstance(value, type) else "function"
        description = f"the {kind}{f' {name!r}' if name else ''}"
        return (
            f"{description}. Functions must be known when the program is compiled. To choose "
            "by a value of the lane, write `if` and `else` with a call in each; keep several in a tuple or dict of "
            "functions, inside or outside of the function; pass one on as an argument, and return its result"
        )
    if value is None:
        return "None. Use a number that no result can be (such as -1 or infinity), or a boolean next to the number"
    return f"{type(value).__name__}. Keep several values in a tuple, dict, namedtuple or frozen dataclass"


def without_lanes(type_: TensorType, lanes: int) -> TensorType:
    """One lane's type of a batched primitive's result. Raises ValueError if its first axis is not the lanes."""
    if not type_.shape or type_.shape[0] != lanes:
        raise ValueError(
            f"a batched primitive returned shape {type_.shape} for {lanes} lanes; its results must have the lane axis "
            f"in front, as in ({lanes}, ...). Reduce over the other axes only."
        )
    return TensorType(type_.dtype, type_.shape[1:])
