"""`@batch`: from a Python function of one lane to its results for all lanes.

call -> bind arguments -> types of one lane -> compile (cached) -> machine (cached) -> run -> structure of arrays
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch.compiler.callables import LaneFunction, in_one_lane_code, single_lane
from batchnuts.autobatch.compiler.infer_types import WEAK_DTYPES
from batchnuts.autobatch.compiler.ir import Program, TensorType
from batchnuts.autobatch.compiler.pipeline import Compiled, compile_function
from batchnuts.autobatch.compiler.schedule import POLICIES, make_schedule
from batchnuts.autobatch.compiler.text import show_program
from batchnuts.autobatch.compiler.tree import flatten, hashable, map_leaves, unflatten
from batchnuts.autobatch.errors import LaneInputError
from batchnuts.autobatch.runtime import stackless
from batchnuts.autobatch.runtime.backend import Backend
from batchnuts.autobatch.runtime.faults import assertion_of_python
from batchnuts.autobatch.runtime.virtual_machine import FIRST_STACK_DEPTH, VirtualMachine, run_to_end

EXECUTORS = ("virtual_machine", "stackless", "unbatched")
BACKENDS = ("tensorflow", "numpy")


@functools.cache
def get_backend(name: str, mode: str) -> Backend:
    """The backend of that name and mode; ValueError for an unknown one. NumPy knows no modes and ignores it."""
    if name == "numpy":
        from batchnuts.autobatch.runtime.numpy_backend import NumpyBackend

        return NumpyBackend()
    if name == "tensorflow":
        from batchnuts.autobatch.runtime.tensorflow_backend import TensorFlowBackend

        return TensorFlowBackend(mode)
    raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; found {name!r}")


@dataclass(frozen=True)
class _Inputs:
    """A call's arguments, in parameter order: leaves [lanes, ...] and the type of one lane."""

    values: tuple[Any, ...]
    types: tuple[Any, ...]
    lanes: int

    @property
    def leaves(self) -> tuple[np.ndarray, ...]:
        """All arrays in order."""
        return tuple(leaf for value in self.values for leaf in flatten(value)[0])


