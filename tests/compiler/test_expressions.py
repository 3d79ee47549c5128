"""Primitives as data: what is recorded, what is folded, and that it computes what the functions do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax
from programs import BY_NAME, CASES, Case

from batchnuts.autobatch import TensorType, batch, ops, parse, primitive, random, show_program
from batchnuts.autobatch.backends.expression_work import work_of
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir import verify
from batchnuts.autobatch.ir.evaluate import as_function
from batchnuts.autobatch.ir.expression import Constant, Expression, Node, Ref, operands, show_expression
from batchnuts.autobatch.ir.program import COPY, PrimOp, Program
from batchnuts.autobatch.passes.fold_expressions import folded
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts

NUMPY = get_backend("numpy", "eager")
INT, FLOAT, BOOL = TensorType("int64"), TensorType("float64"), TensorType("bool")


def primitives(program: Program) -> Iterator[PrimOp]:
    for function in program.all_functions():
        for block in function.graph.blocks:
            yield from (op for op in block.ops if isinstance(op, PrimOp) and op.function is not COPY)


def lowered(case: Case) -> Program:
    return case.function.compiled(case.function._bind(case.inputs, {}).types, NUMPY).lowered


def only_op(function: Any, *types: str) -> PrimOp:
    """The one primitive that is left of a function."""
    (op,) = primitives(function.lowered(*types, backend="numpy"))
    return op


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_consists_of_the_language_is_data(case: Case) -> None:
    for op in primitives(lowered(case)):
        assert (op.function.body is not None) == op.function.recordable or not op.vars_in, op


def stand_ins(rng: Any, type_: TensorType) -> Any:
    """Values of a type: small ones, so that they can be indices."""
    if type_.dtype == "bool":
        return rng.integers(0, 2, type_.shape).astype(bool)[()]
    return rng.integers(-2 * (type_.dtype[0] != "u"), 4, type_.shape).astype(type_.dtype)[()]


@pytest.mark.parametrize("library", ["numpy", pytest.param("jax", marks=needs_jax), "tensorflow"])
def test_expressions_compute_what_the_functions_do(library: str) -> None:
    """Of every primitive of the corpus, with the same bits: they call the same functions of the library."""
    rng = np.random.default_rng(0)
    seen: set[Expression] = set()
    asarray, wide = {"numpy": in_numpy, "jax": in_jax, "tensorflow": in_tensorflow}[library]()
    for case in CASES if library == "numpy" else CASES[::8]:
        for op in primitives(lowered(case)):
            body = op.function.body
            if body is None or body in seen or not body.inputs:
                continue
            seen.add(body)
            values = [asarray(stand_ins(rng, type_)) for type_ in body.inputs]
            try:
                with np.errstate(all="ignore"):
                    expected = wide(op.function.call)(*values)
            except Exception as error:
                if type(error).__name__ in ("IndexError", "InvalidArgumentError"):  # which no program would ask for
                    continue
                raise
            for given, wanted, output in zip(wide(as_function(body))(*values), expected, body.outputs, strict=True):
                assert str(np.asarray(given).dtype) == body.type_of(output).dtype, op
                np.testing.assert_array_equal(np.asarray(given), np.asarray(wanted), str(op))
    assert len(seen) > (400 if library == "numpy" else 50)


def in_numpy() -> tuple[Any, Any]:
    """What makes an array, and what functions of these run with."""
    return (lambda x: x), (lambda function: function)


def in_jax() -> tuple[Any, Any]:
    import jax

    from batchnuts.autobatch.language.libraries.jax import with_64_bits

    return with_64_bits(jax.numpy.asarray), with_64_bits


def in_tensorflow() -> tuple[Any, Any]:
    import tensorflow as tf

    return tf.constant, (lambda function: function)


def test_of_nuts_only_the_gradient_stays_a_function() -> None:
    @primitive(costly=True)
    def value_and_gradient(x: Any, data: Any = ()) -> Any:
        return -0.5 * ops.sum(x * x), -x

    scalar, vector = TensorType("float32"), TensorType("float32", (10,))
    types = (TensorType("uint32", (2,)), vector, scalar, vector, scalar, vector, TensorType("int64"))
    program = make_nuts(value_and_gradient, NutsOptions()).lowered(*types, backend="numpy")
    assert {op.function.text for op in primitives(program) if op.function.body is None} == {"value_and_gradient"}
    bodies = [op.function.body for op in primitives(program) if op.function.body is not None]
    assert sum(len(body.nodes) for body in bodies) < 500
    assert "kernel" in {node.function for body in bodies for node in body.nodes}


def test_what_stays_a_function() -> None:
    """What calls others, is costly, has no rule, or holds a large array."""

    def helper(x: Any) -> Any:
        return np.add(x, 1)

    @primitive(costly=True)
    def declared(m: Any) -> Any:
        return ops.sum(m)

    table = np.zeros(2**18)

    @batch
    def calls_others(x, matrix):
        return helper(x)

    @batch
    def has_no_rule(x, matrix):
        return ops.cholesky(matrix)

    @batch
    def holds_much(x, matrix):
        return table[x]

    @batch
    def is_costly(x, matrix):
        return declared(matrix)

    for function in (calls_others, has_no_rule, holds_much, is_costly):
        bodies = [op.function.body for op in primitives(function.lowered("int64", "float64[2,2]", backend="numpy"))]
        assert None in bodies, function.__name__


FOLDED = {
    "a number is its own sum": (
        (BOOL,),
        (Node("all", (Ref(0), None, False), (BOOL,)),),
        (Ref(1),),
        ["=> %0"],
    ),
    "constants": (
        (INT,),
        (
            Node("add", (Constant.of(np.int64(2)), Constant.of(np.int64(3))), (INT,)),
            Node("add", (Ref(0), Ref(1)), (INT,)),
        ),
        (Ref(2),),
        ["%1 = add(%0, int64 5) : int64[]", "=> %1"],
    ),
    "no constants that libraries round differently": (
        (FLOAT,),
        (Node("exp", (Constant.of(1.0),), (FLOAT,)),),
        (Ref(1), Ref(0)),
        ["%1 = exp(float64 1.) : float64[]", "=> %1, %0"],
    ),
    "twice the same": (
        (INT,),
        (
            Node("negative", (Ref(0),), (INT,)),
            Node("negative", (Ref(0),), (INT,)),
            Node("multiply", (Ref(1), Ref(2)), (INT,)),
        ),
        (Ref(3),),
        ["%1 = negative(%0) : int64[]", "%2 = multiply(%1, %1) : int64[]", "=> %2"],
    ),
    "what nothing reads": (
        (INT,),
        (Node("negative", (Ref(0),), (INT,)), Node("abs", (Ref(0),), (INT,)), Node("square", (Ref(1),), (INT,))),
        (Ref(2),),
        ["%1 = abs(%0) : int64[]", "=> %1"],
    ),
    "a value everywhere": (
        (TensorType("int64", (3,)),),
        (Node("full_like", (Ref(0), Constant.of(np.int64(1))), (TensorType("int64", (3,)),)),),
        (Ref(1),),
        ["=> int64 [1,1,1]"],
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folding(name: str) -> None:
    inputs, nodes, outputs, expected = FOLDED[name]
    before = Expression(inputs, nodes, outputs)
    after = folded(before)
    assert show_expression(after) == expected
    values = [np.ones(type_.shape, type_.dtype)[()] for type_ in inputs]
    for one, other in zip(as_function(before)(*values), as_function(after)(*values), strict=True):
        np.testing.assert_array_equal(one, other)


def test_work_is_counted_in_nodes() -> None:
    @batch
    def f(matrix, x):
        return ops.sum(ops.matmul(matrix, x) * 2.0)

    body = only_op(f, "float64[5,7]", "float64[7]").function.body
    assert body is not None
    assert work_of(body) == 35 + 5 + 5
    assert (body.products, body.elements) == (35, 5 + 5 + 1)

    @batch
    def words(key):
        return random.bits(key, 10)

    body = only_op(words, "uint32[2]").function.body
    assert body is not None
    assert 5 * 20 * 3 < work_of(body) < 5 * 20 * 10, "20 rounds on five blocks"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda body: replace(body, inputs=(FLOAT,)), "takes"),
        (lambda body: replace(body, outputs=(Constant.of(1.0),)), "gives"),
        (lambda body: replace(body, nodes=(replace(body.nodes[0], arguments=(Ref(1), Ref(1))),)), "reads %1"),
    ],
    ids=["inputs", "results", "later values"],
)
def test_the_verifier_reads_bodies(change: Any, match: str) -> None:
    @batch
    def f(n):
        return n + n

    program = f.lowered("int64", backend="numpy")
    (block,) = program.graph.blocks
    ops_ = tuple(
        replace(op, function=replace(op.function, body=change(op.function.body)))
        if isinstance(op, PrimOp) and op.function is not COPY
        else op
        for op in block.ops
    )
    broken = program.replace(graph=replace(program.graph, blocks=(replace(block, ops=ops_),)))
    verify.check_expressions(program)
    with pytest.raises(verify.MalformedProgramError, match=match):
        verify.check_expressions(broken)


def test_bodies_are_comments_of_the_text() -> None:
    program = lowered(BY_NAME["gcd"])
    text = show_program(program, expressions=True)
    assert "# %5 = " in text or "# %4 = " in text
    assert parse(text, like=program) == program


# ---- what a review found


TABLE, BIG_ENDIAN = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0], ">f8")


@dataclasses.dataclass(frozen=True)
class AsksForItsKind:
    x: Any

    @property
    def scaled(self) -> Any:
        return self.x * 2 if isinstance(self.x, np.ndarray | np.generic) else self.x * 3


@dataclasses.dataclass(frozen=True)
class Numbered:
    x: Any
    number: Any = dataclasses.field(default_factory=lambda: 1.0)


@batch
def of_numpys_alone(x):
    a = -2.5
    b = TABLE
    c = b - 1.0
    return x + abs(a) + c[1]


@batch
def in_another_order_of_bytes(n):
    return BIG_ENDIAN[n]


@pytest.mark.parametrize("backend", ["numpy", pytest.param("jax", marks=needs_jax), "tensorflow"])
def test_constants_of_numpy(backend: str) -> None:
    """Ops that read NumPy's arrays alone are NumPy's, whatever library computes the rest."""
    x, n = np.array([1.0, 2.0]), np.array([0, 2])
    np.testing.assert_array_equal(of_numpys_alone.run(x, backend=backend), x + 3.5)
    np.testing.assert_array_equal(in_another_order_of_bytes.run(n, backend=backend), [1.0, 3.0])


def test_classes_that_run_code_are_no_data() -> None:
    """They may ask what kind of array they have, and number what they make."""

    @batch
    def scaled(p):
        return p.scaled

    @batch
    def numbered(x):
        return Numbered(x).x + 1.0

    np.testing.assert_array_equal(scaled.run(AsksForItsKind(TABLE), backend="numpy"), TABLE * 2)
    for function, argument in ((scaled, AsksForItsKind(TABLE)), (numbered, TABLE)):
        program = function.lowered(*function.lane_types((argument,)), backend="numpy")
        assert None in {op.function.body for op in primitives(program)}, function.__name__


def test_what_libraries_round_differently_is_not_folded() -> None:
    zeros = (Constant.of(0.0), Constant.of(-0.0))
    tiny = (Constant.of(1e-310), Constant.of(1e-310))
    for name, arguments in (("maximum", zeros), ("add", tiny), ("multiply", (Constant.of(1e-160),) * 2)):
        expression = Expression((), (Node(name, arguments, (FLOAT,)),), (Ref(0),))
        assert folded(expression) == expression
    assert Constant.of(0.0) != Constant.of(-0.0)
    assert Constant.of(np.nan) is Constant.of(np.nan)


def test_a_large_table_is_kept_and_printed_once() -> None:
    """The text of an op in an error has no constants in it."""
    table = np.arange(1e5)

    @batch
    def f(n):
        return table[n] + table[n + 1]

    ops_ = list(primitives(f.lowered("int64", backend="numpy")))
    read = [a for op in ops_ if op.function.body for node in op.function.body.nodes for a in operands(node.arguments)]
    tables = {id(a) for a in read if isinstance(a, Constant) and a.type.size == len(table)}
    assert len(tables) == 1
    assert all(len(repr(op)) < 2000 for op in ops_)
