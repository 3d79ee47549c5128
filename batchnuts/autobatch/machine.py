"""A batched function's machine, driven step by step: for programs that do more with it than call the function.

A call runs until every lane has halted. A program that runs for hours needs more: to report progress, to take out
results on the way, to restart lanes that have halted, and to run several machines on threads:

    program = LaneProgram(function, arguments, "tensorflow", "xla")
    machine = program.machine(lanes, stack_depth=16)
    state = machine.start(arguments)
    while machine.count_live(state):
        state = machine.advance(state, 100)
        machine.check_faults(state)
    result = machine.result(state)

Code outside of `batchnuts.autobatch` imports its public names and this module, and nothing beneath them
(tests/test_structure.py). No array library is named here except where its threads are configured.

Arguments are those of a call, in order: structures of arrays [lanes, ...]. A variable's name is that in the program
before variables share registers, `function.variable`, with a dot before each field of a structure.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from batchnuts.autobatch.api import BatchedFunction
from batchnuts.autobatch.backends.backend import Identity, State
from batchnuts.autobatch.backends.registry import BACKENDS, get_backend, has_jax, is_compiled_whole
from batchnuts.autobatch.ir.program import STORED, WriteRowOp
from batchnuts.autobatch.language.arrays import library_of, tensor_library, tensor_library_of
from batchnuts.autobatch.language.libraries.library import TensorLibrary, Traced
from batchnuts.autobatch.language.pytree import flatten, map_leaves, unflatten
from batchnuts.autobatch.runtime.block_costs import Costs, costs_of_program
from batchnuts.autobatch.runtime.stackless import Tally
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.autobatch.scheduling.policies import costly_blocks
from batchnuts.autobatch.scheduling.schedule import Schedule

__all__ = [
    "CostlyRuns",
    "Identity",
    "LaneProgram",
    "Machine",
    "State",
    "Tally",
    "TensorLibrary",
    "Traced",
    "has_jax",
    "is_compiled_whole",
    "library_of",
    "map_leaves",
    "prepare_disk_cache",
    "processors",
    "tensor_library",
    "tensor_library_of",
    "use_own_threads",
]


@dataclass(frozen=True)
class CostlyRuns:
    """Executions of blocks with a primitive that is declared costly, counted in lanes."""

    useful: int
    """On lanes that were active."""
    executed: int
    """On all lanes, active or not."""


class LaneProgram:
    """A batched function compiled for one lane's types of some arguments, and its properties.

    arguments: an example. backend, mode: as for `BatchedFunction.run`; ValueError for unknown ones, CompileError for
    what cannot be batched.
    """

    def __init__(self, function: BatchedFunction, arguments: tuple[Any, ...], backend: str, mode: str) -> None:
        self._backend = get_backend(backend, mode)
        self._compiled = function.compiled(function.lane_types(arguments), self._backend)
        self._identity = function.identity
        self.result_type: Any = self._compiled.result_type
        """Structure of the TensorTypes of one lane's result."""

    def machine(
        self, lanes: int, stack_depth: int, schedule: str | Schedule = "auto", ends_early: bool = False
    ) -> Machine:
        """A machine for a number of lanes, with stacks of `stack_depth` frames.

        ends_early: lanes start and halt soon, instead of waiting for others: for callers that restart lanes which have
        halted.
        """
        machine = VirtualMachine(
            self._compiled.lowered,
            self._backend,
            lanes,
            stack_depth,
            schedule,
            ends_early=ends_early,
            identity=self._identity,
            costs=self._compiled.costs,
        )
        return Machine(self, machine)

    @cached_property
    def buffers(self) -> frozenset[str]:
        """The stored variables that `write` writes rows to."""
        ops = (op for block in self._compiled.lowered.graph.blocks for op in block.ops if isinstance(op, WriteRowOp))
        return frozenset(v for op in ops for v in (op.buffer, op.var_out))

    @property
    def lane_bytes(self) -> int:
        """Bytes that one lane keeps between blocks: the top frames of its variables, without buffers."""
        program = self._compiled.lowered
        kept = (v for v, kind in program.var_alloc.items() if kind in STORED and v not in self.buffers)
        types = (program.var_defs[v] for v in kept)
        return sum(math.prod(t.shape) * np.dtype(t.dtype).itemsize for t in types)

    @property
    def costly_work(self) -> float:
        """Multiplications and elements that the costly primitives compute for one lane; see `Costs`."""
        return self._costs.costly

    @cached_property
    def _costs(self) -> Costs:
        return self._compiled.costs or costs_of_program(self._compiled.lowered, self._backend)

    def costly_runs(self, tally: Tally, lanes: int) -> CostlyRuns:
        """What `stackless` has counted (`BatchedFunction.run(tally=...)`) in runs of that number of lanes."""
        counted = [tally[label] for label in costly_blocks(self._compiled.with_calls) if label in tally]
        return CostlyRuns(sum(active for _, active in counted), sum(runs for runs, _ in counted) * lanes)


