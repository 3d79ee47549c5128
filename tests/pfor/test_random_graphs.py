"""Whole bodies, drawn at random: ops from a table of signatures, inputs that vary or do not, against the sequential
loop.

A contrast taken over all rows (mutant `a_contrast_of_all_rows`) is shown by 42 of 3,000 bodies of TABLE, and by none of
the 37 that slow tests draw: 3 in 100 have the op, and of these, some one row, an image that all rows share, or a later
value of its kind, the only one that was compared. So ops whose converters merge rows have bodies of their own, of two
or three rows, which differ, with each of these ops at each rank, and all values compared: eight such bodies show it for
20 seeds of 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from examples import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from op_cases import Case
from test_merged_rows import COMPARED, OPS
from test_ops import drawn

from batchnuts.autobatch.pfor import REGISTRY, pfor

ITERATIONS = 4
_rng = np.random.default_rng(7)
# what a body has from the start, by kind: scalars, vectors, matrices, images, indices, conditions; a row for every
# iteration
START = {
    "s": tf.constant(_rng.normal(size=(ITERATIONS,))),
    "v": tf.constant(_rng.normal(size=(ITERATIONS, 3))),
    "m": tf.constant(_rng.normal(size=(ITERATIONS, 3, 3))),
    "c": tf.constant(_rng.normal(size=(ITERATIONS, 3, 3, 3))),
    "i": tf.constant(_rng.integers(0, 3, size=(ITERATIONS, 3)), tf.int32),
    "b": tf.constant(_rng.random(size=(ITERATIONS, 3)) < 0.5),
}


@dataclass(frozen=True)
class Entry:
    """An op of the table: the kinds of what it takes and gives. All values stay bounded, so that errors do too."""

    op: str
    takes: str
    gives: str
    call: Callable[..., Any]


def _bounded(x: Any) -> Any:
    return tf.sin(x)


def _spd(m: Any) -> Any:
    return tf.linalg.matmul(m, m, transpose_b=True) + 3.0 * tf.eye(3, dtype=m.dtype)


def _loop(v: Any, i: Any) -> Any:
    return tf.while_loop(lambda k, x: k < i[0], lambda k, x: (k + 1, tf.sin(x) + 0.5), (0, v))[1]


def _lists(v: Any) -> Any:
    return tf.scan(lambda carry, x: 0.5 * carry + x, v)


def _of_image(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of images in [0, 1], which TensorFlow has in float32, rounded so that a sum in another order gives the
    same."""

    def called(x: Any) -> Any:
        found = tf.cast(function(tf.cast(tf.sigmoid(x), tf.float32)), tf.float64)
        return tf.round(256.0 * found) / 256.0

    return called


def _filtered(x: Any) -> Any:
    return tf.nn.conv2d(x[None], tf.ones([2, 2, 3, 3], x.dtype) / 12.0, 1, "SAME")[0]


def _raw_entries(ops: str, names: str, *kinds: str) -> list[Entry]:
    """Ops of tf.raw_ops, for kinds of operands; what they give is of the kind of the last."""

    def call(op: str) -> Callable[..., Any]:
        return lambda *operands: getattr(tf.raw_ops, op)(**dict(zip(names, operands, strict=True)))

    return [Entry(op, taken, taken[-1], call(op)) for op in ops.split() for taken in kinds]


def _reduced(op: str, function: Callable[..., Any], axis: int) -> Entry:
    return Entry(op, "m", "v", lambda x: function(x, axis=axis))


_UNARY = "Abs Neg Sin Cos Tanh Sigmoid Sign Square Floor Ceil Rint Atan Asinh Erf OnesLike ZerosLike"
_FEATURES = {
    "Relu": tf.nn.relu,
    "Elu": tf.nn.elu,
    "Selu": tf.nn.selu,
    "Softplus": tf.nn.softplus,
    "Softsign": tf.nn.softsign,
}
_BINARY = "AddV2 Sub Mul Maximum Minimum SquaredDifference"
_TO_SCALAR = {
    "Sum": tf.reduce_sum,
    "Mean": tf.reduce_mean,
    "Max": tf.reduce_max,
    "Min": tf.reduce_min,
    "L2Loss": tf.nn.l2_loss,
}

