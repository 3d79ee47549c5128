"""How many draws are enough: doubled until a run has what is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from batchnuts.autobatch import BatchnutsError

CLOSE = 0.8
"""Runs are not made whose ESS, if it grows as draws do, would be below this share of the goal."""


MOST_RUNS = 10
"""The most runs of a search, which come to at least 500 times the draws of its first run."""


class NotReached(BatchnutsError):
    """No run has what is asked for."""


@dataclass(frozen=True)
class Tried:
    """A run, and what its draws are worth."""

    draws: int
    """Draws of each chain; or what else is doubled."""
    seconds: float
    ess: float
    """The smallest bulk ESS; NaN where it cannot be computed."""
    rhat: float
    reached: bool

    def __str__(self) -> str:
        return f"{self.draws:,} gave ESS {self.ess:,.0f} and R-hat {self.rhat:.3f} in {self.seconds:.0f} s"


class OverLimit(BatchnutsError):
    """A run took longer than the limit."""


def first_draws(draws: int, chains: int, goal: int) -> int:
    """Those of the first run: `draws`, doubled until all chains together have as many as `goal`."""
    while chains * draws < goal:
        draws *= 2
    return draws


def next_draws(tried: Tried, goal: int) -> int:
    """Twice as many, or twice that and so on where those would certainly be too few."""
    ess = tried.ess if math.isfinite(tried.ess) else 0.0
    draws, expected = 2 * tried.draws, 2 * ess
    while 0 < expected < CLOSE * goal:
        draws, expected = 2 * draws, 2 * expected
    return draws


def search(run: Callable[[int], Tried], draws: int, goal: int) -> list[Tried]:
    """Runs with more and more draws until one reaches the goal: all of them, the last one being that.

    `run` raises OverLimit for one that takes too long; then, and after MOST_RUNS, NotReached is raised here, which says
    what was tried.
    """
    runs: list[Tried] = []
    while len(runs) < MOST_RUNS:
        try:
            runs.append(run(draws))
        except OverLimit as error:
            earlier = "; ".join(map(str, runs))
            raise NotReached(f"not reached: {earlier}{'; ' * bool(runs)}{draws:,}: {error}") from error
        if runs[-1].reached:
            return runs
        draws = next_draws(runs[-1], goal)
    raise NotReached(f"not reached in {MOST_RUNS} runs; the last: {runs[-1]}")
