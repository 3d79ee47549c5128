"""Values of a loop's passes side by side: the passes of an independent loop are lanes of one vectorized computation.

    for (j in 1:J)                        lanes 0..J-1 of the loop
      for (k in 1:K[j])                   lanes of the inner loop, each with the outer lane that it belongs to
        target += f(a, b[j], c[j, k]);    a: the same for all; b[j]: [J]; c[j, k]: [sum of K]; summed over all lanes

A branch that some lanes take has lanes of its own, too. A value has the lanes of the deepest loop that it depends on,
and is brought to those of a loop within where it meets other values there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.stan.functions.numerics import Array, Numerics, known, traced


class NotVectorized(Exception):
    """The passes of a loop cannot be computed at once."""


class Ragged(NotVectorized):
    """Lanes have arrays of different shapes. kinds: [lanes], equal where the shapes are."""

    def __init__(self, lanes: Lanes, kinds: NDArray[np.int64]) -> None:
        super().__init__()
        self.lanes, self.kinds = lanes, kinds


class NotTranslated(Exception):
    """The program has what is not translated to JAX. Its text says what, for users."""


@dataclass(frozen=True, eq=False)
class Lanes:
    """Passes of a loop, or of a branch, for each lane around it."""

    parent: Lanes | None
    """None: there are none around it."""
    of_parent: NDArray[np.int64]
    """[count]: the lane of the parent that each belongs to."""
    is_branch: bool = False
    """Whether each of the parent's lanes has at most one."""

    @property
    def count(self) -> int:
        """The number of lanes."""
        return len(self.of_parent)

    @property
    def depth(self) -> int:
        """The number of lanes around it."""
        return 0 if self.parent is None else self.parent.depth + 1

    def lanes_of(self, around: Lanes | None) -> NDArray[np.int64] | None:
        """[count]: the lane of `around` that each belongs to; None where nothing is around."""
        return _path(self, around)


@functools.lru_cache(512)
def _path(lanes: Lanes, around: Lanes | None) -> NDArray[np.int64] | None:
    if lanes is around:
        return np.arange(lanes.count)
    if around is None:
        return None
    index, inner = lanes.of_parent, lanes.parent
    while inner is not around:
        if inner is None:
            raise AssertionError("lanes that are not around")
        index, inner = inner.of_parent[index], inner.parent
    return index


def is_around(around: Lanes | None, lanes: Lanes | None) -> bool:
    """Whether lanes are those of a loop, or lie within it."""
    while lanes is not around and lanes is not None:
        lanes = lanes.parent
    return lanes is around


def only_branches(lanes: Lanes, home: Lanes | None) -> bool:
    """Whether only branches, and no loops, lie between lanes and those around them."""
    inner: Lanes | None = lanes
    while inner is not home:
        if inner is None or not inner.is_branch:
            return False
        inner = inner.parent
    return True


@dataclass(frozen=True, eq=False)
class Value:
    """An array of NumPy's, which is known, or of JAX's: [*shape], or [lanes, *shape]."""

    array: Array
    lanes: Lanes | None = None

    @property
    def is_known(self) -> bool:
        """Whether it depends on no parameter."""
        return not isinstance(self.array, jax.core.Tracer)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one lane's."""
        shape: tuple[int, ...] = np.shape(self.array)
        return shape if self.lanes is None else shape[1:]

    def rows(self, lanes: Lanes) -> Array:
        """[lanes, *shape] in lanes of its own, or further within."""
        if self.lanes is None:
            xp: Any = np if self.is_known else jnp
            return xp.broadcast_to(xp.asarray(self.array), (lanes.count, *np.shape(self.array)))
        index = lanes.lanes_of(self.lanes)
        return self.array if lanes is self.lanes else self.array[index]

    def integer(self) -> int:
        """The number that it is, in all lanes."""
        if not self.is_known:
            raise NotTranslated("a size, a place or a bound that depends on parameters")
        numbers = np.unique(np.asarray(self.array))
        if len(numbers) != 1:
            raise NotVectorized
        return int(numbers[0])


