"""A stretch under way on a cluster: which group goes on where, what has come back, and what is saved of it.

Each group of chains is a task of a second or so, then another one, from where the last has ended. The worker that made
the last one knows where the group is. This process has a state of it too, which is a few seconds older: where the
worker has died, another one goes on from that, and makes the transitions since then again, which are the same.
Records of them that came before are left out. So whatever happens, each transition is recorded once.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.cluster.direct import DirectStorage, DirectZarrRun
from batchnuts.cluster.errors import ClusterError, Failure
from batchnuts.cluster.groups import ChainGroup
from batchnuts.cluster.messages import SavedChains, SavedGroup, SegmentReport, SegmentTask, Stretch, bytes_of
from batchnuts.cluster.recent import new_rows
from batchnuts.cluster.segment import advance
from batchnuts.cluster.tasks import DEAD, Outcome, Tasks, error_of, was_killed, why_not_done
from batchnuts.mcmc.execution.runner import (
    Counts,
    Interrupted,
    Report,
    RunningStretch,
    SavedState,
    UnboundedDensity,
)
from batchnuts.mcmc.execution.window_reduction import ReducedWindow, joined
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult, counted
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.sample_statistics import Record, empty_records
from batchnuts.mcmc.run.run import Run
from batchnuts.mcmc.storage.contract import LaneRows, MakeStorage, Storage

if TYPE_CHECKING:
    from distributed import Future

SEGMENT = 1.0
"""Seconds of a task, about: progress is reported by each, and a run can be ended after it."""

REPORTS = 50
"""The most reports per second of all groups together: with many groups, tasks are longer."""

SAVE = 20.0
"""Seconds after which a group's state is asked for: so much is made again where a worker dies."""

STATE_RATE = 50_000_000
"""Bytes of states in a second, at most: with very many chains they are asked for less often."""

DEATHS = 8
"""How many workers may die with a task of a group, which makes no progress meanwhile, before that is an error."""

DEATHS_OF_KILLED = 4
"""How many have died with one that Dask gives up, which it does where workers come back at the same address: its
`allowed-failures`, and one."""

STALLED = 60.0, 20.0
"""A group of which a task takes so many seconds, and so many times as long as it should, is given to another worker;
then if one takes twice as long, and so on."""

FETCH = 30.0
"""Seconds within which states come, when a run ends early."""

LOOKS = 1.0
"""Seconds after which it is asked again which workers there are."""