class Machine:
    """A program ready to run; made by `LaneProgram.machine`.

    A state holds everything of a run, and is opaque: it can be kept and resumed later, bit for bit. Methods that return
    a state leave the given one unchanged. Threads may share a machine; states belong to the caller.
    """

    def __init__(self, program: LaneProgram, machine: VirtualMachine) -> None:
        self.program = program
        self._machine = machine
        self._costly = [machine.index[label] for label in costly_blocks(machine.program)]

    # ---- what it was made with

    @property
    def lanes(self) -> int:
        """How many."""
        return self._machine.lanes

    @property
    def stack_depth(self) -> int:
        """Frames that each stack holds beneath its top."""
        return self._machine.stack_depth

    @property
    def schedule(self) -> Schedule:
        """By which it picks blocks."""
        return self._machine.schedule

    def with_stack_depth(self, stack_depth: int) -> Machine:
        """The same with stacks of another depth. States of one do not fit the other."""
        return Machine(self.program, self._machine.with_stack_depth(stack_depth))

    # ---- compiling

    def trace(self, state: State) -> None:
        """Do now the Python part of the first `advance`; the compiler's own part is left to that call."""
        self._machine.trace(state)

    def compiled_text(self, state: State) -> str:
        """The instructions that a compiler made of it, as text. ValueError where none did."""
        return self._machine.compiled_text(state)

    # ---- running

    def start(self, arguments: tuple[Any, ...]) -> State:
        """The state before the first block of every lane, with the shared arrays as they are now."""
        return self._machine.start(self._named(arguments))

    def advance(self, state: State, sweeps: int, leave_at: int = 0) -> State:
        """Make up to `sweeps` sweeps over the schedule, none once at most `leave_at` lanes have not halted."""
        return self._machine.advance(state, sweeps, leave_at)

    def begin_again(self, state: State, lanes: np.ndarray, arguments: tuple[Any, ...]) -> State:
        """The state with the lanes `lanes` [k], which have halted, before their first block.

        arguments: [lanes, ...] for all lanes of the machine; the other lanes' rows are not read.
        """
        return self._machine.begin_again(state, lanes, self._named(arguments))

    def with_values(self, state: State, values: Mapping[str, Any]) -> State:
        """The state in which variables have other values [lanes, ...], by name. KeyError for one that is not stored."""
        return self._machine.with_values(state, {self._machine.live_name(name): v for name, v in values.items()})

    def with_lanes(self, state: State, to: np.ndarray, source: State, lanes: np.ndarray) -> State:
        """The state whose lanes `to` [k] go on as the lanes `lanes` [k] of another state of this machine would.

        The contents of buffers do not move with them: take them out first. The counters remain those of this state.
        """
        return self._machine.with_lanes(state, to, source, lanes, without=self.program.buffers)

    def saved(self, state: State) -> dict[str, np.ndarray]:
        """A state as arrays of the host by name, without shared arrays and the contents of buffers (`write`)."""
        return self._machine.saved(state, without=self.program.buffers)

    def restored(self, saved: Mapping[str, np.ndarray], arguments: tuple[Any, ...]) -> State:
        """The state that was saved by a machine with the same `text`, with empty buffers.

        It goes on as the saved one would, bit for bit. arguments: of any values, for shapes. Raises ValueError for
        arrays that do not fit.
        """
        return self._machine.restored(dict(saved), self._named(arguments))

    @cached_property
    def text(self) -> str:
        """What states depend on: the program with its registers, lanes, stacks, and the schedule."""
        return self._machine.text()

    def on_shard(self, number: int) -> AbstractContextManager[None]:
        """Within, this thread runs on the part of the processor with that number, modulo the number of parts.

        Such parts are made by `use_own_threads`; without them nothing changes.
        """
        threads = _threads_of(self._machine.backend.name)
        return threads.on_shard(number) if threads is not None else nullcontext()

    # ---- looking at a state, on the host

    def live(self, state: State) -> np.ndarray:
        """Which lanes have not halted yet: bool [lanes]."""
        return self._machine.live(state)

    def count_live(self, state: State) -> int:
        """How many lanes have not halted yet."""
        return self._machine.count_live(state)

    def check_faults(self, state: State) -> None:
        """Raise for the first lane on which something went wrong.

        StackOverflowError, LaneAssertionError, or BatchnutsError for a write outside its buffer.
        """
        self._machine.check_faults(state)

    def read(self, state: State, variable: str) -> np.ndarray:
        """A variable's value as it stands, [lanes, ...]. KeyError for one that is not stored."""
        return self._machine.read(state, self._machine.live_name(variable))

    def result(self, state: State) -> Any:
        """The function's result, a structure of arrays [lanes, ...]; it means something on lanes that have halted."""
        arrays = [np.asarray(array) for array in self._machine.results(state)]
        return unflatten(flatten(self.program.result_type)[1], arrays)

    def costly_runs(self, state: State) -> CostlyRuns:
        """Since `start`, by the machine's own counters."""
        counters = (self._machine.backend.to_numpy(state[name])[self._costly] for name in ("active", "executions"))
        useful, runs = (int(counter.sum()) for counter in counters)
        return CostlyRuns(useful, runs * self.lanes)

    def sweeps(self, state: State) -> int:
        """How many were made since `start`."""
        return int(self._machine.backend.to_numpy(state["sweeps"]))

    def _named(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._machine.program.vars_in, flatten(arguments)[0]))


