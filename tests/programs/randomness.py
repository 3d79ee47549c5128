"""Random numbers from keys that are ordinary variables of a lane."""

from __future__ import annotations

from batchnuts.autobatch import batch, random
from programs.case import Case, floats, ints


@batch
def random_walk(key, bound):
    """First passage: how long a walk of fair steps stays within bounds."""
    position = steps = 0
    while abs(position) < bound and steps < 40:
        if random.bernoulli(random.fold_in(key, steps)):
            position += 1
        else:
            position -= 1
        steps += 1
    return position, steps


@batch
def family(key, generations):
    """The size of a random tree: each node has as many children as its own key says."""
    if generations == 0:
        return 1
    keys = random.split(key, 4)
    size = 1
    for i in range(3):
        if random.uniform(keys[i]) < 0.6:
            size += family(keys[i + 1], generations - 1)
    return size


@batch
def rejection(key, radius):
    """A point of the unit disk, drawn until one falls into it; vectors of draws."""
    tries = 1
    point = random.uniform(random.fold_in(key, 0), (2,), "float64") * 2.0 - 1.0
    while point @ point > radius:
        point = random.uniform(random.fold_in(key, tries), (2,), "float64") * 2.0 - 1.0
        tries += 1
    return point, tries


CASES = (
    Case(random_walk, (random.lane_keys(3, 3), ints(2, 4, 1))),
    Case(family, (random.lane_keys(5, 3), ints(3, 0, 2))),
    Case(rejection, (random.lane_keys(7, 4), floats(1.0, 0.3, 0.5, 2.0))),
)