def known_value(array: Any) -> Value:
    """A known value, the same for all."""
    return Value(np.asarray(array))


def deepest(*values: Value) -> Lanes | None:
    """The lanes of the deepest loop that any value depends on."""
    return max((v.lanes for v in values), key=lambda lanes: -1 if lanes is None else lanes.depth, default=None)


def apply(
    function: Callable[..., Array],
    values: Sequence[Value],
    *,
    elementwise: bool = False,
    needs_known: bool = False,
) -> Value:
    """A function of one lane's arrays, of values.

    elementwise: it broadcasts. needs_known: of sizes or places, which it must know for each lane.
    """
    are_known = all(value.is_known for value in values)
    m = known() if are_known else traced()
    call = functools.partial(function, m)
    lanes = deepest(*values)
    if lanes is None:
        with np.errstate(all="ignore"):
            return Value(call(*(value.array for value in values)))
    arrays = [value.array if value.lanes is None else value.rows(lanes) for value in values]
    has_lanes = [value.lanes is not None for value in values]
    if elementwise and are_known:
        rank = max(len(value.shape) for value in values)
        aligned = [
            a.reshape(a.shape[0], *[1] * (rank - (a.ndim - 1)), *a.shape[1:]) if own else a
            for a, own in zip(arrays, has_lanes)
        ]
        with np.errstate(all="ignore"):
            return Value(call(*aligned), lanes)
    if are_known or (needs_known and any(v.is_known and v.lanes is not None for v in values)):
        return Value(_each(m, call, arrays, has_lanes, lanes), lanes)
    fixed = [None if own else array for array, own in zip(arrays, has_lanes)]

    def of_rows(*rows: Array) -> Array:
        given = iter(rows)
        return call(*(next(given) if own else array for array, own in zip(fixed, has_lanes)))

    batched = [jnp.asarray(array) for array, own in zip(arrays, has_lanes) if own]
    return Value(jax.vmap(of_rows)(*batched), lanes)


def _each(m: Numerics, call: Callable[..., Array], arrays: Any, has_lanes: Sequence[bool], lanes: Lanes) -> Array:
    """Lane by lane."""
    with np.errstate(all="ignore"):
        results = [call(*(a[i] if own else a for a, own in zip(arrays, has_lanes))) for i in range(lanes.count)]
    shapes = list(dict.fromkeys(map(np.shape, results)))
    if len(shapes) > 1:
        raise Ragged(lanes, np.array([shapes.index(np.shape(result)) for result in results]))
    return m.np.stack([m.np.asarray(result) for result in results])


# ---- elements --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Index:
    """An index of one axis: places from 0, of one element or of several."""

    places: Value
    """[] or [length] of one lane's."""

    @property
    def is_single(self) -> bool:
        """Whether the axis is gone."""
        return not self.places.shape


def places_of(indices: Sequence[Index], lanes: Lanes | None) -> list[Array]:
    """An array of places for each axis, which broadcast: [lanes, length of the first, length of the second, ...]."""
    lengths = [index for index in indices if not index.is_single]
    arrays = []
    for index in indices:
        value = index.places
        array = value.array if value.lanes is None or lanes is None else value.rows(lanes)
        leading = () if value.lanes is None else (array.shape[0],)
        own = [1] * len(lengths)
        if not index.is_single:
            own[[other is index for other in lengths].index(True)] = array.shape[-1]
        if lanes is None:
            arrays.append(array.reshape(own) if own else array)
        else:
            arrays.append(array.reshape(leading[0] if leading else 1, *own))
    return arrays


def element(value: Value, indices: Sequence[Index]) -> Value:
    """The elements at places of the first axes."""
    lanes = deepest(value, *(index.places for index in indices))
    places = places_of(indices, lanes)
    if any(isinstance(place, jax.core.Tracer) for place in places):
        base = jnp.asarray(value.array if value.lanes is None or lanes is None else value.rows(lanes))
    else:
        base = value.array if value.lanes is None or lanes is None else value.rows(lanes)
    if lanes is None:
        return Value(base[tuple(places)])
    if value.lanes is not None:
        rank = sum(not index.is_single for index in indices)
        places = [np.arange(lanes.count).reshape(-1, *[1] * rank), *places]
    return Value(base[tuple(places)], lanes)


