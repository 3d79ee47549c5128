"""What used to give a wrong value without a word: defaults, ends of ranges, values written, infinities, constants that
change, names that meet ours. Against plain Python, on every executor."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ways import rotating

from batchnuts import autobatch
from batchnuts.autobatch import TypeConflictError, ops
from batchnuts.autobatch.language.pytree import flatten

WAYS = [
    {"backend": "numpy"},
    {"backend": "numpy", "executor": "stackless"},
    {"executor": "reference"},
    {"backend": "tensorflow", "mode": "eager"},
    {"backend": "tensorflow", "mode": "graph"},
]
IDS = ["numpy", "numpy-stackless", "reference", "eager", "graph"]
every_way = pytest.mark.parametrize("way", WAYS, ids=IDS)
BY_NAME = dict(zip(IDS, WAYS))
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]

TWO = np.array([10.0, 20.0])
SCALAR = np.float32(2.0)


@autobatch.batch
def array_default(n, buffer=TWO, *, more=(TWO, 1.0), scalar=SCALAR):
    return n + ops.sum(buffer) + more[0][1] * more[1] + scalar


@pytest.mark.parametrize("way", [*WAYS, {"executor": "unbatched"}], ids=[*IDS, "unbatched"])
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_default_is_one_lanes_value(lanes: int, way: dict[str, Any]) -> None:
    n = np.arange(float(lanes))
    wanted = [array_default.function(x) for x in n]
    np.testing.assert_array_equal(array_default.run(n, **way), wanted)


def test_dumps_know_the_type_of_a_default() -> None:
    assert "float64[2]" in array_default.dump("float64", after="infer_types", backend="numpy")


@autobatch.batch
def rounds(start, stop, step):
    count = 0
    for _ in range(start, stop, step):
        count += 1
        if count > 20:
            break
    return count


@autobatch.batch
def rounds_by_three(start, stop):
    up = 0
    for _ in range(start, stop, 3):
        up += 1
        if up > 20:
            break
    down = 0
    for _ in range(stop, start, -3):
        down += 1
        if down > 20:
            break
    return up, down


@pytest.mark.parametrize(("dtype", "way"), rotating({str(d): d for d in INTEGERS if d != np.uint64}, BY_NAME))
def test_a_range_ends_where_pythons_does(dtype: np.dtype, way: dict[str, Any]) -> None:
    limits = np.iinfo(dtype)
    signed = dtype.kind == "i"
    ends = [limits.max, limits.max - 1, limits.max - 4, limits.min, limits.min + 1, limits.min + 4]
    steps = [1, 2, 3, 100, *([-1, -2, -3, -100] if signed else [])]
    near = [(a, b) for a, b in itertools.product(ends, ends) if abs(a - b) < 10]
    start, stop, step = (np.array(c, dtype) for c in zip(*((a, b, s) for a, b in near for s in steps)))
    wanted = [len(range(int(a), int(b), int(s))) for a, b, s in zip(start, stop, step)]
    assert rounds.run(start, stop, step, **way).tolist() == wanted
    first, last = (np.array(c, dtype) for c in zip(*near))
    found = np.stack(rounds_by_three.run(first, last, **way), -1).tolist()
    assert found == [[len(range(int(a), int(b), 3)), len(range(int(b), int(a), -3))] for a, b in near]


@autobatch.batch
def products(n, x):
    squares, last, joined, listed, counted = 0, 0, x[0] - x[0], 0, 0
    for i in range(n - 2, n):
        squares += i * i
        last = i - 5
        joined = joined + x[i % 3] * (i > 1)
    for i, v in enumerate(x, n):
        listed += i * i + (v > 1)
    for i, _ in zip(range(n), (1, 2)):
        counted += i * 1000
    down = 0
    for i in reversed(range(-1, n)):
        counted += i * 1000
        down += 1  # noqa: SIM113
        if down == 3:
            break
    return squares, last, joined, listed, counted


@pytest.mark.parametrize(("dtype", "way"), rotating({str(d): d for d in INTEGERS}, BY_NAME))
def test_the_variable_of_a_range_is_pythons_integer(dtype: np.dtype, way: dict[str, Any]) -> None:
    """It neither wraps where the bounds' dtype would, nor takes an array's dtype with it."""
    n = np.array([v for v in (2, 7, 100, 60_000, 1_200_000_000) if v <= np.iinfo(dtype).max], dtype)
    x = np.array([[1, 2, 3]] * len(n), "int8")
    found = products.run(n, x, **way)
    assert [str(r.dtype) for r in found] == ["int64", "int64", "int8", "int64", "int64"]
    assert np.stack(found, -1).tolist() == [[int(v) for v in products.function(*lane)] for lane in zip(n, x)]


@every_way
def test_a_bound_beyond_int64_is_refused(way: dict[str, Any]) -> None:
    stop = np.array([5, 2**63 - 1, 2**63], "uint64")
    assert rounds.run(np.uint64([3, 2**63 - 4]), stop[:2], 1, **way).tolist() == [2, 3]
    with pytest.raises(autobatch.LaneAssertionError, match="the bound of a range beyond int64 in `stop`") as caught:
        rounds.run(stop, stop, 1, **way)
    assert "lane 2" in str(caught.value)


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
@pytest.mark.parametrize(("dtype", "value"), [("uint8", 300), ("uint8", -1), ("int8", 128), ("uint32", -5)])
def test_a_number_that_a_buffer_cannot_hold_is_refused(dtype: str, value: int, backend: str) -> None:
    buffer = np.zeros(2, dtype)

    @autobatch.batch
    def directly(i):
        return autobatch.write(buffer, i, value)

    @autobatch.batch
    def by_a_variable(i):
        rows = buffer
        new = value
        return autobatch.write(rows, i, new)

    for function in (directly, by_a_variable):
        with pytest.raises(TypeConflictError, match=f"the integer {value} meets {dtype} arrays"):
            function.run(np.array([0]), backend=backend, mode="eager")


@autobatch.batch
def integers_of(x, y, k):
    sums = (x + y, x - y, x * y, x & y, x | y, x ^ y, ~x, -x, +x)
    compared = (x < y, x <= y, x == y, x != y, x > y, x >= y, x in (1, y), x < 300, x <= 2**40, x == -1, x != -200)
    divided = (x // y, x % y, divmod(x, y)) if y != 0 else (x, y, (x, y))
    moved = (x << k, x >> k, x**k, x << 3, x >> 70, 2 // (x | 1), x**2, pow(x, k))
    called = (abs(x), min(x, y), max(x, y), min(x, 1), int(x), float(x), bool(x), round(x), sum((x, y)))
    return sums, compared, divided, moved, called, x / y


@autobatch.batch
def floats_of(x, y, k):
    sums = (x + y, x - y, x * y, x / y, -x, +x, x + 1, 2.0 * x, 1 / x, x - 0.0)
    compared = (x < y, x <= y, x == y, x != y, x > y, x >= y, x in (1.0, y), x < 300, x == 0)
    divided = (x // y, x % y, divmod(x, y), x // 1, 1 % x)
    moved = (x**2, x**0.5, x**-1, k**x, x**k)
    called = (abs(x), min(x, y), max(x, y), min(1.0, x), float(x), bool(x), sum((x, y)))
    return sums, compared, divided, moved, called


SPECIAL = BY_NAME | {"xla": {"backend": "tensorflow", "mode": "xla"}}
FLOATS = [np.dtype(f"float{bits}") for bits in (16, 32, 64)]


def special_numbers(dtype: np.dtype) -> list[Any]:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return sorted(
            {limits.max, limits.max - 1, limits.min, limits.min + 1, 0, 1, 2, 7, *((-1, -7) * (dtype.kind == "i"))}
        )
    limits = np.finfo(dtype)
    some = [0.0, 0.5, 1.0, 2.5, 3.0, np.inf, *map(float, (limits.max, limits.tiny, limits.smallest_subnormal))]
    return [*some, *(-v for v in some), np.nan]


@pytest.mark.parametrize(
    ("dtype", "way"), rotating({str(d): d for d in (*INTEGERS, *FLOATS)}, {w: w for w in SPECIAL}, always=0)
)
def test_operators_of_special_numbers(dtype: np.dtype, way: str) -> None:
    """Every operator and builtin, for all pairs of special values of every dtype, against NumPy's scalars."""
    special = special_numbers(dtype)
    exponents = [0, 1, 2, 3, dtype.itemsize * 8 - 1, dtype.itemsize * 8, 100] if dtype.kind in "iu" else [0, 0.5, 1, 2]
    lanes = itertools.product(special, special, exponents)
    x, y, k = (np.array(c, dtype) for c in zip(*lanes))
    function = integers_of if dtype.kind in "iu" else floats_of
    with np.errstate(all="ignore"):
        wanted = [flatten(function.function(*lane))[0] for lane in zip(x, y, k)]
    found = flatten(function.run(x, y, k, **SPECIAL[way]))[0]
    for number, (array, *expected) in enumerate(zip(found, *wanted, strict=True)):
        values = np.array(expected)
        if dtype.kind in "iu" and number == len(found) - 1:  # x / y: of short integers NumPy has float16
            with np.errstate(all="ignore"):
                values = x / y.astype(float)
        elif {int, float} & set(map(type, expected)):  # where Python leaves its own number, a variable has one dtype
            values = np.array(expected, array.dtype)
        assert str(array.dtype) == str(values.dtype), f"result {number}"
        agree = (array == values) & (np.signbit(array) == np.signbit(values)) | (array != array) & (values != values)
        if values.dtype.kind == "f" and not way.startswith(("numpy", "reference")):
            # docs/language_meaning.md: roundings, and what lies below the smallest normal number
            limits = np.finfo(values.dtype)
            with np.errstate(all="ignore"):
                agree |= np.abs(array - values) <= 4 * limits.eps * np.abs(values)
            agree |= (array == 0) & (np.abs(values) < limits.tiny) & (np.signbit(array) == np.signbit(values))
        if dtype.kind == "f" and not way.startswith(("numpy", "reference")):
            for operand in (x, y):  # TensorFlow may take operands below the smallest normal number for zero
                agree |= (operand != 0) & (np.abs(operand) < np.finfo(dtype).tiny)
        shown = list(zip(x[~agree], y[~agree], k[~agree], array[~agree], values[~agree]))
        message = f"result {number}, {array.dtype}: {len(shown)} are wrong; (x, y, k, found, expected)"
        assert not shown, f"{message} = {shown[:4]}"