TABLE = [
    *_raw_entries(_UNARY, "x", "v"),
    *_raw_entries("Sin Tanh Neg", "x", "m"),
    *_raw_entries(_BINARY, "xy", "vv", "sv", "vm", "sm", "mm", "ss"),
    *(Entry(op, "v", "v", function) for op, function in _FEATURES.items()),
    *(Entry(op, "v", "s", function) for op, function in _TO_SCALAR.items()),
    *(_reduced("Sum", tf.reduce_sum, axis) for axis in (0, 1, -1)),
    *(_reduced("Max", tf.reduce_max, axis) for axis in (0, 1)),
    Entry("Greater", "vv", "b", tf.greater),
    Entry("LessEqual", "vv", "b", tf.less_equal),
    Entry("LogicalAnd", "bb", "b", tf.logical_and),
    Entry("LogicalOr", "bb", "b", tf.logical_or),
    Entry("DivNoNan", "vv", "v", lambda x, y: tf.math.divide_no_nan(x, 1.0 + y * y)),
    Entry("LogicalNot", "b", "b", tf.logical_not),
    Entry("SelectV2", "bvv", "v", tf.where),
    Entry("SelectV2", "bmm", "m", tf.where),
    Entry("Cast", "b", "v", lambda x: tf.cast(x, tf.float64)),
    Entry("Cast", "i", "v", lambda x: tf.cast(x, tf.float64)),
    Entry("Cumsum", "v", "v", tf.cumsum),
    Entry("Cumsum", "m", "m", lambda x: tf.cumsum(x, axis=1, reverse=True)),
    Entry("Softmax", "v", "v", tf.nn.softmax),
    Entry("LogSoftmax", "m", "m", tf.nn.log_softmax),
    Entry("MatMul", "mm", "m", lambda x, y: _bounded(tf.linalg.matmul(x, y))),
    Entry("MatMul", "mm", "m", lambda x, y: _bounded(tf.linalg.matmul(x, y, transpose_a=True))),
    Entry("MatMul", "mv", "v", lambda x, y: _bounded(tf.linalg.matvec(x, y))),
    Entry("MatMul", "mv", "v", lambda x, y: _bounded(tf.linalg.matvec(x, y, transpose_a=True))),
    Entry("Einsum", "vv", "m", lambda x, y: tf.einsum("i,j->ij", x, y)),
    Entry("Einsum", "mm", "v", lambda x, y: _bounded(tf.einsum("ij,ij->i", x, y))),
    Entry("MatMul", "vv", "s", lambda x, y: tf.tensordot(x, y, 1)),
    Entry("Cholesky", "m", "m", lambda x: tf.linalg.cholesky(_spd(x))),
    Entry("MatrixSolve", "mm", "m", lambda x, y: tf.linalg.solve(_spd(x), y)),
    Entry("MatrixTriangularSolve", "mv", "v",
          lambda x, y: tf.linalg.triangular_solve(tf.linalg.cholesky(_spd(x)), y[:, None])[:, 0]),
    Entry("MatrixDiagV3", "v", "m", tf.linalg.diag),
    Entry("MatrixDiagPartV3", "m", "v", tf.linalg.diag_part),
    Entry("MatrixSetDiagV3", "mv", "m", tf.linalg.set_diag),
    Entry("MatrixBandPart", "m", "m", lambda x: tf.linalg.band_part(x, 1, 0)),
    Entry("Transpose", "m", "m", tf.transpose),
    Entry("Reshape", "m", "m", lambda x: tf.reshape(tf.reshape(x, [9]), [3, -1])),
    Entry("ExpandDims", "v", "m", lambda x: x[:, None] + x[None, :]),
    Entry("Pack", "vvv", "m", lambda *x: tf.stack(x, axis=1)),
    Entry("Pack", "sss", "v", lambda *x: tf.stack(x)),
    Entry("ConcatV2", "vv", "v", lambda x, y: tf.concat([x, y], 0)[1:4]),
    Entry("Split", "m", "v", lambda x: tf.split(x, 3, axis=1)[1][:, 0]),
    Entry("Tile", "v", "m", lambda x: tf.tile(x[None], [3, 1])),
    Entry("Fill", "s", "v", lambda x: tf.fill([3], x)),
    Entry("Pad", "v", "v", lambda x: tf.pad(x, [[1, 0]])[:3]),
    Entry("ReverseV2", "m", "m", lambda x: tf.reverse(x, [0])),
    Entry("Roll", "v", "v", lambda x: tf.roll(x, 1, 0)),
    Entry("Roll", "vi", "v", lambda x, i: tf.roll(x, i[1], 0)),
    Entry("GatherV2", "vi", "v", tf.gather),
    Entry("GatherV2", "mi", "m", lambda x, i: tf.gather(x, i, axis=1)),
    Entry("GatherNd", "mi", "s", lambda x, i: tf.gather_nd(x, i[:2])),
    Entry("StridedSlice", "mi", "v", lambda x, i: x[i[0]]),
    Entry("StridedSlice", "m", "v", lambda x: x[::-1, 1]),
    Entry("Slice", "mi", "v", lambda x, i: tf.slice(x, [i[2], 0], [1, 3])[0]),
    Entry("TensorScatterUpdate", "viv", "v", lambda x, i, y: tf.tensor_scatter_nd_update(x, i[:1, None], y[:1])),
    Entry("TensorScatterAdd", "viv", "v", lambda x, i, y: tf.tensor_scatter_nd_add(x, i[:, None], y)),
    Entry("UnsortedSegmentSum", "vi", "v", lambda x, i: tf.math.unsorted_segment_sum(x, i, 3)),
    Entry("OneHot", "i", "m", lambda i: tf.one_hot(i, 3, dtype=tf.float64)),
    Entry("ArgMax", "m", "i", lambda x: tf.argmax(x, axis=1, output_type=tf.int32)),
    Entry("TopKV2", "v", "v", lambda x: tf.math.top_k(x, 3)[0]),
    Entry("TopKV2", "v", "i", lambda x: tf.argsort(x)),
    Entry("FloorMod", "ii", "i", lambda x, y: (x + y) % 3),
    Entry("StatelessIf", "bv", "v", lambda b, x: tf.cond(b[0], lambda: tf.sin(x), lambda: x * 0.5)),
    Entry("StatelessWhile", "vi", "v", _loop),
    Entry("TensorListSetItem", "v", "v", _lists),
    *_raw_entries("Sin Tanh", "x", "c"),
    *_raw_entries("AddV2 Mul", "xy", "mc", "vc", "cc"),
    Entry("Pack", "mmm", "c", lambda *x: tf.stack(x)),
    Entry("Sum", "c", "m", lambda x: _bounded(tf.reduce_sum(x, 0))),
    Entry("Max", "c", "m", lambda x: tf.reduce_max(x, 2)),
    Entry("Softmax", "c", "c", tf.nn.softmax),
    Entry("Softmax", "m", "m", tf.nn.softmax),
    Entry("BatchMatMulV2", "cc", "c", lambda x, y: _bounded(tf.linalg.matmul(x, y))),
    Entry("BatchMatMulV2", "cm", "c", lambda x, y: _bounded(tf.linalg.matmul(x, y))),
    Entry("Conv2D", "c", "c", _filtered),
    Entry("AvgPool", "c", "c", lambda x: tf.nn.avg_pool2d(x[None], 2, 1, "SAME")[0]),
    Entry("AdjustContrastv2", "c", "c", _of_image(lambda x: tf.image.adjust_contrast(x, 0.5))),
    Entry("AdjustSaturation", "c", "c", _of_image(lambda x: tf.image.adjust_saturation(x, 0.5))),
    Entry("LowerBound", "vm", "i", lambda x, y: tf.searchsorted(tf.sort(x), y[0]) % 3),
    Entry("FFT", "v", "v", lambda x: tf.math.real(tf.signal.fft(tf.cast(x, tf.complex128)))),
]  # fmt: skip

