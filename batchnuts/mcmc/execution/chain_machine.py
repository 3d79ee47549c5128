"""`run_chain` on the virtual machine: compiled once, started, advanced, restarted on some lanes, and read."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np

from batchnuts.autobatch import StackOverflowError
from batchnuts.autobatch.machine import LaneProgram, State
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.kernel.chain_program import COUNTED, ChainInputs, ChainResult
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

LARGEST_FIXED = 64
"""The largest dimension whose programs have code of their own. For 10 coordinates control takes 1.8 times as long where
their number is read when it runs, for 33 and 50 1.3 times, for 100 1.1 times."""


def _varying_extents(dimension: int, rows: int) -> tuple[int, ...]:
    """The extents in which programs of other models differ and that code is to read: the rows of records, the number of
    coordinates, and of blocks and words of random bits that their momenta are made of."""
    if dimension <= LARGEST_FIXED:
        return (rows,)
    blocks = (dimension + 1) // 2
    return rows, dimension, blocks, 2 * blocks, 2 * dimension


class ChainMachine:
    """The virtual machine of a chunk's chains; all chunks share one. The states are the chunks' own (chunk.py)."""

    def __init__(
        self, program: LaneProgram, example: ChainInputs, execution: ExecutionSettings, first_depth: int
    ) -> None:
        self.program = program
        self.may_grow = execution.max_stack_depth is None
        depth = execution.max_stack_depth or first_depth
        # ends_early: so that chunks with few remaining chains can be merged
        self.machine = program.machine(
            len(example.key),
            depth,
            execution.expert.schedule,
            ends_early=True,
            grows=self.may_grow,
            extents=_varying_extents(example.position.shape[1], program.result_type.records.lp.shape[0]),
        )
        self.sweeps_per_second = 40.0
        """The speed that was measured last, for chunks that start."""
        state = self.machine.start(example)
        self.capacity = self.working(state, "records.lp").shape[1]
        """Rows of the buffers that transitions are recorded in."""
        self.machine.trace(state)
        thread = ThreadPoolExecutor(1)
        self.compiled = thread.submit(copy_context().run, self._compile, state)
        """Ready as soon as the machine is compiled. XLA does that while Python continues."""
        thread.shutdown(wait=False)

    def _compile(self, state: State) -> None:
        self.machine.advance(state, 0)

    @property
    def fingerprint(self) -> str:
        """A digest of the program, its registers, lanes, stacks and schedule, on which saved states depend."""
        return hashlib.sha256(self.machine.text().encode()).hexdigest()

    def set_stack_depth(self, stack_depth: int) -> None:
        """Let stacks be so deep; states of another depth do not fit afterwards."""
        if stack_depth != self.machine.stack_depth:
            self.machine = self.machine.with_stack_depth(stack_depth)

    def make_room(self, state: State, first_row: np.ndarray, until: np.ndarray) -> State:
        """The state with other rows for later records (`ChainInputs.first_row`)."""
        return self.machine.write(state, {"run_chain.first_row": first_row, "run_chain.until": until})

    def grow(self, error: StackOverflowError) -> None:
        """Make the stacks twice as deep; raises the error again where their depth was given, or they have grown."""
        if not self.may_grow or self.machine.grows:
            raise error
        self.machine = self.machine.with_stack_depth(2 * self.machine.stack_depth)

    def partial_result(self, state: State) -> ChainResult:
        """The chains' results up to now, to be read before the state goes on.

        Position, log-density and gradient are valid for finished chains."""
        # a chain's outputs are set when it returns; until then they are in the program's own variables, of which those
        # that a transition does not need are unchanged while it is under way
        result: ChainResult = self.program.result_now(self.machine, state)
        recorded = [name for name, buffer in result.records._asdict().items() if not isinstance(buffer, tuple)]
        records = result.records._replace(**{name: self.working(state, f"records.{name}") for name in recorded})
        adaptation = result.adaptation._replace(
            **{name: self.working(state, f"adaptation.{name}") for name in result.adaptation._fields}
        )
        so_far = {name: self.working(state, name) for name in COUNTED}
        return result._replace(adaptation=adaptation, records=records, **so_far)

    def working(self, state: State, name: str) -> np.ndarray:
        """A variable of `run_chain` as it stands now, [chains, ...]."""
        return self.machine.read(state, f"run_chain.{name}")

    def gradients(self, state: State) -> Counts:
        """Their number, from the machine's own counters."""
        runs = self.machine.counts(state).costly
        return Counts(useful_gradients=runs.useful, executed_gradients=runs.executed)