class BatchedFunction(LaneFunction):
    """A function written for one lane, callable on all lanes; made by `batch`.

    Calling it runs the virtual machine under TensorFlow/XLA. `run` takes options, `function` is plain Python.
    """

    def __init__(self, python_function: Callable[..., Any]) -> None:
        super().__init__(python_function)
        self._compiled: dict[Any, Compiled] = {}
        self._machines: dict[Any, VirtualMachine] = {}
        self._block_code: dict[Any, dict[str, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results for all lanes, with the defaults of `run`; keyword and default arguments as in Python."""
        if in_one_lane_code.get():
            raise TypeError(
                f"the batched function {self.__name__!r} was called by plain one-lane code; call it directly in a "  # type: ignore[attr-defined]
                "batched function, or make the helper that calls it one with @batch"
            )
        if single_lane.get():
            return self.python_function(*args, **kwargs)
        return self._run(args, kwargs)

    @property
    def function(self) -> Callable[..., Any]:
        """The plain Python function of one lane; batched functions it calls run as plain Python too."""

        @functools.wraps(self.python_function)
        def one_lane(*args: Any, **kwargs: Any) -> Any:
            token = single_lane.set(True)
            try:
                return self.python_function(*args, **kwargs)
            finally:
                single_lane.reset(token)

        return one_lane

    def run(
        self,
        *lanes: Any,
        executor: str = "virtual_machine",
        backend: str = "tensorflow",
        mode: str = "xla",
        schedule: str = "auto",
        max_stack_depth: int | None = None,
        tally: stackless.Tally | None = None,
    ) -> Any:
        """Run for all lanes and give the result's structure with the lane axis in front of every array.

        lanes: one array [lanes, ...], or structure of such arrays, per parameter. Arrays of one lane and Python
            numbers are used on every lane.
        executor: "virtual_machine" (program-counter autobatching), "stackless" (recursion on the host) or
            "unbatched" (plain Python, lane by lane).
        backend, mode: "tensorflow" with "xla", "graph" or "eager"; "numpy". `stackless` runs eagerly.
        schedule: "auto", "earliest" or "drain"; the order in which the virtual machine serves its blocks.
        max_stack_depth: frames a lane's stacks may hold; None lets them grow.
        tally: a dictionary to which `stackless` adds, by block, how often it ran and on how many lanes.

        Raises CompileError (with the line) for what cannot be batched, LaneInputError for arguments that do not fit,
        StackOverflowError for a lane that recursed deeper than allowed.
        """
        options = {"executor": executor, "backend": backend, "mode": mode, "schedule": schedule}
        return self._run(lanes, {}, max_stack_depth=max_stack_depth, tally=tally, **options)

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        executor: str = "virtual_machine",
        backend: str = "tensorflow",
        mode: str = "xla",
        schedule: str = "auto",
        max_stack_depth: int | None = None,
        tally: stackless.Tally | None = None,
    ) -> Any:
        if executor not in EXECUTORS:
            raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}; found {executor!r}")
        if schedule not in POLICIES:
            raise ValueError(f"schedule must be one of {', '.join(POLICIES)}; found {schedule!r}")
        if max_stack_depth is not None and max_stack_depth < 1:
            raise ValueError(f"max_stack_depth must be at least 1, or None to let stacks grow; found {max_stack_depth}")
        inputs = self._bind(args, kwargs)
        if executor == "unbatched":
            return self._run_unbatched(inputs)
        target = get_backend(backend, "eager" if executor == "stackless" else mode)
        compiled = self.compiled(inputs.types, target)
        if executor == "stackless":
            cache = self._block_code.setdefault((hashable(inputs.types), target), {})
            results = stackless.execute(
                compiled.with_calls, target, cache, *inputs.leaves, max_stack_depth=max_stack_depth, tally=tally
            )
        else:
            key = (hashable(inputs.types), target, inputs.lanes, schedule, max_stack_depth)
            machine = self._machines.get(key) or self.machine(
                inputs.types, inputs.lanes, target, schedule, max_stack_depth or FIRST_STACK_DEPTH
            )
            machine, results = run_to_end(machine, inputs.leaves, grow=max_stack_depth is None)
            self._machines[key] = machine
        return unflatten(flatten(compiled.result_type)[1], results)

    def compiled(self, types: tuple[Any, ...], backend: Backend) -> Compiled:
        """Both executable forms for one lane's argument types; compiled once per types and backend."""
        key = (hashable(types), backend)
        if key not in self._compiled:
            self._compiled[key] = compile_function(self, types, backend)
        return self._compiled[key]

    def machine(
        self, types: tuple[Any, ...], lanes: int, backend: Backend, schedule: str, stack_depth: int
    ) -> VirtualMachine:
        """A virtual machine for this function, to be driven step by step (see `runtime.virtual_machine`)."""
        lowered = self.compiled(types, backend).lowered
        return VirtualMachine(lowered, backend, lanes, stack_depth, make_schedule(lowered, schedule))

    def lane_types(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """One lane's type of each argument of a call."""
        return self._bind(args, {}).types

    def dump(self, *types: Any, after: str = "coalesce", backend: str = "tensorflow") -> str:
        """The text of the program after a pass (see `compiler.pipeline`), for one lane's argument types.

        types: TensorTypes, NumPy dtypes or their names (a scalar of that dtype), or structures of TensorTypes.
        """
        found: dict[str, Program] = {}
        compile_function(self, tuple(map(as_type, types)), get_backend(backend, "eager"), found.__setitem__)
        if after not in found:
            raise ValueError(f"no pass {after!r}; the passes are {', '.join(found)}")
        return show_program(found[after])

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Inputs:
        try:
            bound = inspect.signature(self.python_function).bind(*args, **kwargs)
        except TypeError as error:
            raise LaneInputError(f"{self.__name__}: {error}.") from None  # type: ignore[attr-defined]
        bound.apply_defaults()
        lane_counts: dict[int, str] = {}
        for name, value in bound.arguments.items():
            if isinstance(value, list) and value and all(type(leaf) in WEAK_DTYPES for leaf in value):
                raise LaneInputError(
                    f"argument {name!r} is a list of numbers, which is a structure of {len(value)} numbers here, not "
                    f"{len(value)} lanes. Give numpy.array({name}) for one number per lane."
                )
            for leaf in flatten(value)[0]:
                if type(leaf) in WEAK_DTYPES:
                    continue
                shape = np.shape(leaf)
                if not shape:
                    raise LaneInputError(
                        f"argument {name!r} has an array without a lane axis; give shape [lanes, ...], or a Python "
                        "number for the same value on every lane."
                    )
                lane_counts.setdefault(shape[0], name)
        many = [count for count in lane_counts if count != 1]
        if len(many) > 1:
            shown = " and ".join(f"{count} in {lane_counts[count]!r}" for count in many)
            raise LaneInputError(f"arguments have different numbers of lanes: {shown}. Their first axes must agree.")
        lanes = many[0] if many else 1
        values, types = [], []
        for name, value in bound.arguments.items():
            types.append(map_leaves(functools.partial(_lane_type, name), value))
            values.append(map_leaves(functools.partial(_on_lanes, lanes), value))
        return _Inputs(tuple(values), tuple(types), lanes)

    def _run_unbatched(self, inputs: _Inputs) -> Any:
        parameters = inspect.signature(self.python_function).parameters.values()
        results = []
        for lane in range(inputs.lanes):
            arguments = {
                p.name: map_leaves(
                    lambda leaf, t, lane=lane: leaf[lane].item() if t.weak else leaf[lane].copy(), value, types
                )
                for p, value, types in zip(parameters, inputs.values, inputs.types)
            }
            by_position = [arguments.pop(p.name) for p in parameters if p.kind is not p.KEYWORD_ONLY]
            try:
                result = self.function(*by_position, **arguments)
            except AssertionError as error:
                raise assertion_of_python(error, lane) from error
            results.append(map_leaves(np.asarray, result))
        return map_leaves(lambda *leaves: np.stack(leaves), *results)


def _lane_type(name: str, leaf: Any) -> TensorType:
    if type(leaf) in WEAK_DTYPES:
        return TensorType(WEAK_DTYPES[type(leaf)], (), weak=True)
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        raise LaneInputError(f"argument {name!r} holds {array.dtype}, expected numbers or booleans.")
    return TensorType(array.dtype.name, array.shape[1:])


def _on_lanes(lanes: int, leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if not array.ndim:
        return np.full(lanes, array)
    return np.broadcast_to(array, (lanes, *array.shape[1:]))


def as_type(given: Any) -> Any:
    """A TensorType from a dtype's name ("float32", "float32[3,2]"), or structures of them as they are."""
    if isinstance(given, str):
        dtype, _, shape = given.partition("[")
        return TensorType(np.dtype(dtype).name, tuple(int(n) for n in shape.rstrip("]").split(",") if n))
    return given


def batch(function: Callable[..., Any]) -> BatchedFunction:
    """Make a Python function of one lane callable on all lanes; use as a decorator.

    The function is compiled when it is first run with arguments of some types; docs/language.md says what it may
    contain.
    """
    return BatchedFunction(function)