GRID = 64.0


def _of_case(case: Case) -> Entry:
    """An op on what its cases draw, mixed by values of the body; what it gives is put in the shape of an image.

    An input that may vary is between two draws, by a weight in (0, 1) of an element of the body's: its domain is
    convex, or of integers, of which one draw or the other is taken. All outputs are added up into 27 values, bounded,
    and rounded to a grid, so that a sum in another order gives the same; half of the body's value is added, so that
    rows go on to differ.
    """
    samples = drawn(case, case.dtypes[0])

    def mixed(x: Any, number: int) -> Any:
        first, second = samples[number][:2]
        if case.given[number].steady:
            return tf.constant(first)
        weight = tf.sigmoid(2.0 * tf.reshape(x, [-1])[number])
        if not np.issubdtype(first.dtype, np.inexact):
            return tf.where(weight > 0.5, first, second)
        weight = tf.cast(weight, first.dtype)
        return weight * first + (1.0 - weight) * second

    def called(x: Any) -> Any:
        found = case.call([mixed(x, number) for number in range(len(samples))], case.dtypes[0])
        found += [tf.math.imag(tensor) for tensor in found if tensor.dtype.is_complex]
        found = [tf.math.real(tensor) if tensor.dtype.is_complex else tensor for tensor in found]
        flat = tf.concat([tf.reshape(tf.cast(tensor, tf.float64), [-1]) for tensor in found], 0)
        flat = tf.pad(flat, [[0, -flat.shape[0] % 27]])
        summed = tf.nn.softsign(tf.reduce_sum(tf.reshape(flat, [-1, 27]), 0))
        return 0.5 * x + tf.reshape(tf.round(GRID * summed) / GRID, [3, 3, 3])

    return Entry(case.op, "c", "c", called)


MERGING = [_of_case(case) for case in COMPARED]
"""Ops whose converters merge rows with another axis, or did: after the others, in numbers of entries."""
ENTRIES = [*TABLE, *MERGING]


