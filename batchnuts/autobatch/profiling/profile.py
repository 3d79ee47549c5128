"""Profiles: how often each block and source line ran and on how many lanes, how high stacks grew, and when.

    with autobatch.profile() as p:      collects every run inside (of this thread)
    result, p = f.run(x, profile=True)  that run alone

`docs/profiler.md` explains the numbers, and the JSON that `Profile.to_json` writes.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from batchnuts.autobatch.backends.backend import Backend, State
from batchnuts.autobatch.ir.program import (
    RETURN_ADDRESS,
    Block,
    BranchOp,
    FunctionCallOp,
    IndirectGotoOp,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
)
from batchnuts.autobatch.profiling import report
from batchnuts.autobatch.profiling.counts import (
    BlockProfile,
    Count,
    RunProfile,
    Runs,
    StackProfile,
    Timeline,
)
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine

TIMELINE_LIMIT = 100_000
"""Dispatches of a run that a profile keeps; of a longer run it keeps every second, fourth, ... one."""

RETURN_ADDRESSES = "return addresses"


class Profile(Runs):
    """The runs that were profiled, and their sums. `print` shows a table."""

    def __str__(self) -> str:
        return report.as_text(self)

    def to_json(self, path: str | None = None) -> str:
        """Everything as JSON text (docs/profiler.md has the schema), also written to a file if `path` is given."""
        return report.to_json(self, path)

    def plot(self, path: str) -> None:
        """A picture of the active lanes over time, in the format of the file's suffix.

        Raises BatchnutsError where matplotlib is not installed, ValueError if no run was profiled.
        """
        report.plot(self, path)


class _TimelineNotes:
    """Dispatches as they come, subsampled beyond TIMELINE_LIMIT."""

    def __init__(self) -> None:
        self.seen = 0
        self.stride = 1
        self.parts: list[np.ndarray] = []
        self.rows = 0

    def add(self, dispatches: np.ndarray) -> None:
        """Rows (block, active) in order: [n, 2]."""
        new = dispatches[-self.seen % self.stride :: self.stride]
        self.seen += len(dispatches)
        self.parts.append(new)
        self.rows += len(new)
        while self.rows > TIMELINE_LIMIT:
            self.stride *= 2
            self.parts = [np.concatenate(self.parts)[::2]]
            self.rows = len(self.parts[0])

    def timeline(self) -> Timeline:
        rows = np.concatenate([np.zeros((0, 2), "int64"), *self.parts])
        return Timeline(rows[:, 0], rows[:, 1], self.stride)


class MachineNotes:
    """Collects the profile of a run of the virtual machine."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.attempts = 0
        self.compile_seconds = 0.0

    def run(self, machine: VirtualMachine, arguments: Any) -> State:
        """Run the machine, and take the timeline out of its state before it is full."""
        self.attempts += 1
        self.sweeps = 0
        notes = self.timeline = _TimelineNotes()
        state = machine.advance(machine.start(arguments), 0)  # compiles
        started = time.perf_counter()
        self.compile_seconds += started - self.began
        while not machine.is_finished(state):
            state, sweeps = machine.counted_advance(state, machine.code.timeline_rows // machine.steps_per_sweep)
            self.sweeps += int(sweeps)
            names = ("timeline:block", "timeline:active")
            rows = np.stack([machine.backend.to_numpy(state[name]).astype("int64") for name in names], axis=1)
            notes.add(rows[: int(machine.backend.to_numpy(state["timeline:length"])[0])])
            state["timeline:length"] = machine.backend.full((1,), 0, "int32")
        self.state = state
        self.began = time.perf_counter()
        self.run_seconds = self.began - started
        return state

    def profile(self, function: str, machine: VirtualMachine) -> RunProfile:
        """The profile of the last attempt, which the machine made."""
        backend, state, graph = machine.backend, self.state, machine.program.graph
        executions, active = (backend.to_numpy(state[name]) for name in ("executions", "active"))
        blocks = [graph.block(label) for label in machine.schedule.order]
        gates = machine.schedule.gates
        pushes, pops = _pushes_and_pops_of(blocks, active)
        peaks = {v: int(backend.to_numpy(state[f"peak:{v}"]).max(initial=0)) for v in machine.code.stacks}
        return RunProfile(
            function=function,
            executor="virtual_machine",
            backend=backend.name,
            mode=backend.mode,
            schedule=machine.schedule.policy,
            lanes=machine.lanes,
            sweeps=self.sweeps,
            stack_depth=machine.stack_depth,
            restarts=self.attempts - 1,
            call_depth=peaks[RETURN_ADDRESS],
            compile_seconds=self.compile_seconds,
            run_seconds=self.run_seconds,
            blocks=tuple(
                _block_profile(block, block.label in gates, Count(int(n), int(served), int(n) * machine.lanes))
                for block, n, served in zip(blocks, executions, active)
            ),
            stacks=_stack_profiles(peaks, pushes, pops),
            timeline=self.timeline.timeline(),
        )


class CountingMachine(Protocol):
    """What a profile needs of a machine whose lanes run each at its own pace."""

    program: Program
    backend: Backend
    lanes: int
    observe: Callable[[str, int, int, int], None] | None
    """Called with each evaluation of a primitive for several lanes: its block and its number, for how many lanes, and
    how many were computed."""

    def run(self, arguments: Any) -> State:
        """The state after all lanes have halted."""

    def block_runs(self, state: State) -> dict[str, int]:
        """For how many lanes each block has begun."""

    def peaks(self, state: State) -> dict[str, int]:
        """The most frames that a lane had beneath the top, by stack."""


class LaneNotes:
    """Collects the profile of a run of such a machine. A block runs for one lane at a time; its timeline has the
    evaluations of primitives for several lanes."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.attempts = 0
        self.compile_seconds = 0.0

    def run(self, machine: CountingMachine, arguments: Any) -> State:
        """Run the machine."""
        self.attempts += 1
        self.evaluations: dict[str, dict[int, Count]] = {}
        notes = self.timeline = _TimelineNotes()
        index = {block.label: i for i, block in enumerate(machine.program.graph.blocks)}

        def observe(label: str, number: int, lanes: int, computed: int) -> None:
            counts = self.evaluations.setdefault(label, {})
            counts[number] = counts.get(number, Count()) + Count(1, lanes, computed)
            notes.add(np.array([[index[label], lanes]]))

        started = time.perf_counter()
        self.compile_seconds += started - self.began
        machine.observe = observe
        try:
            self.state = machine.run(arguments)
        finally:
            machine.observe = None
        self.began = time.perf_counter()
        self.run_seconds = self.began - started
        return self.state

    def profile(self, function: str, machine: CountingMachine) -> RunProfile:
        """The profile of the last attempt, which the machine made."""
        runs, peaks, blocks = machine.block_runs(self.state), machine.peaks(self.state), machine.program.graph.blocks
        pushes, pops = _pushes_and_pops_of(blocks, [runs[block.label] for block in blocks])

        def count(block: Block) -> Count:
            lanes = runs[block.label]
            counts = self.evaluations.get(block.label, {}).values()
            return max(counts, key=lambda count: count.executions, default=Count(lanes, lanes, lanes))

        return RunProfile(
            function=function,
            executor="virtual_machine",
            backend="native",
            mode="xla",
            schedule=None,
            lanes=machine.lanes,
            sweeps=int(self.state["sweeps"]),
            stack_depth=None,
            restarts=self.attempts - 1,
            call_depth=peaks[RETURN_ADDRESS],
            compile_seconds=self.compile_seconds,
            run_seconds=self.run_seconds,
            blocks=tuple(_block_profile(block, False, count(block)) for block in blocks),
            stacks=_stack_profiles(peaks, pushes, pops),
            timeline=self.timeline.timeline(),
        )


class StacklessNotes:
    """Collects the profile of a run of the stackless executor; `observe` is called with each block execution."""

    def __init__(self, program: Program, began: float) -> None:
        self.began = began
        self.blocks = [block for function in program.all_functions() for block in function.graph.blocks]
        self.index = {block.label: i for i, block in enumerate(self.blocks)}
        self.dispatches: list[tuple[int, int]] = []
        self.executions, self.active = Counter[str](), Counter[str]()
        self.call_depth = 0
        self.timeline = _TimelineNotes()
        self.first: float | None = None

    def observe(self, label: str, lanes: int, depth: int) -> None:
        """A block is about to run on `lanes` lanes, `depth` calls beneath the main program."""
        if self.first is None:
            self.first = time.perf_counter()
        self.executions[label] += 1
        self.active[label] += lanes
        self.call_depth = max(self.call_depth, depth)
        self.dispatches.append((self.index[label], lanes))
        if len(self.dispatches) >= TIMELINE_LIMIT:
            self._flush()

    def _flush(self) -> None:
        self.timeline.add(np.array(self.dispatches, "int64").reshape(-1, 2))
        self.dispatches.clear()

    def profile(self, function: str, backend: Backend, lanes: int) -> RunProfile:
        """The profile of the finished run."""
        ended = time.perf_counter()
        first = ended if self.first is None else self.first
        self._flush()
        return RunProfile(
            function=function,
            executor="stackless",
            backend=backend.name,
            mode=backend.mode,
            schedule=None,
            lanes=lanes,
            sweeps=None,
            stack_depth=None,
            restarts=0,
            call_depth=self.call_depth,
            compile_seconds=first - self.began,
            run_seconds=ended - first,
            blocks=tuple(
                _block_profile(
                    b, bool(b.gate), Count(runs := self.executions[b.label], self.active[b.label], runs * lanes)
                )
                for b in self.blocks
            ),
            stacks=(),
            timeline=self.timeline.timeline(),
        )


def _block_profile(block: Block, gated: bool, count: Count) -> BlockProfile:
    sources = [getattr(op, "source", None) for op in (*block.ops, block.terminator)]
    lines = dict.fromkeys((source.filename, source.line) for source in sources if source is not None)
    costly = tuple(op.function.text for op in block.ops if isinstance(op, PrimOp) and op.function.costly)
    return BlockProfile(block.label, _kind(block, gated, costly), tuple(sorted(lines)), costly, count)


def _kind(block: Block, gated: bool, costly: tuple[str, ...]) -> str:
    if costly:
        return "costly"
    if gated:
        return "gated"
    if isinstance(block.terminator, PushGotoOp) or any(isinstance(op, FunctionCallOp) for op in block.ops):
        return "call"
    if isinstance(block.terminator, IndirectGotoOp):
        return "return"
    return "branch" if isinstance(block.terminator, BranchOp) else "plain"


def _stack_profiles(peaks: dict[str, int], pushes: Counter[str], pops: Counter[str]) -> tuple[StackProfile, ...]:
    return tuple(
        StackProfile(RETURN_ADDRESSES if v == RETURN_ADDRESS else v, pushes[v], pops[v], peak)
        for v, peak in peaks.items()
    )


def _pushes_and_pops_of(blocks: Sequence[Block], lanes: Iterable[int]) -> tuple[Counter[str], Counter[str]]:
    """For each stack, how often it was pushed and popped by so many lanes of each block."""
    pushes, pops = Counter[str](), Counter[str]()
    for block, count in zip(blocks, lanes):
        pushed, popped = _pushes_and_pops(block)
        pushes.update({v: n * int(count) for v, n in pushed.items()})
        pops.update({v: n * int(count) for v, n in popped.items()})
    return pushes, pops


def _pushes_and_pops(block: Block) -> tuple[Counter[str], Counter[str]]:
    """For each stack, how often one lane's pass through the block pushes and pops it."""
    pushes = Counter(op.var for op in block.ops if isinstance(op, PushOp))
    pops = Counter(op.var for op in block.ops if isinstance(op, PopOp))
    if isinstance(block.terminator, PushGotoOp):
        pushes[RETURN_ADDRESS] += 1
    elif isinstance(block.terminator, IndirectGotoOp) and block.owner != "main":  # main returns by halting
        pops[RETURN_ADDRESS] += 1
    return pushes, pops


collecting: ContextVar[tuple[Profile, ...]] = ContextVar("collecting", default=())
"""The profiles that runs of this context add themselves to."""


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Profile every run inside the `with` block, on the executors `virtual_machine` and `stackless`.

    A profiled machine is compiled separately and leaves compiled code now and then, so its times are longer; its counts
    are the same.
    """
    collected = Profile()
    token = collecting.set((*collecting.get(), collected))
    try:
        yield collected
    finally:
        collecting.reset(token)


def add_to_collecting(run: RunProfile) -> None:
    """Add a run to every profile that is being taken."""
    for collected in collecting.get():
        collected.runs.append(run)