class StretchOnCluster(RunningStretch):
    """One stretch. inputs: of all chains. saved: where it goes on from, if it does; then storage has what was recorded.

    lanes: of a chunk. metric: of all chains. make_storage: of the records, unless the stretch is reduced.
    """

    def __init__(
        self,
        run: Run,
        tasks: Tasks,
        name: str,
        stretch: Stretch,
        sizes: tuple[int, ...],
        lanes: int,
        inputs: ChainInputs,
        metric: MetricParameters,
        make_storage: MakeStorage,
        saved: SavedChains | None,
    ) -> None:
        self.run = run
        self.tasks = tasks
        self.name = name
        self.stretch = stretch
        self.lanes = lanes
        self.inputs = inputs
        self.metric = metric
        chains = len(inputs.key)
        bounds = np.cumsum([0, *sizes])
        self.groups = [
            ChainGroup(number, int(first), size, _part(inputs, int(first), size))
            for number, (first, size) in enumerate(zip(bounds, sizes, strict=False))
        ]
        self.ends: ChainResult = _ends(inputs)
        """[chains, ...] without records; but for what is counted, of groups that have ended alone."""
        self.recorded: NDArray[np.int64] = np.array(inputs.done)
        """[chains]: transitions that `storage` has."""
        self.furthest: NDArray[np.int64] = np.array(inputs.done)
        """[chains]: the most transitions that any report had."""
        self.reduced: list[ReducedWindow | None] = [None] * len(sizes)
        self.storage: Storage | None = None
        if stretch.reduction is None:
            model = run.model
            row = empty_records(1, model.dimension, model.dtype, run.divergences)
            like = map_leaves(lambda a: a[None], row)
            if isinstance(make_storage, DirectZarrRun):
                position = np.asarray(inputs.position)[0]
                self.storage = make_storage.make_direct(like, position, stretch.transitions, sizes)
                make_storage.groups = self.groups
            else:
                self.storage = make_storage(like, chains, stretch.transitions)
        if saved is not None:
            self._go_on(saved)
        self.futures: dict[tuple[int, int], Future] = {}
        """Tasks under way, by group and segment."""
        self.places: dict[tuple[int, int], str | None] = {}
        """The worker to which each task was given."""
        self.workers: dict[str, int] = {}
        self.looked = -LOOKS
        self.state_bytes = 0.0
        """Bytes of a chain, in the largest state so far."""
        self.broken = False
        """Whether the cluster is of no use any more."""

    def _go_on(self, saved: SavedChains) -> None:
        self.ends = map_leaves(np.array, saved.ends)
        if self.storage is not None:
            self.recorded = saved.recorded.copy()
            self.storage.resume(self.recorded)
        states = {group.first: group for group in saved.groups}
        for group in self.groups:
            group.start = states.get(group.first, group.start)
            group.ended = group.number in saved.ended
            group.counts = saved.counts[group.number]
        self.reduced = list(saved.reduced)

    @property
    def direct(self) -> DirectStorage | None:
        """The storage through which workers write draws to a store, if they do."""
        return self.storage if isinstance(self.storage, DirectStorage) else None

    # ---- driving it --------------------------------------------------------------------------------------------------

    @override
    def __iter__(self) -> Iterator[Report]:
        try:
            last = 0.0
            while not all(group.ended for group in self.groups):
                self.give_out()
                item = self.tasks.next(min(0.1, SEGMENT))
                while item is not None:
                    self.take(*item)
                    item = self.tasks.next(0.0)
                if time.monotonic() - last > min(SEGMENT, 0.5) / 2:
                    last = time.monotonic()
                    yield self.counts(), None
            yield self.counts(), self.result
        except ClusterError:
            self.broken = True
            raise

    def counts(self) -> Counts:
        """The counts of all groups so far."""
        gradients = sum((group.counts for group in self.groups), Counts())
        return gradients + Counts.of_transitions(**counted(self.ends))

    @property
    def result(self) -> ChainResult | ReducedWindow:
        """At the end; a window is reduced where its draws are."""
        if self.storage is None:
            return joined([part for part in self.reduced if part is not None])
        return self.ends._replace(records=self.storage.finalize())

    def give_out(self) -> None:
        """Give each free thread the group that is furthest behind, of those that are on its worker or on none."""
        now = time.monotonic()
        if now - self.looked >= LOOKS:
            self.looked = now
            self.workers = self.tasks.workers()
            self._count_deaths(self._taken_from_the_dead(), 1, DEAD)
            self._take_from_the_slow(now)
        free = dict(self.workers)
        for worker in self.places.values():
            if worker in free:
                free[worker] -= 1
        hung = Counter(worker for (number, n), worker in self.places.items() if self.groups[number].segment != n)
        waiting = [group for group in self.groups if not group.ended and group.began is None]
        for group in waiting:
            if group.worker is not None and hung[group.worker] >= self.workers.get(group.worker, 0):
                group.worker = None  # it is gone or paused, or tasks that took far too long have all of its threads
        waiting.sort(key=lambda group: (self._progress(group), group.number))
        for group in waiting:
            if group.leaves and group.worker is None:
                group.leaves = False
            places = [group.worker] if group.worker is not None else sorted(free, key=lambda w: -free[w])
            if places and free.get(places[0], 0) > 0:
                free[places[0]] -= 1
                self.give(group, places[0], now)
        self._share(free)

    def _progress(self, group: ChainGroup) -> float:
        return float(self.ends.done[group.first : group.first + group.chains].mean())

    def _share(self, free: dict[str, int]) -> None:
        """Where a worker has nothing to do and another one more than it can do at once, one of its groups moves."""
        idle = sum(max(count, 0) for count in free.values())
        moving = sum(group.leaves for group in self.groups)
        if idle <= moving:
            return
        for worker, threads in self.workers.items():
            own = [group for group in self.groups if group.worker == worker and not group.ended]
            stay = [group for group in own if not group.leaves]
            if len(stay) > threads:
                min(stay, key=self._progress).leaves = True
                return

    def _taken_from_the_dead(self) -> list[ChainGroup]:
        """Take back the groups of tasks whose workers are gone; they go on elsewhere from their last state."""
        lost = [place for place, worker in self.places.items() if worker not in self.workers]
        for place in lost:
            self.places.pop(place)
        self.tasks.cancel([self.futures.pop(place) for place in lost])
        groups = [group for group in self.groups if group.began is not None and (group.number, group.segment) in lost]
        for group in groups:
            self._take_back(group)
        return groups

    def _take_from_the_slow(self, now: float) -> None:
        """Take back groups of which a task takes far too long: its worker may hang, or be very slow."""
        for group in self.groups:
            if group.began is not None and now - group.began > self.patience * 2**group.stalls:
                group.stalls += 1
                self._take_back(group)

    def _take_back(self, group: ChainGroup) -> None:
        """A group from its worker. Whatever its task gives does not count."""
        group.worker, group.began = None, None
        group.segment += 1

    @property
    def save_seconds(self) -> float:
        """Seconds between two states of a group."""
        return max(SAVE, self.state_bytes * len(self.recorded) / STATE_RATE)

    @property
    def seconds(self) -> float:
        """How long a task is to run."""
        at_once = min(len(self.groups), sum(self.workers.values()))
        return max(SEGMENT, at_once / REPORTS)

    @property
    def patience(self) -> float:
        """Seconds after which a task takes far too long."""
        seconds, times = STALLED
        return max(seconds, times * self.seconds)

    def give(self, group: ChainGroup, worker: str, now: float) -> None:
        """Give the next segment of a group to a worker."""
        resident = group.worker == worker
        keep = group.leaves or now - (group.saved_at or now) >= self.save_seconds
        group.saved_at = group.saved_at or now
        order = SegmentTask(
            self.name,
            self.stretch,
            group.number,
            group.first,
            group.chains,
            group.segment,
            self.seconds,
            keep,
            None if resident else group.start,
            None if resident else self.metric,
            group.depth,
            None if resident or self.direct is None else self.direct.plan,
        )
        place = group.number, group.segment
        group.began = now
        self.places[place] = worker
        self.futures[place] = self.tasks.give((self.stretch.number, *place), advance, order, worker=worker)

    # ---- what comes back ---------------------------------------------------------------------------------------------

    def take(self, name: tuple[int, int, int], outcome: Outcome) -> None:
        """Take the outcome of a task."""
        number, group_number, segment = name
        if number != self.stretch.number:
            return
        self.futures.pop((group_number, segment), None)
        self.places.pop((group_number, segment), None)
        group = self.groups[group_number]
        if segment != group.segment or group.ended:
            return  # it was given to another worker, too
        assert group.began is not None
        if time.monotonic() - group.began <= self.patience:
            group.stalls = 0
        group.began = None
        group.segment += 1
        if not outcome.done:
            self._not_done(group, outcome)
            return
        report = outcome.result
        if isinstance(report, Failure):
            self._failed(group, report)
            return
        if report.lost:
            group.worker = None
            return
        self._add(group, report)

    def _add(self, group: ChainGroup, report: SegmentReport) -> None:
        chains = slice(group.first, group.first + group.chains)
        group.worker = report.worker
        done = report.counted["done"]
        if (done > self.furthest[chains]).any() or report.ended is not None:
            group.deaths = 0
        self.furthest[chains] = np.maximum(self.furthest[chains], done)
        if (done >= self.ends.done[chains]).all():  # not what was made before, and is made again
            for name, so_far in report.counted.items():
                getattr(self.ends, name)[chains] = so_far
            group.counts = report.counts
        for rows in report.rows:
            numbers = rows.chains + group.first
            lanes = np.arange(len(numbers))
            new = new_rows(LaneRows(numbers, lanes, rows.first, rows.last, rows.records), self.recorded)
            if new is not None:
                assert self.storage is not None
                if (new.first != self.recorded[new.chains]).any():
                    raise ClusterError(
                        f"Transitions of chains {numbers.min()} to {numbers.max()} never arrived: this is a bug in "
                        "batchnuts; please report it."
                    )
                self.storage.record(LaneRows(new.chains, np.arange(len(new.chains)), new.first, new.last, new.records))
                self.recorded[new.chains] = new.last
        if self.direct is not None:
            self.direct.take(group, report)
        if report.saved is not None:
            group.start, group.saved_at = report.saved, time.monotonic()
            self.state_bytes = max(self.state_bytes, bytes_of(report.saved) / group.chains)
            if group.leaves:
                group.worker, group.leaves = None, False
        if report.ended is not None:

            def write(to: NDArray[Any], array: NDArray[Any]) -> None:
                to[chains] = array

            map_leaves(write, self.ends, report.ended)
            self.reduced[group.number] = report.reduced
            group.ended = True

    def _not_done(self, group: ChainGroup, outcome: Outcome) -> None:
        """Handle a task of which workers have died, or that the scheduler has lost."""
        self.looked = -LOOKS
        group.worker = None
        self._count_deaths([group], DEATHS_OF_KILLED if was_killed(outcome.future) else 1, why_not_done(outcome))

    def _count_deaths(self, groups: Sequence[ChainGroup], number: int, why: str) -> None:
        """Count deaths of workers; raise ClusterError where groups have had too many."""
        for group in groups:
            group.deaths += number
        ill = [group for group in groups if group.deaths >= DEATHS]
        if not ill:
            return
        subject = "Chains" if len(ill) == 1 else "Some of the chains"
        raise ClusterError(
            f"{subject} {ill[0].first} to {ill[-1].first + ill[-1].chains - 1} cannot be run ({self.stretch.phase}): "
            f"{why}. If their memory was not enough, lower execution.chunk_lanes, or give workers more (memory_limit); "
            "what Dask's workers have printed says why they ended."
        )

    def _failed(self, group: ChainGroup, failure: Failure) -> None:
        if failure.kind == "unbounded":
            raise UnboundedDensity(failure.chain, failure.position)
        if failure.kind == "deeper" and self.run.execution.max_stack_depth is None:
            group.depth = 2 * (group.depth or self.run.depth)
            group.start = _part(self.inputs, group.first, group.chains)
            group.worker = None
            return
        phase: Any = self.stretch.phase
        raise error_of(failure, self.run.model, phase)

    # ---- its end -----------------------------------------------------------------------------------------------------

    def saveable(self) -> NDArray[np.int64]:
        """[chains]: transitions of each that can be saved."""
        if self.direct is None:
            return self.recorded.copy()
        counts = self.direct.recoverable(self.groups)
        return np.full_like(counts, counts.min())  # a store has the draws that all chains have

    def drain(self) -> None:
        """Take what has come back; where draws that are not in the store are with workers, get them."""
        if self.direct is not None and self.direct.memory is None:
            self._fetch()
        while (item := self.tasks.next(0.0)) is not None:
            self.take(*item)

    def _fetch(self) -> None:
        """Get the states of all groups, as far as they come in time."""
        until = time.monotonic() + FETCH
        requested: set[int] = set()
        while (now := time.monotonic()) < until:
            if now - self.looked >= LOOKS:
                self.looked = now
                try:
                    self.workers = self.tasks.workers()
                except ClusterError:
                    return
                self._taken_from_the_dead()
            for group in self.groups:
                free = not group.ended and group.began is None
                if free and group.worker and self.workers.get(group.worker) and group.number not in requested:
                    requested.add(group.number)
                    group.saved_at = -math.inf
                    self.give(group, group.worker, now)
            if all(group.began is None for group in self.groups):
                return
            if (item := self.tasks.next(0.1)) is not None:
                self.take(*item)

    def drop(self) -> None:
        """Cancel all tasks: nothing of the stretch is of use any more."""
        futures, self.futures = list(self.futures.values()), {}
        if not self.broken:
            self.tasks.cancel(futures)

    @override
    def pause(self) -> None:
        """Do nothing: states that are saved are consistent in themselves, whatever goes on."""

    @override
    def save(self) -> SavedState:
        if self.storage is not None:
            self.storage.flush()
        chains = SavedChains(
            lanes=self.lanes,
            rows=self.run.rows,
            groups=tuple(g.start for g in self.groups if isinstance(g.start, SavedGroup) and not g.ended),
            sizes=tuple(group.chains for group in self.groups),
            recorded=self.recorded.copy(),
            ends=map_leaves(np.array, self.ends),
            ended=tuple(group.number for group in self.groups if group.ended),
            reduced=tuple(self.reduced),
            counts=tuple(group.counts for group in self.groups),
        )
        return SavedState(chains, self.storage)

    @override
    def records(self, transitions: int) -> Record | None:
        """All records come with each report of a worker."""
        if self.storage is None or self.recorded.min() < transitions:
            return None
        return self.storage.first(transitions)

    @override
    def close(self) -> Interrupted | None:
        if not self.broken:
            self.drain()
        if self.storage is None:
            return None
        ends = self.ends._replace(done=self.saveable())
        return Interrupted(ends, np.ones(len(ends.done), bool), self.storage)


def _part(inputs: ChainInputs, first: int, chains: int) -> ChainInputs:
    of_group: ChainInputs = map_leaves(lambda array: np.asarray(array)[first : first + chains], inputs)
    return of_group


def _ends(inputs: ChainInputs) -> ChainResult:
    """The results of chains that have made no transition, without records."""
    fields: dict[str, Any] = {
        name: map_leaves(np.array, getattr(inputs, name)) if name != "records" else () for name in ChainResult._fields
    }
    return ChainResult(**fields)
