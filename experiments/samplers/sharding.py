"""How chains are divided among workers where a sampler does not do so itself: as batchnuts divides its own."""

from __future__ import annotations

import math

from batchnuts.experiments.samplers.task import MissingSampler


def chunks(sampler: str, chains: int, chunk_lanes: int | None, workers: int) -> list[slice]:
    """Chunks of at most `chunk_lanes` chains (None: no bound), all of one width, and one at least for each worker.

    Raises MissingSampler where the chains do not divide so.
    """
    width = min(chunk_lanes or chains, math.ceil(chains / workers))
    if chains % width:
        raise MissingSampler(
            f"{sampler}: {chains} chains do not divide into chunks of {width}, which {workers} workers take turns at; "
            "set chunk_lanes to a divisor."
        )
    return [slice(first, first + width) for first in range(0, chains, width)]
