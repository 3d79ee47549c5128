"""The reference interpreter: defines what a program means, one lane at a time, in plain Python over NumPy values.

Slow and meant to be read. It runs a program after any pass:

- A variable is a Python list of frames, and its last frame is what ops read and write. At first the list holds one
  frame, without a value. `push` repeats the last frame, `pop` drops it.
- A call starts a fresh activation: variables of its own, of which the parameters have values.
- A lowered program has one activation for all, and a list of labels to return to.
- A typed variable holds arrays of its type alone. Where structures have not been flattened a value is a structure.

It also checks what the batching executors cannot detect. Reading a variable that has no value, or popping an empty
stack, is a bug of a pass: an InternalError that names the block and the op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.program import (
    AssertOp,
    BranchOp,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Op,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    TensorType,
    WriteRowOp,
)
from batchnuts.autobatch.ir.verify import check_names, require_inputs
from batchnuts.autobatch.language.arrays import read_only
from batchnuts.autobatch.language.functions import write
from batchnuts.autobatch.language.pytree import flatten, map_leaves
from batchnuts.autobatch.runtime import faults
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.autobatch.runtime.results import in_type

NO_VALUE = object()
"""A frame that nothing was assigned to."""


class InternalError(Exception):
    """A program that breaks the rules of the IR: the mistake is in a pass, or in a program built by hand."""


class _LaneStopped(Exception):
    """The lane has a fault that the user can fix."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def execute(program: Program, *inputs: Any, max_stack_depth: int | None = None) -> tuple[Any, ...]:
    """Run a program on inputs [lanes, ...] (before structures are flattened: structures of them); the outputs alike.

    max_stack_depth: how many calls may nest, or frames lie beneath the top of a stack (None: 65,536).
    Raises StackOverflowError, LaneAssertionError, or BatchnutsError for a write outside its buffer, each for the
    first lane on which it happens; MalformedProgramError for names that are not unique, InternalError for what else is
    malformed.
    """
    check_names(program)
    require_inputs(program, inputs)
    lanes = len(_first_leaf(inputs)) if inputs else 1
    results: list[tuple[Any, ...]] = []
    stopped: dict[int, Fault] = {}
    for lane in range(lanes):
        arguments = tuple(map_leaves(lambda leaf, lane=lane: leaf[lane], value) for value in inputs)
        try:
            results.append(run_lane(program, arguments, max_stack_depth))
        except _LaneStopped as stop:
            stopped[lane] = stop.fault
    if stopped:
        raise stopped[min(stopped)].error(np.isin(np.arange(lanes), list(stopped)), max_stack_depth)
    if not lanes:
        return tuple(
            map_leaves(lambda t: np.zeros((0, *t.shape), t.dtype), program.var_defs[v]) for v in program.vars_out
        )
    return tuple(map_leaves(lambda *leaves: np.stack(leaves), *values) for values in zip(*results))


def run_lane(program: Program, arguments: tuple[Any, ...], max_stack_depth: int | None = None) -> tuple[Any, ...]:
    """The outputs of one lane; raises as `execute` does."""
    depth = max_stack_depth or faults.LARGEST_STACK_DEPTH
    activation = _Activation(program, program.main_function(), arguments, depth)
    callers: list[tuple[_Activation, FunctionCallOp]] = []
    while True:
        called = activation.run_to_call()
        if called is not None:
            callee = program.function(called.function)
            if len(callers) == depth:
                raise _LaneStopped(Fault(FaultKind.CALL_DEPTH, callee.name, called.source))
            arguments = tuple(activation.read(v) for v in called.vars_in)
            callers.append((activation, called))
            activation = _Activation(program, callee, arguments, depth)
            continue
        results = tuple(activation.read(v) for v in activation.function.vars_out)
        if not callers:
            return results
        activation, called = callers.pop()
        activation.assign(called.vars_out, results)


