"""How fast a schedule serves lanes, by a model; the sweep of minimum price, and the gates of expensive blocks.

The model. Lanes are many, so the state is the share x[b] of them that waits at each block. Running block b moves x[b]
by the probabilities of the program's flow (`lane_flow`). So a sweep is a linear map M of shares; in the long run those
at its start stay as they are, x = x M. With costs c[b] of a dispatch,

    cost of a sweep = sum over its slots of   SKIP + c[b] (1 - exp(-LANES x[b]))
    price           = cost of a sweep / (lanes that a sweep moves from b / visits[b])    the same for every b

is the cost of advancing one lane by one block. (A slot where no lane waits is skipped.) A gate makes a slot run
every k-th sweep only: it then costs a k-th, moves 2 / (k + 1) of those who wait there on average, and its gate is the
share that has gathered meanwhile.

The search begins with every block once, in the program's order, and makes the change that lowers the price most (one
slot more of a block that lanes visit often, one less, two neighbours exchanged, another k) until none lowers it by
GAIN. Nothing is timed, so a program has the same schedule on every machine. A program of more than MOST_BLOCKS blocks
keeps each block once: the search would take longer than compiling.

Expensive blocks. The model's lanes are memoryless, so they arrive at a block evenly. Real lanes stay together for long
(after a tree of depth 3 all do the same), the more so the longer each waits for others. So an expensive block, one that
costs more than EXPENSIVE times the cheapest, waits until GATE of the live lanes have gathered, or nothing else is left
to do. The model does not show that gain; measurements do (docs/decisions/0019-expensive-blocks.md). Its cost: lanes at
a closed gate wait as long as another one loops in cheap blocks, but at most until the next GATED_PATIENCE-th sweep.

`drain` in the same model: one run of the costly blocks for all lanes, then control until less than half a lane is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.scheduling.lane_flow import LaneFlow, Vector

LANES = 128
"""The number of lanes that a schedule is made for; a chunk of the sampler has at most 64 to 256."""
SKIP = 0.5
"""The cost of testing a slot, in microseconds."""
DISPATCH = 1.7
"""The fixed cost of running a block, in microseconds; the whole cost where nothing more is known."""
PERIODS = (1, 2, 3, 4, 6, 8, 12, 16)
"""The k of a gated slot."""
MORE_SLOTS = 10
"""The maximum number of slots beyond one per block: each slot's code is compiled."""
REPEATED = 8
"""The number of blocks, the most visited ones, that may get further slots."""
MOST_BLOCKS = 48
GAIN = 0.005
"""The minimum relative gain of a change."""
TIE = 1e-9
"""The relative difference below which two prices, or numbers of visits, count as equal: the linear algebra rounds
differently on each kind of processor, and the schedule must not."""
MOST_GATHERED = 0.8
"""The maximum gate: with larger shares lanes do not arrive evenly, as the model assumes."""
EXPENSIVE = 2.0
"""A block is expensive if it costs more than this factor times the cheapest one."""
GATE = 0.35
"""The minimum gate of an expensive block: at most two of those can have their share of the live lanes at once."""
GATED_PATIENCE = 512
"""The patience of schedules with such gates, which costs NUTS less than one per cent."""
DRAINED = 0.5 / LANES
"""Shares of lanes below this count as zero."""
LONGEST_DRAIN = 1000
"""Sweeps of control after which it counts as never drained."""


@dataclass(frozen=True)
class Sweep:
    """Numbers of blocks in the order in which a sweep serves them."""

    slots: tuple[int, ...]
    periods: tuple[int, ...]
    """By block: it is served every k-th time. More than 1 only for blocks with one slot."""


def best_sweep(flow: LaneFlow, costs: Vector) -> tuple[Sweep, float, Vector]:
    """The sweep, its price, and the share of lanes that each block finds when it runs."""
    blocks = len(flow.labels)
    best = Sweep(tuple(range(blocks)), (1,) * blocks)
    (price,), (gathered,) = forecast(flow, costs, [best])
    frequent = _by_frequency(flow.visits)[:REPEATED]
    while blocks <= MOST_BLOCKS:
        changed = list(_changes(best, frequent, blocks + MORE_SLOTS))
        prices, _ = forecast(flow, costs, changed)
        k = _first_minimum(prices)
        if not prices[k] < price * (1.0 - GAIN):
            break
        best, (price,), (gathered,) = changed[k], *forecast(flow, costs, [changed[k]])
    return best, float(price), gathered


def _first_minimum(prices: Vector) -> int:
    """The index of the first price that is the minimum, to TIE."""
    return int(np.argmax(prices <= prices.min() * (1.0 + TIE)))


def _by_frequency(visits: Vector) -> list[int]:
    """Numbers of blocks, the most visited ones first, and those that are equally often visited in order."""
    order: list[int] = []
    left = list(range(len(visits)))
    while left:
        order.append(left.pop(int(np.argmax(visits[left] >= visits[left].max() * (1.0 - TIE)))))
    return order


