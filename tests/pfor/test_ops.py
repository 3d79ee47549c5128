"""Every converter against the sequential loop: all choices of which inputs vary, several dtypes and shapes.

The same under XLA is marked slow: `pytest -m slow tests/pfor`.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import cases_arrays
import cases_elementwise
import cases_matrices
import numpy as np
import pytest
import tensorflow as tf
import test_random
from op_cases import Case

from batchnuts.autobatch.pfor import REGISTRY, pfor

ITERATIONS = 3
CASES: list[Case] = [*cases_elementwise.CASES, *cases_arrays.CASES, *cases_matrices.CASES]


def one_of_each() -> Iterator[Any]:
    """Of an op's elementwise cases one, the first or another from op to op, and all others; the rest is marked slow."""
    number_of = Counter(case.op for case in cases_elementwise.CASES)
    chosen = {op: turn % number for turn, (op, number) in enumerate(number_of.items())}
    seen: Counter[str] = Counter()
    for number, case in enumerate(CASES):
        left_out = number < len(cases_elementwise.CASES) and seen[case.op] != chosen[case.op]
        seen[case.op] += 1
        yield pytest.param(case, marks=[pytest.mark.slow] if left_out else [])


def drawn(case: Case, dtype: str) -> list[np.ndarray]:
    """For each input, a row for every iteration."""
    rng = np.random.default_rng(zlib.crc32(f"{case.op} {dtype}".encode()))
    found = []
    for given in case.given:
        rows = np.stack([given.draw(rng, given.shape) for _ in range(ITERATIONS)])
        found.append(rows.astype(given.dtype or dtype))
    return found


def choices(case: Case) -> list[tuple[bool, ...]]:
    """Which inputs vary: all combinations, but that none does."""
    options = [(False,) if given.steady else (True, False) for given in case.given]
    return [choice for choice in itertools.product(*options) if any(choice)]


def body_of(case: Case, dtype: str) -> Any:
    """One iteration: the op's outputs for every choice of inputs that vary."""
    rows = [tf.constant(value) for value in drawn(case, dtype)]

    def body(i: Any) -> list[Any]:
        outputs = []
        for choice in choices(case):
            tensors = [tf.gather(value, i) if varies else value[1] for value, varies in zip(rows, choice)]
            outputs += case.call(tensors, dtype)
        return outputs

    return body


def assert_close(found: list[Any], expected: list[list[Any]], ulps: int) -> None:
    for k, tensor in enumerate(found):
        wanted = np.stack([np.asarray(row[k]) for row in expected])
        got = np.asarray(tensor)
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        if np.issubdtype(got.dtype, np.inexact):
            step = np.finfo(got.dtype).eps * ulps
            largest = np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted))
            np.testing.assert_allclose(got, wanted, rtol=step, atol=step * max(largest, 1e-300))
        else:
            np.testing.assert_array_equal(got, wanted)


def name(case: Case) -> str:
    return f"{case.op}-{'x'.join(str(given.shape).replace(' ', '') for given in case.given)}"


def in_one_loop(cases: list[tuple[Case, tuple[str, ...]]]) -> list[list[list[Any]]]:
    """For each case and each of these dtypes, the outputs of all iterations of a vectorized loop."""
    bodies = [[body_of(case, dtype) for dtype in dtypes] for case, dtypes in cases]
    found: list[list[list[Any]]] = pfor(lambda i: [[body(i) for body in of_case] for of_case in bodies], ITERATIONS)
    return found


TOGETHER = 12
ONE_OF_EACH = list(one_of_each())
BY_DEFAULT = [parameter.values[0] for parameter in ONE_OF_EACH if not parameter.marks]
PLACES = {id(case): place for place, case in enumerate(BY_DEFAULT)}


def dtypes_by_default(case: Case) -> tuple[str, ...]:
    """Of dtypes that differ in their precision alone one, the first or another from case to case; else all."""
    kinds = {dtype.rstrip("0123456789") for dtype in case.dtypes}
    return case.dtypes if len(kinds) > 1 else (case.dtypes[PLACES[id(case)] % len(case.dtypes)],)


LOOPS: dict[int, list[list[list[Any]]] | None] | None = None
"""By number: the results of `TOGETHER` cases of `BY_DEFAULT`; None where one of them raises or warns."""


@pytest.fixture(autouse=True, scope="module")
def several_cases_in_a_loop() -> Iterator[None]:
    """While pytest runs this file: where tests of mutants call a test of it, the case is alone, and nothing is kept."""
    global LOOPS
    LOOPS = {}
    yield
    LOOPS = None


