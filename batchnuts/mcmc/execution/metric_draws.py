"""Draws of a warmup window with the gradients there, from which the metric is estimated.

Chains do not record gradients: buffers would be twice as large. So they are evaluated again, at some of the draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_DRAWS = 2048
"""Draws that an estimate takes, or one of each chain where there are more chains: gradients are evaluated for them."""

MOST_OF_A_CHAIN = 200
"""More draws of a chain in one window are hardly worth their gradients: neighbours are correlated."""


@dataclass(frozen=True, eq=False)
class DrawsWithGradients:
    """Some draws of each chain: arrays [chains, k, dimension], of which those in `valid` [chains, k] are draws."""

    positions: NDArray[Any]
    gradients: NDArray[Any]
    """The gradients of the log-density at the positions."""
    valid: NDArray[np.bool_]
    useful: int
    """Gradients that were evaluated at draws."""
    evaluated: int
    """All that were evaluated."""

    def of(self, chains: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Positions and gradients [n, dimension] of the draws of some chains, by number or mask."""
        valid = self.valid[chains]
        return self.positions[chains][valid], self.gradients[chains][valid]


def draws_with_gradients(
    positions: NDArray[Any],
    first: NDArray[Any],
    done: NDArray[Any],
    last_gradients: NDArray[Any],
    gradients_at: Callable[[NDArray[Any]], NDArray[Any]],
    of_run: int | None = None,
    at_once: int | None = None,
) -> DrawsWithGradients:
    """Some draws of each chain, evenly spaced, with the last one, of the [chains, transitions, dimension] of a window.

    Each chain has `done` [chains] draws there, of which those from number `first` [chains] on count. last_gradients
    [chains, dimension]: those at the last draws, which are known. gradients_at: of positions [n, dimension], with n the
    number of chains, so that one compiled program serves all, or a multiple of that, up to `at_once`. Where a chain has
    fewer draws than others take part, its last one is evaluated again, which is not useful. of_run: how many chains the
    run has, where these are some of them.
    """
    chains = len(positions)
    available = done - first  # [chains]
    most = max(1, min(int(available.max(initial=0)), MOST_DRAWS // (of_run or chains), MOST_OF_A_CHAIN))
    count = np.minimum(available, most)
    place = np.arange(most)
    valid = place < count[:, None]
    offset = np.where(valid, place * available[:, None] // np.maximum(count, 1)[:, None], 0)
    rows = np.maximum(done[:, None] - 1 - offset, 0)  # the last one first
    chosen = positions[np.arange(chains)[:, None], rows]
    together = max(1, (at_once or chains) // max(chains, 1))
    parts = [chosen[:, i : min(i + together, most)] for i in range(1, most, together)]
    gradients = [gradients_at(part.reshape(-1, part.shape[-1])).reshape(part.shape) for part in parts]
    useful = int(valid[:, 1:].sum())
    every = np.concatenate([last_gradients[:, None], *gradients], axis=1)
    return DrawsWithGradients(chosen, every, valid, useful, chains * (most - 1))
