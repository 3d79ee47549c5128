"""The text of programs: it prints all that makes programs equal, parses back, runs again, and errors point into it."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from mcmc_models import gaussian_primitive
from programs import BY_NAME, CASES, Case, covering_by_default, fibonacci
from programs.assignment import keyword_arguments
from programs.closures import closure
from programs.structures import leapfrog

from batchnuts.autobatch import (
    AssertOp,
    Block,
    BranchOp,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    ProgramTextError,
    PushGotoOp,
    PushOp,
    TensorType,
    VariableAllocation,
    WriteRowOp,
    parse,
    show_program,
)
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir.printer import show_type
from batchnuts.autobatch.ir.program import COPY
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.pipeline import compile_function
from batchnuts.autobatch.runtime import stackless, virtual_machine
from batchnuts.autobatch.text.types import parse_type
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts

NUMPY = get_backend("numpy", "eager")


def after_every_pass(function: Any, types: tuple[Any, ...], backend: Any = NUMPY) -> dict[str, Program]:
    found: dict[str, Program] = {}
    compile_function(function, types, backend, found.__setitem__)
    return found


@cache
def compiled(name: str) -> Any:
    case = BY_NAME[name]
    return compile_function(case.function, case.function.lane_types(case.inputs), NUMPY)


def assert_round_trip(program: Program) -> None:
    text = show_program(program)
    for parsed in (parse(text), parse(text, like=program)):
        assert parsed == program
        assert program == parsed
        assert show_program(parsed) == text


# ---- round trips ----------------------------------------------------------------------------------------------------


@covering_by_default()
def test_every_pass_of_every_program_reads_back(case: Case) -> None:
    programs = after_every_pass(case.function, case.function.lane_types(case.inputs))
    assert len(programs) >= 9
    for program in programs.values():
        assert_round_trip(program)


def test_every_pass_of_nuts_reads_back() -> None:
    nuts = make_nuts(gaussian_primitive(10, "float32")[0], NutsOptions())
    vector = "float32[10]"
    types = (*map(as_type, ("uint32[2]", vector, "float32", vector, "float32", vector, "int64")), ())
    for program in after_every_pass(nuts, types, get_backend("tensorflow", "eager")).values():
        assert_round_trip(program)


ALL_ARGUMENTS = tuple(
    c for c in CASES if len(inspect.signature(c.function.python_function).parameters) == len(c.inputs)
)


@covering_by_default(ALL_ARGUMENTS)
def test_a_parsed_program_runs_with_the_functions_of_the_original(case: Case) -> None:
    """Both executable forms, read back, give what the originals give."""
    forms = compiled(case.name)
    leaves = [np.asarray(leaf) for value in case.inputs for leaf in flatten(value)[0]]
    lanes = max(leaf.shape[0] for leaf in leaves)
    leaves = [np.broadcast_to(leaf, (lanes, *leaf.shape[1:])) for leaf in leaves]
    with_calls = parse(show_program(forms.with_calls), like=forms.with_calls)
    lowered = parse(show_program(forms.lowered), like=forms.lowered)
    wanted = virtual_machine.execute(forms.lowered, NUMPY, *leaves)
    for found in (
        stackless.execute(with_calls, NUMPY, None, *leaves),
        virtual_machine.execute(lowered, NUMPY, *leaves),
    ):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_structures_get_their_classes_from_the_program() -> None:
    program = after_every_pass(leapfrog, leapfrog.lane_types(BY_NAME["leapfrog"].inputs))["infer_types"]
    text = show_program(program)
    structured = [v for v, t in program.var_defs.items() if type(t).__name__ == "Point"]
    assert structured
    known, unknown = parse(text, like=program), parse(text)
    for variable in structured:
        assert type(known.var_defs[variable]) is type(program.var_defs[variable])
        assert type(unknown.var_defs[variable]) is not type(program.var_defs[variable])
    namespace = {"Point": type(program.var_defs[structured[0]])}
    assert type(parse_type(show_type(program.var_defs[structured[0]]), namespace)) is namespace["Point"]


def constant(value: int) -> PrimOp:
    """x = {value}, where the text does not say what `value` is."""
    return PrimOp(("x",), Primitive("value", lambda: (np.int64(value),)), ())


def test_primitives_that_read_alike_and_differ_are_numbered() -> None:
    one, two, again = constant(1), constant(2), constant(1)
    assert one == two == again
    block = Block("main.entry", (one, PrimOp(("y",), COPY, ("x",)), two, again), IndirectGotoOp())
    types = dict.fromkeys("xyn", TensorType("int64"))
    program = Program(ControlFlowGraph((block,)), (), ("n",), ("y", "x"), types)
    text = show_program(program)
    lines = [line.strip() for line in text.splitlines() if "{value}" in line]
    assert lines == ["x = {value}", "x = {value} [variant 2]", "x = {value}"]
    assert_round_trip(program)
    parsed = parse(text, like=program)
    assert [op.function.call() for op in parsed.graph.blocks[0].ops if op.function.text == "value"] == [
        (1,),
        (2,),
        (1,),
    ]
    ambiguous = text.replace("y = copy x", "y = {value}")
    with pytest.raises(ProgramTextError, match=r"\{value\} stands for 2 different functions"):
        parse(ambiguous, like=program)
    with pytest.raises(ProgramTextError, match="found variant 3, which the program given as `like` lacks"):
        parse(text.replace("variant 2", "variant 3"), like=program)


def test_equal_primitives_of_the_corpus_need_no_numbers() -> None:
    for function, types in ((keyword_arguments, ("float64",) * 2), (fibonacci, ("int64",))):
        for program in after_every_pass(function, tuple(map(as_type, types))).values():
            assert "[variant" not in show_program(program)


def test_a_copy_of_ones_own_is_not_the_irs_copy() -> None:
    own = PrimOp(("y",), Primitive("copy", lambda x: (x,)), ("x",))
    program = Program(ControlFlowGraph((Block("main.entry", (own,), IndirectGotoOp()),)), (), ("x",), ("y",))
    assert "y = {copy} x" in show_program(program)
    (op,) = parse(show_program(program)).graph.blocks[0].ops
    assert op.function is not COPY


# ---- random programs, as IR -----------------------------------------------------------------------------------------

texts = st.text(max_size=8) | st.sampled_from(["n - 1", "{'a': x}", "'}'", "f'{x}'", "\\", "{", "}{", "", "a # b"])
names = st.text(max_size=3) | st.sampled_from(
    ["x", "f.n", "f._1", "f.return", "a b", "", "in", "variables", "copy", "push", "@", "#", "f#2", "=", "é"]
)
some_names = st.lists(names, max_size=3).map(tuple)
tensors = st.builds(
    TensorType,
    st.sampled_from(["bool", "int64", "uint32", "float32", "bfloat16", "complex128"]),
    st.lists(st.integers(0, 12), max_size=3).map(tuple),
    st.booleans(),
)
types = st.recursive(
    tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=4,
)


def without_code(*_: Any) -> Any:
    raise AssertionError("not run here")


primitives = st.just(COPY) | st.builds(Primitive, texts, st.just(without_code), st.booleans(), st.booleans())


@st.composite
def primitive_ops(draw: Any) -> PrimOp:
    function = draw(primitives)
    ins = draw(some_names)
    outs = draw(st.tuples(*[names] * len(ins))) if function is COPY else draw(some_names)
    return PrimOp(outs, function, ins)


ops = (
    primitive_ops()
    | st.builds(WriteRowOp, names, names, names, names)
    | st.builds(AssertOp, names, st.text(max_size=8))
    | st.builds(FunctionCallOp, some_names, names, some_names)
    | st.builds(PushOp, names)
    | st.builds(PopOp, names)
)
terminators = (
    st.builds(GotoOp, names)
    | st.builds(BranchOp, names, names, names)
    | st.builds(PushGotoOp, names, names)
    | st.just(IndirectGotoOp())
)
blocks = st.builds(
    Block, names, st.lists(ops, max_size=4).map(tuple), terminators, st.sampled_from(["main", "f", "a b"])
)
graphs = st.builds(ControlFlowGraph, st.lists(blocks, min_size=1, max_size=3).map(tuple))
functions = st.lists(
    st.builds(Function, names.filter(lambda name: name != "main"), some_names, some_names, graphs),
    max_size=2,
    unique_by=lambda f: f.name,
).map(tuple)
programs = st.builds(
    Program,
    graphs,
    functions,
    some_names,
    some_names,
    st.dictionaries(names, types, max_size=3),
    st.dictionaries(names, st.sampled_from(VariableAllocation), max_size=3),
    st.dictionaries(names, names, max_size=3),
)


@examples(100)
@given(programs)
def test_any_program_reads_back(program: Program) -> None:
    assert_round_trip(program)


# ---- programs written as text ---------------------------------------------------------------------------------------

FACTORIAL = """
# n!, by recursion
main(x) -> y
  main.entry:
    y = call f x
    return