def sweep_gates(sweep: Sweep, costs: Vector, gathered: Vector) -> Vector:
    """The gate of each block, 0 for none; `gathered` is the share of lanes that it finds by the model."""
    rare = np.where(np.array(sweep.periods) > 1, gathered, 0.0)
    expensive = np.where(costs > EXPENSIVE * costs.min(), GATE, 0.0)
    return np.asarray(np.maximum(rare, expensive).round(2))


def _changes(sweep: Sweep, frequent: list[int], most: int) -> Iterator[Sweep]:
    slots, periods = sweep.slots, sweep.periods
    for place in range(len(slots) + 1):
        for b in frequent:
            if len(slots) < most and periods[b] == 1:
                yield Sweep((*slots[:place], b, *slots[place:]), periods)
    for place, b in enumerate(slots):
        if slots.count(b) > 1:
            yield Sweep(slots[:place] + slots[place + 1 :], periods)
        elif place + 1 < len(slots):
            yield Sweep((*slots[:place], slots[place + 1], b, *slots[place + 2 :]), periods)
    for b in range(len(periods)):
        if slots.count(b) == 1:
            for k in PERIODS:
                if k != periods[b]:
                    yield Sweep(slots, (*periods[:b], k, *periods[b + 1 :]))


def forecast(flow: LaneFlow, costs: Vector, sweeps: list[Sweep]) -> tuple[Vector, NDArray[np.float64]]:
    """For each sweep its price, and by block the share of lanes that a run of it finds."""
    count, blocks = len(sweeps), len(flow.labels)
    rows = np.arange(count)
    nothing = blocks  # padding of shorter sweeps: a block where no lane waits
    longest = max(len(sweep.slots) for sweep in sweeps)
    slots = np.array([sweep.slots + (nothing,) * (longest - len(sweep.slots)) for sweep in sweeps])
    periods = np.array([(*sweep.periods, 1) for sweep in sweeps], float)
    to_others = np.zeros((blocks + 1, blocks))
    to_others[:blocks] = flow.chances - np.eye(blocks)
    costs = np.append(costs, 0.0)

    def run(maps: NDArray[np.float64], slot: int) -> None:
        """Shares (rows of each map), after one slot."""
        b = slots[:, slot]
        moved = (
            np.where(b[:, None] < blocks, maps[rows, :, np.minimum(b, blocks - 1)], 0.0)
            * _moved(periods[rows, b])[:, None]
        )
        maps += moved[:, :, None] * to_others[b][:, None, :]

    maps = np.tile(np.eye(blocks), (count, 1, 1))
    for slot in range(longest):
        run(maps, slot)
    shares = _stationary(maps)[:, None, :]
    spent, moved = np.zeros(count), np.zeros((count, blocks + 1))
    gathered = np.zeros((count, blocks + 1))
    for slot in range(longest):
        b = slots[:, slot]
        k = periods[rows, b]
        leaving = np.where(b < blocks, shares[rows, 0, np.minimum(b, blocks - 1)], 0.0) * _moved(k)
        spent += np.where(b < blocks, SKIP + costs[b] * -np.expm1(-LANES * leaving * k) / k, 0.0)
        moved[rows, b] += leaving
        gathered[rows, b] = np.maximum(gathered[rows, b], leaving * k)
        run(shares, slot)
    most = int(np.argmax(flow.visits))
    prices = spent / (moved[:, most] / flow.visits[most])
    crowded = ((periods > 1) & (gathered > MOST_GATHERED)).any(1)
    return np.where(crowded, np.inf, prices), gathered[:, :blocks]


def _moved(period: Vector) -> Vector:
    """The share of those who wait on average that a run every k-th time moves, by sweep."""
    return np.asarray(2.0 / (period + 1.0))


def _stationary(maps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares x = x M of each map, summing to 1."""
    count, blocks, _ = maps.shape
    system = np.swapaxes(maps - np.eye(blocks), 1, 2).copy()
    system[:, -1, :] = 1.0  # one equation follows from the others; in its place, the sum
    right = np.zeros((count, blocks, 1))
    right[:, -1] = 1.0
    return np.asarray(np.maximum(np.linalg.solve(system, right)[:, :, 0], 0.0))


def drain_price(flow: LaneFlow, costs: Vector, costly: list[int]) -> float:
    """The price of `drain`: all lanes wait at the costly blocks before one of these runs. Infinite if they never do."""
    cheap = [b for b in range(len(flow.labels)) if b not in costly]
    if not flow.visits[costly].sum() > 0:
        return math.inf
    shares = np.zeros(len(flow.labels))
    shares[costly] = flow.visits[costly] / flow.visits[costly].sum()
    spent, moved = 0.0, 0.0
    for b in costly:
        share, shares[b] = shares[b], 0.0
        spent += SKIP + costs[b]
        moved += share
        shares = shares + share * flow.chances[b]
    for _ in range(LONGEST_DRAIN):
        if shares[cheap].sum() <= DRAINED:
            return float(spent / (moved / flow.visits[costly].sum()))
        for b in cheap:
            spent += SKIP + costs[b] * -np.expm1(-LANES * shares[b])
            share, shares[b] = shares[b], 0.0
            shares += share * flow.chances[b]
    return math.inf
