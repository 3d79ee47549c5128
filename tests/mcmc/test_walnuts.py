"""WALNUTS against an enumeration of its orbit, in which every number of micro steps is tried in full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mcmc_models import quartic, quartic_alone
from nuts_oracle import Expected, Orbit, Visit, agree, directions, replay

from batchnuts.autobatch import random
from batchnuts.mcmc.kernel.nuts import _DIRECTION, _MOMENTUM, event
from batchnuts.mcmc.kernel.transition import Transition
from batchnuts.mcmc.kernel.walnuts import WalnutsOptions, make_walnuts

INVERSE_MASS = np.array([0.7, 1.6])
ALPHA = 1e-3
"""Chance that a statistical test of this file would fail by bad luck; the seeds are fixed."""

FINE = WalnutsOptions(6, dtype="float64", energy_tolerance=0.05)
STEP = 0.9
"""So long that macro steps of one to a dozen micro steps are needed to keep within that tolerance."""


class MacroOrbit(Orbit):
    """States of the macro steps from a start, each found by trying every number of micro steps in full."""

    def __init__(self, options: WalnutsOptions, *start: Any) -> None:
        super().__init__(quartic_alone, *start, INVERSE_MASS)
        self.options = options
        self.visits: dict[int, Visit] = {}

    def micro_steps(self, q: np.ndarray, p: np.ndarray, step: float, count: int) -> tuple[Any, ...]:
        """(q, p) after so many leapfrogs, the energy's variation, how many leapfrogs it took, and whether they are
        admissible; where they are not, the first three are of the state that shows it."""
        energies, exceeded = [self.energy(q, p)], None
        for made in range(1, count + 1):
            half = p + step / 2 * self.density(q)[1]
            q = q + step * (self.inverse_mass * half)
            p = half + step / 2 * self.density(q)[1]
            energies.append(self.energy(q, p))
            variation = max(energies) - min(energies)
            if variation > self.options.energy_tolerance:
                exceeded = (q, p, variation, made, False)
                break  # further on it may overflow
        admissible = max(energies) - min(energies) <= self.options.energy_tolerance
        assert admissible == (exceeded is None)
        return exceeded or (q, p, variation, count, admissible)

    def energy(self, q: np.ndarray, p: np.ndarray) -> float:
        return 0.5 * p @ (self.inverse_mass * p) - self.density(q)[0]

    def visit(self, number: int) -> Visit:
        self[number]
        return self.visits[number]

    def __getitem__(self, number: int) -> Any:
        if number not in self.states:
            sign = 1 if number > 0 else -1
            coarsest = self.options.leapfrogs_per_leaf
            counts = [coarsest * 2**k for k in range(self.options.max_step_halvings + 1)]
            start = self[number - sign][:2]
            gradients, acceptance = 0, None
            for k, count in enumerate(counts):
                q, p, variation, made, admissible = self.micro_steps(*start, sign * self.step / 2**k, count)
                gradients += made
                acceptance = np.exp(-variation) if acceptance is None else acceptance
                if admissible:
                    break
            self.states[number] = (q, p)
            valid = admissible
            for back in reversed(range(k)):
                if valid:
                    *_, made, coarser = self.micro_steps(q, p, -sign * self.step / 2**back, counts[back])
                    gradients += made
                    valid = not coarser
            self.visits[number] = Visit(acceptance, gradients, valid, diverging=not admissible)
        return super().__getitem__(number)


def run(options: WalnutsOptions, position: np.ndarray, seed: int, **how: Any) -> tuple[np.ndarray, Transition]:
    """Transitions on the quartic density from each row of `position`, and the keys they used."""
    keys = random.lane_keys(seed, len(position))
    values, gradients = (np.array(x) for x in zip(*map(quartic_alone, position), strict=True))
    masses, steps = np.tile(INVERSE_MASS, (len(position), 1)), np.full(len(keys), STEP)
    return keys, make_walnuts(quartic, options).run(keys, position, values, gradients, steps, masses, **how)


def expected(keys: np.ndarray, position: np.ndarray, options: WalnutsOptions) -> list[Expected]:
    momentum = random.normal(event(keys, _MOMENTUM, 0), (2,), "float64") / np.sqrt(INVERSE_MASS)
    flips = np.stack([random.bernoulli(event(keys, _DIRECTION, depth)) for depth in range(options.max_tree_depth)])
    heights = np.log(random.uniform(event(keys, _MOMENTUM, 1), (), "float64"))
    sliced = options.selection == "slice"
    return [
        replay(
            MacroOrbit(options, position[lane], momentum[lane], STEP),
            directions(flips[:, lane]),
            options.max_tree_depth,
            float(heights[lane]) if sliced else None,
        )
        for lane in range(len(keys))
    ]


@pytest.mark.parametrize(
    "options",
    [
        FINE,
        WalnutsOptions(4, 3, dtype="float64", energy_tolerance=0.02, selection="slice"),
        WalnutsOptions(4, dtype="float64", energy_tolerance=0.02, max_step_halvings=2),
    ],
    ids=["plain", "three-leapfrogs-slice", "two-halvings"],
)
def test_transitions_follow_the_enumerated_orbit(options: WalnutsOptions) -> None:
    position = np.random.default_rng(0).normal(size=(40, 2)) * 1.3
    keys, found = run(options, position, seed=3, backend="numpy")
    oracles = expected(keys, position, options)
    numbers = [agree(found, lane, oracle) for lane, oracle in enumerate(oracles)]
    assert min(numbers) < 0 < max(numbers)
    visits = [visit for oracle in oracles for visit in oracle.orbit.visits.values()]
    assert len({visit.gradients for visit in visits}) >= 4, "macro steps are to be of many sizes"
    if options is FINE:
        assert any(not visit.valid and not visit.diverging for visit in visits), "some are to be irreversible"
    if options.max_step_halvings == 2:
        assert found.diverging.sum() > 1
