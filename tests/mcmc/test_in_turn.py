"""One chunk of chains at their own pace for one thread: sampling and interim analyses take turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from chain_runs import CAPACITY, LANES, assert_same, drive, inputs, make_program

from batchnuts import Model
from batchnuts.autobatch import ops
from batchnuts.mcmc.execution.chunk_runner import make_runner
from batchnuts.mcmc.kernel.chain_program import ChainResult
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, ExpertSettings, split_settings
from batchnuts.mcmc.storage.draws import Draws, RunFailed
from batchnuts.mcmc.storage.memory import MemoryStorage
from batchnuts.mcmc.storage.progress import Progress

NATIVE = ExecutionSettings(backend="native", expert=ExpertSettings(shards=1))
POINTS = (3, 4, 9)


@pytest.fixture(scope="module")
def whole() -> ChainResult:
    result: ChainResult = drive(make_program(), backend="native", shards=1)[1][-1][1]
    return result


def stretch(rows: int, **how: Any) -> Any:
    """A stretch of CAPACITY transitions, with buffers of so many rows."""
    runner = make_runner(make_program(rows), inputs(0), NATIVE, 8)
    return runner.run(inputs(CAPACITY), CAPACITY, **how)


def looked_at(running: Any, points: list[int]) -> Iterator[tuple[Any, ChainResult | None, int]]:
    """The counts and results of a stretch, and how many draws an interim analysis gets of it, of the points left."""
    for counts, result in running:
        length = 0
        if points and (records := running.records(points[0])) is not None:
            length = records.lp.shape[1]
            points.pop(0)
            running.records(points[0] if points else CAPACITY)
        yield counts, result, length


@pytest.mark.parametrize("rows", [2, CAPACITY])
def test_chains_make_the_draws_that_are_wanted_and_no_more(whole: ChainResult, rows: int) -> None:
    points, bound, lengths = list(POINTS), POINTS[0], []
    for counts, result, length in looked_at(stretch(rows, wanted=POINTS[0]), points):
        assert counts.transitions <= LANES * bound
        bound = points[0] if points else CAPACITY
        lengths.append(length)
        if result is not None:
            assert_same(result, whole)
    assert [length for length in lengths if length] == list(POINTS)


@pytest.mark.parametrize("rows", [2, CAPACITY])
def test_it_goes_on_from_what_was_saved_at_any_report(whole: ChainResult, rows: int, tmp_path: Any) -> None:
    reports = 0
    while True:
        points, running = list(POINTS), stretch(rows, wanted=POINTS[0])
        for number, (_, result, _) in enumerate(looked_at(running, points)):
            if number == reports or result is not None:
                break
        if result is not None:
            break
        reports += 1
        saved = running.save()
        recorded = [np.array(a) for a in running.attempt.host_state.storage.finalize() if not isinstance(a, tuple)]
        again = stretch(
            rows, wanted=points[0] if points else CAPACITY, resumed=saved.state, make_storage=_Copy(recorded)
        )
        *_, (_, end, _) = looked_at(again, points)
        assert not points
        assert_same(end, whole)
    assert reports >= 2 * len(POINTS)


class _Copy:
    """Makes a storage in memory that has what another one had, as one on a disk has."""

    def __init__(self, recorded: list[Any]) -> None:
        self.recorded = recorded

    def __call__(self, like: Any, chains: int, transitions: int, room: int | None) -> Any:
        storage = MemoryStorage(like, chains, transitions)
        arrays = [array for array in storage.blocks[0][1] if not isinstance(array, tuple)]
        for target, source in zip(arrays, self.recorded, strict=True):
            target[:, : source.shape[1]] = source
        storage.resume = lambda recorded: None  # type: ignore[method-assign]
        return storage


# ---- whole runs ------------------------------------------------------------------------------------------------------


def model() -> Model:
    return Model.from_function(lambda q: -0.5 * ops.sum(q * q), dimension=3, dtype="float64")


def run(progress: Any = None, **settings: Any) -> Draws:
    fixed = {"chains": 4, "warmup": 0, "step_size": 0.9, "draws": 3000, "backend": "native_numpy", "seed": 5}
    return run_chains(model(), *split_settings(fixed | settings), progress)


def test_a_run_is_that_of_threads_and_spends_no_gradient_on_draws_that_are_not_kept() -> None:
    until = {"ess_bulk": 200, "rhat": 1.1}
    alone, threads = run(until=until, expert={"shards": 1}), run(until=until, chunk_lanes=1, expert={"shards": 2})
    assert alone.ended == threads.ended
    assert alone.complete == threads.complete < 1000
    np.testing.assert_array_equal(alone.position, threads.position)
    assert alone.useful_gradients == alone.stats["n_steps"].sum()


def test_an_interruption_between_analyses_keeps_the_draws() -> None:
    whole = run(until={"ess_bulk": 2000}, expert={"shards": 1})

    def press(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.done >= 4 * 100:
            raise KeyboardInterrupt

    cut = run(press, until={"ess_bulk": 2000}, expert={"shards": 1})
    assert cut.interrupted
    assert 100 <= cut.complete < whole.complete
    np.testing.assert_array_equal(cut.position[:, : cut.complete], whole.position[:, : cut.complete])


def test_a_density_of_plus_infinity_is_named() -> None:
    spike = Model.from_function(
        lambda q: ops.where(q[0] > 2.0, np.inf, -0.5 * ops.sum(q * q)), dimension=1, dtype="float64"
    )
    fixed = {"chains": 2, "warmup": 0, "step_size": 1.0, "draws": 500, "backend": "native_numpy"}
    with pytest.raises(RunFailed, match="its log-density is \\+inf at a position of chain"):
        run_chains(spike, *split_settings(fixed | {"until": {"ess_bulk": 1e5}, "expert": {"shards": 1}}))
