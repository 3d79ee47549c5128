"""The native machine: each lane runs through machine code of its own pace, and waits only for foreign primitives.

    state   rows, frames, buffers   uint8 [lanes, bytes]: what layout.py describes; other entries with lanes are views
            active         int64 [segments + n]   how many lanes have begun each segment that ends in a costly
                                                  primitive, of a profiled machine each segment; and how often each of
                                                  n costly primitives that are instructions was computed
            evaluated      int64                  lanes for which costly primitives were computed
            sweeps         int64                  rounds: all lanes run until they wait, then those are served
            shared:a       [...]                  shared array a

Stacks grow while the machine runs, unless the user has limited them. A state says itself how deep its stacks are.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llvmlite import ir
from typing_extensions import override

from batchnuts.autobatch.backends.backend import Backend, Identity
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import RETURN_ADDRESS, Program, VariableAllocation, shared_arrays
from batchnuts.autobatch.language.c_functions import c_function
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.language.shared import PREFIX, entry_of
from batchnuts.autobatch.native.c_calls import fill_addresses
from batchnuts.autobatch.native.compile import MachineCode, code_of, in_background, kept_code
from batchnuts.autobatch.native.context import Context
from batchnuts.autobatch.native.emit import RUN_LANES, CodeNotes, emit_program, outlined_expressions
from batchnuts.autobatch.native.foreign import Foreign
from batchnuts.autobatch.native.kept_notes import keep_notes, kept_notes, notes_key
from batchnuts.autobatch.native.layout import FAULT, PC, WAITING, Layout, block_of, counters, layout_of
from batchnuts.autobatch.native.outlined import outlined
from batchnuts.autobatch.native.rounds import Loop, serve_name
from batchnuts.autobatch.native.segments import Wait, segments_of
from batchnuts.autobatch.native.sizes import TABLE, Extents, extents_of, sized_program
from batchnuts.autobatch.native.state import NativeState
from batchnuts.autobatch.runtime.block_code import stack_leaders
from batchnuts.autobatch.runtime.faults import LARGEST_STACK_DEPTH
from batchnuts.autobatch.runtime.machine import GROWTH, CostlyRuns, MachineCounts, ResumableMachine, State
from batchnuts.autobatch.runtime.virtual_machine import buffers_of

BLOCKS = 4096
"""Blocks of a lane in a round, at most: then others have their turn, and the machine can be left."""

ROUNDS = 4096
"""Rounds within XLA, at most: in between, Python can be interrupted."""

PARTS, MIN_LANES = 4, 16
"""Parts of the lanes for each thread, and lanes of a part at least, where a machine has threads of its own."""

_COUNTERS = ("sweeps", "active", "evaluated")
_BYTES = ("rows", "frames", "buffers")


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "batchnuts-native")


if hasattr(os, "register_at_fork"):  # a forked process has the pool, and none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


class NativeProgram:
    """A lowered program in machine code: the same for any number of lanes, and any depth of stacks.

    key: of the program's entry on disk, if it has one: then what was emitted of it is found by that.
    """

    def __init__(self, program: Program, extents: Extents, profiled: bool = False, key: str | None = None) -> None:
        program = sized_program(program, extents)
        self.buffers = buffers_of(program)
        stacks = tuple(v for v, kind in program.var_alloc.items() if kind is VariableAllocation.FULL)
        leaders = stack_leaders(program, stacks)
        self.segments = segments_of(program)
        self.layout: Layout = layout_of(program, self.segments.stored, leaders, self.buffers, profiled)
        self._emit = functools.partial(emit_program, program, self.segments, self.layout, leaders, extents)
        key = None if key is None else notes_key(key, self.segments, extents, profiled)
        found = None if key is None else kept_notes(key)
        if found is not None:
            notes, code_key = found
            self._code = in_background(lambda: _filled(kept_code(code_key) or code_of(self._emit()[0]), notes))
        else:
            module, notes = self._emit()
            self._code = in_background(functools.partial(_made, module, notes, key))
        self.leaders = {v: leaders.get(v, v) for v in (*stacks, RETURN_ADDRESS)}
        self.faults = notes.faults
        self.calls = tuple(map(c_function, notes.c_functions))
        """Functions of C that it calls, which live as long as it does."""
        self.outlined = tuple(map(outlined, outlined_expressions(self.segments)))
        self.scratch_before = max((one.scratch_bytes for one in self.outlined), default=0)
        """Bytes of what outlined functions use, before the memory of the program itself."""
        self.scratch_bytes = self.scratch_before + notes.scratch_bytes
        self.counters = self.segments.halted + len(self.outlined)

    @property
    def failed(self) -> bool:
        """Whether LLVM has failed, so that it is worth another try."""
        return self._code.done() and self._code.exception() is not None

    @property
    def text(self) -> str:
        """Its instructions, as LLVM gets them."""
        return str(self._emit()[0])

    @functools.cached_property
    def code(self) -> MachineCode:
        """Its machine code, as soon as LLVM has made it."""
        return self._code.result()

    @functools.cached_property
    def run_lanes(self) -> Callable[..., None]:
        """The function that runs lanes, of the address of a context."""
        return self.code.function(RUN_LANES, ctypes.c_void_p)


def _made(module: ir.Module, notes: CodeNotes, key: str | None) -> MachineCode:
    """A module's machine code; it is noted under the key which that is."""
    code = code_of(module)
    if key is not None and code.key is not None:
        keep_notes(key, notes, code.key)
    return _filled(code, notes)