@dataclass(frozen=True)
class Step:
    """An entry of TABLE + MERGING, applied to values made before."""

    entry: int
    operands: tuple[int, ...]


def build(steps: list[Step], varying: dict[str, bool]) -> Callable[[Any], list[Any]]:
    """The body that the steps describe: what each step gave, and the last value of each kind."""

    def body(i: Any) -> list[Any]:
        values = {kind: [rows[i] if varying[kind] else rows[1], rows[i]] for kind, rows in START.items()}
        made = []
        for step in steps:
            entry = ENTRIES[step.entry]
            taken = [values[kind][pick % len(values[kind])] for kind, pick in zip(entry.takes, step.operands)]
            made.append(entry.call(*taken))
            values[entry.gives].append(made[-1])
        return made + [v[-1] for v in values.values()]

    return body


steps = st.lists(
    st.builds(Step, st.integers(0, len(TABLE) - 1), st.tuples(*[st.integers(0, 50)] * 3)), min_size=1, max_size=8
)
choices = st.fixed_dictionaries({kind: st.booleans() for kind in START})


counts = st.integers(1, ITERATIONS)


def deal(random: Random) -> Iterator[list[Step]]:
    """Bodies of a dozen steps; every op of MERGING is in one of them, at each rank, with other entries between."""

    def step(entries: Sequence[int]) -> Step:
        return Step(random.choice(entries), tuple(random.randint(0, 50) for _ in range(3)))

    alike: dict[tuple[str, int], list[int]] = {}
    for number, case in enumerate(COMPARED, len(TABLE)):
        alike.setdefault((case.op, len(case.given[0].shape)), []).append(number)
    numbers = list(alike.values())
    random.shuffle(numbers)
    for first in range(0, len(numbers), 8):
        dealt = [(step(of_op), step(range(len(TABLE)))) for of_op in numbers[first : first + 8]]
        yield [step for merging, other in dealt for step in ([merging, other] if random.random() < 0.5 else [merging])]


def check(steps: list[Step], varying: dict[str, bool], count: int, **how: Any) -> None:
    names = [f"{ENTRIES[step.entry].op} of {steps}" for step in steps]
    compare(build(steps, varying), count, [*names, *START], **how)


def compare(body: Callable[[Any], list[Any]], count: int, names: Sequence[str], **how: Any) -> None:
    """names: of the body's values."""
    compiled = tf.function(body, autograph=False, jit_compile=how["xla"])
    rows = [compiled(tf.constant(i)) for i in range(count)]
    run = tf.function(lambda: pfor(body, count, masked=how["masked"]), autograph=False, jit_compile=how["xla"])
    for name, found, *wanted in zip(names, run(), *rows, strict=True):
        if found.dtype.is_floating:
            np.testing.assert_allclose(found, np.stack(wanted), rtol=1e-9, atol=1e-9, err_msg=name)
        else:
            np.testing.assert_array_equal(found, np.stack(wanted), err_msg=name)


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@examples(25)
@given(steps, choices, counts)
def test_random_bodies(steps: list[Step], varying: dict[str, bool], count: int) -> None:
    check(steps, varying, count, masked=None, xla=False)


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@examples(12)
@given(steps, choices, counts)
def test_random_bodies_masked(steps: list[Step], varying: dict[str, bool], count: int) -> None:
    check(steps, varying, count, masked=True, xla=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@examples(2)
@given(steps, choices, counts)
def test_random_bodies_under_xla(steps: list[Step], varying: dict[str, bool], count: int) -> None:
    check(steps, varying, count, masked=None, xla=True)


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@settings(examples(1), phases=[Phase.generate])
@given(st.integers(0, 2**32 - 1))
def test_random_bodies_of_ops_that_merge_rows(seed: int) -> None:
    """Eight bodies; not shrunk, since the message names the step."""
    random = Random(seed)
    for steps in deal(random):
        check(steps, dict.fromkeys(START, True), random.choice([2, 3]), masked=None, xla=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("count", [2, 3])
def test_every_entry_of_the_table_alone(count: int) -> None:
    """Random bodies have few of them in a default run."""
    everything = dict.fromkeys(START, True)
    bodies = [build([Step(number, (1, 1, 1))], everything) for number in range(len(TABLE))]
    names = [f"{number}: {entry.op}" for number, entry in enumerate(TABLE)]
    compare(lambda i: [body(i)[0] for body in bodies], count, names, masked=None, xla=False)


def test_the_table_is_of_ops_that_have_converters() -> None:
    assert {entry.op for entry in ENTRIES} <= set(REGISTRY)


def test_ops_that_merge_rows_are_all_among_the_entries() -> None:
    assert {entry.op for entry in MERGING} > OPS