@every_way
def test_constants_are_those_of_the_first_compilation(way: dict[str, Any]) -> None:
    array, listed, keyed = np.array([1.0, 2.0]), [np.array([5.0])], {"a": np.array([7.0])}
    thing = SimpleNamespace(array=np.array([3.0]), number=4.0)
    things = [thing]

    @autobatch.batch
    def total(n):
        picked = array[int(n) % 2]
        parts = sum([a[0] for a in listed])
        return n + picked + listed[0][0] + keyed["a"][0] + thing.array[0] + thing.number + things[0].number + parts

    first = total.run(np.array([0.0, 1.0]), **way)
    assert first.tolist() == [total.function(np.float64(n)) for n in (0.0, 1.0)] == [29.0, 31.0]
    array[:], listed[0][:], keyed["a"][:], thing.array[:], thing.number = 100.0, 100.0, 100.0, 100.0, 100.0
    listed.append(np.array([1000.0]))
    assert total.run(np.array([0.0, 1.0]), **way).tolist() == first.tolist()


@autobatch.batch
def stored(rows, value):
    return autobatch.write(rows, 0, value)


@autobatch.batch
def stored_as_element(rows, value):
    rows[-1] = value
    return rows


NOT_HELD = {
    "another dtype": ("uint8", np.int64(300)),
    "another dtype that would hold it": ("uint8", np.int64(3)),
    "another float": ("float32", np.float64(0.5)),
    "too large": ("uint8", 300),
    "negative": ("uint8", -1),
    "a float": ("uint8", 2.7),
    "a number for a boolean": ("bool", 1),
    "a row for a number": ("float64", np.zeros(2)),
}


