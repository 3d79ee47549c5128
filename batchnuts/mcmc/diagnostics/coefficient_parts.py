"""Diagnoses draws some coefficients at a time, by some threads, so that memory is bounded however many there are."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.mcmc.statistics.draw_blocks import DrawBlock, columns_of
from batchnuts.mcmc.statistics.rank_normal import BLOCK, NormalScores
from batchnuts.mcmc.statistics.reductions import WORKING_BYTES, Reduced, reduce_draws

AT_ONCE = min(2, os.cpu_count() or 1)
"""Threads, where WORK allows: sorting is bound by memory bandwidth."""

WORK = 500_000_000
"""Bytes that the places and ranks of coefficients may take, which are looked at together; one is in any case."""

READ = 200_000_000
"""Bytes of the draws that are read at a time, and at most a SHARE of all; those that threads look at together are in
any case. A file is read as often as it has such parts."""

SHARE = 4

SMALL = 1_000_000
"""Bytes of all draws up to which they are read at once, by one thread: others would only be waited for."""

OF_BLOCKS = 20_000_000
"""Bytes that a thread takes for blocks of chains in float64, with their spectra."""


class DiagnosticsError(BatchnutsError):
    """The draws do not have the form that the diagnostics need."""


def diagnostics_bytes(chains: int, draws: int, count: int, item: int) -> int:
    """Bytes that `diagnose` takes for `count` coefficients whose draws have `item` bytes: for those that are read
    at a time, and for what is computed of them."""
    threads, per_thread, columns = _portions(chains, draws, count, item)
    return chains * draws * (columns * item + threads * per_thread * WORKING_BYTES) + threads * OF_BLOCKS


def _portions(chains: int, draws: int, count: int, item: int) -> tuple[int, int, int]:
    """Threads, coefficients that one of them looks at together, and coefficients that are read at a time."""
    per_coefficient = chains * draws
    if per_coefficient * count * item <= min(SMALL, READ):
        return 1, max(1, min(BLOCK // per_coefficient, count)), count
    threads = AT_ONCE if AT_ONCE * per_coefficient * WORKING_BYTES <= WORK else 1
    per_thread = max(1, min(BLOCK // per_coefficient, -(-count // threads)))
    together = threads * per_thread
    fit = min(READ // (per_coefficient * item), count // SHARE)
    return threads, per_thread, min(max(1, fit // together) * together, count)


def in_parts(
    blocks: Sequence[DrawBlock], wanted: set[str], reduction: Callable[[Reduced], Any]
) -> Iterator[tuple[slice, Any]]:
    """What a function gives of the reduced draws of some coefficients after others, with their numbers."""
    chains, draws, _ = blocks[0].shape
    count = sum(block.shape[2] for block in blocks)
    threads, per_thread, width = _portions(chains, draws, count, max(block.dtype.itemsize for block in blocks))
    scores = functools.cache(NormalScores)

    @np.errstate(over="ignore", invalid="ignore")  # squares of numbers above 1e150: their mean and sd are not known
    def reduce_part(values: NDArray[Any]) -> Any:
        reduced = reduce_draws(values, wanted, scores)
        if not reduced.finite.all():
            raise DiagnosticsError("Some draws are NaN or infinite; they cannot be summarized.")
        return reduction(reduced)

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, count, width):
            stop = min(start + width, count)
            values = columns_of(blocks, slice(start, stop))
            parts = range(0, stop - start, per_thread)
            mapped = map if len(parts) == 1 else pool.map  # a thread more would only be waited for
            results = mapped(reduce_part, [values[part : part + per_thread] for part in parts])
            for part, result in zip(parts, results, strict=True):
                yield slice(start + part, min(start + part + per_thread, stop)), result
            del values, results  # before others are read