# ---- threads that drive machines ------------------------------------------------------------------------------------


class Threads(Protocol):
    """The support of an array library for host threads that each drive a machine; a module of its backend."""

    def use_own_threads(self, shards: int) -> bool:
        """Divide the processor into that number of parts; returns whether it is so divided now."""

    def on_shard(self, number: int) -> AbstractContextManager[None]:
        """See `Machine.on_shard`."""

    def prepare_disk_cache(self) -> None:
        """See the function of that name."""


def _threads_of(backend: str) -> Threads | None:
    """None where a library computes in the thread that calls it."""
    match backend:
        case "tensorflow":
            from batchnuts.autobatch.backends.tensorflow import devices

            return devices
        case "jax":
            from batchnuts.autobatch.backends.jax import threads

            return threads
    return None


def processors() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_own_threads(shards: int | None = None, backend: str = "tensorflow") -> bool:
    """Divide the processor among `shards` threads that drive machines (default: one for each core that may be used).

    For a process that samples and does little else with the backend's library: with TensorFlow, code outside the
    sampler has one thread afterwards. Call it before that makes its devices, which it does at the first tensor.

    TensorFlow: whether the processor is so divided now; False, and nothing changed, if devices exist already or there
    is a graphics card, and for fewer than two shards. What XLA compiles for one thread lies in a temporary directory
    until the process ends, for the others (`execution.cache` keeps it for later processes). JAX needs no devices for
    that: whether there are at least two shards and no accelerator. NumPy: False.

    Raises ValueError for an unknown backend, and for shards that are no integer of at least 1.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; found {backend!r}")
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards must be an integer of at least 1, or None; found {shards!r}")
    threads = _threads_of(backend)
    return threads is not None and threads.use_own_threads(processors() if shards is None else shards)


def prepare_disk_cache(backend: str) -> None:
    """Have what XLA compiles kept on disk where a run asks for that (batchnuts/disk_cache).

    For a process that samples and does little else with the backend's library, before that makes its first array. Only
    TensorFlow needs it: where programs are stored is set once in a process.
    """
    threads = _threads_of(backend)
    if threads is not None:
        threads.prepare_disk_cache()