@pytest.mark.parametrize("name", NOT_HELD)
def test_plain_python_stores_what_compiled_programs_store(name: str) -> None:
    dtype, value = NOT_HELD[name]
    rows = np.zeros(2, dtype)
    for function in (stored, stored_as_element):
        lanes = value if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic) else value[None]
        for run in (
            lambda: function.function(rows, value),  # noqa: B023
            lambda: function.run(rows[None], lanes, executor="unbatched"),  # noqa: B023
            lambda: function.run(rows[None], lanes, backend="numpy"),  # noqa: B023
        ):
            with pytest.raises(autobatch.BatchnutsError, match=r"meets|cannot hold|does not fit"):
                run()
    with pytest.raises(TypeConflictError, match=r"write: "):
        autobatch.write(rows, 0, value)


def test_plain_python_stores_no_number_that_becomes_infinite() -> None:
    @autobatch.batch
    def large(rows):
        return autobatch.write(rows, 0, 1e39)

    rows = np.zeros(2, "float32")
    for run in (
        lambda: large.function(rows),
        lambda: large.run(rows[None], executor="unbatched"),
        lambda: large.run(rows[None], backend="numpy"),
    ):
        with pytest.raises(TypeConflictError, match=r"1e\+39"):
            run()


def test_plain_python_stores_numbers_that_fit() -> None:
    for dtype, value in (("uint8", 255), ("float32", 3), ("float32", np.inf), ("complex64", 0.5), ("bool", True)):
        assert autobatch.write(np.zeros(2, dtype), 1, value).tolist() == [0, value]
    assert autobatch.write(np.zeros((2, 1), "int8"), 1, np.int8([7])).tolist() == [[0], [7]]
    assert stored_as_element.function(np.zeros(2, "uint8"), 7).tolist() == [0, 7]


