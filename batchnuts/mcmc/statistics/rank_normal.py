"""Rank-normalization of draws (Vehtari et al. 2021, section 4.1) from one sort, in memory of 12 bytes for each value.

Sorting takes most of the time of diagnostics, so one sort serves all that depends on ranks: quantiles, normal scores,
and normal scores of distances from the median. Those need no second sort: on either side of the median distances are in
order already, and two ascending sequences are merged.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.quantile_functions import normal

BLOCK = 2**17
"""Values that are looked at together: with their copies they stay in a processor's cache."""

TABLE = 2**20
"""The most values for which all scores are computed once (16 MB); of more, each score is computed when needed."""

_OFFSET = 3 / 8
"""Blom's offset, in equation 14 of the paper."""

_SIGN, _LOW = np.uint32(2**31), np.uint64(2**32 - 1)

Array = NDArray[np.float64]
Ranks = NDArray[np.signedinteger[Any]]
"""Twice the rank, 1 to S, of each value among S; equal values have the mean of their ranks, so this is an integer."""


class NormalScores:
    """Normal scores of ranks among `size` values."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.table: Array | None = None
        if size <= TABLE:
            lower = np.concatenate([[np.nan], self._below_the_middle(np.arange(1, size + 1))])  # there is no rank 0
            self.table = np.concatenate([lower, [0.0], -lower[::-1]])  # symmetric about the middle rank

    def _below_the_middle(self, ranks: NDArray[Any]) -> Array:
        """z = Phi^-1((r - 3/8) / (S + 1/4)), equation 14 of Vehtari, Gelman, Simpson, Carpenter, Buerkner 2021."""
        return normal((ranks / 2 - _OFFSET) / (self.size - 2 * _OFFSET + 1))

    def of(self, ranks: Ranks) -> Array:
        """float64, of the same shape."""
        if self.table is not None:
            return self.table.take(ranks)
        middle = self.size + 1
        scores = self._below_the_middle(middle - np.abs(ranks - middle))
        np.negative(scores, out=scores, where=ranks > middle)
        scores[ranks == middle] = 0.0
        return scores


class Ranking:
    """The values of each row [rows, values] in ascending order; none may be NaN.

    values: C-contiguous float32 or float64; they are not changed, and must not change.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.count, self.size = values.shape
        packed = values.dtype == np.float32 and values.size <= int(_LOW)
        self._order: _Packed | _Places = _Packed(values) if packed else _Places(values)

    @property
    def dtype(self) -> type[np.signedinteger[Any]]:
        """The dtype of ranks."""
        return np.int32 if self.size < 2**30 else np.int64

    def at(self, place: int) -> Array:
        """The value at a place of the ascending order, from 0: float64 [rows]."""
        return np.array([self._value(row * self.size + place) for row in range(self.count)])

    @property
    def median(self) -> Array:
        """float64 [rows]."""
        return (self.at((self.size - 1) // 2) + self.at(self.size // 2)) / 2

    def leave_out(self, period: int, phase: int) -> None:
        """Leave out values number `phase`, `phase + period`, ... of what was given, for good."""
        self._order.keep(lambda places: places % period != phase)
        self.size -= self.size // period

    def ranks(self, out: Ranks) -> None:
        """Put twice the rank of each value of a row where the value stands; `out` is [rows * values], of `dtype`."""
        total, size, start = self.count * self.size, self.size, 0
        while start < total:
            stop = min(start + BLOCK, total)
            values = self._order.values(start, min(stop + 1, total))
            first = np.ones(len(values), bool)  # of a run of equal values
            np.not_equal(values[1:], values[:-1], out=first[1:])
            first[-start % size :: size] = True
            if stop < total:
                if not first[-1]:  # the last run goes on in the next block
                    stop = start + int(np.flatnonzero(first)[-1])
                first = first[: stop - start]
            if stop == start:  # one run is longer than a block
                end = (start // size + 1) * size
                stop = bisect.bisect_right(range(end), values[0], start, end, key=self._value)
                self._assign(out, range(start, stop), 2 * (start % size) + stop - start + 1)
            else:
                out[self._order.places(start, stop)] = _doubled(first, start, size)
            start = stop

    def folded_ranks(self, out: Ranks) -> None:
        """`ranks` of the distance of each value from its row's median (Vehtari et al. 2021, section 4.2)."""
        if self.size > BLOCK:
            for row, median in enumerate(self.median):
                self._merge(row, float(median), out)
            return
        step = BLOCK // self.size
        for row in range(0, self.count, step):
            rows = slice(row * self.size, min(row + step, self.count) * self.size)
            shape = (-1, self.size)
            distance = self._order.values(rows.start, rows.stop).astype(np.float64).reshape(shape)
            distance -= _middle_of(distance)[:, None]
            np.abs(distance, out=distance)
            places = self._order.places(rows.start, rows.stop).reshape(shape)
            for array in (distance, places):  # two ascending sequences
                array[:, : self.size // 2] = array[:, : self.size // 2][:, ::-1].copy()
            order = np.argsort(distance, axis=1, kind="stable")  # which merges such sequences
            distance = np.take_along_axis(distance, order, axis=1)
            first = np.ones(distance.shape, bool)
            np.not_equal(distance[:, 1:], distance[:, :-1], out=first[:, 1:])
            out[np.take_along_axis(places, order, axis=1).reshape(-1)] = _doubled(first.reshape(-1), 0, self.size)

    def _merge(self, row: int, median: float, out: Ranks) -> None:
        """`folded_ranks` of one row, with some values of either side of the median at a time."""
        base, half = row * self.size, BLOCK // 2
        low = high = base + self.size // 2  # what is ranked lies between
        end = base + self.size
        while base < low or high < end:
            bottom, top = max(low - half, base), min(high + half, end)
            below = median - self._order.values(bottom, low)[::-1].astype(np.float64)
            above = self._order.values(high, top).astype(np.float64) - median
            # up to here nothing can come in between from further out
            limit = min(below[-1] if bottom > base else np.inf, above[-1] if top < end else np.inf)
            n, m = np.searchsorted(below, limit), np.searchsorted(above, limit)
            ranked = high - low
            if n + m:
                distance = np.concatenate([below[:n], above[:m]])
                order = np.argsort(distance, kind="stable")
                distance = distance[order]
                first = np.ones(n + m, bool)
                np.not_equal(distance[1:], distance[:-1], out=first[1:])
                places = np.concatenate([self._order.places(low - n, low)[::-1], self._order.places(high, high + m)])
                out[places[order]] = _doubled(first, ranked, self.size)
            else:  # all that are left of the blocks have one distance
                n = bisect.bisect_right(range(low - base), limit, key=lambda i: median - self._value(low - 1 - i))
                m = bisect.bisect_right(range(end - high), limit, key=lambda i: self._value(high + i) - median)
                for run in (range(low - n, low), range(high, high + m)):
                    self._assign(out, run, 2 * ranked + n + m + 1)
            low, high = low - int(n), high + int(m)

    def _value(self, place: int) -> float:
        """The value at a place of all rows, one after another."""
        return float(self._order.values(place, place + 1)[0])

    def _assign(self, out: Ranks, run: range, rank: int) -> None:
        for start in range(run.start, run.stop, BLOCK):
            out[self._order.places(start, min(start + BLOCK, run.stop))] = rank


def _middle_of(ascending: Array) -> Array:
    """The median of each row."""
    size = ascending.shape[1]
    return (ascending[:, (size - 1) // 2] + ascending[:, size // 2]) / 2


def _doubled(first: NDArray[np.bool_], start: int, size: int) -> Ranks:
    """Twice the mean rank of each value, from where runs of equal values begin; the first is number `start` of all,
    and `size` are in a row."""
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=len(first))
    # ranks of a run are start + 1 to start + length
    doubled: Ranks = np.repeat(2 * ((starts + start) % size) + lengths + 1, lengths)
    return doubled


class _Packed:
    """float32 values in order, each with its place in one integer: sorted by one vectorized sort, in place."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        flat = values.reshape(-1)
        self.codes = np.empty(flat.size, np.uint64)
        for start in range(0, flat.size, BLOCK):
            part = flat[start : start + BLOCK] + np.float32(0.0)  # -0.0 equals 0.0
            bits = part.view(np.uint32)
            # as integers in the order of the values: negative ones backwards, below those that are not
            bits ^= (part.view(np.int32) >> 31).view(np.uint32) | _SIGN
            codes = self.codes[start : start + BLOCK]
            np.left_shift(bits, np.uint64(32), out=codes, dtype=np.uint64)
            codes |= np.arange(start, start + len(codes), dtype=np.uint64)
        self.codes.reshape(values.shape).sort(axis=1)

    def places(self, start: int, stop: int) -> NDArray[np.int64]:
        """Where the values from `start` to `stop` in ascending order stood."""
        return (self.codes[start:stop] & _LOW).view(np.int64)

    def values(self, start: int, stop: int) -> NDArray[np.float32]:
        """The values from `start` to `stop` in ascending order."""
        bits = (self.codes[start:stop] >> np.uint64(32)).astype(np.uint32)
        bits ^= ((bits >> np.uint32(31)) - np.uint32(1)) | _SIGN
        return bits.view(np.float32)

    def keep(self, predicate: Any) -> None:
        """Keep only the values whose places fulfil the predicate."""
        self.codes = _filtered(self.codes, lambda codes: predicate((codes & _LOW).view(np.int64)))


class _Places:
    """The places of values of any type, by their order."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.flat = values.reshape(-1)
        order = np.argsort(values, axis=1)
        order += np.arange(len(values))[:, None] * values.shape[1]
        self.order: NDArray[np.int64] = order.reshape(-1)

    def places(self, start: int, stop: int) -> NDArray[np.int64]:
        """A copy of the places of the values from `start` to `stop` in ascending order."""
        return self.order[start:stop].copy()

    def values(self, start: int, stop: int) -> NDArray[Any]:
        """The values from `start` to `stop` in ascending order."""
        values: NDArray[Any] = self.flat[self.order[start:stop]]
        return values

    def keep(self, predicate: Any) -> None:
        """Keep only the values whose places fulfil the predicate."""
        self.order = _filtered(self.order, predicate)


def _filtered(array: NDArray[Any], predicate: Any) -> NDArray[Any]:
    """The entries that fulfil a predicate, in the array's own memory."""
    end = 0
    for start in range(0, len(array), BLOCK):
        part = array[start : start + BLOCK]
        selected = part[predicate(part)]
        array[end : end + len(selected)] = selected
        end += len(selected)
    return array[:end]