class _Activation:
    """One call of a function, or the whole run of a lowered program."""

    def __init__(self, program: Program, function: Function, arguments: tuple[Any, ...], depth: int) -> None:
        self.types = program.var_defs
        self.function = function
        self.depth = depth
        self.frames: defaultdict[str, list[Any]] = defaultdict(lambda: [NO_VALUE])
        self.return_labels: list[str] = []
        self.where = "its parameters"
        self.assign(function.vars_in, arguments)
        self.go_to(function.graph.entry)

    def go_to(self, label: str) -> None:
        """Continue at the first op of a block."""
        self.block = self.function.graph.block(label)
        self.rest: Iterator[Op] = iter(self.block.ops)

    def run_to_call(self) -> FunctionCallOp | None:
        """Run ops up to the next call, which is the caller's to make, or (None) until the function returns."""
        while True:
            for op in self.rest:
                self.where = f"block {self.block.label!r}, {op}"
                if isinstance(op, FunctionCallOp):
                    return op
                self.run(op)
            self.where = f"block {self.block.label!r}, {self.block.terminator}"
            match self.block.terminator:
                case GotoOp(label):
                    self.go_to(label)
                case BranchOp(condition, yes, no):
                    self.go_to(yes if self.read(condition) else no)
                case PushGotoOp(resume, entry, source):
                    if len(self.return_labels) == self.depth:
                        callee = self.function.graph.block(entry).owner
                        raise _LaneStopped(Fault(FaultKind.CALL_DEPTH, callee, source))
                    self.return_labels.append(resume)
                    self.go_to(entry)
                case IndirectGotoOp():
                    if not self.return_labels:
                        return None
                    self.go_to(self.return_labels.pop())

    def run(self, op: Op) -> None:
        """Run one op other than a call."""
        match op:
            case PrimOp(vars_out, function, vars_in):
                values = [map_leaves(read_only, self.read(v)) for v in vars_in]
                self.assign(vars_out, (_on_one_lane(function.call) if function.batched else function.call)(*values), op)
            case WriteRowOp(var_out, buffer, index, value):
                rows = len(_first_leaf(self.read(buffer)))
                if not 0 <= int(self.read(index)) < rows:
                    raise _LaneStopped(Fault(FaultKind.ASSERTION, op.message, op.source))
                self.assign((var_out,), (write(self.read(buffer), self.read(index), self.read(value)),))
            case AssertOp(condition, message, source):
                if not self.read(condition):
                    raise _LaneStopped(Fault(FaultKind.ASSERTION, message, source))
            case PushOp(var, source):
                if len(self.frames[var]) > self.depth:
                    raise _LaneStopped(Fault(FaultKind.STACK_OVERFLOW, var, source))
                self.frames[var].append(self.frames[var][-1])
            case PopOp(var):
                if len(self.frames[var]) == 1:
                    raise InternalError(f"{self.where}: the stack of {var!r} is empty")
                self.frames[var].pop()
            case _:
                raise InternalError(f"{self.where}: no op of the IR")

    def read(self, variable: str) -> Any:
        """The last frame; InternalError where it has no value."""
        value = self.frames[variable][-1]
        if value is NO_VALUE:
            raise InternalError(f"{self.where}: {variable!r} has no value here")
        return value

    def assign(self, variables: tuple[str, ...], values: tuple[Any, ...], op: PrimOp | None = None) -> None:
        """Replace last frames; before types are inferred a variable holds any value, later only those of its type."""
        if len(variables) != len(values):
            raise InternalError(f"{self.where}: {len(values)} values for {len(variables)} variables")
        for variable, value in zip(variables, values):
            if variable in self.types:
                value = map_leaves(partial(self._in_type, op), value, self.types[variable])
            self.frames[variable][-1] = value

    def _in_type(self, op: PrimOp | None, value: Any, type_: TensorType) -> Any:
        if op is not None:
            value = in_type(value, type_, op.function, op.source)
        array = np.asarray(value)
        if array.shape != type_.shape:
            raise InternalError(f"{self.where}: shape {array.shape} where {type_} was inferred")
        return array.astype(type_.dtype)[()]


def _on_one_lane(batched: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A function written over lanes as a function of one lane's values."""

    def function(*values: Any) -> tuple[Any, ...]:
        results = batched(*(map_leaves(lambda leaf: np.asarray(leaf)[None], value) for value in values))
        return tuple(map_leaves(lambda leaf: leaf[0], result) for result in results)

    return function


def _first_leaf(value: Any) -> Any:
    """Some array of a structure."""
    return flatten(value)[0][0]
