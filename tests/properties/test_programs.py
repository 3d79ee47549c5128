"""Random programs, drawn as source text: all executors agree with plain Python, bit for bit.

`helpers/generator.py` writes them. Hypothesis shrinks an example that fails; the message then holds the whole program
and its inputs, ready to become a case of the corpus.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path
from random import Random
from typing import Any

import generator_of_numbers
import numpy as np
import pytest
from examples import examples
from from_source import load
from generator import lanes, program
from hypothesis import given
from hypothesis import strategies as st
from ways import NATIVE, ON_JAX, ON_NUMPY, ON_TENSORFLOW, ORACLE, Way

from batchnuts.autobatch.errors import BatchnutsError, LaneAssertionError, TypeConflictError
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.scheduling.policies import POLICIES, make_schedule

LANES = 4

randoms = st.randoms(use_true_random=False)

EAGER = tuple(way for way in ON_TENSORFLOW if not way.compiles)
COMPILED = tuple(way for way in (*ON_TENSORFLOW, *ON_JAX) if way.compiles)
JAX_EAGER = tuple(way for way in ON_JAX if not way.compiles)


def is_refused(function: Any, lane: tuple[Any, ...]) -> bool:
    """Whether plain Python refuses an index of the lane."""
    try:
        function.function(*lane)
    except (IndexError, ValueError) as error:
        if re.search("out of bounds|outside the buffer", str(error)):
            return True
        raise
    return False


def check(random: Random, *ways: Way) -> None:
    """What Python computes is found; lanes that it refuses for an index outside an array are named, and no others."""
    text = program(random, strays=random.random() < 0.3)
    inputs = lanes(random, LANES)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        function = load(Path(folder), text).main_program
        refused = [k for k, lane in enumerate(zip(*inputs)) if is_refused(function, lane)]
        for way in ways if refused else ():
            with pytest.raises(LaneAssertionError) as caught:
                function.run(*inputs, **way.options)
            pattern = rf"(?s).*lane {refused[0]}: .*\({len(refused)} of {LANES} lanes in all\)"
            assert re.match(pattern, str(caught.value)), (way, text, inputs)
        if len(refused) == LANES:
            return
        inputs = tuple(np.delete(values, refused, axis=0) for values in inputs)
        expected = function.run(*inputs, executor=ORACLE)
        for way in ways:
            found = function.run(*inputs, **way.options)
            message = f"{way}\n{text}\ninputs = {inputs}"
            assert flatten(found)[1] == flatten(expected)[1], message
            for a, b in zip(flatten(found)[0], flatten(expected)[0], strict=True):
                assert a.dtype == b.dtype, message
                np.testing.assert_array_equal(a, b, err_msg=message)


def keeps_signs_of_zeros(way: Way, text: str) -> bool:
    """XLA takes x + 0.0 for x, and so does TensorFlow's optimizer of graphs, also of the regions of mode eager."""
    optimized = way.backend == "tensorflow" and re.search(r"[+-] 0\.0\b|\b0\.0 [+-]", text)
    return way.mode != "xla" and not optimized


def same_number(a: Any, b: Any, signs: bool) -> bool:
    """Whether two scalars are one number, of whatever dtype, and have one sign even if they are zero."""
    a, b = np.asarray(a).item(), np.asarray(b).item()
    return (a != a and b != b) or (a == b and (not signs or bool(np.signbit(a) == np.signbit(b))))


def check_numbers(random: Random, *ways: Way) -> str:
    """Run a program of `generator_of_numbers` twice, around a change of its constants; how it ended.

    What Python computes is found, or the program is refused. What Python refuses is refused.
    """
    text = generator_of_numbers.program(random, divides=all(way.exact for way in ways))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # NumPy's scalars warn where arrays wrap in silence
        module = load(Path(folder), text)
        function = module.main_program
        inputs = generator_of_numbers.lanes(random, module.DTYPE, LANES)
        expected: list[Any] | None
        try:
            expected = [flatten(function.function(*lane))[0] for lane in zip(*inputs)]
        except (OverflowError, TypeConflictError):
            expected = None
        refused: set[Way] = set()
        for way in ways * 2:
            if way in refused:
                continue
            message = f"{way}\n{text}\ninputs = {inputs}"
            try:
                found = flatten(function.run(*inputs, **way.options))[0]
            except BatchnutsError:
                refused.add(way)
            else:
                signs = keeps_signs_of_zeros(way, text)
                assert expected is not None, f"Python refuses what ran: {message}"
                for k, leaves in enumerate(expected):
                    for a, b in zip(found, leaves, strict=True):
                        numbers = list(zip(np.ravel(a[k]), np.ravel(b), strict=True))
                        assert all(same_number(*pair, signs) for pair in numbers), f"{a[k]}, Python has {b}: {message}"
            if way == ways[-1]:  # all are compiled; what changes now reaches none of them
                module.change()
    return "refused" if refused else "ran"


