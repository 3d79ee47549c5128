"""`run_chain` on the virtual machine: compiled once, started, advanced, restarted on some lanes, and read."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np

from batchnuts.autobatch import StackOverflowError
from batchnuts.autobatch.machine import LaneProgram, State
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.kernel.step_size import DualAveraging
from batchnuts.mcmc.settings.run_settings import ExecutionSettings


class ChainMachine:
    """The virtual machine of a chunk's chains; all chunks share one. The states are the chunks' own (chunk.py)."""

    def __init__(
        self, program: LaneProgram, example: ChainInputs, execution: ExecutionSettings, first_depth: int
    ) -> None:
        self.may_grow = execution.max_stack_depth is None
        depth = execution.max_stack_depth or first_depth
        # ends_early: so that chunks with few remaining chains can be merged
        self.machine = program.machine(len(example.key), depth, execution.schedule, ends_early=True)
        self.sweeps_per_second = 40.0
        """As last measured, for chunks that start."""
        state = self.start(example)
        self.capacity = self.working(state, "records.lp").shape[1]
        """Rows of the buffers that transitions are recorded in."""
        self.machine.trace(state)
        thread = ThreadPoolExecutor(1)
        self.compiled = thread.submit(copy_context().run, self._compile, state)
        """Ready as soon as the machine is compiled. XLA does that while Python continues."""
        thread.shutdown(wait=False)

    def _compile(self, state: State) -> None:
        self.machine.advance(state, 0)

    def start(self, inputs: ChainInputs) -> State:
        """The machine's state before the first block."""
        return self.machine.start(inputs)

    def saved(self, state: State) -> dict[str, np.ndarray]:
        """A state on the host, without rows that are recorded in it."""
        return self.machine.saved(state)

    def restored(self, saved: dict[str, np.ndarray], inputs: ChainInputs) -> State:
        """The state that was saved by a machine of the same `fingerprint`; ValueError for another one's."""
        return self.machine.restored(saved, inputs)

    @property
    def fingerprint(self) -> str:
        """A digest of the program, its registers, lanes, stacks and schedule, on which saved states depend."""
        return hashlib.sha256(self.machine.text.encode()).hexdigest()

    def set_stack_depth(self, stack_depth: int) -> None:
        """Let stacks be so deep; states of another depth do not fit afterwards."""
        if stack_depth != self.machine.stack_depth:
            self.machine = self.machine.with_stack_depth(stack_depth)

    def begin_again(self, state: State, lanes: np.ndarray, inputs: ChainInputs) -> State:
        """The state in which the lanes, which have halted, are before the first block, with their rows of inputs."""
        return self.machine.begin_again(state, lanes, inputs)

    def make_room(self, state: State, first_row: np.ndarray, until: np.ndarray) -> State:
        """The state with other rows for later records; see ChainInputs."""
        return self.machine.with_values(state, {"run_chain.first_row": first_row, "run_chain.until": until})

    def grow(self, error: StackOverflowError) -> None:
        """Make the stacks twice as deep; raises the error again where their depth was given."""
        if not self.may_grow:
            raise error
        self.machine = self.machine.with_stack_depth(2 * self.machine.stack_depth)

    def so_far(self, state: State) -> ChainResult:
        """The chains' results up to now; position, log-density and gradient are valid for finished chains."""
        # a chain's outputs are set when it returns; until then they are in the program's own variables, of which those
        # that a transition does not need are unchanged while it is under way
        result = self.result(state)
        recorded = [name for name, buffer in result.records._asdict().items() if not isinstance(buffer, tuple)]
        records = result.records._replace(**{name: self.working(state, f"records.{name}") for name in recorded})
        adaptation = DualAveraging(
            **{name: self.working(state, f"adaptation.{name}") for name in DualAveraging._fields}
        )
        done, divergences = (self.working(state, name) for name in ("done", "divergences"))
        return result._replace(adaptation=adaptation, records=records, done=done, divergences=divergences)

    def working(self, state: State, name: str) -> np.ndarray:
        """A variable of `run_chain` as it stands now, [chains, ...]."""
        return self.machine.read(state, f"run_chain.{name}")

    def result(self, state: State) -> ChainResult:
        """The output variables of a finished state."""
        result: ChainResult = self.machine.result(state)
        return result

    def gradients(self, state: State) -> Counts:
        """Their number, from the machine's own counters."""
        runs = self.machine.costly_runs(state)
        return Counts(useful_gradients=runs.useful, executed_gradients=runs.executed)
