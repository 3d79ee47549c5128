"""Preparing programs built by hand, or read from text: checked, typed, compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.engines.registry import AUTO, backend_of_program
from batchnuts.autobatch.errors import LaneInputError, OptionError
from batchnuts.autobatch.ir.cfg import without_dead_code
from batchnuts.autobatch.ir.printer import show_type
from batchnuts.autobatch.ir.program import Program
from batchnuts.autobatch.ir.verify import MalformedProgramError, check_well_formed
from batchnuts.autobatch.language.pytree import flatten, map_leaves
from batchnuts.autobatch.pipeline import CompiledFunction, compile_program
from batchnuts.autobatch.runtime import stackless, virtual_machine
from batchnuts.autobatch.runtime.costly_work import costly_work
from batchnuts.autobatch.scheduling.policies import make_schedule

EXECUTORS = ("virtual_machine", "stackless")


@dataclass(frozen=True)
class PreparedProgram:
    """Both executable forms of a program, and the backend they were made for; `prepare` makes it."""

    with_calls: Program
    """The form that `stackless.execute` runs."""
    lowered: Program
    """The form that `virtual_machine.execute` runs."""
    backend: Backend

    def run(
        self,
        *inputs: Any,
        executor: str = "virtual_machine",
        schedule: str = "auto",
        max_stack_depth: int | None = None,
    ) -> tuple[np.ndarray, ...]:
        """The outputs [lanes, ...], one array for each leaf of each output variable.

        inputs: for each input variable an array [lanes, ...] of its dtype (or one that casts to it without changing
            its kind), or its structure of such arrays. Arrays of one lane are used on every lane.
        executor, schedule, max_stack_depth: as for `BatchedFunction.run`.
        Raises LaneInputError for inputs that do not fit, OptionError for an unknown executor or schedule.
        """
        if executor not in EXECUTORS:
            raise OptionError(f"executor must be one of {', '.join(EXECUTORS)}; found {executor!r}")
        leaves = self._lanes(inputs)
        if executor == "stackless":
            return stackless.run_checked(self.with_calls, self.backend, None, *leaves, max_stack_depth=max_stack_depth)
        order = make_schedule(self.lowered, schedule, lambda: costly_work(self.lowered, self.backend))
        return virtual_machine.execute(
            self.lowered, self.backend, *leaves, max_stack_depth=max_stack_depth, schedule=order
        )

    def _lanes(self, inputs: tuple[Any, ...]) -> list[np.ndarray]:
        arrays = [np.asarray(leaf) for value in inputs for leaf in flatten(value)[0]]
        variables = self.lowered.vars_in
        if len(arrays) != len(variables):
            raise LaneInputError(
                f"the program takes {len(variables)} arrays ({', '.join(variables)}), found {len(arrays)}."
            )
        for variable, array in zip(variables, arrays):
            type_ = self.lowered.var_defs[variable]
            fits = array.ndim and array.shape[1:] == type_.shape and np.can_cast(array.dtype, type_.dtype, "same_kind")
            if not fits:
                raise LaneInputError(
                    f"input {variable!r} has shape {array.shape} and dtype {array.dtype}, expected {type_} with the "
                    "lane axis in front."
                )
        counts = sorted({len(array) for array in arrays} - {1})
        if len(counts) > 1:
            raise LaneInputError(f"the inputs have different numbers of lanes: {', '.join(map(str, counts))}.")
        lanes = counts[0] if counts else 1
        return [np.broadcast_to(array, (lanes, *array.shape[1:])) for array in arrays]


def prepare(program: Program, *types: Any, backend: str = AUTO, mode: str = "xla") -> PreparedProgram:
    """Check a program with calls, give every variable its type, compile it, and lower it.

    types: of one lane, one for each input variable, given as for `BatchedFunction.dump`; without any, those that
        `program.var_defs` has. The other variables' types are inferred. Where `var_defs` has them, they have to agree.
    backend, mode: as for `BatchedFunction.run`.

    Raises MalformedProgramError (a ValueError that names the block) for a program that breaks the rules of the IR,
    LaneInputError for types that do not fit, CompileError for a primitive that fails on its types.
    """
    check_well_formed(program)
    if not program.vars_in or not program.vars_out:
        raise MalformedProgramError("a program needs an input, which says how many lanes there are, and an output")
    lane = _input_types(program, types)
    reachable = without_dead_code(program)
    made: dict[str, tuple[CompiledFunction, dict[str, Any]]] = {}

    def compiles(name: str) -> None:
        inferred: dict[str, Any] = {}

        def observe(_: str, result: Program) -> None:
            inferred.update(result.var_defs if not inferred else {})

        made[name] = compile_program(reachable, lane, get_backend(name, mode), observe), inferred

    name = backend_of_program(compiles, mode) if backend == AUTO else backend
    if name not in made:
        compiles(name)
    compiled, inferred = made[name]
    for variable, declared in program.var_defs.items():
        if variable in inferred and inferred[variable] != declared:
            raise MalformedProgramError(
                f"variable {variable!r} is declared as {show_type(declared)}, and its ops make it "
                f"{show_type(inferred[variable])}"
            )
    return PreparedProgram(compiled.with_calls, compiled.lowered, get_backend(name, mode))


def _input_types(program: Program, types: tuple[Any, ...]) -> tuple[Any, ...]:
    if types and len(types) != len(program.vars_in):
        raise LaneInputError(
            f"the program has {len(program.vars_in)} inputs ({', '.join(program.vars_in)}), found {len(types)} types."
        )
    if types:
        return tuple(map_leaves(as_type, type_) for type_ in types)
    missing = [variable for variable in program.vars_in if variable not in program.var_defs]
    if missing:
        raise LaneInputError(
            f"input {missing[0]!r} has no type: give prepare one type for each input, or have it in var_defs."
        )
    return tuple(program.var_defs[variable] for variable in program.vars_in)
