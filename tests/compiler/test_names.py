"""Names of programs by hand: those that break the rules are refused at every door, and any that obey them run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from programs import Case, covering_by_default

from batchnuts.autobatch import (
    Block,
    ControlFlowGraph,
    Function,
    IndirectGotoOp,
    LaneInputError,
    MalformedProgramError,
    PrimOp,
    Program,
    TensorType,
    allocate,
    lower_function_calls,
    parse,
    prepare,
)
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir.program import mentioned_in
from batchnuts.autobatch.pipeline import compile_function, compile_program
from batchnuts.autobatch.runtime import reference, stackless, virtual_machine

NUMPY = get_backend("numpy", "eager")

TEXT = """
main(x) -> y
  main.entry:
    t = {x + 1} x
    u = call f x
    w = call g u
    y = {t + w} t, w
    return

f(fx) -> fy
  f.entry:
    ft = {fx * 100} fx
    fy = {ft * 10} ft
    return

g(gx) -> gy
  g.entry:
    gy = {gx * 10} gx
    return
"""
"""y = (x + 1) + x * 10,000."""


def program_of(text: str) -> Program:
    """With the types that those variables have that it names."""
    program = parse(text, namespace={})
    return program.replace(var_defs={v: TensorType("int64") for f in program.all_functions() for v in mentioned_in(f)})


def renamed(program: Program, names: dict[str, str]) -> Program:
    """The program with variables and labels replaced; functions keep their names."""

    def new(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(new, value))
        return names.get(value, value) if isinstance(value, str) else value

    def change(thing: Any) -> Any:
        changes = {f.name: new(getattr(thing, f.name)) for f in fields(thing) if f.name not in ("message", "function")}
        if isinstance(thing, PrimOp):
            parts = tuple(frozenset(map(new, part)) for part in thing.function.parts)
            changes["function"] = replace(thing.function, parts=parts) if parts else thing.function
        return replace(thing, **changes)

    def body(function: Function) -> Function:
        blocks = tuple(
            replace(b, label=new(b.label), ops=tuple(map(change, b.ops)), terminator=change(b.terminator))
            for b in function.graph.blocks
        )
        graph = ControlFlowGraph(blocks)
        return replace(function, vars_in=new(function.vars_in), vars_out=new(function.vars_out), graph=graph)

    changed = program.with_functions({f.name: body(f) for f in program.all_functions()})
    return changed.replace(var_defs={new(v): t for v, t in program.var_defs.items()})


DOORS: dict[str, Callable[[Program], Any]] = {
    "prepare": lambda program: prepare(program, "int64", backend="numpy"),
    "lower": lower_function_calls,
    "stackless": lambda program: stackless.execute(program, NUMPY, None, np.array([1, 2])),
    "virtual machine": lambda program: virtual_machine.execute(program, NUMPY, np.array([1, 2])),
    "reference": lambda program: reference.execute(program, np.array([1, 2])),
}


def of_two(change: Callable[[Function], Function]) -> Callable[[Program], Program]:
    """A change of the function f."""
    return lambda program: program.replace(functions=(change(program.functions[0]), *program.functions[1:]))


def block_of(**changes: Any) -> Callable[[Program], Program]:
    """A change of the block of f."""
    return of_two(lambda f: replace(f, graph=ControlFlowGraph((replace(f.graph.blocks[0], **changes),))))


MALFORMED: dict[str, tuple[Callable[[Program], Program], str]] = {
    "a variable": (lambda p: renamed(p, {"ft": "t"}), "block 'f.entry' uses 't', which is a variable of 'main': names"),
    "results": (lambda p: renamed(p, {"fy": "gy"}), "block 'g.entry' uses 'gy', which is a variable of 'f'"),
    "results of main": (lambda p: renamed(p, {"fy": "y"}), "block 'f.entry' uses 'y', which is a variable of 'main'"),
    "parameters": (lambda p: renamed(p, {"gx": "fx"}), "block 'g.entry' uses 'fx', which is a variable of 'f'"),
    "an unused parameter": (
        lambda p: of_two(lambda f: replace(f, vars_in=("x",)))(block_of(ops=())(p)).replace(vars_in=("x",)),
        "function 'f' uses 'x', which is a variable of 'main'.*Call it f.x, say",
    ),
    "inputs twice": (lambda p: p.replace(vars_in=("x", "x")), r"function 'main' has the parameters \['x'\] twice"),
    "parameters twice": (
        of_two(lambda f: replace(f, vars_in=("fx", "fx"))),
        r"function 'f' has the parameters \['fx'\] twice",
    ),
    "a parameter as result": (
        of_two(lambda f: replace(f, vars_out=("fx",))),
        r"function 'f' has \['fx'\] as parameters and results; return a copy",
    ),
    "functions of one name": (of_two(lambda f: replace(f, name="g")), r"functions defined twice: \['g'\]"),
    "a function called main": (of_two(lambda f: replace(f, name="main")), r"functions defined twice: \['main'\]"),
    "labels": (lambda p: renamed(p, {"f.entry": "g.entry"}), r"labels defined twice: \['g.entry'\]"),
    "no block": (of_two(lambda f: replace(f, graph=ControlFlowGraph(()))), "function 'f' has no block"),
    "no block of main": (lambda p: p.replace(graph=ControlFlowGraph(())), "function 'main' has no block"),
    "the name of return addresses": (lambda p: renamed(p, {"ft": "@"}), "variable '@': this name stands for return"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mistake", MALFORMED)
def test_every_door_refuses(mistake: str, door: str) -> None:
    change, message = MALFORMED[mistake]
    with pytest.raises(MalformedProgramError, match=message):
        DOORS[door](change(program_of(TEXT)))


OF_CALLS: dict[str, tuple[Callable[[Program], Program], str]] = {
    "another owner": (block_of(owner="g"), "block 'f.entry' of function 'f' has the owner 'g'"),
    "nothing assigned": (block_of(ops=()), "block 'f.entry' returns 'fy', which no path to it assigns"),
    "lowered": (lower_function_calls, "'main.entry' ends in push_goto before lowering"),
}


@pytest.mark.parametrize("door", ["prepare", "lower", "stackless"])
@pytest.mark.parametrize("mistake", OF_CALLS)
def test_doors_of_programs_with_calls_refuse(mistake: str, door: str) -> None:
    change, message = OF_CALLS[mistake]
    with pytest.raises(MalformedProgramError, match=message):
        DOORS[door](change(program_of(TEXT)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p, "the program has functions; lower_function_calls makes one graph"),
        (lower_function_calls, r"variables \['ft', .*\] have no place to live; allocate gives each one"),
        (lambda p: allocate(lower_function_calls(p)).replace(var_defs={}), "'x', an input or output .* has no type"),
    ],
)
def test_the_machine_refuses_what_is_not_lowered(change: Callable[[Program], Program], message: str) -> None:
    with pytest.raises(MalformedProgramError, match=message):
        DOORS["virtual machine"](change(program_of(TEXT)))


def test_doors_refuse_variables_without_types_and_a_wrong_number_of_inputs() -> None:
    program = program_of(TEXT)
    with pytest.raises(MalformedProgramError, match="'x', an input or output of the program, has no type"):
        DOORS["stackless"](program.replace(var_defs={}))
    message = r"the program takes 1 inputs \(x\), found 2"
    two = (np.array([1]), np.array([2]))
    with pytest.raises(LaneInputError, match=message):
        stackless.execute(program, NUMPY, None, *two)
    with pytest.raises(LaneInputError, match=message):
        reference.execute(program, *two)
    with pytest.raises(LaneInputError, match=message):
        virtual_machine.execute(allocate(lower_function_calls(program)), NUMPY, *two)


def results(program: Program, *inputs: np.ndarray) -> list[list[Any]]:
    lowered = allocate(lower_function_calls(program))
    found = (
        reference.execute(program, *inputs),
        stackless.execute(program, NUMPY, None, *inputs),
        virtual_machine.execute(lowered, NUMPY, *inputs),
        virtual_machine.execute(compile_program(program, types_of(program), NUMPY).lowered, NUMPY, *inputs),
    )
    return [[np.asarray(leaf).tolist() for leaf in leaves] for leaves in found]


def types_of(program: Program) -> tuple[Any, ...]:
    return tuple(program.var_defs[v] for v in program.vars_in)


def test_dead_code_needs_no_types() -> None:
    dead = Block("main.dead", (), IndirectGotoOp())
    program = program_of(TEXT).replace(var_defs={})
    program = program.replace(graph=ControlFlowGraph((*program.graph.blocks, dead)))
    uncalled = parse(TEXT.replace("    u = call f x\n", "    u = copy x\n"), namespace={})
    assert prepare(program, "int64", backend="numpy").run(np.array([2]))[0].tolist() == [20_003]
    assert prepare(uncalled, "int64", backend="numpy").run(np.array([2]))[0].tolist() == [23]


def clashing_names(program: Program, random: Random) -> dict[str, str]:
    """A new name for each variable and label, many of them such as machines and passes use for what they add."""
    functions = program.all_functions()
    variables = [v for f in functions for v in sorted(mentioned_in(f))]
    labels = [label for f in functions for label in f.graph.labels]
    own = ["fault", "pc", "sweeps", "value:fault", "x.then", "x.else", "a.b.c", "1", "x.then.2", "main.return"]
    own += [f"{v}.{suffix}" for v in variables for suffix in ("then", "else", "0", "2")] + variables
    added = [f"{f.name}.{suffix}" for f in functions for suffix in ("resume", "resume.2", "inlined", "entry")] + labels
    chosen = dict(zip(variables, random.sample(sorted({*own}), len(variables)), strict=True))
    return chosen | dict(zip(labels, random.sample(sorted({*added}), len(labels)), strict=True))


def at_random(case: Case) -> tuple[Program, tuple[np.ndarray, ...], Random]:
    """A program of the corpus over leaves, its inputs, and what decides on its new names."""
    inputs = case.function._bind(case.inputs, {})
    passes: dict[str, Program] = {}
    compile_function(case.function, inputs.types, NUMPY, passes.__setitem__)
    return passes["flatten_structures"], inputs.leaves, Random(case.name)


@covering_by_default()
def test_other_names_change_nothing(case: Case) -> None:
    program, inputs, random = at_random(case)
    expected = results(program, *inputs)
    names = clashing_names(program, random)
    variables = {v for f in program.all_functions() for v in mentioned_in(f)}
    assert not variables & set(program.all_functions()[0].graph.labels)
    assert results(renamed(program, names), *inputs) == expected


@covering_by_default()
def test_a_name_of_another_body_is_refused(case: Case) -> None:
    """Any variable, called as any one of another body."""
    program, inputs, random = at_random(case)
    first, second = random.sample(program.all_functions(), 2)
    theirs, ours = (sorted(mentioned_in(f)) for f in (first, second))
    if theirs and ours:
        shared = renamed(program, {random.choice(theirs): random.choice(ours)})
        for door in (lower_function_calls, lambda p: stackless.execute(p, NUMPY, None, *inputs)):
            with pytest.raises(MalformedProgramError, match="names are unique in the whole program"):
                door(shared)