_1 = 100.0
_check1 = 1000.0


@autobatch.batch
def result(result, _2, main):
    if result > _2:
        return result_of(result - 1, main) + result // main
    return _1 + _check1 + result * 0.5


@autobatch.batch
def result_of(result, entry):
    _3 = result + entry
    return _3 + result // (entry + 1) + _1


@autobatch.batch
def main(result):
    return result * 0.5


@every_way
def test_names_of_users_do_not_meet_ours(way: dict[str, Any]) -> None:
    arguments = np.array([1, 5, 3]), np.array([2, 2, 2]), np.array([1, 2, 3])
    wanted = [result.function(*lane) for lane in zip(*(a.tolist() for a in arguments))]
    assert result.run(*arguments, **way).tolist() == wanted
    assert main.run(np.array([1, 2]), **way).tolist() == [0.5, 1.0]


@autobatch.batch
def keys(n):
    pair = {"a.b": n, "a": {"b": n + 1}, 0: n + 2, "0": n + 3, "": n + 4, "@c": n + 5, (1, "x.y"): n + 6}
    if n > 1:
        pair = {
            "a.b": pair["a"]["b"],
            "a": {"b": pair["a.b"]},
            0: pair["0"],
            "0": pair[0],
            "": pair["@c"],
            "@c": pair[""],
            (1, "x.y"): n,
        }
    return pair


@every_way
def test_keys_of_dicts_do_not_meet_each_other(way: dict[str, Any]) -> None:
    n = np.array([1, 2])
    wanted = [keys.function(lane) for lane in n]
    found = keys.run(n, **way)
    assert found.keys() == wanted[0].keys()
    for key in found:
        a = found[key]["b"] if key == "a" else found[key]
        assert a.tolist() == [w[key]["b"] if key == "a" else w[key] for w in wanted], key
    text = keys.dump("int64", after="flatten_structures", backend="numpy")
    assert autobatch.parse(text, namespace=globals()).all_functions()


def guarded(x):
    tf.debugging.assert_less(x, tf.constant(3.0, tf.float64))  # guarded
    return x * 2.0


@autobatch.primitive(batched=True)
def guarded_lanes(x):
    tf.debugging.assert_less(x, tf.constant(3.0, tf.float64))  # guarded_lanes
    return x * 2.0


@pytest.mark.parametrize("helper", [guarded, guarded_lanes], ids=lambda helper: helper.__name__)
def test_an_assertion_of_tensorflows_is_evaluated_or_its_line_is_reported(helper: Any) -> None:
    """XLA compiles none; every other way raises what TensorFlow does."""

    @autobatch.batch
    def double(x):
        while x < 2.0:
            x = x + 1.0
        return helper(x)

    x = np.array([1.0, 5.0])
    for way in ({"backend": "numpy"}, {"mode": "eager"}, {"mode": "graph"}):
        with pytest.raises(tf.errors.InvalidArgumentError):
            double.run(x, **way)
    with pytest.warns(autobatch.AssertionWarning, match="XLA compiles none") as caught:
        assert double.run(x, backend="tensorflow", mode="xla").tolist() == [4.0, 10.0]
    lines = Path(__file__).read_text().splitlines()
    assert {w.filename for w in caught} == {__file__}
    assert {w.lineno for w in caught} == {k for k, text in enumerate(lines, 1) if text.endswith(f"# {helper.__name__}")}