def with_elements(
    target: Value, home: Lanes | None, indices: Sequence[Index], value: Value, lanes: Lanes | None, *, adds: bool
) -> Value:
    """A variable with elements replaced, or added to, in lanes within its own.

    home: the lanes of the variable. Raises NotVectorized where two lanes write to one place.
    """
    places = places_of(indices, lanes)
    if lanes is None:
        return Value(_set(target.array, tuple(places), value.array, adds))
    array = target.array if home is None else target.rows(home)
    of_home = lanes.lanes_of(home)
    if of_home is not None:
        rank = sum(not index.is_single for index in indices)
        places = [of_home.reshape(-1, *[1] * rank), *places]
    rows = value.rows(lanes)
    if any(isinstance(place, jax.core.Tracer) for place in places):
        if home is not lanes:
            raise NotVectorized
    else:
        extents = np.shape(array)[: len(places)]
        shape = np.broadcast_shapes((lanes.count, *[1] * (np.ndim(places[0]) - 1)), *map(np.shape, places))
        flat = np.ravel_multi_index([np.broadcast_to(p, shape) for p in places], extents).reshape(-1)
        if not adds and len(np.unique(flat)) != len(flat):
            raise NotVectorized
        if not adds and len(flat) == int(np.prod(extents)) and np.array_equal(flat, np.arange(len(flat))):
            xp: Any = np if value.is_known else jnp
            whole = xp.broadcast_to(xp.asarray(rows), (*shape, *np.shape(array)[len(places) :]))
            return Value(xp.reshape(whole, np.shape(array)), home)
    return Value(_set(array, tuple(places), rows, adds), home)


def _set(array: Array, places: tuple[Any, ...], rows: Array, adds: bool) -> Array:
    if any(isinstance(x, jax.core.Tracer) for x in (array, rows, *places)):
        base = jnp.asarray(array).astype(jnp.result_type(array, rows))  # integers may stand for real numbers
        at, rows = base.at[places], jnp.asarray(rows).astype(base.dtype)
        return at.add(rows) if adds else at.set(rows)
    copy = np.array(array, np.result_type(array, rows))
    if adds:
        np.add.at(copy, places, rows)
    else:
        copy[places] = rows
    return copy


def total(value: Value, lanes: Lanes, home: Lanes | None) -> Value:
    """The sum over lanes of what each adds, in the lanes around them that `home` is."""
    rows = value.rows(lanes)
    xp: Any = np if value.is_known else jnp
    of_home = lanes.lanes_of(home)
    if home is None or of_home is None:
        return Value(xp.sum(rows, axis=0))
    if value.is_known:
        sums = np.zeros((home.count, *rows.shape[1:]), rows.dtype)
        np.add.at(sums, of_home, rows)
        return Value(sums, home)
    return Value(jnp.zeros((home.count, *rows.shape[1:]), rows.dtype).at[of_home].add(rows), home)


def replaced(old: Value, home: Lanes | None, value: Value, lanes: Lanes) -> Value:
    """A variable of `home` after its lanes within, of a branch or a loop, have written a value: the last one holds."""
    of_home = lanes.lanes_of(home)
    rows = value.rows(lanes)
    if home is None or of_home is None:
        return Value(rows[-1])
    last = np.full(home.count, -1)
    last[of_home] = np.arange(lanes.count)
    wrote = np.flatnonzero(last >= 0)
    if len(wrote) == home.count:
        return Value(rows[last], home)
    before = old.rows(home)
    if np.shape(before)[1:] != np.shape(rows)[1:]:
        raise NotVectorized
    return Value(_set(before, (wrote,), rows[last[wrote]], adds=False), home)
