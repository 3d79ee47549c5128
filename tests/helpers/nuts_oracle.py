"""One NUTS transition by enumeration, in NumPy: what the recursive program must give, found without recursion.

The states that a transition can visit lie on one orbit of the leapfrog map, numbered ..., -1, 0, 1, ... from the start.
A trajectory is a range of these numbers that doubles, forwards or backwards. Every finished range of 2**level new
states is looked at when its last state is made, so a trajectory can be replayed state by state. The oracle takes the
starting momentum and the directions, and gives back all that is determined by them, among it the exact probability of
each state to be drawn; which of them is drawn is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.mcmc.kernel.transition import Transition

Density = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass
class Visit:
    """A new state of a trajectory."""

    acceptance: float
    gradients: int
    valid: bool
    diverging: bool


class Orbit:
    """States of the leapfrog map from a start, made on demand: `orbit[k]` is (q, p, log-density, energy)."""

    def __init__(
        self,
        density: Density,
        q: np.ndarray,
        p: np.ndarray,
        step: float,
        inverse_mass: np.ndarray,
        leapfrogs: int = 1,
        threshold: float = 1000.0,
    ) -> None:
        self.threshold = threshold
        self.density, self.step, self.inverse_mass, self.leapfrogs = density, step, inverse_mass, leapfrogs
        self.states: dict[int, tuple[np.ndarray, np.ndarray]] = {0: (q, p)}

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray, float, float]:
        if number not in self.states:
            sign = 1 if number > 0 else -1
            q, p = self[number - sign][:2]
            for _ in range(self.leapfrogs):
                half = p + sign * self.step / 2 * self.density(q)[1]
                q = q + sign * self.step * (self.inverse_mass * half)
                p = half + sign * self.step / 2 * self.density(q)[1]
            self.states[number] = (q, p)
        q, p = self.states[number]
        log_density = self.density(q)[0]
        return q, p, log_density, 0.5 * p @ (self.inverse_mass * p) - log_density

    def visit(self, number: int) -> Visit:
        """What the trajectory makes of this state as its new end."""
        error = self[number][3] - self[0][3]
        acceptance = min(1.0, float(np.exp(-error))) if np.isfinite(error) else 0.0
        valid = bool(error <= self.threshold)
        return Visit(acceptance, self.leapfrogs, valid=valid, diverging=not valid)

    def moves_apart(self, members: Sequence[int], ends: tuple[int, int]) -> bool:
        """Whether both end momenta have a positive product with the velocity summed over the members."""
        velocity = self.inverse_mass * sum(self[k][1] for k in members)
        return all(self[k][1] @ velocity > 0 for k in ends)

    def has_turned(self, low: int, middle: int, high: int) -> bool:
        """The criterion and its two extra checks, for halves [low, middle) and [middle, high)."""
        left, right = list(range(low, middle)), list(range(middle, high))
        return not (
            self.moves_apart([*left, *right], (low, high - 1))
            and self.moves_apart([*left, middle], (low, middle))
            and self.moves_apart([middle - 1, *right], (middle - 1, high - 1))
        )


@dataclass
class Expected:
    """What the momentum and the directions determine of a transition."""

    orbit: Orbit
    probabilities: dict[int, float]
    """Of each state on the orbit to be drawn, in the order in which they were made."""
    tree_depth: int
    n_steps: int
    acceptance_rate: float
    diverging: bool
    max_energy_error: float
    last: int
    """The number of the last state made."""


def replay(orbit: Orbit, forwards: Sequence[bool], max_tree_depth: int, log_slice: float | None = None) -> Expected:
    """Replay a trajectory whose doubling j goes forwards in time if forwards[j].

    log_slice: log of the slice's height relative to exp(-H_0); None: multinomial.
    """
    start_energy = orbit[0][3]
    low, high = 0, 1  # the trajectory is [low, high)
    probabilities, weight = {0: 1.0}, 1.0
    visits: list[Visit] = []
    worst, number = 0.0, 0
    diverging = False
    depth = 0
    while depth < max_tree_depth:
        sign = 1 if forwards[depth] else -1
        first = high if sign > 0 else low - 1
        new: list[int] = []
        finished = True
        for count in range(1, 2**depth + 1):
            number = first + sign * (count - 1)
            new.append(number)
            error = orbit[number][3] - start_energy
            worst = max(worst, error if np.isfinite(error) else np.inf, key=abs)
            visits.append(orbit.visit(number))
            ended, diverging = not visits[-1].valid, visits[-1].diverging
            # every range of 2**level states that ends here, the smallest first
            turned = False
            level = 1
            while not ended and not turned and count % 2**level == 0:
                span = sorted(new[-(2**level) :])
                turned = orbit.has_turned(span[0], span[2 ** (level - 1)], span[-1] + 1)
                level += 1
            if ended or turned:
                finished = False
                break
        if not finished:
            break
        depth += 1
        weights = np.array([np.exp(start_energy - orbit[k][3]) for k in new])
        if log_slice is not None:
            weights = (weights >= np.exp(log_slice)).astype(float)
        switch = min(1.0, weights.sum() / weight)
        probabilities = {k: v * (1 - switch) for k, v in probabilities.items()}
        probabilities |= {k: switch * w / max(weights.sum(), 1e-300) for k, w in zip(new, weights, strict=True)}
        weight += weights.sum()
        middle = high if sign > 0 else low
        low, high = min(low, *new), max(high, max(new) + 1)
        if orbit.has_turned(low, middle, high):
            break
    return Expected(
        orbit=orbit,
        probabilities=probabilities,
        tree_depth=depth,
        n_steps=sum(visit.gradients for visit in visits),
        acceptance_rate=float(np.mean([visit.acceptance for visit in visits])),
        diverging=diverging,
        max_energy_error=worst,
        last=number,
    )


def directions(flips: Sequence[Any]) -> list[bool]:
    """Forwards or backwards at each doubling, where each flip says whether to change ends."""
    return [int(np.sum(flips[: j + 1])) % 2 == 0 for j in range(len(flips))]


def drawn_state(found: Transition, lane: int, oracle: Expected) -> int:
    """The number on the orbit of the state that the transition drew."""
    possible = [k for k, probability in oracle.probabilities.items() if probability > 0]
    distances = [np.abs(oracle.orbit[k][0] - found.position[lane]).max() for k in possible]
    assert min(distances) < 1e-9, f"lane {lane}: the position is not among the states {possible} of its trajectory"
    return possible[int(np.argmin(distances))]


def agree(found: Transition, lane: int, oracle: Expected) -> int:
    """Compare one lane with the oracle; gives the number of the drawn state."""
    assert found.tree_depth[lane] == oracle.tree_depth
    assert found.n_steps[lane] == oracle.n_steps
    assert found.diverging[lane] == oracle.diverging
    np.testing.assert_allclose(found.acceptance_rate[lane], oracle.acceptance_rate, rtol=1e-9)
    number = drawn_state(found, lane, oracle)
    q, _, log_density, energy = oracle.orbit[number]
    np.testing.assert_allclose(found.energy[lane], energy, atol=1e-9)
    np.testing.assert_allclose(found.log_density[lane], log_density, atol=1e-9)
    np.testing.assert_allclose(found.gradient[lane], oracle.orbit.density(q)[1], atol=1e-9)
    assert found.index_in_trajectory[lane] == number
    np.testing.assert_allclose(found.energy_error[lane], energy - oracle.orbit[0][3], atol=1e-9)
    np.testing.assert_allclose(found.max_energy_error[lane], oracle.max_energy_error, atol=1e-9)
    np.testing.assert_allclose(found.last_position[lane], oracle.orbit[oracle.last][0], atol=1e-9)
    return number
