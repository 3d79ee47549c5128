"""`@batch`: from a Python function of one lane to its results for all lanes.

call -> bind arguments -> types of one lane -> compile (cached) -> machine (cached) -> run -> structure of arrays
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, overload

import numpy as np

from batchnuts.autobatch.backends.backend import Backend, Identity
from batchnuts.autobatch.cached_functions import read_or_compile
from batchnuts.autobatch.engine_choice import EngineChoice
from batchnuts.autobatch.engines.engine import MachineOptions
from batchnuts.autobatch.engines.registry import (
    AUTO,
    engine_of,
)
from batchnuts.autobatch.errors import LaneInputError, OptionError
from batchnuts.autobatch.explain import explain_passes
from batchnuts.autobatch.frontend.expressions import frozen
from batchnuts.autobatch.frontend.plain_python import plain_python
from batchnuts.autobatch.inputs import Inputs, bind, default_type
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import Program, TensorType
from batchnuts.autobatch.language.functions import LaneFunction, in_one_lane_code, require_function, single_lane
from batchnuts.autobatch.language.pytree import flatten, hashable, map_leaves, unflatten
from batchnuts.autobatch.lru_cache import LruCache
from batchnuts.autobatch.pipeline import CompiledFunction, compile_function
from batchnuts.autobatch.profiling.profile import (
    LaneNotes,
    MachineNotes,
    StacklessNotes,
    add_to_collecting,
    collecting,
)
from batchnuts.autobatch.profiling.profile import profile as collect
from batchnuts.autobatch.run_options import RunOptions
from batchnuts.autobatch.runtime import stackless
from batchnuts.autobatch.runtime.costly_work import costly_work
from batchnuts.autobatch.runtime.faults import assertion_of_python
from batchnuts.autobatch.runtime.machine import Machine, run_to_end
from batchnuts.autobatch.runtime.virtual_machine import FIRST_STACK_DEPTH, VirtualMachine, affordable_depth
from batchnuts.autobatch.scheduling.policies import make_schedule
from batchnuts.autobatch.scheduling.schedule import Schedule
from batchnuts.autobatch.text.types import parse_type

KEPT_MACHINES = 16
"""Machines that a batched function keeps: one that XLA has compiled has some ten to a hundred MB."""


class BatchedFunction(LaneFunction):
    """A function written for one lane, callable on all lanes; made by `batch`.

    Calling it runs the virtual machine: as machine code on a processor, else compiled by XLA. `run` takes options,
    `function` is plain Python. It is pickled by its name, as Python's functions are.
    """

    def __init__(self, python_function: Callable[..., Any], machines: int = KEPT_MACHINES) -> None:
        if isinstance(machines, bool) or not isinstance(machines, int) or machines < 1:
            raise OptionError(f"machines must be an integer of at least 1; found {machines!r}")
        super().__init__(python_function)
        self.identity: Identity | None = None
        """All that it reads of its surroundings. Where it is set, programs of it are found on disk without compiling or
        tracing it."""
        self._compiled: LruCache[CompiledFunction] = LruCache(machines)
        self._machines: LruCache[Machine] = LruCache(machines)
        self._block_code: LruCache[stackless.BlockCodeCache] = LruCache(machines)
        self._choice = EngineChoice(machines)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results for all lanes, with the defaults of `run`; keyword and default arguments as in Python."""
        if in_one_lane_code.get():
            raise TypeError(
                f"the batched function {self.__name__!r} was called by plain one-lane code; call it directly in a "  # type: ignore[attr-defined]
                "batched function, or decorate the helper that calls it with @batch. A decorator above @batch is such "
                "code, too: assign its result to another name"
            )
        if single_lane.get():
            return self.plain_function(*args, **kwargs)
        return self._run(args, kwargs, RunOptions())

    def __repr__(self) -> str:
        """Its name, and where it is."""
        code = self.python_function.__code__
        return f"<batched function {self.python_function.__qualname__}, {code.co_filename}:{code.co_firstlineno}>"

    def __reduce__(self) -> str:
        """Its name in its module, where another process finds it."""
        return self.python_function.__qualname__

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        """The function's signature, with copies of the defaults: like all values of enclosing scopes, they are read
        once."""
        signature = inspect.signature(self.python_function)
        parameters = [p.replace(default=frozen(p.default)) for p in signature.parameters.values()]
        return signature.replace(parameters=parameters)

    @functools.cached_property
    def plain_function(self) -> Callable[..., Any]:
        """The Python function, without changes of arrays in place (`plain_python`)."""
        return plain_python(self.python_function)

    @property
    def function(self) -> Callable[..., Any]:
        """The plain Python function of one lane; batched functions it calls run as plain Python too."""

        @functools.wraps(self.python_function)
        def one_lane(*args: Any, **kwargs: Any) -> Any:
            token = single_lane.set(True)
            try:
                return self.plain_function(*args, **kwargs)
            finally:
                single_lane.reset(token)

        return one_lane

    def run(
        self,
        *arguments: Any,
        executor: str = "virtual_machine",
        backend: str | Backend = AUTO,
        mode: str = "xla",
        style: str = "auto",
        schedule: str | Schedule = "auto",
        max_stack_depth: int | None = None,
        tally: stackless.Tally | None = None,
        profile: bool = False,
    ) -> Any:
        """Run for all lanes and give the result's structure with the lane axis in front of every array.

        arguments: one array [lanes, ...], or structure of such arrays, per parameter. Arrays of one lane and Python
            numbers are used on every lane.
        executor: "virtual_machine" (program-counter autobatching), "stackless" (calls and branches on the host),
            "unbatched" (plain Python, lane by lane) or "reference" (the interpreter that defines the IR's meaning,
            lane by lane on NumPy values).
        backend, mode: "native", machine code for each lane; "tensorflow" with "xla", "graph" or "eager"; "jax" with
            "xla" or "eager"; "numpy"; or a Backend object, which brings its own mode and style. "auto" is machine code
            on a processor, else the library of the arguments, or of the functions that the program calls, and for one
            that runs on either JAX where it is installed. In mode xla the virtual machine is one compiled program, and
            `stackless` compiles what lies between calls.
        style: how primitives run on the active lanes only: "masking" computes all lanes and selects, "gather" computes
            the active ones' rows (NumPy, and TensorFlow in mode eager); "auto" is gather on NumPy, else masking.
        schedule: "auto", "earliest", "most_active", "sweep", "drain" or a Schedule of your own: the order in which the
            virtual machine serves its blocks (docs/schedules.md).
        max_stack_depth: frames a lane's stacks may hold; None lets them grow.
        tally: a dictionary to which `stackless` adds, by block, how often it ran and on how many lanes.
        profile: give (result, Profile) instead of the result; not with "unbatched" or "reference" (docs/profiler.md).

        Raises CompileError (with the line) for what cannot be batched, LaneInputError for arguments that do not fit,
        StackOverflowError for a lane that recursed deeper than allowed, LaneAssertionError for an assertion that does
        not hold on some lane, an index out of range, or an element written outside its array. Raises OptionError for an
        unknown executor, backend, mode, style or schedule, for one that the backend does not have, for max_stack_depth
        below 1, and for profile=True with "unbatched" or "reference".
        """
        options = RunOptions(executor, backend, mode, style, schedule, max_stack_depth)
        if profile and executor != "stackless" and not options.engine().info.profiles:
            if executor in ("unbatched", "reference"):
                raise OptionError(f"profile counts what batching executors run; {executor!r} runs lane by lane")
            raise OptionError(f"profile counts what the virtual machine runs; backend {backend!r} does not count it")
        with collect() if profile else contextlib.nullcontext() as collected:
            result = self._run(arguments, {}, options, tally)
        return result if collected is None else (result, collected)

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions,
        tally: stackless.Tally | None = None,
    ) -> Any:
        inputs = self._bind(args, kwargs)
        if options.executor == "unbatched" and inputs.lanes:
            return self._run_unbatched(inputs)
        began = time.perf_counter()
        if options.executor not in ("unbatched", "reference"):
            options = replace(
                options, backend=self._choice.engine(self.compiled, inputs.types, options, [args, kwargs])
            )
        arrays = options.arrays()
        compiled = self.compiled(inputs.types, arrays)
        results: Sequence[Any]
        if not inputs.lanes:
            results = [np.zeros((0, *t.shape), t.dtype) for t in flatten(compiled.result_type)[0]]
        elif options.executor == "stackless":
            results = self._run_stackless(compiled, inputs, arrays, options, tally, began)
        else:
            results = self._run_machine(compiled, inputs, arrays, options, began)
        # copies: results are the caller's to change
        return unflatten(flatten(compiled.result_type)[1], [np.array(result) for result in results])

    def _run_stackless(
        self,
        compiled: CompiledFunction,
        inputs: Inputs,
        target: Backend,
        options: RunOptions,
        tally: stackless.Tally | None,
        began: float,
    ) -> Sequence[Any]:
        program = compiled.with_calls
        # where code is compiled for a number of lanes, each number has its own cache, so that all of it can be dropped
        key = (hashable(inputs.types), target, None if target.name == "numpy" else inputs.lanes)
        code = self._block_code.get(key)
        if code is None:
            code = self._block_code.put(key, {})
        notes = StacklessNotes(program, began) if collecting.get() else None
        results = stackless.run_checked(
            program,
            target,
            code,
            *inputs.leaves,
            max_stack_depth=options.max_stack_depth,
            tally=tally,
            observe=None if notes is None else notes.observe,
            identity=self.identity,
        )
        if notes is not None:
            add_to_collecting(notes.profile(self.__name__, target, inputs.lanes))  # type: ignore[attr-defined]
        return results

    def _run_machine(
        self, compiled: CompiledFunction, inputs: Inputs, arrays: Backend, options: RunOptions, began: float
    ) -> Sequence[Any]:
        engine, schedule, limit = options.engine(), options.schedule, options.max_stack_depth
        name, profiled = engine.info.name, bool(collecting.get())
        if reason := engine.refuses(compiled):
            raise OptionError(f"backend {name!r} cannot run {self.__name__}: {reason}")  # type: ignore[attr-defined]
        # virtual machines on one Backend are alike, whoever brings it; those that nothing compiles are made again
        own = None if engine.info.profiles and not engine.info.own_pace else name
        key = (own, hashable(inputs.types), arrays, inputs.lanes, schedule, limit, profiled)
        expected = None if limit else _expected_depth(compiled, inputs)
        machine = self._machines.get(key)
        if machine is None:
            machine_options = MachineOptions(limit, expected, schedule, profiled, identity=self.identity)
            machine = engine.machine(compiled, arrays, inputs.lanes, machine_options)
        elif expected and machine.stack_depth is not None and machine.stack_depth < expected:
            machine = machine.with_stack_depth(expected)
        notes: MachineNotes | LaneNotes | None = None
        if profiled and engine.info.profiles:
            notes = MachineNotes(began) if isinstance(machine, VirtualMachine) else LaneNotes(began)
        run: Any = None if notes is None else notes.run
        machine, results = run_to_end(machine, inputs.leaves, grow=limit is None, run=run)
        if engine.info.resumes:
            self._machines.put(key, machine)
        if notes is not None:
            add_to_collecting(notes.profile(self.__name__, machine))  # type: ignore
        return results

    def compiled(self, types: tuple[Any, ...], backend: Backend) -> CompiledFunction:
        """Both executable forms for one lane's argument types; compiled once per types and backend."""
        key = (hashable(types), backend)
        return self._compiled.get(key) or self._compiled.put(key, self._compile(types, backend))

    def _compile(self, types: tuple[Any, ...], backend: Backend) -> CompiledFunction:
        def compile_it() -> CompiledFunction:
            return compile_function(self, types, backend)

        if self.identity is None:
            return compile_it()
        name = f"{self.python_function.__module__}.{self.python_function.__qualname__}"
        return read_or_compile(compile_it, name, hashable(types), backend, self.identity)

    def machine(
        self,
        types: tuple[Any, ...],
        lanes: int,
        backend: Backend,
        schedule: str | Schedule,
        stack_depth: int,
        profiled: bool = False,
    ) -> VirtualMachine:
        """A virtual machine for this function, to be driven step by step (see `runtime.virtual_machine`)."""
        compiled = self.compiled(types, backend)
        return VirtualMachine(
            compiled.lowered,
            backend,
            lanes,
            stack_depth,
            schedule,
            profiled,
            identity=self.identity,
            work=compiled.costly_work,
        )

    def schedule(self, *types: Any, policy: str = "auto", backend: str = AUTO) -> Schedule:
        """The schedule that a policy makes for one lane's argument types (as for `dump`): to print, or to start from.

        Raises OptionError for an unknown policy.
        """
        lane = self._parsed_types(types)
        compiled = self._named_backend(backend, lane, "xla")
        program = self.compiled(lane, compiled).lowered
        return make_schedule(program, policy, lambda: costly_work(program, compiled))

    def bound_arguments(
        self, stand_in: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Inputs]:
        """The arguments of a call by position, one for each parameter, defaults too; and as `inputs.bind` has what
        stands in for them."""
        inputs = self._bind(tuple(map(stand_in, args)), {name: stand_in(value) for name, value in kwargs.items()})
        arguments = self._signature.bind(*args, **kwargs).arguments
        return tuple(
            arguments.get(name, value) for name, value in zip(self._signature.parameters, inputs.values)
        ), inputs

    def lane_types(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """One lane's type of each argument of a call."""
        return self._bind(args, {}).types

    def _named_backend(self, name: str, types: tuple[Any, ...], mode: str) -> Backend:
        return engine_of(self._choice.library(self.compiled, types, mode) if name == AUTO else name).arrays(
            mode, "auto"
        )

    def lowered(self, *types: Any, backend: str = AUTO) -> Program:
        """The program that the virtual machine runs, for one lane's argument types (given as for `dump`)."""
        lane = self._parsed_types(types)
        return self.compiled(lane, self._named_backend(backend, lane, "eager")).lowered

    def passes(self, *types: Any, backend: str = AUTO) -> dict[str, Program]:
        """The program after each pass of the compiler, in order, by the pass's name; types as for `dump`."""
        programs: dict[str, Program] = {}
        lane = self._parsed_types(types)
        compile_function(self, lane, self._named_backend(backend, lane, "eager"), programs.__setitem__)
        return programs

    def dump(self, *types: Any, after: str | None = None, backend: str = AUTO) -> str:
        """The text of the program after a pass (the last one, if none is named), for one lane's argument types.

        types: one per parameter (defaults may be left out): TensorTypes, dtypes, text such as "int64", "float32[3]"
            or "tuple(int64, bool)", or structures of these.
        backend: whose arithmetic decides on types, and on what an op leaves unread or passes on; auto as for `run`.
            TensorFlow and JAX trace and know; NumPy sees less, so some programs come out longer.
        Raises OptionError for an unknown pass or text that is no type, LaneInputError for types that do not fit.
        """
        programs = self.passes(*types, backend=backend)
        after = [*programs][-1] if after is None else after
        if after not in programs:
            raise OptionError(f"no pass {after!r}; the passes are {', '.join(programs)}")
        return show_program(programs[after], expressions=after == "record_expressions")

    def explain(self, *types: Any, backend: str = AUTO) -> str:
        """A report for one lane's argument types, given as for `dump`.

        The source with the final blocks of each line; blocks; each variable's type and where it lives; and what every
        pass left of blocks, ops, pushes and pops.
        """
        return explain_passes(self.__name__, self.passes(*types, backend=backend))  # type: ignore[attr-defined]

    def _parsed_types(self, types: tuple[Any, ...]) -> tuple[Any, ...]:
        """One type per parameter, parsed from what `dump` takes."""
        name, signature = self.__name__, self._signature  # type: ignore[attr-defined]
        try:
            bound = signature.bind(*types).arguments
        except TypeError:
            shown = ", ".join(map(str, types)) or "none"
            raise LaneInputError(
                f"{name}({', '.join(signature.parameters)}) needs one type for each parameter that has no default; "
                f"found {shown}."
            ) from None
        by_name = {p: map_leaves(as_type, t) for p, t in bound.items()}
        for parameter in signature.parameters.values():
            if parameter.name not in by_name:
                default = functools.partial(default_type, parameter.name)
                by_name[parameter.name] = map_leaves(default, parameter.default)
        return tuple(by_name[parameter] for parameter in signature.parameters)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        self.refuse_method(self.method_of)
        self.refuse_in_class()
        for first in args[:1]:  # what @classmethod or @property above @batch gives
            self.refuse_method(first if isinstance(first, type) else type(first))
        name, parameters = self.__name__, self._signature.parameters  # type: ignore[attr-defined]
        if unknown := [repr(keyword) for keyword in kwargs if keyword not in parameters]:
            advice = (
                f" Options are given to {name}.run(...)." if RunOptions.__dataclass_fields__.keys() & kwargs else ""
            )
            raise LaneInputError(
                f"{name}: found the argument {', '.join(unknown)}, expected {', '.join(parameters) or 'none'}.{advice}"
            )
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise LaneInputError(f"{name}: {error}.") from None
        return bind(bound)

    def _run_unbatched(self, inputs: Inputs) -> Any:
        parameters = self._signature.parameters.values()
        results = []
        for lane in range(inputs.lanes):
            arguments = {
                p.name: map_leaves(functools.partial(_of_lane, lane), value, types)
                for p, value, types in zip(parameters, inputs.values, inputs.types)
            }
            by_position = [arguments.pop(p.name) for p in parameters if p.kind is not p.KEYWORD_ONLY]
            try:
                result = self.function(*by_position, **arguments)
            except AssertionError as error:
                raise assertion_of_python(error, lane) from error
            results.append(map_leaves(np.asarray, result))
        return map_leaves(lambda *leaves: np.stack(leaves), *results)


def _expected_depth(compiled: CompiledFunction, inputs: Inputs) -> int | None:
    """The depth of stacks that an input gives, if there is one which is worth knowing and takes little memory."""
    bound, program = compiled.depth_bound, compiled.lowered
    if bound is None:
        return None
    values = inputs.leaves[compiled.with_calls.vars_in.index(bound.variable)]
    depth = bound.depth(int(values.max(initial=0)))
    return depth if FIRST_STACK_DEPTH < depth <= affordable_depth(program, inputs.lanes) else None


def _of_lane(lane: int, leaf: np.ndarray, type_: TensorType) -> Any:
    """The argument for plain Python: a number, or a copy, which it may change."""
    return leaf[lane].item() if type_.weak else leaf[lane].copy()


def as_type(type_like: Any) -> Any:
    """A TensorType, or the type that a dtype or a text such as "float32[3,2]" or "tuple(int64, bool)" stands for.

    Raises ProgramTextError (a ValueError) for other texts, LaneInputError for anything else.
    """
    if isinstance(type_like, TensorType):
        return type_like
    if isinstance(type_like, str):
        return parse_type(type_like)
    try:
        dtype = None if type_like is None else np.dtype(type_like)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufc":
        raise LaneInputError(
            f"found {type_like!r} for a type, expected text such as 'int64' or 'float32[3]', a dtype, a TensorType, or "
            "a structure of these."
        )
    return TensorType(dtype.name)


@overload
def batch(function: Callable[..., Any]) -> BatchedFunction: ...


@overload
def batch(*, machines: int = KEPT_MACHINES) -> Callable[[Callable[..., Any]], BatchedFunction]: ...


def batch(
    function: Callable[..., Any] | None = None, *, machines: int = KEPT_MACHINES
) -> BatchedFunction | Callable[[Callable[..., Any]], BatchedFunction]:
    """Make a Python function of one lane callable on all lanes; use as a decorator.

    The function is compiled when it is first run with arguments of some types; docs/language.md says what it may
    contain. Raises UnsupportedSyntaxError, at the line of the call, for anything but a function.

    machines: how many machines are cached, one for each number of lanes, types and options, and how many programs.
    Beyond that, the least recently used one is dropped with all its memory, and compiled again when it is needed; a
    program then reads the values of enclosing scopes again. Raises OptionError below 1.
    """

    def batched(function: Callable[..., Any], frame: FrameType) -> BatchedFunction:
        require_function(function, frame)
        return BatchedFunction(function, machines)

    if function is None:
        return lambda function: batched(function, sys._getframe(1))
    return batched(function, sys._getframe(1))