f(f.n) -> f.result
  f.entry:
    f.base = {n < one} f.n
    branch f.base f.one f.more
  f.one:
    f.result = {numpy.int64(1)}    # the base case
    return
  f.more:
    f.less = {n - one} f.n
    f.rest = call f f.less
    f.result = {n * rest} f.n, f.rest
    return

variables
  x: int64
  y: int64
  f.n: int64
  f.base: bool[]
  f.less: int64
  f.rest: int64
  f.result: int64
"""


def test_text_runs_with_a_namespace() -> None:
    program = parse(FACTORIAL, namespace={"one": 1, "numpy": np})
    (found,) = stackless.execute(program, NUMPY, None, np.array([0, 1, 5, 3]))
    np.testing.assert_array_equal(found, [1, 1, 120, 6])


def test_text_without_code_says_so_when_run() -> None:
    program = parse(FACTORIAL)
    with pytest.raises(ProgramTextError, match=r"the primitive \{n < one\} was read from text.*namespace="):
        stackless.execute(program, NUMPY, None, np.array([0, 1]))


def test_an_op_that_is_new_is_compiled_and_the_others_are_taken_over() -> None:
    program = compiled("closure").lowered
    text = show_program(program)
    old = next(op for b in program.graph.blocks for op in b.ops if isinstance(op, PrimOp) and op.function is not COPY)
    changed = text.replace("{" + old.function.text + "}", "{0 * scale}", 1)
    assert changed != text
    with pytest.raises(ProgramTextError, match=r"found the primitive \{0 \* scale\}, which the program"):
        parse(changed, like=program)
    parsed = parse(changed, like=program, namespace={"scale": 2})
    functions = [op.function for b in parsed.graph.blocks for op in b.ops if isinstance(op, PrimOp)]
    assert next(f for f in functions if f.text == "0 * scale").call(*[1] * len(old.vars_in)) == (0,)
    assert closure.__name__ in text


def test_a_callables_name_calls_it_with_the_inputs() -> None:
    text = "main(a, b) -> c, d\n  main.entry:\n    c, d = {both} [batched] b, a\n    return\n"
    (op,) = parse(text, namespace={"both": lambda x, y: (x + y, x - y)}).graph.blocks[0].ops
    assert op.function.batched
    assert op.function.call(5, 3) == (8, 2)
    (op,) = parse(text, namespace={"both": lambda x, y: (x,)}).graph.blocks[0].ops
    with pytest.raises(ValueError, match=r"\{both\} must give 2 results"):
        op.function.call(5, 3)


MAIN = "main(x) -> y\n  main.entry:\n"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "found the end of the line, expected a function"),
        ("f(x) -> y\n  e:\n    return\n", "1:1", "found function 'f', expected 'main'"),
        ("main(x) y\n", "1:9", "found 'y', expected '->'"),
        ("main(x) -> y\n", "1:13", "found the end of the text, expected the first block of function 'main'"),
        ("main(x) -> y\n  push x\n", "2:3", "found 'push', expected a block's label and a colon"),
        (MAIN + "    push x\n", "3:11", "found the end of the text, expected the terminator of block 'main.entry'"),
        (MAIN + "  main.next:\n    return\n", "3:3", "found 'main.next', expected the terminator"),
        (MAIN + "    psh x\n", "3:5", "found 'psh', expected an op, a terminator"),
        (MAIN + "    push\n", "3:9", "found the end of the line, expected a variable"),
        (MAIN + "    push x y\n", "3:12", "found 'y', expected the end of the line"),
        (MAIN + "    y = add x\n", "3:9", "found 'add', expected a primitive in braces, copy, call or write"),
        (MAIN + "    y = {x + 1 x\n", "3:9", "this brace is not closed"),
        (MAIN + "    y = {x \\q 1} x\n", "3:12", "write a backslash within braces twice"),
        (MAIN + "    y = {x} [quick] x\n", "3:14", "found 'quick', expected the mark batched, costly or variant"),
        (MAIN + "    y = {x} [variant two] x\n", "3:14", "found variant 'two', expected a number"),
        (MAIN + "    y, z = copy x\n", "3:12", "found a copy from 1 variables to 2"),
        (MAIN + "    y = write x, x\n", "3:5", "expected x = write buffer, index, value"),
        (MAIN + "    assert x because\n", "3:14", "found 'because', expected the message, in quotes"),
        (MAIN + "    assert x 'no end\n", "3:14", "this string does not end"),
        (MAIN + "    branch x main.entry\n", "3:24", "found the end of the line, expected the label if it is false"),
        (MAIN + "    y = copy x-1\n", "3:15", "found '-'; put names with such characters in quotes"),
        (MAIN + "    return\n  y\n", "4:3", "found 'y', expected a block's label and a colon"),
        (MAIN + "    return\nmain(x) -> y\n", "4:1", "function 'main' is declared here a second time"),
        (MAIN + "    return\nvariables\n  x: int65[]\n", "5:6", "found 'int65', expected a dtype"),
        (MAIN + "    return\nvariables\n  x: int64[n]\n", "5:12", "found 'n', expected a whole number"),
        (MAIN + "    return\nvariables\n  x: int64[2 3]\n", "5:14", "found '3', expected ',' or ']'"),
        (MAIN + "    return\nvariables\n  x: Point(float64)\n", "5:19", r"found '\)', expected ':'"),
        (MAIN + "    return\nvariables\n  x: int64[] stack\n", "5:14", "found 'stack', expected null, temporary"),
        (MAIN + "    return\nvariables\n  x: bool\n  x: bool\n", "6:3", "variable 'x' is declared here a second time"),
    ],
)
def test_parse_errors_name_the_place(text: str, place: str, message: str) -> None:
    with pytest.raises(ProgramTextError, match=message) as raised:
        parse(text)
    first, *_ = str(raised.value).splitlines()
    assert first == f"<program text>:{place}"


@pytest.mark.parametrize(
    ("primitive", "message"),
    [
        ("{x +} x", "no Python expression"),
        ("{x + k} x", "names 'k', which is neither the end of one of the variables"),
        ("{x + x} a.x, b.x", "reads variables whose names end alike"),
        ("{x} [variant 2] x", "found variant 2"),
    ],
)
def test_what_cannot_be_compiled_is_refused_at_its_place(primitive: str, message: str) -> None:
    with pytest.raises(ProgramTextError, match=rf"(?s)<program text>:3:9\n.*{message}"):
        parse(MAIN + f"    y = {primitive}\n    return\n", namespace={})


def test_the_caret_is_under_the_column() -> None:
    with pytest.raises(ProgramTextError) as raised:
        parse(MAIN + "    push x y\n")
    place, line, caret, message = str(raised.value).splitlines()
    assert line[caret.index("^")] == "y"
    assert place.endswith(":3:12")
    assert message.startswith("found")
