"""Local static autobatching ([R] Algorithm 1): recursion on the host's stack, blocks on all lanes at once.

Each call of a batched function is one activation with its own variables and its own program counter per lane; a call
inside it is a recursive call of the host on the lanes that make it. Lanes share a block's evaluation only within the
same activation: there is no batching across depths of the recursion, which is what the virtual machine adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from batchnuts.autobatch.compiler.dataflow import function_liveness
from batchnuts.autobatch.compiler.ir import (
    AssertOp,
    BranchOp,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Program,
    WriteRowOp,
)
from batchnuts.autobatch.errors import StackOverflowError
from batchnuts.autobatch.runtime.backend import Array, Backend, State
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.autobatch.runtime.regions import Compute, Step, plan_block
from batchnuts.autobatch.runtime.storage import LaneValues, Storage

Tally = dict[str, tuple[int, int]]
"""For each block's label: how often it ran, and on how many active lanes in all."""

Observer = Callable[[str, int, int], None]
"""Called with a block's label, the number of its active lanes, and how deep its activation is nested."""

_BlockCode = tuple[tuple[Step, ...], frozenset[str]]


def execute(
    program: Program,
    backend: Backend,
    block_code_cache: dict[str, Any] | None,
    *inputs: Array,
    max_stack_depth: int | None = None,
    tally: Tally | None = None,
    observe: Observer | None = None,
) -> tuple[np.ndarray, ...]:
    """Run a typed program with calls on inputs [lanes, ...]; outputs [lanes, ...] on the host.

    block_code_cache: a dictionary kept between runs of the same program and backend, so that blocks are made ready
        once; None for none. max_stack_depth: how deep calls may nest (None: as deep as Python's own stack allows).
    tally: counts of block executions are added to it. observe: called with each block that runs.
    Raises StackOverflowError when calls nest deeper, LaneAssertionError for an assertion that does not
    hold, BatchnutsError for a write outside its buffer.
    """
    cache = {} if block_code_cache is None else block_code_cache
    run = _Run(program, backend, cache, len(inputs[0]), max_stack_depth, {} if tally is None else tally, observe)
    everyone = np.ones(run.lanes, bool)
    named = {v: backend.asarray(x, program.var_defs[v].dtype) for v, x in zip(program.vars_in, inputs)}
    try:
        outputs = run.call(program.main_function(), named, everyone, 0)
    except RecursionError:
        raise StackOverflowError(
            "the recursion is deeper than Python's own stack, on which the stackless executor recurses. Use "
            "executor='virtual_machine', whose stacks are arrays."
        ) from None
    return tuple(backend.to_numpy(x) for x in outputs)


class _Run:
    def __init__(
        self,
        program: Program,
        backend: Backend,
        cache: dict[str, _BlockCode],
        lanes: int,
        max_depth: int | None,
        tally: Tally,
        observe: Observer | None,
    ) -> None:
        self.program = program
        self.backend = backend
        self.cache = cache
        self.lanes = lanes
        self.max_depth = max_depth
        self.tally = tally
        self.observe = observe or (lambda label, lanes, depth: None)
        self.storage = Storage(backend, lanes, 0)

    def code(self, function: Function, label: str) -> _BlockCode:
        """The block's steps and the variables it must leave behind."""
        if label not in self.cache:
            live = function_liveness(function)
            for block in function.graph.blocks:
                at_end = live.at_end[block.label]
                if isinstance(block.terminator, IndirectGotoOp):
                    at_end |= set(function.vars_out)
                self.cache[block.label] = (plan_block(block, at_end, self.program.var_defs, self.backend), at_end)
        return self.cache[label]

    def call(self, function: Function, inputs: dict[str, Array], active: np.ndarray, depth: int) -> tuple[Array, ...]:
        """One activation on the active lanes: earliest block first until all of them have returned."""
        if self.max_depth is not None and depth > self.max_depth:
            raise StackOverflowError(
                f"lane {int(np.flatnonzero(active)[0])} recursed too deep in {function.name!r}: calls may nest "
                f"{self.max_depth} deep ({int(active.sum())} lanes in all). Give a larger max_stack_depth."
            )
        backend = self.backend
        index = {label: i for i, label in enumerate(function.graph.labels)}
        done = len(index)
        counter = np.where(active, 0, done)
        state: State = {f"value:{v}": x for v, x in inputs.items()}
        while (first := int(counter.min(initial=done))) < done:
            block = function.graph.blocks[first]
            lanes = counter == first
            mask = backend.asarray(lanes, "bool")
            times, active_lanes = self.tally.get(block.label, (0, 0))
            self.tally[block.label] = (times + 1, active_lanes + int(lanes.sum()))
            self.observe(block.label, int(lanes.sum()), depth)
            steps, at_end = self.code(function, block.label)
            values = LaneValues(state, mask, backend)
            for step in steps:
                self.step(step, values, mask, lanes, depth)
            match block.terminator:
                case GotoOp(label):
                    counter[lanes] = index[label]
                case BranchOp(condition, yes, no):
                    holds = backend.to_numpy(values[condition])
                    counter[lanes] = np.where(holds, index[yes], index[no])[lanes]
                case IndirectGotoOp():
                    counter[lanes] = done
            for variable in values.changed():
                if variable in at_end:
                    state[f"value:{variable}"] = values.for_all_lanes(variable)
        return tuple(state[f"value:{v}"] for v in function.vars_out)

    def step(self, step: Step, values: LaneValues, mask: Array, lanes: np.ndarray, depth: int) -> None:
        match step:
            case Compute():
                for variable, value in step(mask, values).items():
                    values.set_active(variable, value)
            case FunctionCallOp():
                callee = self.program.function(step.function)
                inputs = {p: self.in_type_of(p, v, values[v]) for p, v in zip(callee.vars_in, step.vars_in)}
                results = self.call(callee, inputs, lanes, depth + 1)
                for variable, result, value in zip(step.vars_out, callee.vars_out, results):
                    values.set_active(variable, self.in_type_of(variable, result, value))
            case WriteRowOp():
                self.write(step, values, mask)
            case AssertOp(condition, message, source):
                failed = lanes & ~self.backend.to_numpy(values[condition])
                if failed.any():
                    raise Fault(FaultKind.ASSERTION, message, source).error(failed)

    def in_type_of(self, target: str, variable: str, value: Array) -> Array:
        """The value of `variable` as `target` holds it: a literal's dtype can differ between the two."""
        wanted, found = (self.program.var_defs[v].dtype for v in (target, variable))
        return value if wanted == found else self.backend.cast(value, wanted)

    def write(self, op: WriteRowOp, values: LaneValues, mask: Array) -> None:
        state: State = {"fault": self.backend.full((self.lanes,), 0, "int32")}
        written = self.storage.write_row(state, mask, op, values, self.program.var_defs, 1)
        fault = self.backend.to_numpy(state["fault"])
        if fault.any():
            raise Fault(FaultKind.OUTSIDE_BUFFER, op.buffer, op.source).error(fault > 0)
        values.set_all(op.var_out, written)
