"""Functions that move elements, whose indices are known."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from batchnuts.autobatch.language.libraries.jax_rules.values import (
    Array,
    Equation,
    Rule,
    number,
    one_axis,
    permuted,
    rearranged,
    shape_of,
    whole,
    wholes,
)
from batchnuts.autobatch.language.libraries.jax_rules.windows import gathered, scattered
from batchnuts.autobatch.language.libraries.recording import FUNCTIONS as F
from batchnuts.autobatch.language.libraries.recording import LIBRARY, Recorded
from batchnuts.autobatch.language.libraries.type_rules import NotTyped


def _reshaped(equation: Equation, x: Array) -> Array:
    """reshape, squeeze, expand_dims: the same elements in another shape."""
    (atom,), (result,) = equation.invars, equation.outvars
    if equation.params.get("dimensions") is not None and equation.primitive.name == "reshape":
        raise NotTyped("elements in another order")
    return F.reshape(whole(x, atom.aval), result.aval.shape)


def _broadcast(equation: Equation, x: Array, *dynamic: Array) -> Array:
    """The same elements, with extents of 1 where the readers broadcast."""
    shape = [1] * len(equation.params["shape"])
    for axis, extent in zip(equation.params["broadcast_dimensions"], shape_of(x), strict=True):
        shape[axis] = extent
    return F.reshape(x, tuple(shape))


def _transpose(equation: Equation, x: Array) -> Array:
    return permuted(x, equation.params["permutation"])


def _concatenate(equation: Equation, *arrays: Array) -> Array:
    return F.concatenate(tuple(wholes(equation, arrays)), int(equation.params["dimension"]))


def _split(equation: Equation, x: Array) -> list[Array]:
    (x,) = wholes(equation, [x])
    axis, first, parts = int(equation.params["axis"]), 0, []
    for size in equation.params["sizes"]:
        parts.append(F.item(x, one_axis(slice(first, first + size), axis, len(shape_of(x)))))
        first += size
    return parts


def _unstack(equation: Equation, x: Array) -> list[Array]:
    (x,) = wholes(equation, [x])
    axis, rank = int(equation.params["axis"]), len(shape_of(x))
    return [F.item(x, one_axis(i, axis, rank)) for i in range(shape_of(x)[axis])]


def _pad(equation: Equation, x: Array, value: Array) -> Array:
    """Values before and after the elements along an axis; negative counts take elements off."""
    (atom, _), rank = equation.invars, len(shape_of(x))
    x = whole(x, atom.aval)
    if any(between for *_, between in equation.params["padding_config"]):
        (result,), size = equation.outvars, math.prod(shape_of(x))
        source = np.full(result.aval.shape, size)
        places = []
        for (before, _, between), extent in zip(equation.params["padding_config"], shape_of(x)):
            places.append(int(before) + (int(between) + 1) * np.arange(extent))
        kept = [(place >= 0) & (place < n) for place, n in zip(places, result.aval.shape)]
        numbers = np.arange(size).reshape(shape_of(x))[np.ix_(*kept)]
        source[np.ix_(*(place[own] for place, own in zip(places, kept)))] = numbers
        both = F.concatenate((F.reshape(x, (size,)), F.reshape(value, (1,))), 0)
        return rearranged(both, source)
    for axis, (before, after, _) in enumerate(equation.params["padding_config"]):
        before, after, extent = int(before), int(after), shape_of(x)[axis]
        if before < 0 or after < 0:
            x = F.item(x, one_axis(slice(max(-before, 0), extent - max(-after, 0)), axis, rank))

        def values(count: int, x: Array = x, axis: int = axis) -> Array:
            shape = tuple(count if a == axis else n for a, n in enumerate(shape_of(x)))
            return whole(F.reshape(value, (1,) * rank), jax.ShapeDtypeStruct(shape, LIBRARY.dtype_of(x)))

        parts = [*([values(before)] if before > 0 else []), x, *([values(after)] if after > 0 else [])]
        x = F.concatenate(tuple(parts), axis) if len(parts) > 1 else x
    return x


def _tiled(equation: Equation, x: Array) -> Array:
    (x,) = wholes(equation, [x])
    shape = shape_of(x)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return rearranged(x, np.tile(numbers, tuple(map(int, equation.params["reps"]))))


def _slice(equation: Equation, x: Array) -> Array:
    (x,) = wholes(equation, [x])
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return F.item(x, tuple(slice(*map(int, part)) for part in zip(starts, limits, strides)))


def _reversed(equation: Equation, x: Array) -> Array:
    (x,) = wholes(equation, [x])
    axes = equation.params["dimensions"]
    return F.item(x, tuple(slice(None, None, -1) if a in axes else slice(None) for a in range(len(shape_of(x)))))


def _iota(equation: Equation, *dynamic: Array) -> Array:
    dtype, shape, axis = (equation.params[name] for name in ("dtype", "shape", "dimension"))
    row = np.arange(shape[axis], dtype=dtype).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(row, shape)


def _zeros(equation: Equation, *dynamic: Array) -> np.ndarray:
    """What is written before it is read: residuals of a branch that is not taken."""
    (result,) = equation.outvars
    return np.zeros(result.aval.shape, result.aval.dtype)


def _require_known(*indices: Array) -> list[np.ndarray]:
    if any(isinstance(index, Recorded) for index in indices):
        raise NotTyped("indices that depend on parameters")
    return [np.asarray(index) for index in indices]


def _clips(equation: Equation) -> bool:
    """Whether windows outside are moved inside; else they are left out. Where the program says that there are none, it
    does not matter."""
    return bool(equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP)


def _gather(equation: Equation, x: Array, indices: Array) -> Array:
    """Elements at known indices, whichever axes they are of; NaN or another value for those outside."""
    x, indices = wholes(equation, [x, indices])
    (known,) = _require_known(indices)
    (result,) = equation.outvars
    source = gathered(shape_of(x), known, equation.params, len(result.aval.shape), _clips(equation))
    if (source >= 0).all():
        return _in_order(x, source)
    fill = equation.params["fill_value"]
    if fill is None:
        dtype = LIBRARY.dtype_of(x)
        fill = np.nan if dtype.kind == "f" else np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return F.where(source >= 0, _in_order(x, np.maximum(source, 0)), number(fill, x))


def _in_order(x: Array, source: np.ndarray) -> Array:
    """`rearranged`, by the function for a slice or for indices of an axis where it is one."""
    shape = shape_of(x)
    if len(shape) == 1 and source.ndim == 1 and len(source):
        step = int(source[1] - source[0]) if len(source) > 1 else 1
        if step > 0 and np.array_equal(source, source[0] + step * np.arange(len(source))):
            return F.item(x, (slice(int(source[0]), int(source[-1]) + 1, step),))
    return rearranged(x, source)


def _targets(equation: Equation, x: Array, indices: Array, updates: Array) -> np.ndarray:
    """The number of x's element that each update goes to; -1 for none."""
    (known,) = _require_known(indices)
    shape = shape_of(updates)
    return np.broadcast_to(scattered(shape_of(x), known, equation.params, shape, _clips(equation)), shape).reshape(-1)


