"""The passes in order, each with the name under which its result can be dumped."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from batchnuts.autobatch.errors import CompileError, UndefinedVariableError
from batchnuts.autobatch.frontend.build import build_program
from batchnuts.autobatch.frontend.builder import Reading
from batchnuts.autobatch.frontend.sequences import Apart, Learned, LearnedMore, Numbers, length_of_type
from batchnuts.autobatch.ir import verify
from batchnuts.autobatch.ir.cfg import simplify
from batchnuts.autobatch.ir.dataflow import check_assigned
from batchnuts.autobatch.ir.program import Program
from batchnuts.autobatch.language.functions import LaneFunction
from batchnuts.autobatch.passes.allocate import allocate, classify
from batchnuts.autobatch.passes.coalesce import coalesce
from batchnuts.autobatch.passes.depth_bound import DepthBound, depth_bound
from batchnuts.autobatch.passes.duplicate_tails import duplicate_tails
from batchnuts.autobatch.passes.eliminate import eliminate
from batchnuts.autobatch.passes.flatten_structures import flatten_structures
from batchnuts.autobatch.passes.if_convert import if_convert
from batchnuts.autobatch.passes.infer_types import Evaluator, Remembering, infer_types
from batchnuts.autobatch.passes.inline import inline
from batchnuts.autobatch.passes.invert import invert
from batchnuts.autobatch.passes.lower import lower_function_calls
from batchnuts.autobatch.passes.record_expressions import record_expressions
from batchnuts.autobatch.passes.self_tail_calls import self_tail_calls
from batchnuts.autobatch.passes.tail_calls import tail_calls

Observer = Callable[[str, Program], None]


@dataclass(frozen=True)
class CompiledFunction:
    """The two forms that executors run: with calls (stackless) and lowered (virtual machine)."""

    with_calls: Program
    lowered: Program
    result_type: Any
    """Structure of TensorTypes of one lane's result."""
    depth_bound: DepthBound | None = None
    """The bound on the depth of stacks, where an input gives one."""
    costly_work: float | None = None
    """What the costly primitives compute for one lane (`runtime.costly_work`), where that is known."""
    key: str | None = None
    """That of its entry on disk, which says all that it depends on; None where it has none."""


def compile_function(
    function: LaneFunction, input_types: tuple[Any, ...], evaluator: Evaluator, observe: Observer | None = None
) -> CompiledFunction:
    """Compile a Python function for the types of one lane's arguments, to both executable forms.

    `observe` is called with each pass's name and result: frontend, and then those of `compile_program`.
    """
    learned: dict[Hashable, Learned | Apart | Numbers] = {}
    while True:
        reading = Reading(learned)
        program = build_program(function, reading)
        verify.check_structure(program)
        if observe is not None:
            observe("frontend", program)
        try:
            check_assigned(program)
            return compile_program(program, input_types, evaluator, observe)
        except LearnedMore as error:
            if learned.get(error.loop) == error.learned:  # reading the program again would change nothing
                raise
            learned = {**learned, error.loop: error.learned}
        except UndefinedVariableError:
            iterations = _learn(reading, program, input_types, evaluator)
            if iterations.items() <= learned.items():
                raise
            learned = {**learned, **iterations}


def _learn(
    reading: Reading, program: Program, input_types: tuple[Any, ...], evaluator: Evaluator
) -> dict[Hashable, Learned | Apart | Numbers]:
    """The numbers of iterations of loops that types determine; empty where there is no such loop, or types conflict."""
    if not reading.loops:
        return {}
    try:
        types = infer_types(program, input_types, evaluator).var_defs
    except LearnedMore as error:
        return {error.loop: error.learned}
    except CompileError:
        return {}
    iterations: dict[Hashable, Learned | Apart | Numbers] = {}
    for loop, (function, sequence) in reading.loops.items():
        lengths = {v: length_of_type(types[f"{function}.{v}"]) for v in sequence.held() if f"{function}.{v}" in types}
        static_lengths = {v: n for v, n in lengths.items() if n is not None}
        if (
            len(static_lengths) == len(sequence.held())
            and (rounds := sequence.length(static_lengths.__getitem__)) is not None
        ):
            iterations[loop] = Learned(rounds, alike=True)
    return iterations


def compile_program(
    program: Program, input_types: tuple[Any, ...], evaluator: Evaluator, observe: Observer | None = None
) -> CompiledFunction:
    """Compile a well-formed program with calls, made by the frontend or by hand, to both executable forms.

    `observe` is called with each pass's name and result, from infer_types to tail_calls.
    """

    def passed(name: str, program: Program, check: Callable[[Program], None]) -> Program:
        check(program)
        if observe is not None:
            observe(name, program)
        return program

    evaluator = Remembering(evaluator)
    program = passed("infer_types", infer_types(program, input_types, evaluator), verify.check_types)
    result_type = program.var_defs[program.vars_out[0]]
    program = passed("flatten_structures", flatten_structures(program, evaluator), verify.check_types)
    program = passed("eliminate", simplify(eliminate(program)), verify.check_types)
    program = passed("self_tail_calls", self_tail_calls(program), verify.check_types)
    program = passed("inline", eliminate(inline(program)), verify.check_types)
    program = passed("if_convert", eliminate(if_convert(program)), verify.check_types)
    with_calls = passed("duplicate_tails", eliminate(duplicate_tails(program)), verify.check_types)
    obeys_discipline = partial(verify.check_stack_discipline, functions=with_calls.functions)
    with_calls = passed("record_expressions", record_expressions(with_calls), verify.check_expressions)
    program = passed("lower", lower_function_calls(with_calls), obeys_discipline)
    program = passed("eliminate_lowered", eliminate(program), obeys_discipline)
    bodies = with_calls.functions

    def is_allocated(program: Program) -> None:
        verify.check_allocation(program)
        obeys_discipline(program)

    program = passed("allocate", classify(eliminate(allocate(program))), is_allocated)
    program = passed("invert", classify(eliminate(invert(program, bodies))), is_allocated)
    program = passed("coalesce", coalesce(program), is_allocated)
    program = passed("tail_calls", tail_calls(program), is_allocated)
    lowered = record_expressions(program)  # of what passes have added
    verify.check_expressions(lowered)
    return CompiledFunction(with_calls, lowered, result_type, depth_bound(with_calls))