@examples(7)
@given(randoms)
def test_numpy_agrees_with_plain_python(random: Random) -> None:
    """Each program in some of the ways, which it draws."""
    check(random, *random.sample(ON_NUMPY, 3))


@examples(6)
@given(randoms)
def test_machine_code_agrees_with_plain_python(random: Random) -> None:
    check(random, NATIVE)


@examples(8)
@given(randoms)
def test_machine_code_agrees_with_plain_python_at_the_edges_of_dtypes(random: Random) -> None:
    check_numbers(random, NATIVE)


@examples(10)
@given(randoms)
def test_numpy_agrees_with_plain_python_at_the_edges_of_dtypes(random: Random) -> None:
    check_numbers(random, *random.sample(ON_NUMPY, 2))


@examples(5)
@given(randoms)
def test_tensorflow_agrees_with_plain_python_at_the_edges_of_dtypes(random: Random) -> None:
    check_numbers(random, random.choice(EAGER))


@examples(1)
@given(randoms)
def test_tensorflow_agrees_with_plain_python(random: Random) -> None:
    check(random, *random.sample(EAGER, 2))


@examples(2)
@given(randoms)
def test_jax_agrees_with_plain_python(random: Random) -> None:
    """Also at the edges of dtypes."""
    check(random, random.choice(JAX_EAGER))
    check_numbers(random, random.choice(JAX_EAGER))


@examples(5)
@given(randoms)
def test_every_program_has_a_schedule_by_every_policy(random: Random) -> None:
    """Whatever its costly primitives compute."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        function = load(Path(folder), program(random)).main_program
        lowered = function.lowered(*function.lane_types(lanes(random, LANES)), backend="numpy")
    labels = lowered.graph.labels
    work = random.choice([None, 5.0, 5e6])
    for policy in POLICIES:
        assert set(make_schedule(lowered, policy, lambda: work).order) == set(labels)


@pytest.mark.slow
@pytest.mark.parametrize("way", COMPILED, ids=str)
@examples(1)
@given(randoms)
def test_compiled_modes_agree_with_plain_python(way: Way, random: Random) -> None:
    check(random, way)


def test_the_generator_writes_what_it_promises() -> None:
    """Among a hundred programs each feature is common, so that what is tested does not quietly shrink."""
    texts = [program(Random(seed)) for seed in range(100)]
    common = ("while ", "for ", "else:\n", "elif ", "left - 1)", "left - 2)", "return ", "write(", "_replace", "def f1")
    new = ("w[", "] = ", " += ", ":= ", "for e", "enumerate(", "zip(", "reversed(", "range(len(", "in (", "u = v\n")
    rare = (*new, "break", "continue", " and ", " or ", "not ", ".i", "(f0(", "f1(f", "if f")
    for features, minimum in ((common, 15), (rare, 3)):
        for feature in features:
            assert sum(feature in text for text in texts) >= minimum, feature
    assert sum("d[" in program(Random(seed), strays=True) for seed in range(100)) >= 60


def test_the_generator_of_numbers_writes_what_it_promises() -> None:
    texts = [generator_of_numbers.program(Random(seed)) for seed in range(100)]
    for feature in ("range(", "write(", " // ", " % ", " << ", "TABLE", "SETTINGS", "ops.sum(", " in (1", "result"):
        assert sum(feature in text for text in texts) >= 15, feature
    ended = [check_numbers(Random(seed), ON_NUMPY[0]) for seed in range(30)]
    assert ended.count("ran") >= 8


def test_the_generator_repeats_itself() -> None:
    assert program(Random(5)) == program(Random(5))
