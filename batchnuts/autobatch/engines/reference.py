"""The reference interpreter as an engine: lane by lane, in plain Python on NumPy's values, without a budget."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.engines.engine import Engine, EngineInfo, MachineOptions
from batchnuts.autobatch.ir.program import Program
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.autobatch.runtime import reference
from batchnuts.autobatch.runtime.machine import Machine, State


class ReferenceMachine(Machine):
    """Its state is the arguments, and then the results."""

    def __init__(self, program: Program, lanes: int, stack_depth: int | None) -> None:
        self.program = program
        self.lanes = lanes
        self.stack_depth = stack_depth

    @override
    def start(self, arguments: Any) -> State:
        return {"arguments": tuple(flatten(arguments)[0])}

    @override
    def advance(self, state: State, budget: int, leave_at: int = 0) -> State:
        if budget < 1 or "results" in state or self.lanes <= leave_at:
            return state
        return {
            **state,
            "results": reference.execute(self.program, *state["arguments"], max_stack_depth=self.stack_depth),
        }

    @override
    def live(self, state: State) -> np.ndarray:
        return np.full(self.lanes, "results" not in state)

    @override
    def check_faults(self, state: State, depth_is_given: bool = True) -> None:
        """Do nothing: `advance` raises them."""

    @override
    def results(self, state: State) -> tuple[np.ndarray, ...]:
        results: tuple[np.ndarray, ...] = state["results"]
        return results

    @override
    def with_stack_depth(self, stack_depth: int) -> ReferenceMachine:
        return ReferenceMachine(self.program, self.lanes, stack_depth)


class ReferenceEngine(Engine):
    """Runs programs by the interpreter that defines what they mean. Slow."""

    info = EngineInfo("reference", "the reference interpreter", packages=("numpy",), process_bytes=150_000_000)

    @override
    def arrays(self, mode: str, style: str) -> Backend:
        return get_backend("numpy", "eager")

    @override
    def machine(
        self, compiled: CompiledFunction, arrays: Backend, lanes: int, options: MachineOptions
    ) -> ReferenceMachine:
        return ReferenceMachine(compiled.with_calls, lanes, options.stack_depth)
