"""Both ends of the trajectories that diverged, from records of draws."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.place import STATE, Place

DIVERGENCES = f"{STATE}/divergences"
"""The folder of a store that has them until its run ends, whoever has found them."""


def put_divergences(place: Place, name: str, divergences: dict[str, NDArray[Any]]) -> None:
    """Keep what `divergences_of_block` gives. Raises OSError."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **divergences)
    place.put(f"{DIVERGENCES}/{name}.npz", file.getvalue())


def divergences_of_block(
    records: Record, first: int, previous: NDArray[Any] | None, done: NDArray[np.int64] | None = None
) -> dict[str, NDArray[Any]] | None:
    """Rows `chain`, numbers `draw` and `points` [n, 2, dimension] of the draws that diverged, from draw `first` on.

    records: arrays [chains, rows, ...]. previous [chains, dimension]: where chains were before; None: it is filled in
    later. done [chains]: how many draws each has made; None: all of these. None where none diverged, or this is not
    asked for.
    """
    if isinstance(records.last_position, tuple):
        return None
    numbers = np.arange(first, first + records.lp.shape[1])
    diverging = records.diverging if done is None else records.diverging & (numbers < done[:, None])
    chain, row = np.nonzero(diverging)
    if not len(chain):
        return None
    start = records.position[chain, row - 1]
    if previous is not None:
        start = np.where(row[:, None] > 0, start, previous[chain])
    points = np.stack([start, records.last_position[chain, row]], axis=1)
    return {"chain": chain, "draw": numbers[row], "points": points}
