"""A batched function compiled for one lane's types, and its machine, driven step by step.

A call runs until every lane has halted. A program that runs for hours needs more: to report progress, to take out
results on the way, to restart lanes that have halted, and to run several machines on threads:

    program = LaneProgram(function, arguments, "tensorflow", "xla")
    machine = program.machine(lanes, stack_depth=16)
    state = machine.start(arguments)
    while machine.count_live(state):
        state = machine.advance(state, 100)
        machine.check_faults(state)
    result = program.result(machine, state)
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from batchnuts.autobatch.api import BatchedFunction
from batchnuts.autobatch.engines.engine import MachineOptions
from batchnuts.autobatch.engines.registry import engine_of
from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.language.pytree import flatten, unflatten
from batchnuts.autobatch.runtime.costly_work import costly_work
from batchnuts.autobatch.runtime.machine import CostlyRuns, Machine, ResumableMachine, State
from batchnuts.autobatch.runtime.stackless import Tally
from batchnuts.autobatch.scheduling.policies import costly_blocks
from batchnuts.autobatch.scheduling.schedule import Schedule


class LaneProgram:
    """A batched function compiled for one lane's types of some arguments, and its properties.

    arguments: an example. backend, mode, style: as for `BatchedFunction.run`; ValueError for unknown ones, CompileError
    for what cannot be batched.
    """

    def __init__(
        self, function: BatchedFunction, arguments: tuple[Any, ...], backend: str, mode: str, style: str = "auto"
    ) -> None:
        self.engine = engine_of(backend)
        self._backend = self.engine.arrays(self.engine.info.mode_of(mode), style)
        self._compiled = function.compiled(function.lane_types(arguments), self._backend)
        self._identity = function.identity
        self.result_type: Any = self._compiled.result_type
        """Structure of the TensorTypes of one lane's result."""

    def machine(
        self,
        lanes: int,
        stack_depth: int,
        schedule: str | Schedule = "auto",
        ends_early: bool = False,
        grows: bool = False,
        extents: tuple[int, ...] = (),
    ) -> ResumableMachine:
        """A machine for a number of lanes, with stacks of `stack_depth` frames.

        grows: that is no limit of the user's, and the machine may make them deeper itself.
        ends_early: lanes start and halt soon, instead of waiting for others: for callers that restart lanes which have
        halted. extents: in which this program may differ from others that are otherwise the same (`MachineOptions`).
        Raises OptionError for an engine that cannot run it, or whose runs cannot be divided.
        """
        if reason := self.engine.refuses(self._compiled):
            raise OptionError(f"backend {self.engine.info.name!r} cannot run it: {reason}")
        limit = None if grows else stack_depth
        options = MachineOptions(
            limit, stack_depth, schedule, ends_early=ends_early, identity=self._identity, extents=extents
        )
        machine = self.engine.machine(self._compiled, self._backend, lanes, options)
        if not isinstance(machine, ResumableMachine):
            raise OptionError(
                f"backend {self.engine.info.name!r} runs programs as a whole, expected one that can resume"
            )
        return machine

    def result(self, machine: Machine, state: State) -> Any:
        """The function's result, a structure of arrays [lanes, ...]; it means something on lanes that have halted."""
        return unflatten(self._result_tree, machine.results(state))

    def result_now(self, machine: ResumableMachine, state: State) -> Any:
        """The same, to be read before the state goes on: its arrays need not be copies."""
        return unflatten(self._result_tree, machine.results_now(state))

    @cached_property
    def _result_tree(self) -> Any:
        return flatten(self.result_type)[1]

    @cached_property
    def costly_work(self) -> float:
        """Multiplications and elements that the costly primitives compute for one lane, all of them once; 0 where they
        cannot be counted."""
        known = self._compiled.costly_work
        return (costly_work(self._compiled.lowered, self._backend) if known is None else known) or 0.0

    def costly_runs(self, tally: Tally, lanes: int) -> CostlyRuns:
        """What `stackless` has counted (`BatchedFunction.run(tally=...)`) in runs of that number of lanes."""
        counted = [tally[label] for label in costly_blocks(self._compiled.with_calls) if label in tally]
        return CostlyRuns(sum(active for _, active in counted), sum(runs for runs, _ in counted) * lanes)