def _scatter_add(equation: Equation, x: Array, indices: Array, updates: Array) -> Array:
    """x with updates added at known indices."""
    x, indices, updates = wholes(equation, [x, indices, updates])
    target = _targets(equation, x, indices, updates)
    shape = shape_of(x)
    extent = math.prod(shape)
    flat = F.reshape(updates, (len(target),))
    if (target < 0).any():  # dropped: their target is one more element, which is left out
        sums = F.item(F.scatter_add(flat, np.where(target < 0, extent, target), 0, extent + 1), (slice(0, extent),))
    else:
        sums = F.scatter_add(flat, target, 0, extent)
    sums = F.reshape(sums, shape)
    return sums if isinstance(x, np.ndarray) and not x.any() else F.add(x, sums)


def _scatter(equation: Equation, x: Array, indices: Array, updates: Array) -> Array:
    """x with updates in place of elements at known indices."""
    x, indices, updates = wholes(equation, [x, indices, updates])
    target = _targets(equation, x, indices, updates)
    shape = shape_of(x)
    source = np.arange(math.prod(shape))
    source[target[target >= 0]] = math.prod(shape) + np.flatnonzero(target >= 0)
    both = F.concatenate((F.reshape(x, (math.prod(shape),)), F.reshape(updates, (len(target),))), 0)
    return rearranged(both, source.reshape(shape))


def _dynamic_slice(equation: Equation, x: Array, *starts: Array) -> Array:
    x = whole(x, equation.invars[0].aval)
    known = _require_known(*starts)
    sizes, extents = equation.params["slice_sizes"], shape_of(x)
    first = [min(max(int(s), 0), extent - size) for s, size, extent in zip(known, sizes, extents, strict=True)]
    return F.item(x, tuple(slice(s, s + size) for s, size in zip(first, sizes)))


def _dynamic_update_slice(equation: Equation, x: Array, update: Array, *starts: Array) -> Array:
    """Elements of x, and of the update in place of some, by their numbers in both."""
    x, update = (whole(array, atom.aval) for array, atom in zip((x, update), equation.invars))
    known = _require_known(*starts)
    shape, own = shape_of(x), shape_of(update)
    if not shape:
        return update
    first = [min(max(int(s), 0), extent - size) for s, size, extent in zip(known, own, shape, strict=True)]
    source = np.arange(math.prod(shape)).reshape(shape)
    place = tuple(slice(s, s + size) for s, size in zip(first, own))
    source[place] = math.prod(shape) + np.arange(math.prod(own)).reshape(own)
    both = F.concatenate((F.reshape(x, (math.prod(shape),)), F.reshape(update, (math.prod(own),))), 0)
    return rearranged(both, source)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": lambda equation, *arrays: F.stack(tuple(wholes(equation, arrays)), int(equation.params["axis"])),
    "split": _split,
    "unstack": _unstack,
    "pad": _pad,
    "tile": _tiled,
    "slice": _slice,
    "rev": _reversed,
    "iota": _iota,
    "empty": _zeros,
    "empty2": _zeros,
    "gather": _gather,
    "scatter-add": _scatter_add,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
"""By the names of primitives."""
