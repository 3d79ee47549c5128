"""Local static autobatching ([R] Algorithm 1): each call is an activation of its own, its blocks run on all its lanes.

Lanes share a block's evaluation only within the same activation: there is no batching across depths of the recursion,
which is what the virtual machine adds. An activation holds

    variables   one array [lanes, ...] for each, good on the lanes of the activation
    waiting     which lanes (a mask) wait at which blocks: a priority queue in which the earliest block comes first,
                with one entry a block, whose mask is never empty

and serves waiting points until all its lanes have returned. A call suspends it while the callee's activation runs.
The activations are kept in a list, not on Python's own stack, so calls may nest as deep as memory allows.

Control is Python; what lies between two calls of a block is one function, `Part`, which the backend may compile. On
TensorFlow in mode xla this is the hybrid of [R].
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch.backends.backend import Array, Backend, Identity, PartFunction, State
from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.ir.dataflow import function_liveness, live_after_ops
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import (
    AssertOp,
    Block,
    BranchOp,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Op,
    Program,
    WriteRowOp,
    reads,
    shared_arrays,
    terminator_reads,
    writes,
)
from batchnuts.autobatch.ir.verify import check_types, check_well_formed, require_inputs
from batchnuts.autobatch.language.shared import entry_of
from batchnuts.autobatch.runtime import faults
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.autobatch.runtime.lane_storage import LaneStorage, LaneValues
from batchnuts.autobatch.runtime.regions import Compute, Step, plan_ops

Tally = dict[str, tuple[int, int]]
"""For each block's label: how often it ran, and on how many active lanes in all."""

Observer = Callable[[str, int, int], None]
"""Called with a block's label, the number of its active lanes, and how deep its activation is nested."""

BlockCodeCache = dict[str, "BlockCode"]
"""Blocks made ready to run, by label; entries of another program or backend are not used."""


@dataclass(frozen=True)
class Part:
    """Straight-line ops of a block as one function.

    `run(mask, values)`, with arrays of all variables of vars_in and the shared ones, gives those of vars_out and the
    lanes' faults: int32 [lanes], 0 or one more than an index into `faults`; None where nothing can go wrong.
    """

    vars_in: tuple[str, ...]
    shared: tuple[str, ...]
    """Entries of `values` that are shared arrays."""
    faults: tuple[Fault, ...]
    run: Callable[[Array, dict[str, Array]], tuple[dict[str, Array], Array | None]]


@dataclass(frozen=True)
class BlockCode:
    """A block made ready for a backend: parts that run at once, and calls."""

    block: Block
    backend: Backend
    parts: tuple[Part | FunctionCallOp, ...]


@dataclass(frozen=True)
class _Call:
    """A call that an activation requests."""

    function: Function
    inputs: dict[str, Array]
    lanes: np.ndarray
    source: Source | None


_Activation = Generator[_Call, tuple[Array, ...], tuple[Array, ...]]


def execute(
    program: Program,
    backend: Backend,
    block_code_cache: BlockCodeCache | None,
    *inputs: Array,
    max_stack_depth: int | None = None,
    tally: Tally | None = None,
    observe: Observer | None = None,
) -> tuple[np.ndarray, ...]:
    """Run a typed program with calls on inputs [lanes, ...]; outputs [lanes, ...] on the host.

    Checks it first, with every call: see `run_checked`. Raises MalformedProgramError for one that breaks the rules of
    the IR, or has variables without a type.
    """
    check_well_formed(program)
    check_types(program)
    require_inputs(program, inputs)
    return run_checked(
        program,
        backend,
        block_code_cache,
        *inputs,
        max_stack_depth=max_stack_depth,
        tally=tally,
        observe=observe,
    )


def run_checked(
    program: Program,
    backend: Backend,
    block_code_cache: BlockCodeCache | None,
    *inputs: Array,
    max_stack_depth: int | None = None,
    tally: Tally | None = None,
    observe: Observer | None = None,
    identity: Identity | None = None,
) -> tuple[np.ndarray, ...]:
    """Run a program that was checked when it was compiled, without the checks of `execute`.

    block_code_cache: a dictionary kept between runs of a program, so that blocks are made ready once and compiled
        once for a number of lanes; None for none. max_stack_depth: how deep calls may nest (None: 65,536).
    tally: counts of block executions are added to it. observe: called with each block that runs.
    identity: what the program depends on beside its text and its inputs' types, if that is known.
    Raises StackOverflowError when calls nest deeper, LaneAssertionError for an assertion that does not
    hold, BatchnutsError for a write outside its buffer; each for the first lane on which it happens.
    """
    named = {v: backend.asarray(x, program.var_defs[v].dtype) for v, x in zip(program.vars_in, inputs)}
    lanes = len(inputs[0]) if inputs else 1
    run = _Run(program, backend, {} if block_code_cache is None else block_code_cache, lanes)
    run.tally = {} if tally is None else tally
    run.observe = observe
    run.identity = identity
    outputs = run.to_end(named, max_stack_depth or faults.LARGEST_STACK_DEPTH)
    if run.stopped.any():
        raise run.fault_of[int(np.flatnonzero(run.stopped)[0])].error(run.stopped, max_stack_depth)
    return tuple(backend.to_numpy(x) for x in outputs)


