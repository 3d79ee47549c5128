"""The tasks of a worker: a segment of a group of chains, and what is computed for chains besides."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numpy.typing import NDArray

from batchnuts.autobatch import StackOverflowError
from batchnuts.cluster.errors import ClusterError, DiffersError, Failure
from batchnuts.cluster.messages import SavedGroup, SegmentReport, SegmentTask
from batchnuts.cluster.recent import RecentStorage, WindowStorage
from batchnuts.cluster.region import RegionStorage
from batchnuts.cluster.session import Session, session_of
from batchnuts.disk_cache.folder import keeping
from batchnuts.mcmc.execution.attempt import Attempt, MergePosition, first_chunks
from batchnuts.mcmc.execution.chunk_plan import Chunking
from batchnuts.mcmc.execution.runner import Counts, UnboundedDensity
from batchnuts.mcmc.execution.saved_stretch import restored_attempt, saved_attempt
from batchnuts.mcmc.execution.window_reduction import reduce_window
from batchnuts.mcmc.kernel.chain_program import counted
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.model.check_model import UnboundedDensityError, density_failure
from batchnuts.mcmc.model.data_argument import leaves_of
from batchnuts.mcmc.model.model import ModelError
from batchnuts.mcmc.run.chain_execution import for_all, search
from batchnuts.mcmc.storage.contract import Storage

Result = TypeVar("Result")


def prepare(run: str) -> str | Failure | None:
    """Compile what a worker needs; see Session.compile."""

    def work(session: Session) -> str | None:
        return session.compile()

    return _in_session(run, work, "compile")


def evaluated(run: str, position: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]] | Failure:
    """Log-densities and gradients at positions, as `Session.gradients` gives them."""
    return _in_session(run, lambda session: session.gradients.evaluate(position), "warmup")


def searched(
    run: str, metric: MetricParameters, identity: Any, arguments: tuple[NDArray[Any], ...]
) -> tuple[NDArray[Any], ...] | Failure:
    """First step sizes for some chains, as `search` gives them."""

    def work(session: Session) -> tuple[NDArray[Any], ...]:
        with session.using(metric, identity):
            leaves = leaves_of(session.model.data)
            return search(session.programs, session.plan.execution, arguments, session.width, leaves)

    return _in_session(run, work, "the search for a first step size")


def isokinetic_steps(
    run: str, metric: MetricParameters, identity: Any, width: int, arguments: tuple[NDArray[Any], ...]
) -> tuple[NDArray[Any], ...] | Failure:
    """Steps of the isokinetic dynamics for some chains, as its program gives them; width: chains of a call."""

    def work(session: Session) -> tuple[NDArray[Any], ...]:
        with session.using(metric, identity):
            program, execution = session.programs.isokinetic_langevin, session.plan.execution
            return for_all(program, execution, arguments, width, leaves_of(session.model.data))

    return _in_session(run, work, "warmup")


def advance(order: SegmentTask) -> SegmentReport | Failure:
    """Run a group of chains for some seconds, from where the last segment ended."""

    def work(session: Session) -> SegmentReport:
        session.compile()
        began = time.perf_counter()
        with session.changed:
            live = session.live.pop(order.group, None)
        if order.start is not None:  # what this worker has may be ahead, of reports that nobody has
            live = WorkerGroup.begin(session, order)
        elif live is None or live.place != (order.stretch.number, order.segment):
            return SegmentReport(_name(order), session.address, lost=True)
        assert isinstance(live, WorkerGroup), "nothing else is kept there"
        live.run(began + order.seconds)
        report = live.report(session, order, began)
        live.place = order.stretch.number, order.segment + 1
        with session.changed:
            session.live = {n: group for n, group in session.live.items() if group.place[0] >= order.stretch.number}
            if report.ended is None:
                session.live[order.group] = live
        return report

    return _in_session(order.run, work, order.stretch.phase, order.first)


def _name(order: SegmentTask) -> tuple[int, int, int]:
    return order.stretch.number, order.group, order.segment


def _in_session(run: str, work: Callable[[Session], Result], phase: str, first: int = 0) -> Result | Failure:
    """What the work gives in the session of a run, or how it failed; first: the number of its first chain."""
    session: Session | None = None
    try:
        session = session_of(run)
        with keeping(session.plan.execution.cache):
            return work(session)
    except DiffersError as error:
        return Failure("differs", str(error))
    except ClusterError as error:
        return Failure("cluster", str(error))
    except OSError as error:
        return Failure("cluster", f"A worker cannot write the run's output: {str(error).rstrip('.')}.")
    except UnboundedDensity as met:
        return Failure("unbounded", chain=first + met.chain, position=met.position)
    except UnboundedDensityError as error:
        return Failure("model", str(error))
    except StackOverflowError as error:
        return Failure("deeper", str(error))
    except ModelError as error:
        return Failure("model", str(error))
    except Exception as error:
        if session is not None:
            failed = density_failure(session.model, error, phase) or density_failure(
                session.model, error.__cause__ or error, phase
            )
            if failed is not None:
                return Failure("model", str(failed))
        return Failure("other", f"{type(error).__name__}: {error}", traceback=traceback.format_exc())


@dataclass(eq=False)
class WorkerGroup:
    """A group of chains on this worker, between two segments."""

    place: tuple[int, int]
    """The stretch, and the number of the next segment."""
    attempt: Attempt
    before: NDArray[Any]
    """[chains, dimension]: where its chains were when the stretch began."""
    sent: dict[MergePosition, Any] = field(default_factory=dict)
    """The state of each chunk when its rows were taken last."""

    @classmethod
    def begin(cls, session: Session, order: SegmentTask) -> WorkerGroup:
        """The group at the state that the order gives."""
        stretch, chains, start = order.stretch, order.chains, order.start
        assert start is not None, "else it is known here"
        assert order.metric is not None, "it comes with it"
        machine = session.own_machine(order.depth)
        lanes = machine.machine.lanes
        chunking = Chunking(-(-chains // lanes), lanes, 1)
        limits: Any = (stretch.transitions, stretch.leave, 0, _storage(session, order))
        with session.using(order.metric, stretch.number):
            if isinstance(start, SavedGroup):
                attempt = restored_attempt(start.stretch, machine, chunking, chains, *limits)
                if isinstance(storage := attempt.host_state.storage, WindowStorage) and start.records is not None:
                    storage.put_back(start.records)
                before = start.before
            else:
                attempt = Attempt(machine, chunking, first_chunks(machine, chunking, start), chains, *limits)
                before = start.position
        return cls((stretch.number, order.segment), attempt, before)

    def run(self, until: float) -> None:
        """Advance its chunks in turn until that time (perf_counter), or their end."""
        attempt = self.attempt
        attempt.host_state.longest_slice = max(until - time.perf_counter(), 0.0)
        while not attempt.finished and time.perf_counter() < until and attempt.work():
            pass

    def report(self, session: Session, order: SegmentTask, began: float) -> SegmentReport:
        """The report of a segment; order: its task."""
        attempt, host_state = self.attempt, self.attempt.host_state
        saved = None
        if order.keep and not attempt.finished:
            stretch = saved_attempt(attempt)
            records = host_state.storage.snapshot() if isinstance(host_state.storage, WindowStorage) else None
            region = host_state.storage.saved() if isinstance(host_state.storage, RegionStorage) else None
            saved = SavedGroup(order.first, order.chains, stretch, records, self.before, region)
        elif not attempt.finished and not isinstance(host_state.storage, WindowStorage):
            for place, chunk in attempt.chunks.items():
                if chunk.state is not self.sent.get(place):  # else it has no new rows
                    chunk.go_on(host_state)
            self.sent = {place: chunk.state for place, chunk in attempt.chunks.items()}
        reduced = None
        if attempt.finished and order.stretch.reduction is not None:
            reduced = reduce_window(host_state.result, self.before, order.stretch.reduction, session.gradients)
        return SegmentReport(
            _name(order),
            session.address,
            seconds=time.perf_counter() - began,
            counted=counted(host_state.ends),
            counts=sum((chunk.counts for chunk in attempt.chunks.values()), Counts()),
            rows=host_state.storage.take() if isinstance(host_state.storage, RecentStorage | RegionStorage) else (),
            **_of_region(host_state.storage, attempt.finished),
            saved=saved,
            ended=host_state.ends if attempt.finished else None,
            reduced=reduced,
        )


def _storage(session: Session, order: SegmentTask) -> Callable[..., Storage]:
    stretch, start = order.stretch, order.start

    def make(like: Record, chains: int, transitions: int, room: int | None = None) -> Storage:
        if stretch.reduction is not None:
            return WindowStorage(like, chains, transitions)
        if order.store is None:
            return RecentStorage(chains)
        region = start.region if isinstance(start, SavedGroup) else None
        return RegionStorage(session.opened(order.store), like, order.first, chains, stretch.sends, region)

    return make


def _of_region(storage: Storage, finished: bool) -> dict[str, Any]:
    """What a report says of the store."""
    if not isinstance(storage, RegionStorage):
        return {}
    fields: dict[str, Any] = {"written": storage.written, "lost_groups": tuple(sorted(storage.store.lost))}
    if finished:
        storage.store.sync()
    if storage.written != storage.reported:
        storage.reported = storage.written
        fields["means"] = {name: array.copy() for name, array in storage.means.saved().items()}
    return fields
