"""A batched function's machine, driven step by step: for programs that do more with it than call the function.

A call runs until every lane has halted. A program that runs for hours needs more: to report progress, to take out
results on the way, to restart lanes that have halted, and to run several machines on threads:

    program = LaneProgram(function, arguments, "tensorflow", "xla")
    machine = program.machine(lanes, stack_depth=16)
    state = machine.start(arguments)
    while machine.count_live(state):
        state = machine.advance(state, 100)
        machine.check_faults(state)
    result = program.result(machine, state)

Code outside of `batchnuts.autobatch` imports its public names and this module, and nothing beneath them
(tests/test_structure.py). No array library is named here except where its threads are configured.

What a machine does: runtime/machine.py.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from batchnuts.autobatch.api import BatchedFunction
from batchnuts.autobatch.backends.backend import Identity
from batchnuts.autobatch.backends.registry import has_jax, missing
from batchnuts.autobatch.engines.engine import EngineInfo, MachineOptions
from batchnuts.autobatch.engines.registry import (
    engine_infos,
    engine_of,
    engine_on,
    engine_with,
    is_family,
    preferred_backend,
)
from batchnuts.autobatch.environment import processors
from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.expression_library import LIBRARY as EXPRESSIONS
from batchnuts.autobatch.frontend.hidden_state import depends_on_arguments_alone
from batchnuts.autobatch.ir.evaluate import as_function
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.language.arrays import library_of, tensor_library, tensor_library_of
from batchnuts.autobatch.language.c_functions import CFunction, registered
from batchnuts.autobatch.language.libraries.library import TensorLibrary, Traced
from batchnuts.autobatch.language.libraries.type_rules import NotTyped
from batchnuts.autobatch.language.pytree import TreeDef, flatten, leaf_names, map_leaves, parts, unflatten
from batchnuts.autobatch.passes.differentiate import expression_of_gradient, expression_of_library
from batchnuts.autobatch.passes.record_expressions import NotRecorded, recorded
from batchnuts.autobatch.runtime.costly_work import costly_work
from batchnuts.autobatch.runtime.machine import CostlyRuns, Machine, MachineCounts, ResumableMachine, State
from batchnuts.autobatch.runtime.stackless import Tally
from batchnuts.autobatch.scheduling.policies import COSTLY_WORK, costly_blocks
from batchnuts.autobatch.scheduling.schedule import Schedule

__all__ = [
    "COSTLY_WORK",
    "EXPRESSIONS",
    "CFunction",
    "CostlyRuns",
    "EngineInfo",
    "Expression",
    "Identity",
    "LaneProgram",
    "Machine",
    "MachineCounts",
    "NotRecorded",
    "NotTyped",
    "ResumableMachine",
    "State",
    "Tally",
    "TensorLibrary",
    "TensorType",
    "Traced",
    "TreeDef",
    "as_function",
    "begin_code",
    "depends_on_arguments_alone",
    "engine_infos",
    "engine_on",
    "engine_with",
    "expression_of_gradient",
    "expression_of_library",
    "flatten",
    "for_jax",
    "has_jax",
    "is_family",
    "leaf_names",
    "library_of",
    "machine_code",
    "map_leaves",
    "missing",
    "parts",
    "preferred_backend",
    "prepare_disk_cache",
    "processors",
    "recorded",
    "registered",
    "tensor_library",
    "tensor_library_of",
    "unflatten",
    "use_own_threads",
]


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


def begin_code(expression: Expression) -> None:
    """Let LLVM make machine code of an expression in the background, for a machine that will soon call it."""
    from batchnuts.autobatch.native.outlined import outlined  # LLVM is optional

    outlined(expression)


def machine_code(module: Any) -> Any:
    """Functions of an `llvmlite.ir.Module`, kept on disk where a run asks for that: `address(name)` is where one is."""
    from batchnuts.autobatch.native.compile import code_of

    return code_of(module)


def for_jax(function: CFunction) -> str:
    """Make a function of C known to JAX; the name of its target (`CFunction.for_xla`)."""
    from batchnuts.autobatch.native import c_calls

    return c_calls.for_jax(function)


# ---- threads that drive machines ------------------------------------------------------------------------------------


def use_own_threads(shards: int | None = None, backend: str = "tensorflow") -> bool:
    """Let `shards` threads that drive machines run at once (default: one for each core that may be used).

    Call it before the backend's library makes its first array. JAX then runs programs in the threads that call them.
    TensorFlow does so by itself; what XLA compiles lies in a temporary directory from then on, from which
    `execution.cache` keeps it for later processes. Returns whether there are at least two shards. NumPy: False.

    Raises ValueError for an unknown backend, and for shards that are no integer of at least 1.
    """
    threads = engine_of(backend).threads()
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards must be an integer of at least 1, or None; found {shards!r}")
    return threads is not None and threads.use_own_threads(processors() if shards is None else shards)


def prepare_disk_cache(backend: str) -> None:
    """Have what XLA compiles kept on disk where a run asks for that (batchnuts/disk_cache).

    For a process that samples and does little else with the backend's library, before that makes its first array. Only
    TensorFlow needs it: where programs are stored is set once in a process.
    """
    threads = engine_of(backend).threads()
    if threads is not None:
        threads.prepare_disk_cache()