class _Waiting:
    """Lanes of an activation that wait at blocks, by the block's index."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._masks: dict[int, np.ndarray] = {}

    def add(self, index: int, lanes: np.ndarray) -> None:
        """Add the lanes of the mask to those that wait at a block; an empty mask is ignored."""
        if not lanes.any():
            return
        if index in self._masks:
            self._masks[index] = self._masks[index] | lanes
        else:
            heapq.heappush(self._heap, index)
            self._masks[index] = lanes

    def take_first(self) -> tuple[int, np.ndarray] | None:
        """The earliest block at which lanes wait, and all lanes that do; None if no lane waits."""
        if not self._heap:
            return None
        index = heapq.heappop(self._heap)
        return index, self._masks.pop(index)


class _Run:
    def __init__(self, program: Program, backend: Backend, cache: BlockCodeCache, lanes: int) -> None:
        self.program = program
        self.backend = backend
        self.cache = cache
        self.lanes = lanes
        self.tally: Tally = {}
        self.observe: Observer | None = None
        self.identity: Identity | None = None
        self.stopped = np.zeros(lanes, bool)
        """Lanes with a fault; they do not run any more."""
        self.fault_of: dict[int, Fault] = {}
        self._blank: dict[str, Array] = {}
        self._shared = {entry_of(a.name): backend.asarray(a.value, a.value.dtype.name) for a in shared_arrays(program)}

    def to_end(self, inputs: dict[str, Array], depth: int) -> tuple[Array, ...]:
        """The outputs of the main program; callers are suspended below the activation that runs."""
        everyone = np.ones(self.lanes, bool)
        activations = [self.activation(self.program.main_function(), inputs, everyone, 0)]
        results: Any = None
        while True:
            try:
                call = activations[-1].send(results)
            except StopIteration as returned:
                activations.pop()
                results = returned.value
                if not activations:
                    outputs: tuple[Array, ...] = results
                    return outputs
                continue
            lanes = call.lanes
            if len(activations) > depth:
                self.stop(lanes, Fault(FaultKind.CALL_DEPTH, call.function.name, call.source))
                lanes = np.zeros_like(lanes)
            activations.append(self.activation(call.function, call.inputs, lanes, len(activations)))
            results = None

    def activation(self, function: Function, inputs: dict[str, Array], lanes: np.ndarray, depth: int) -> _Activation:
        """One call on these lanes; gives the calls it makes, is sent their results, and returns its own."""
        index = {label: i for i, label in enumerate(function.graph.labels)}
        values = dict(inputs)
        waiting = _Waiting()
        waiting.add(0, lanes)
        while (first := waiting.take_first()) is not None:
            block, lanes = function.graph.blocks[first[0]], first[1]
            self.count(block.label, lanes, depth)
            for part in self.code(function, block).parts:
                if isinstance(part, FunctionCallOp):
                    callee = self.program.function(part.function)
                    arguments = {p: self.in_type_of(p, v, values) for p, v in zip(callee.vars_in, part.vars_in)}
                    results = yield _Call(callee, arguments, lanes, part.source)
                    named = dict(zip(callee.vars_out, results))
                    for variable, result in zip(part.vars_out, callee.vars_out):
                        self.merge(values, variable, self.in_type_of(variable, result, named), lanes)
                else:
                    self.run(part, values, lanes)
                lanes = lanes & ~self.stopped
                if not lanes.any():
                    break
            match block.terminator:
                case GotoOp(label):
                    waiting.add(index[label], lanes)
                case BranchOp(condition, yes, no) if lanes.any():
                    holds = self.backend.to_numpy(values[condition])
                    waiting.add(index[yes], lanes & holds)
                    waiting.add(index[no], lanes & ~holds)
        return tuple(self.value(values, v) for v in function.vars_out)

    def count(self, label: str, lanes: np.ndarray, depth: int) -> None:
        """Note that a block runs."""
        active = int(np.count_nonzero(lanes))
        runs, served = self.tally.get(label, (0, 0))
        self.tally[label] = (runs + 1, served + active)
        if self.observe is not None:
            self.observe(label, active, depth)

    def run(self, part: Part, values: dict[str, Array], lanes: np.ndarray) -> None:
        """Run a part and keep what it gives."""
        inputs = {v: self.value(values, v) for v in part.vars_in} | {a: self._shared[a] for a in part.shared}
        results, fault = part.run(self.backend.asarray(lanes, "bool"), inputs)
        values.update(results)
        if fault is not None:
            codes = self.backend.to_numpy(fault)
            for code in np.unique(codes[codes > 0]):
                self.stop(codes == code, part.faults[int(code) - 1])

    def stop(self, lanes: np.ndarray, fault: Fault) -> None:
        """Take lanes with a fault out of the run."""
        self.stopped = self.stopped | lanes
        for lane in np.flatnonzero(lanes):
            self.fault_of[int(lane)] = fault

    def merge(self, values: dict[str, Array], variable: str, new: Array, lanes: np.ndarray) -> None:
        """Assign on these lanes."""
        if variable in values:
            new = self.backend.where(self.backend.asarray(lanes, "bool"), new, values[variable])
        values[variable] = new

    def value(self, values: Mapping[str, Array], variable: str) -> Array:
        """A variable as it stands; zeros where no lane has assigned it yet."""
        if variable in values:
            return values[variable]
        if variable not in self._blank:
            type_ = self.program.var_defs[variable]
            self._blank[variable] = self.backend.full((self.lanes, *type_.shape), 0, type_.dtype)
        return self._blank[variable]

    def in_type_of(self, target: str, variable: str, values: Mapping[str, Array]) -> Array:
        """The value of `variable` as `target` holds it: a literal's dtype can differ between the two."""
        value = self.value(values, variable)
        target_dtype, own_dtype = (self.program.var_defs[v].dtype for v in (target, variable))
        return value if target_dtype == own_dtype else self.backend.cast(value, target_dtype)

    def code(self, function: Function, block: Block) -> BlockCode:
        """The block made ready, from the cache if it is there."""
        block_code = self.cache.get(block.label)
        if block_code is None or block_code.block is not block or block_code.backend is not self.backend:
            block_code = self.cache[block.label] = self.make_ready(function, block)
        return block_code

    def make_ready(self, function: Function, block: Block) -> BlockCode:
        live = function_liveness(function)
        crossing = frozenset(function.vars_out).union(*live.at_start.values())
        at_end = live.at_end[block.label] | set(terminator_reads(block.terminator))
        if isinstance(block.terminator, IndirectGotoOp):
            at_end |= set(function.vars_out)
        parts: list[Part | FunctionCallOp] = []
        ops: list[Op] = []
        needed = frozenset[str]()

        def close() -> None:
            if ops:
                parts.append(self.part(tuple(ops), needed, crossing, f"{block.label} {len(parts)}"))
                ops.clear()

        for op, live_after in zip(block.ops, live_after_ops(block.ops, at_end)):
            if isinstance(op, FunctionCallOp):
                close()
                parts.append(op)
            else:
                ops.append(op)
                needed = live_after
        close()
        return BlockCode(block, self.backend, tuple(parts))

    def part(self, ops: tuple[Op, ...], needed: frozenset[str], crossing: frozenset[str], name: str) -> Part:
        """Ops as one function; `needed` has values afterwards, `crossing` keeps those of lanes outside the mask.

        name: says which part of the program it is.
        """
        backend, types = self.backend, self.program.var_defs
        steps = plan_ops(ops, needed, types, backend)
        written: dict[str, None] = {}
        read_first: dict[str, None] = {}
        for op in ops:
            read_first.update((v, None) for v in reads(op) if v not in written)
            written.update((v, None) for v in writes(op))
        vars_out = tuple(v for v in written if v in needed)
        vars_in = tuple(dict.fromkeys([*read_first, *(v for v in vars_out if v in crossing)]))
        possible = tuple(fault for step in steps if (fault := _fault_of(step)) is not None)
        codes = {id(step): i + 1 for i, step in enumerate(s for s in steps if _fault_of(s) is not None)}
        shared = tuple(entry_of(name) for step in steps if isinstance(step, Compute) for name in step.shared)

        def run(mask: Array, arrays: dict[str, Array]) -> tuple[dict[str, Array], Array | None]:
            state: State = {v if v in shared else f"value:{v}": x for v, x in arrays.items()}
            lanes = mask.shape[0]
            storage = LaneStorage(backend, lanes, 0)
            if possible:
                state["fault"] = backend.full((lanes,), 0, "int32")
            values = LaneValues(state, mask, backend)
            for step in steps:
                match step:
                    case Compute():
                        for variable, value in step(mask, values).items():
                            values.set_active(variable, value)
                    case AssertOp(condition):
                        storage.record_fault(state, mask & ~values[condition], codes[id(step)])
                    case WriteRowOp():
                        values.set_all(
                            step.var_out, storage.write_row(state, mask, step, values, types, codes[id(step)])
                        )
            results = {v: values.for_all_lanes(v) for v in vars_out}
            return results, state["fault"] if possible else None

        if self.identity is None:
            return Part(vars_in, shared, possible, backend.compile(run))
        program = self.program  # alone: a run has its arrays
        text = functools.partial(_text_of_part, program, name)
        part_function = PartFunction(run, vars_out, bool(possible), text, self.lanes, self.identity)
        return Part(vars_in, shared, possible, backend.compile(part_function))


def _text_of_part(program: Program, name: str) -> str:
    return f"{show_program(program)}\n{name}"


def _fault_of(step: Step) -> Fault | None:
    """What can go wrong in a step."""
    match step:
        case WriteRowOp() | AssertOp():
            return Fault(FaultKind.ASSERTION, step.message, step.source)
    return None
