"""Draws of a run that never was, and how chunks record them: some chains on some lanes, out of step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from fake_run import make_draws

from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.url import OutputLocation
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model, Variable
from batchnuts.mcmc.model.supports import Lower
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.output.streaming import ZarrRun
from batchnuts.mcmc.settings.run_settings import SamplerSettings
from batchnuts.mcmc.storage.contract import LaneRows
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.stored_run import is_interrupted

if TYPE_CHECKING:
    import xarray

CHAINS, DRAWS, LANES, CAPACITY = 6, 47, 3, 5
SAMPLER = SamplerSettings(chains=CHAINS, draws=DRAWS, seed=7)
MODEL = Model(
    name="m",
    log_density=lambda parts: parts["mu"],
    dimension=6,
    variables=(
        Variable("mu"),
        Variable("tau", support=Lower(0.0)),
        Variable("beta", (2, 2), ("feature", "level"), {"feature": ["age", "dose"]}),
    ),
    structured=True,
    observed_data={"y": (("row",), np.arange(4))},
    constant_data={"x": (("row", "feature"), np.ones((4, 2)))},
    coords={"row": list("abcd")},
)

INTERRUPTED = [20, 31, 47, 24, 20, 29]


def records_of(draws: Draws) -> Record:
    """What chains would have recorded, [chains, draws, ...]."""
    stats = {name: array for name, array in draws.stats.items() if name in Record._fields}
    last = () if draws.last_position is None else draws.last_position
    return Record(position=draws.position, last_position=last, **stats)


def drawn(done: list[int] | None = None, ends: bool = False) -> Draws:
    """Draws of a run that never was; some diverge, and where asked for the ends of trajectories are known."""
    draws = make_draws(MODEL, SAMPLER, done=done)
    rng = np.random.default_rng(3)
    diverging = rng.uniform(size=(CHAINS, DRAWS)) < 0.2
    reached = (draws.stats["tree_depth"] >= SAMPLER.max_tree_depth) & ~diverging
    stats = {**draws.stats, "diverging": diverging, "reached_max_treedepth": reached}
    begun = None if done is None else np.array(done) > 0
    draws = replace(draws, stats=stats, begun=begun)
    if not ends:
        return draws
    return replace(draws, last_position=draws.position + 1, start=draws.position[:, 0] - 1)


def feed(storage: Any, records: Record, done: np.ndarray, seed: int = 0, most: int = CAPACITY) -> None:
    """Record the first `done` [chains] of all chains as chunks do: some chains on some lanes, up to `most` rows."""
    rng = np.random.default_rng(seed)
    recorded = np.array(getattr(storage, "recorded", np.zeros(len(done))), np.int64)
    while (recorded < done).any():
        chains = rng.permutation(np.flatnonzero(recorded < done))[:LANES]
        lanes = rng.permutation(LANES)[: len(chains)]
        last = np.minimum(recorded[chains] + rng.integers(0, most + 1, len(chains)), done[chains])
        record(storage, records, chains, lanes, recorded[chains], last)
        recorded[chains] = last


def record(storage: Any, records: Record, chains: Any, lanes: Any, first: Any, last: Any) -> None:
    """One call, from buffers that change after it."""
    chains, lanes, first, last = (np.asarray(a, np.int64) for a in (chains, lanes, first, last))
    rows = int((last - first).max(initial=1))

    def buffer(array: np.ndarray) -> np.ndarray:
        there = np.full((LANES, max(rows, 1), *array.shape[2:]), 1, array.dtype)
        for chain, lane, start, end in zip(chains, lanes, first, last, strict=True):
            there[lane, : end - start] = array[chain, start:end]
        return there

    made = map_leaves(buffer, records)
    storage.record(LaneRows(chains, lanes, first, last, made))
    map_leaves(lambda array: array.fill(0), made)


def run_to_end(storage: Any, draws: Draws) -> None:
    feed(storage, records_of(draws), draws.done)
    storage.finalize()


def stream(place: OutputLocation, draws: Draws, content: Content | None = None, **options: Any) -> tuple[ZarrRun, Any]:
    """A run under way, and its storage."""
    run = ZarrRun(place, MODEL, content or Content(divergences=draws.start is not None), **options)
    like = map_leaves(lambda array: array[:1, :1], records_of(draws))
    return run, run.begin(SAMPLER, draws.execution)(like, CHAINS, DRAWS)


def finished(place: OutputLocation, draws: Draws, **options: Any) -> dict[str, xarray.Dataset]:
    run, storage = stream(place, draws, **options)
    run_to_end(storage, draws)
    return run.finish(draws)


def in_three_lives(place: OutputLocation, done: list[int]) -> Iterator[None]:
    """A run that is interrupted twice, first with these draws [chains], and goes on to its end: after each life."""
    draws, further = drawn(), [35, 31, 47, 41, 30, 29]
    records = records_of(draws)
    for resumed, until in ((False, done), (True, further)):
        run, storage = stream(place, draws, resumed=resumed)
        if resumed:
            storage.resume(np.array(done))
        feed(storage, records, np.array(until), seed=1)
        storage.flush()
        part = drawn(until)
        assert_same_groups(run.finish(part, keep=True), to_datasets(part, MODEL))
        assert is_interrupted(place)
        yield
    run, storage = stream(place, draws, resumed=True)
    storage.resume(np.array(further))
    feed(storage, records, draws.done, seed=2)
    assert_same_groups(run.finish(draws), to_datasets(draws, MODEL))
    assert not is_interrupted(place)
    yield


def flushed(place: OutputLocation, flushes: int) -> tuple[Draws, Record, list[np.ndarray]]:
    """What a process leaves that ends after so many flushes and further draws: all draws of the run, their records, and
    how many of each chain [chains] there were at each flush, and at the end."""
    draws = drawn(ends=True)
    _, storage = stream(place, draws)
    records = records_of(draws)
    at = [np.array(INTERRUPTED), np.array([31, 35, 47, 40, 26, 30]), np.full(CHAINS, 41)]
    for done in at[:flushes]:
        feed(storage, records, done)
        storage.flush()
    feed(storage, records, at[2])
    storage.drain()
    storage.close()
    return draws, records, at


def part_of(draws: Draws, first: int, last: int, done: list[int] | None = None) -> Draws:
    """The draws [first, last) of each chain as a run that is made longer has them; done: how many in all, if others."""
    made = np.full(CHAINS, last) if done is None else np.array(done)
    assert draws.last_position is not None
    assert draws.start is not None
    return replace(
        draws,
        position=draws.position[:, first:last],
        stats={name: array[:, first:last] for name, array in draws.stats.items()},
        last_position=draws.last_position[:, first:last],
        start=draws.position[:, first - 1] if first else draws.start,
        done=made - first,
        first=first,
        interrupted=done is not None,
    )


def store_part(place: OutputLocation, draws: Draws, content: Content, last: int) -> None:
    """A store of such a part of a run, of which each chain makes `last` draws in all."""
    run = ZarrRun(place, MODEL, content, earlier=draws.first, replace=True)
    like = map_leaves(lambda array: array[:1, :1], records_of(draws))
    storage: Any = run.begin(SAMPLER, draws.execution)(like, CHAINS, last)
    first = np.full(CHAINS, draws.first)
    storage.record(LaneRows.of_all(first, first + draws.done, records_of(draws)))
    run.finish(draws)


def assert_same_groups(one: Any, other: Any) -> None:
    """Bit for bit, dtypes, labels and attributes too."""
    assert set(one) == set(other)
    for group in one:
        a, b = one[group], other[group]
        assert set(a.variables) == set(b.variables), group
        for name in a.variables:
            assert a[name].dims == b[name].dims, (group, name)
            assert a[name].attrs == b[name].attrs, (group, name)
            if b[name].dtype.kind not in "biuf":  # texts, for which each format has a type of its own
                assert a[name].values.tolist() == b[name].values.tolist(), (group, name)
            else:
                assert a[name].dtype == b[name].dtype, (group, name)
                assert a[name].values.tobytes() == b[name].values.tobytes(), (group, name)
        found, expected = (dict(x.attrs) for x in (a, b))
        assert found.pop("created_at")
        assert expected.pop("created_at")
        assert found == expected, group