def with_its_neighbours(number: int) -> list[list[list[Any]]] | None:
    if LOOPS is None or number < 0:
        return None
    if number not in LOOPS:
        try:
            cases = BY_DEFAULT[number * TOGETHER : (number + 1) * TOGETHER]
            LOOPS[number] = in_one_loop([(case, dtypes_by_default(case)) for case in cases])
        except Exception:
            LOOPS[number] = None
    return LOOPS[number]


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=name)
def test_as_the_sequential_loop(case: Case) -> None:
    """Many in one loop, which takes longer to make than an op to convert; alone, if one of those raises."""
    number, place = divmod(PLACES.get(id(case), -1), TOGETHER)
    neighbours = with_its_neighbours(number)
    if neighbours is None:
        compare_with_the_loop(case, case.dtypes, in_one_loop([(case, case.dtypes)])[0])
    else:
        compare_with_the_loop(case, dtypes_by_default(case), neighbours[place])


def compare_with_the_loop(case: Case, dtypes: tuple[str, ...], found: list[list[Any]]) -> None:
    for dtype, results in zip(dtypes, found, strict=True):
        body = body_of(case, dtype)
        assert_close(results, [body(tf.constant(i)) for i in range(ITERATIONS)], case.ulps)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("case", [case for case in BY_DEFAULT if dtypes_by_default(case) != case.dtypes], ids=name)
def test_as_the_sequential_loop_in_the_other_dtypes(case: Case) -> None:
    dtypes = tuple(dtype for dtype in case.dtypes if dtype not in dtypes_by_default(case))
    compare_with_the_loop(case, dtypes, in_one_loop([(case, dtypes)])[0])


OTHER_DTYPES = ("complex64", "complex128", "float16", "bfloat16", "uint8", "int16", "int64", "bool")
FAMILIES = sorted({REGISTRY[case.op].family for case in CASES})


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(family, dtype, marks=[] if (family, dtype) == ("reductions", "complex64") else [pytest.mark.slow])
        for family in FAMILIES
        for dtype in OTHER_DTYPES
    ],
)
def test_dtypes_are_those_of_the_sequential_loop(family: str, dtype: str) -> None:
    """Also those that an op has no case of: a converter that computes by other ops must keep them."""
    compared = 0
    for case in CASES:
        if REGISTRY[case.op].family != family or dtype in case.dtypes or case.function is not None:
            continue
        body = varying_body(case, dtype)
        try:
            one = tf.function(body, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int32))
        except (TypeError, ValueError):
            continue  # the op is not of this dtype
        found = tf.function(lambda body=body: pfor(body, ITERATIONS), autograph=False).get_concrete_function()
        assert [tensor.dtype for tensor in found.outputs] == [tensor.dtype for tensor in one.outputs], name(case)
        compared += 1
    assert compared


def varying_body(case: Case, dtype: str) -> Any:
    """One iteration, in which all inputs vary that may, in a dtype that the case need not have."""
    real = [value if dtype.startswith("complex") else value.real for value in drawn(case, "complex128")]
    rows = [tf.cast(tf.constant(value), given.dtype or dtype) for value, given in zip(real, case.given)]
    varying = choices(case)[0]
    return lambda i: case.call([tf.gather(row, i) if varies else row[1] for row, varies in zip(rows, varying)], dtype)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("case", [case for case in CASES if case.xla], ids=name)
def test_as_the_sequential_loop_under_xla(case: Case) -> None:
    body = body_of(case, case.dtypes[0])
    one = tf.function(body, jit_compile=True, autograph=False)
    rows = [one(tf.constant(i)) for i in range(ITERATIONS)]
    all_at_once = tf.function(lambda: pfor(body, ITERATIONS), jit_compile=True, autograph=False)
    assert_close(all_at_once(), rows, case.ulps)


ELSEWHERE = {"branches", "loops", "lists", "state"}
"""Families of ops that have no case here, but tests of their own."""
NOT_HERE = {*test_random.STATEFUL, "XlaDynamicUpdateSlice"}
"""Ops that draw; and one that only XLA has, in test_slices."""
COMPARED = {
    op
    for op, converter in REGISTRY.items()
    if converter.family not in ELSEWHERE and not (converter.varying == "none" or op in NOT_HERE)
}


def test_every_converter_has_a_case() -> None:
    assert {case.op for case in CASES} == COMPARED
    assert len(COMPARED) >= 300


def test_what_the_registry_says_of_xla_is_so_of_the_cases() -> None:
    assert {case.op for case in CASES if not case.xla} == {op for op in COMPARED if not REGISTRY[op].xla}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if not case.xla], ids=name)
def test_xla_lacks_what_it_is_said_to_lack(case: Case) -> None:
    one = tf.function(body_of(case, case.dtypes[0]), jit_compile=True, autograph=False)
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)):
        one(tf.constant(0))