def _filled(code: MachineCode, notes: CodeNotes) -> MachineCode:
    """The code with the sizes and addresses that it reads."""
    if notes.sizes:
        sizes = np.array(notes.sizes, np.int64)
        ctypes.memmove(code.variable(TABLE), sizes.ctypes.data, sizes.nbytes)
    return fill_addresses(code, notes.c_functions)


_programs: dict[tuple[int, tuple[int, ...], bool], NativeProgram] = {}


def native_program(
    program: Program, varying: tuple[int, ...], profiled: bool, on_disk: str | None = None
) -> NativeProgram:
    """A program's machine code, made once for as long as the program lives. varying: see `MachineOptions.extents`.

    on_disk: the key of the program's entry.
    """
    key = (id(program), varying, profiled)
    if key not in _programs or _programs[key].failed:
        _programs[key] = NativeProgram(program, extents_of(varying), profiled, on_disk)
        weakref.finalize(program, _programs.pop, key, None)
    return _programs[key]


class NativeMachine(ResumableMachine):
    """A lowered program for a number of lanes. limit: of stacks, by the user; None: they grow from `stack_depth` on.

    threads: that run lanes; 1 where whoever drives the machine has threads. profiled: whether states also have the
    peaks of stacks, and all rounds are made from Python. key: of the program's entry on disk (`CompiledFunction.key`).
    """

    policy = None

    def __init__(
        self,
        program: Program,
        backend: Backend,
        lanes: int,
        stack_depth: int,
        limit: int | None,
        identity: Identity | None = None,
        threads: int = 1,
        extents: tuple[int, ...] = (),
        profiled: bool = False,
        key: str | None = None,
    ) -> None:
        self.program = program
        self.key = key
        self.backend = backend
        self.lanes = lanes
        self.stack_depth = stack_depth
        self.limit = limit
        self.grows = limit is None
        self.identity = identity
        self.threads = threads
        self.extents = extents
        self.profiled = profiled
        self.observe: Callable[[str, int, int, int], None] | None = None
        """Called with each evaluation of a foreign primitive: its block, its segment, for how many lanes, and how many
        computed."""
        self.native = native_program(program, extents, profiled, key)
        self.shared = shared_arrays(program)
        self.foreign = {
            number: Foreign(segment.end.op, program.var_defs, backend, lanes, identity, in_loops=not profiled)
            for number, segment in enumerate(self.native.segments.segments)
            if isinstance(segment.end, Wait)
        }
        self.halted = self.native.segments.halted

    @override
    def text(self) -> str:
        return f"native\n{show_program(self.program)}"

    @override
    def with_stack_depth(self, stack_depth: int) -> NativeMachine:
        limit = self.limit and stack_depth
        others = (self.identity, self.threads, self.extents, self.profiled, self.key)
        return NativeMachine(self.program, self.backend, self.lanes, stack_depth, limit, *others)

    # ---- states ----------------------------------------------------------------------------------------------------

    def _state(
        self, rows: np.ndarray, frames: np.ndarray, buffers: np.ndarray, depth: int, others: Mapping[str, Any]
    ) -> State:
        return NativeState(self.native.layout, rows, frames, buffers, depth, others)

    def _depth(self, state: State) -> int:
        assert isinstance(state, NativeState), "a machine gets its own states"
        return state.depth

    def _others(self, state: State) -> dict[str, Any]:
        """The entries that are not of lanes: counters and shared arrays."""
        assert isinstance(state, NativeState), "a machine gets its own states"
        return {name: state[name] for name in state.own}

    def _copied(self, state: State) -> State:
        """A state of its own, but for the contents of buffers, which states have in common."""
        others = self._others(state)
        others |= {"sweeps": state["sweeps"].copy(), "evaluated": state["evaluated"].copy()}
        others["active"] = counters(self.native.counters)
        others["active"][:] = state["active"]
        rows, frames = block_of(self.lanes, state["rows"].shape[1]), block_of(self.lanes, state["frames"].shape[1])
        rows[:], frames[:] = state["rows"], state["frames"]
        return self._state(rows, frames, state["buffers"], self._depth(state), others)

    def _deeper(self, state: State, depth: int) -> State:
        """The same state with stacks of another depth."""
        frames = block_of(self.lanes, self.native.layout.stride(depth))
        deeper = self._state(state["rows"], frames, state["buffers"], depth, self._others(state))
        for variable in self.native.layout.frames:
            array = state[name := f"frames:{variable}"]
            deeper[name][:, : array.shape[1]] = array[:, : depth + 1]
        return deeper

    @override
    def start(self, arguments: Any) -> State:
        others: dict[str, Any] = {
            "sweeps": np.zeros((), np.int64),
            "evaluated": np.zeros((), np.int64),
            "active": counters(self.native.counters),
        }
        for array in self.shared:
            others[entry_of(array.name)] = np.array(array.value, order="C")
        layout, depth = self.native.layout, self.stack_depth
        strides = (layout.row_bytes, layout.stride(depth), layout.buffer_bytes)
        rows, frames, buffers = (block_of(self.lanes, stride) for stride in strides)
        state = self._state(rows, frames, buffers, depth, others)
        state[PC][:] = self.native.segments.first[self.program.graph.entry]
        for variable, array in self._named(arguments).items():
            if f"value:{variable}" in state:
                state[f"value:{variable}"][:] = array
        return state

    def _named(self, arguments: Any) -> dict[str, Any]:
        return dict(zip(self.program.vars_in, map(np.asarray, flatten(arguments)[0]), strict=True))

    # ---- running ---------------------------------------------------------------------------------------------------

    @override
    def advance(self, state: State, budget: int, leave_at: int = 0) -> State:
        if budget == 0:
            _ = self.native.code, [one.address for one in self.native.outlined]
            for loop, foreign in self._loops():
                loop.compile(*self._arguments(state, foreign))
            return state
        state = self._copied(state)
        scratch = block_of(self.threads, self.native.scratch_bytes)
        while budget > 0 and self.count_live(state) > leave_at:
            self._run(state, scratch)
            state["sweeps"] += 1
            budget -= 1
            waiting = state[WAITING]
            if (waiting < 0).any():
                state = self._with_room(state)
                waiting = state[WAITING]
            for number, foreign in self.foreign.items():
                lanes = np.flatnonzero(waiting == number + 1)
                if not len(lanes):
                    continue
                if foreign.loop is None:
                    self._serve(state, number, foreign, lanes)
                elif self.count_live(state) > leave_at:  # else they wait until the next call
                    budget = self._loop(state, number, foreign, scratch, budget, leave_at)
        return state

    def _loop(
        self, state: State, number: int, foreign: Foreign, scratch: np.ndarray, budget: int, leave_at: int
    ) -> int:
        """Rounds that only need this primitive, in one program: at least one. Returns the budget that is left."""
        context = self._context(state, scratch)
        rounds = max(1, min(budget, ROUNDS))
        context[Context.ROUNDS_LEFT], context[Context.LEAVE_AT] = rounds, leave_at
        handle = np.array([self.native.code.address(serve_name(number)), context.ctypes.data], np.uint64)
        assert foreign.loop is not None
        foreign.loop.run(handle, *self._arguments(state, foreign))
        evaluations = int(context[Context.EVALUATIONS])
        state["sweeps"] += evaluations
        if foreign.costly:
            state["evaluated"] += self.lanes * evaluations
        return max(0, budget - rounds + int(context[Context.ROUNDS_LEFT]))

    def _run(self, state: State, scratch: np.ndarray) -> None:
        """Run all lanes until they halt, wait, or have had their turn: on threads, if there are enough."""
        whole = self._context(state, scratch)
        parts = min(self.threads * PARTS, self.lanes // MIN_LANES)
        if self.threads == 1 or parts < 2:
            self.native.run_lanes(whole.ctypes.data)
            return
        bounds = np.linspace(0, self.lanes, parts + 1).astype(int)
        waiting = iter(range(parts))
        counts = [counters(self.native.counters) for _ in range(self.threads)]

        def work(thread: int) -> None:
            for part in waiting:  # a range's iterator gives each number to one thread
                context = counters(len(whole))
                context[:] = whole
                for name in (Context.ROWS, Context.FRAMES, Context.BUFFERS):
                    context[name] += bounds[part] * context[name + 1]
                context[Context.LANES] = bounds[part + 1] - bounds[part]
                context[Context.ACTIVE] = counts[thread].ctypes.data
                context[Context.SCRATCH] = scratch[thread].ctypes.data + self.native.scratch_before
                self.native.run_lanes(context.ctypes.data)

        list(_pool(self.threads).map(work, range(self.threads)))
        for own in counts:
            state["active"] += own

    def _context(self, state: State, scratch: np.ndarray) -> np.ndarray:
        """The context of a state for machine code, which changes that state."""
        shared = [state[entry_of(array.name)].ctypes.data for array in self.shared]
        shared += [one.address for one in self.native.outlined]
        context = counters(len(Context) + len(shared))
        context[len(Context) :] = shared
        context[Context.SHARED] = context[len(Context) :].ctypes.data
        for name, block in zip((Context.ROWS, Context.FRAMES, Context.BUFFERS), _BYTES):
            context[name], context[name + 1] = state[block].ctypes.data, state[block].shape[1]
        context[Context.DEPTH] = self._depth(state)
        context[Context.ACTIVE] = state["active"].ctypes.data
        context[Context.SCRATCH] = scratch.ctypes.data + self.native.scratch_before
        context[Context.BLOCKS], context[Context.LANES] = BLOCKS, self.lanes
        return context

    def _loops(self) -> Iterator[tuple[Loop, Foreign]]:
        return ((foreign.loop, foreign) for foreign in self.foreign.values() if foreign.loop is not None)

    def _arguments(self, state: State, foreign: Foreign) -> tuple[list[np.ndarray], dict[str, Any]]:
        """The inputs of a primitive for all lanes, and its shared arrays."""
        inputs = [np.ascontiguousarray(state[f"value:{v}"]) for v in foreign.op.vars_in]
        return inputs, {entry_of(name): state[entry_of(name)] for name in foreign.shared}

    @override
    def trace(self, state: State) -> None:
        for loop, foreign in self._loops():
            loop.trace(*self._arguments(state, foreign))

    def _with_room(self, state: State) -> State:
        """With deeper stacks for lanes that need them; where they may not grow, these lanes have a fault."""
        depth, waiting = self._depth(state), state[WAITING]
        short = waiting < 0
        if self.limit is None and depth < LARGEST_STACK_DEPTH:
            state = self._deeper(state, min(GROWTH * max(depth, 1), LARGEST_STACK_DEPTH))
        else:
            state[FAULT][short] = -waiting[short]
            state[PC][short] = self.halted
        state[WAITING][short] = 0
        return state

    def _serve(self, state: State, number: int, foreign: Foreign, lanes: np.ndarray) -> None:
        def read(variable: str) -> np.ndarray:
            array: np.ndarray = state[f"value:{variable}"]
            return array

        for variable, rows in foreign(lanes, read, lambda name: state[entry_of(name)]).items():
            state[f"value:{variable}"][lanes] = rows
        state[WAITING][lanes] = 0
        computed = self.lanes if foreign.all_at_once else len(lanes)
        if self.observe is not None:
            self.observe(self.native.segments.segments[number].label, number, len(lanes), computed)
        if foreign.costly:
            state["evaluated"] += computed

    @override
    def live(self, state: State) -> np.ndarray:
        live: np.ndarray = state[PC] != self.halted
        return live

    @override
    def check_faults(self, state: State, depth_is_given: bool = True) -> None:
        faults = state[FAULT]
        if faults.any():
            first = self.native.faults[int(faults[np.flatnonzero(faults)[0]]) - 1]
            raise first.error(faults > 0, self._depth(state), depth_is_given and self.limit is not None)

    @override
    def counts(self, state: State) -> MachineCounts:
        waited = sum(int(state["active"][number]) for number, foreign in self.foreign.items() if foreign.costly)
        alone = int(state["active"][self.halted :].sum())  # for one lane each
        return MachineCounts(int(state["sweeps"]), CostlyRuns(waited + alone, int(state["evaluated"]) + alone))

    def block_runs(self, state: State) -> dict[str, int]:
        """Of a profiled machine: for how many lanes each block has begun."""
        numbered = enumerate(self.native.segments.segments)
        return {segment.label: int(state["active"][n]) for n, segment in numbered if segment.first}

    def peaks(self, state: State) -> dict[str, int]:
        """Of a profiled machine: the most frames that a lane had beneath the top, by stack."""
        return {v: int(state[f"peak:{leader}"].max(initial=0)) for v, leader in self.native.leaders.items()}

    # ---- reading and changing --------------------------------------------------------------------------------------

    def _entry(self, variable: str) -> str:
        return f"value:{self.program.renamed.get(variable, variable)}"

    @override
    def results(self, state: State) -> tuple[np.ndarray, ...]:
        return tuple(state[f"value:{v}"].copy() for v in self.program.vars_out)

    @override
    def results_now(self, state: State) -> tuple[np.ndarray, ...]:
        return tuple(state[f"value:{v}"] for v in self.program.vars_out)

    @override
    def read(self, state: State, variable: str) -> np.ndarray:
        array: np.ndarray = state[self._entry(variable)]
        return array

    @override
    def write(self, state: State, values: Mapping[str, Any]) -> State:
        for name in values:
            if self._entry(name) not in state:
                raise KeyError(f"the state has no {self._entry(name)}")
        state = self._copied(state)
        for name, array in values.items():
            state[self._entry(name)][:] = array
        return state

    @override
    def restart(self, state: State, lanes: np.ndarray, arguments: Any) -> State:
        state = self._copied(state)
        for name in (FAULT, WAITING, *self.native.layout.heights):
            state[name][lanes] = 0
        state[PC][lanes] = self.native.segments.first[self.program.graph.entry]
        for variable, array in self._named(arguments).items():
            if f"value:{variable}" in state:
                state[f"value:{variable}"][lanes] = array[lanes]
        return state

    def _moves(self, name: str) -> bool:
        """Whether an entry of a state belongs to lanes, and is no buffer."""
        has_no_lanes = name in (*_COUNTERS, *_BYTES) or name.startswith(PREFIX)
        return not has_no_lanes and name.removeprefix("value:") not in self.native.buffers

    @override
    def move(self, state: State, to: np.ndarray, source: State, lanes: np.ndarray) -> State:
        depth = max(self._depth(state), self._depth(source))
        state, source = (s if self._depth(s) == depth else self._deeper(s, depth) for s in (state, source))
        state = self._copied(state)
        for name, array in state.items():
            if self._moves(name):
                array[to] = source[name][lanes]
        return state

    @override
    def save(self, state: State) -> dict[str, np.ndarray]:
        names = [name for name in state if name in _COUNTERS or self._moves(name)]
        return {name: np.array(state[name]) for name in names}

    @override
    def restore(self, saved: Mapping[str, np.ndarray], arguments: Any) -> State:
        state = self.start(arguments)
        frames = saved.get(f"frames:{RETURN_ADDRESS}")
        if frames is not None and frames.ndim == 2 and frames.shape[1] != self.stack_depth + 1:
            state = self._deeper(state, frames.shape[1] - 1)
        if unknown := saved.keys() - state.keys():
            raise ValueError(f"this machine's state has no {', '.join(sorted(unknown))}")
        missing = {name for name in state if name in _COUNTERS or self._moves(name)} - saved.keys()
        if missing:
            raise ValueError(f"what was saved has no {', '.join(sorted(missing))}, which this machine's state has")
        for name, array in saved.items():
            own = state[name]
            if own.shape != array.shape or own.dtype != array.dtype:
                raise ValueError(
                    f"{name} is {array.dtype.name}{list(array.shape)} there, and {own.dtype.name}{list(own.shape)} "
                    "in this machine's state"
                )
            own[...] = array
        return state
