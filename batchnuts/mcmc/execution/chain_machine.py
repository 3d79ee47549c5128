"""`run_chain` on the virtual machine: compiled once, started, advanced, begun again on some lanes, and read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from batchnuts.autobatch import BatchedFunction, StackOverflowError
from batchnuts.autobatch.api import get_backend
from batchnuts.autobatch.backends.backend import State
from batchnuts.autobatch.language.pytree import flatten, unflatten
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.autobatch.scheduling.policies import costly_blocks
from batchnuts.mcmc.chain_program import ChainInputs, ChainResult, Record
from batchnuts.mcmc.execution.chunk_plan import buffers
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.settings import ExecutionSettings


class ChainMachine:
    """The virtual machine of a chunk's chains; all chunks share one. The states are the chunks' own (chunk.py)."""

    def __init__(
        self, program: BatchedFunction, example: ChainInputs, execution: ExecutionSettings, first_depth: int
    ) -> None:
        backend = get_backend(execution.backend, execution.mode)
        compiled = program.compiled(program.lane_types(example), backend)
        self.result_tree = flatten(compiled.result_type)[1]
        self.may_grow = execution.max_stack_depth is None
        depth = execution.max_stack_depth or first_depth
        # ends_early: so that chunks in which few chains are left can be merged
        self.machine = VirtualMachine(
            compiled.lowered, backend, len(example.key), depth, execution.schedule, ends_early=True
        )
        self.costly = costly_blocks(self.machine.program)
        self.buffers = buffers(self.machine.program)
        self.sweeps_per_second = 40.0
        """As measured last, for whoever begins."""
        state = self.start(example)
        self.capacity = self.working(state, "records.lp").shape[1]
        """Rows of the buffers that transitions are recorded in."""
        self.machine.trace(state)
        thread = ThreadPoolExecutor(1)
        self.compiled = thread.submit(self._compile, state)
        """Ready as soon as the machine is compiled. XLA does that while Python goes on."""
        thread.shutdown(wait=False)

    def _compile(self, state: State) -> None:
        self.machine.advance(state, 0)

    def start(self, inputs: ChainInputs) -> State:
        """The machine's state before the first block."""
        return self.machine.start(self._named(inputs))

    def begin_again(self, state: State, lanes: np.ndarray, inputs: ChainInputs) -> State:
        """The state in which the lanes, which have halted, are before the first block, with their rows of inputs."""
        return self.machine.begin_again(state, lanes, self._named(inputs))

    def make_room(self, state: State, first_row: np.ndarray, until: np.ndarray) -> State:
        """The state with other rows for what is recorded from now on; see ChainInputs."""
        values = {"first_row": first_row, "until": until}
        return self.machine.with_values(state, {self._name(name): value for name, value in values.items()})

    def _named(self, inputs: ChainInputs) -> dict[str, Any]:
        return dict(zip(self.machine.program.vars_in, flatten(inputs)[0]))

    def _name(self, name: str) -> str:
        return self.machine.live_name(f"run_chain.{name}")

    def grow(self, error: StackOverflowError) -> None:
        """Make the stacks twice as deep; raises the error again where their depth was given."""
        if not self.may_grow:
            raise error
        self.machine = self.machine.with_stack_depth(2 * self.machine.stack_depth)

    def so_far(self, state: State) -> ChainResult:
        """What chains have done up to now; position, log-density, gradient, adaptation of those that are finished."""
        # a chain's outputs are set when it returns; until then its records stand in the program's own variables
        records = Record(*(self.working(state, f"records.{name}") for name in Record._fields))
        done, divergences = (self.working(state, name) for name in ("done", "divergences"))
        return self.result(state)._replace(records=records, done=done, divergences=divergences)

    def working(self, state: State, name: str) -> np.ndarray:
        """A variable of `run_chain` as it stands now, [chains, ...]."""
        return self.machine.read(state, self._name(name))

    def result(self, state: State) -> ChainResult:
        """The output variables of a finished state."""
        result: ChainResult = unflatten(self.result_tree, [np.asarray(r) for r in self.machine.results(state)])
        return result

    def gradients(self, state: State) -> Counts:
        """How many there were, read off the machine's own counters."""
        places = [self.machine.index[label] for label in self.costly]
        useful, runs = (self.machine.backend.to_numpy(state[name])[places] for name in ("active", "executions"))
        return Counts(useful_gradients=int(useful.sum()), executed_gradients=int(runs.sum()) * self.machine.lanes)
