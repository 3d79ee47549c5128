"""The passes in order, each with the name under which its result can be dumped."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from batchnuts.autobatch.compiler import check
from batchnuts.autobatch.compiler.allocate import allocate, classify
from batchnuts.autobatch.compiler.callables import LaneFunction
from batchnuts.autobatch.compiler.cfg import simplify
from batchnuts.autobatch.compiler.coalesce import coalesce
from batchnuts.autobatch.compiler.dataflow import check_assigned
from batchnuts.autobatch.compiler.depth import DepthBound, depth_bound
from batchnuts.autobatch.compiler.drop_copies import drop_copies
from batchnuts.autobatch.compiler.eliminate import eliminate
from batchnuts.autobatch.compiler.flatten_structures import flatten_structures
from batchnuts.autobatch.compiler.for_loops import Reading
from batchnuts.autobatch.compiler.frontend import build_program
from batchnuts.autobatch.compiler.if_convert import if_convert
from batchnuts.autobatch.compiler.infer_types import Evaluator, Remembering, infer_types
from batchnuts.autobatch.compiler.inline import inline
from batchnuts.autobatch.compiler.invert import invert
from batchnuts.autobatch.compiler.ir import Program
from batchnuts.autobatch.compiler.lower import lower_function_calls
from batchnuts.autobatch.compiler.merge_blocks import fold_branches, merge_blocks
from batchnuts.autobatch.compiler.pop_early import pop_early
from batchnuts.autobatch.compiler.rematerialize import rematerialize
from batchnuts.autobatch.compiler.sequences import Apart, Learned, LearnedMore, length_of_type
from batchnuts.autobatch.compiler.tail_jumps import tail_jumps
from batchnuts.autobatch.compiler.tail_loops import tail_loops
from batchnuts.autobatch.errors import CompileError, UndefinedVariableError

Observer = Callable[[str, Program], None]


@dataclass(frozen=True)
class Compiled:
    """The two forms that executors run: with calls (stackless) and lowered (virtual machine)."""

    with_calls: Program
    lowered: Program
    result_type: Any
    """Structure of TensorTypes of one lane's result."""
    depth_bound: DepthBound | None = None
    """What tells how deep stacks have to be, where an input tells it."""


def compile_function(
    function: LaneFunction, input_types: tuple[Any, ...], evaluator: Evaluator, observe: Observer | None = None
) -> Compiled:
    """From a Python function and the types of one lane's arguments to both executable forms.

    `observe` is called with each pass's name and result: frontend, and then those of `compile_program`.
    """
    learned: dict[Hashable, Learned | Apart] = {}
    while True:
        reading = Reading(learned)
        program = build_program(function, reading)
        check.check_structure(program)
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
            more = _learn(reading, program, input_types, evaluator)
            if more.items() <= learned.items():
                raise
            learned = {**learned, **more}


def _learn(
    reading: Reading, program: Program, input_types: tuple[Any, ...], evaluator: Evaluator
) -> dict[Hashable, Learned | Apart]:
    """How many rounds loops make, as far as types tell; nothing where there is no such loop, or types conflict."""
    if not reading.loops:
        return {}
    try:
        types = infer_types(program, input_types, evaluator).var_defs
    except LearnedMore as error:
        return {error.loop: error.learned}
    except CompileError:
        return {}
    more: dict[Hashable, Learned | Apart] = {}
    for loop, (function, sequence) in reading.loops.items():
        lengths = {v: length_of_type(types[f"{function}.{v}"]) for v in sequence.held() if f"{function}.{v}" in types}
        known = {v: n for v, n in lengths.items() if n is not None}
        if len(known) == len(sequence.held()) and (rounds := sequence.length(known.__getitem__)) is not None:
            more[loop] = Learned(rounds, alike=True)
    return more


def compile_program(
    program: Program, input_types: tuple[Any, ...], evaluator: Evaluator, observe: Observer | None = None
) -> Compiled:
    """From a well-formed program with calls, made by the frontend or by hand, to both executable forms.

    `observe` is called with each pass's name and result, from infer_types to tail_jumps.
    """

    def passed(name: str, program: Program, verify: Callable[[Program], None]) -> Program:
        verify(program)
        if observe is not None:
            observe(name, program)
        return program

    evaluator = Remembering(evaluator)
    program = passed("infer_types", infer_types(program, input_types, evaluator), check.check_types)
    result_type = program.var_defs[program.vars_out[0]]
    program = passed("flatten_structures", flatten_structures(program, evaluator), check.check_types)
    program = passed("eliminate", simplify(eliminate(program)), check.check_types)
    program = passed("tail_loops", tail_loops(program), check.check_types)
    program = passed("inline", eliminate(inline(program)), check.check_types)
    program = passed("if_convert", eliminate(if_convert(program)), check.check_types)
    with_calls = passed("merge_blocks", eliminate(fold_branches(eliminate(merge_blocks(program)))), check.check_types)
    obeys_discipline = partial(check.check_stack_discipline, functions=with_calls.functions)
    program = passed("lower", lower_function_calls(with_calls), obeys_discipline)
    program = passed("eliminate_lowered", eliminate(program), obeys_discipline)
    bodies = with_calls.functions

    def is_allocated(program: Program) -> None:
        check.check_allocation(program)
        obeys_discipline(program)

    program = passed("allocate", allocate(program), is_allocated)
    program = passed("rematerialize", classify(eliminate(rematerialize(program))), is_allocated)
    program = passed("invert", invert(program, bodies), is_allocated)
    program = passed("pop_early", classify(eliminate(pop_early(program, bodies))), is_allocated)
    program = passed("coalesce", coalesce(program), is_allocated)
    program = passed("drop_copies", classify(eliminate(drop_copies(program))), is_allocated)
    lowered = passed("tail_jumps", tail_jumps(program), is_allocated)
    return Compiled(with_calls, lowered, result_type, depth_bound(with_calls))
