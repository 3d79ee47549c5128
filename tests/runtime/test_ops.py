"""ops: the same functions on NumPy, TensorFlow and JAX, eager, traced, under XLA and vectorized."""

import builtins
import inspect
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from array_libraries import HAS_JAX, as_jax, every_library, every_tensor, in_jax, needs_jax
from ops_cases import CASES, INF, NAN, REAL, SHARED
from together import Together

from batchnuts.autobatch import ops
from batchnuts.autobatch.language import arrays
from batchnuts.autobatch.language import builtins as lane_builtins
from batchnuts.autobatch.language.libraries.library import Library, TensorLibrary
from batchnuts.autobatch.pfor import vectorized_map

HELPERS = {
    "known",
    "python_filter",
    "python_sorted",
    "python_isinstance",
    "python_type",
    "is_python_scalar",
    "dtype_of",
    "dtype_named",
    "static_shape",
    "is_array",
    "library_of",
    "common_dtype",
    "convert",
    "require_scalar",
}


def by_lane(function: Callable[..., Any], arguments: tuple[np.ndarray, ...]) -> np.ndarray:
    return np.stack([function(*lane) for lane in zip(*arguments, strict=True)])


def assert_same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)


def vectorized(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *lanes: vectorized_map(lambda lane: function(*lane), lanes, fallback=False)


def test_every_function_has_a_case() -> None:
    for module in (ops, lane_builtins):
        functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
        public = {name for name in functions if not name.startswith("_")}
        assert public - HELPERS <= {name.split(" ")[0] for name in CASES}
        assert all(functions[name].__doc__ for name in public)


@every_tensor
@pytest.mark.parametrize("name", CASES)
def test_eager_agrees_with_numpy(name: str, as_array: Callable[..., Any]) -> None:
    function, arguments = CASES[name]
    for lane in zip(*arguments, strict=True):
        expected, found = function(*lane), function(*map(as_array, lane))
        assert arrays.tensor_library_of(expected) is None
        assert arrays.library_of(found).name == ("JAX" if as_array is as_jax else "TensorFlow")
        assert_same(found, expected)


def traced(names: Sequence[str], compiled: bool) -> list[tuple[Any, Any]]:
    """For each case, by TensorFlow: its function of the first lane alone, and vectorized over all."""

    @tf.function(jit_compile=compiled, autograph=False)
    def both(lanes: list[list[tf.Tensor]]) -> Any:
        functions = [CASES[name][0] for name in names]
        return [(f(*[x[0] for x in xs]), vectorized(f)(*xs)) for f, xs in zip(functions, lanes, strict=True)]

    found: list[tuple[Any, Any]] = both([list(map(tf.constant, CASES[name][1])) for name in names])
    return found


def traced_by_jax(names: Sequence[str]) -> list[tuple[Any, Any]]:
    """The same by JAX, compiled."""
    import jax

    def both(lanes: list[Any]) -> Any:
        functions = [CASES[name][0] for name in names]
        return [(f(*[x[0] for x in xs]), jax.vmap(f)(*xs)) for f, xs in zip(functions, lanes, strict=True)]

    found: list[tuple[Any, Any]] = in_jax(both, lanes=False)([CASES[name][1] for name in names])
    return found


TRACED = {compiled: Together(CASES, partial(traced, compiled=compiled)) for compiled in (False, True)}
TRACED_BY_JAX = Together(CASES, traced_by_jax)


def assert_alone_and_together(name: str, found: tuple[Any, Any]) -> None:
    alone, together = found
    expected = by_lane(*CASES[name])
    assert_same(alone, expected[0])
    assert_same(together, expected)


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_traced_and_vectorized_agree_with_numpy(name: str, compiled: bool) -> None:
    assert_alone_and_together(name, TRACED[compiled][name])


@needs_jax
@pytest.mark.parametrize("name", CASES)
def test_traced_and_vectorized_by_jax_agree_with_numpy(name: str) -> None:
    assert_alone_and_together(name, TRACED_BY_JAX[name])


OURS = "batchnuts.autobatch.language.libraries"


@pytest.mark.parametrize(
    ("array", "others"),
    [
        ("np.ones(2, 'float32')", {"tensorflow", "jax"}),
        # TensorFlow imports JAX by itself where it is installed (for TFLite), so of JAX only our part is looked for
        pytest.param("__import__('tensorflow').ones(2)", {f"{OURS}.jax"}, marks=pytest.mark.slow),
        pytest.param("__import__('jax').numpy.ones(2)", {"tensorflow", f"{OURS}.tensorflow"}, marks=needs_jax),
    ],
    ids=["numpy", "tensorflow", "jax"],
)
def test_no_library_is_imported_before_a_value_of_it_is_seen(array: str, others: set[str]) -> None:
    program = (
        "import sys, numpy as np\n"
        "from batchnuts.autobatch import ops, random\n"
        f"x = {array}\n"
        "ops.where(x > 0, ops.exp(1.0), ops.bitcast(x, 'int32'))\n"
        "random.normal(ops.bitcast(x, 'uint32'), (2,))\n"
        f"sys.exit(', '.join({others} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_variables_count_as_tensors() -> None:
    variable = tf.Variable([1.0, 4.0])
    np.testing.assert_allclose(ops.sqrt(variable), [1, 2])
    assert arrays.library_of(1, [np.ones(2), (variable,)]).name == "TensorFlow"
    assert arrays.library_of(1, [np.ones(2), ("tensorflow",)]).name == "NumPy"


@needs_jax
def test_arrays_of_two_libraries_do_not_meet() -> None:
    with pytest.raises(
        TypeError, match=r"arrays of TensorFlow and JAX are mixed in one operation\. Convert one of them"
    ):
        ops.maximum(tf.constant(1.0), as_jax(2.0))
    with pytest.raises(TypeError, match="arrays of JAX and TensorFlow are mixed"):
        ops.stack([as_jax(2.0), np.float32(1.0), tf.constant(1.0)])


@needs_jax
def test_what_is_of_jax_and_no_array() -> None:
    import jax

    assert not arrays.is_array(jax.jit(lambda x: x))
    assert not arrays.is_array(jax.ShapeDtypeStruct((), "float32"))
    jax.jit(lambda x: pytest.fail("no array") if not arrays.is_array(x) else x)(1.0)


@needs_jax
def test_64_bits_of_jax_are_ours_alone() -> None:
    import jax

    for x in (jax.numpy.arange(3), jax.numpy.asarray(1.5)):  # a weak one too
        assert ops.dtype_of(ops.cast(x, "int64")) == np.int64
        assert ops.dtype_of(ops.where(x > 0, np.float64(1), x)) == np.float64
        assert not jax.config.jax_enable_x64
        assert jax.numpy.ones(2).dtype == np.float32


def test_every_library_has_the_whole_contract() -> None:
    values = [np.ones(2), tf.ones(2), *([as_jax(1.0)] if HAS_JAX else [])]
    for found in map(arrays.library_of, values):
        contract = TensorLibrary if found.name != "NumPy" else Library
        names = {name for base in contract.__mro__[:-2] for name in (*vars(base), *base.__annotations__)}
        assert [name for name in names if not name.startswith("_") and not hasattr(found, name)] == []


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ops.exp(0), 1.0),
        (ops.exp(1.0), math.e),
        (ops.minimum(1, 2), 1),
        (ops.maximum(1, 2.5), 2.5),
        (ops.abs(-3), 3),
        (ops.square(3), 9),
        (ops.floor(2.5), 2.0),
        (ops.floor(2), 2),
        (ops.round(2.5), 2.0),
        (ops.where(True, 1, 2), 1),
        (ops.where(False, 1, 2.5), 2.5),
        (ops.clip(5, 0, 3), 3),
        (ops.isfinite(INF), False),
        (ops.logical_and(1, 2.0), True),
        (ops.bitwise_xor(6, 3), 5),
        (ops.left_shift(1, 40), 2**40),
        (ops.sum(3), 3),
        (ops.norm(-3), 3.0),
        (ops.zeros_like(2.0), 0.0),
        (ops.full_like(2, 7), 7),
        (ops.log(0.0), -INF),
    ],
)
def test_python_scalars_give_python_scalars(result: Any, expected: Any) -> None:
    assert type(result) is type(expected)
    assert result == pytest.approx(expected)


@every_library
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32"])
def test_python_scalars_take_the_dtype_they_meet(as_array: Callable[..., Any], dtype: str) -> None:
    x = as_array(np.arange(3, dtype=dtype))
    assert ops.dtype_of(ops.maximum(x, 1)) == dtype
    assert ops.dtype_of(ops.where(as_array([True, False, True]), 1, x)) == dtype
    assert ops.dtype_of(ops.maximum(1.5, x)) == (dtype if dtype.startswith("float") else "float64")
    assert ops.dtype_of(ops.exp(x)) == (dtype if dtype.startswith("float") else "float64")
    assert ops.dtype_of(ops.sum(x)) == dtype


@every_library
def test_errors(as_array: Callable[..., Any]) -> None:
    vector, matrix = as_array(np.ones(3, np.float32)), as_array(np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"condition takes a scalar, not shape \(3,\)"):
        lane_builtins.truth(vector)
    for function in (
        lane_builtins.python_int,
        lane_builtins.python_float,
        lane_builtins.truth,
        lane_builtins.python_round,
    ):
        with pytest.raises(ValueError, match=r"not shape \(2, 3\)"):
            function(matrix)
    with pytest.raises(ValueError, match=r"min\(\) takes a scalar, not shape \(3,\)"):
        lane_builtins.python_min(vector, 1.0)
    with pytest.raises(ValueError, match=r"max\(\) of one array .* not shape \(2, 3\)"):
        lane_builtins.python_max(matrix)
    with pytest.raises(TypeError, match="no key"):
        lane_builtins.python_max(vector, key=float)
    with pytest.raises(TypeError, match=r"len\(\) of a scalar"):
        lane_builtins.python_len(as_array(1.0))
    with pytest.raises(ValueError, match="float32 as float64"):
        ops.bitcast(vector, "float64")
    with pytest.raises(OverflowError):
        ops.bitwise_and(as_array(np.ones(2, np.uint32)), -1)
    with pytest.raises(ValueError, match=r"matmul|core dimension|scalar"):
        ops.matmul(as_array(1.0), as_array(2.0))


def test_builtins_keep_their_own_results_on_python_values() -> None:
    assert lane_builtins.python_min("b", "a") == "a"
    assert lane_builtins.python_max([], default=4) == 4
    assert lane_builtins.python_max([1, -5], key=abs) == -5
    assert lane_builtins.python_min(1, 2.5) == 1
    assert type(lane_builtins.python_min(1, 2.5)) is int
    assert lane_builtins.python_round(2.5) == 2
    assert lane_builtins.python_round(2.675, 2) == builtins.round(2.675, 2)
    assert lane_builtins.python_int("12") == 12
    assert lane_builtins.python_float("inf") == INF
    assert lane_builtins.python_len("four") == 4
    assert lane_builtins.truth([]) is False
    assert lane_builtins.truth(NAN) is True


@every_library
def test_min_and_max_treat_nan_as_python_does(as_array: Callable[..., Any]) -> None:
    for function, builtin in ((lane_builtins.python_min, builtins.min), (lane_builtins.python_max, builtins.max)):
        for pair in ((NAN, 1.0), (1.0, NAN)):
            assert float(function(*map(as_array, pair))) == pytest.approx(builtin(*pair), nan_ok=True)


@every_library
def test_int_truncates_toward_zero_and_float_is_double(as_array: Callable[..., Any]) -> None:
    assert [int(lane_builtins.python_int(as_array(x))) for x in (-2.7, 2.7)] == [-2, 2]
    assert ops.dtype_of(lane_builtins.python_int(as_array(1.5))) == np.int64
    assert ops.dtype_of(lane_builtins.python_float(as_array(np.float32(1.5)))) == np.float64


def tensorflow_gradients(function: Callable[..., Any], *values: float) -> list[float]:
    variables = [tf.constant(value) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        result = function(*variables)
    return [float(gradient) for gradient in tape.gradient(result, variables)]


def jax_gradients(function: Callable[..., Any], *values: float) -> list[float]:
    import jax

    eager = jax.grad(function, tuple(range(len(values))))(*map(np.float32, values))
    compiled = in_jax(jax.grad(function, tuple(range(len(values)))), lanes=False)(*map(np.float32, values))
    np.testing.assert_allclose(eager, compiled, rtol=1e-6)
    return [float(gradient) for gradient in eager]


@pytest.mark.parametrize(
    "gradients",
    [pytest.param(tensorflow_gradients, id="tensorflow"), pytest.param(jax_gradients, id="jax", marks=needs_jax)],
)
def test_gradients_through_a_loop(gradients: Callable[..., list[float]]) -> None:
    def grown(x: Any, rate: Any) -> Any:
        return ops.scan(lambda carry, row: (carry * rate + row, None), x, np.array([1, 2, 3], "float32"))[0]

    x, rate = 0.7, 1.5
    found = gradients(grown, x, rate)
    np.testing.assert_allclose(found, [rate**3, 3 * rate**2 * x + 2 * rate + 2], rtol=1e-6)


@pytest.mark.parametrize(
    "gradients",
    [pytest.param(tensorflow_gradients, id="tensorflow"), pytest.param(jax_gradients, id="jax", marks=needs_jax)],
)
def test_gradients_at_the_edges(gradients: Callable[..., list[float]]) -> None:
    assert gradients(ops.logaddexp, 1.0, 1.0) == [0.5, 0.5]
    assert gradients(ops.logaddexp, -INF, 2.0) == [0.0, 1.0]
    assert builtins.all(math.isfinite(g) for g in gradients(ops.logaddexp, -INF, -INF))
    assert builtins.all(math.isfinite(g) for g in gradients(ops.logaddexp, INF, INF))
    assert gradients(lambda x, y: ops.norm(ops.stack([x, y])), 0.0, 0.0) == [0.0, 0.0]
    assert gradients(lambda x, y: ops.norm(ops.stack([x, y])), 3.0, 4.0) == pytest.approx([0.6, 0.8])
    assert gradients(lambda x: ops.where(x > 0, ops.log(ops.where(x > 0, x, 1.0)), x * 2), -1.0) == [2.0]
    assert gradients(ops.maximum, 1.0, 1.0) == gradients(ops.minimum, 1.0, 1.0) == [1.0, 0.0]
    assert gradients(lambda x: ops.maximum(x, 0), 0.0) == [1.0]
    assert gradients(ops.abs, 0.0) == [0.0]


def test_matrix_times_vector_vectorizes_without_transposes() -> None:
    # The reason for the row form in matmul: each lane's vector is a row; no transpose is needed, nor in the gradient.
    def value_and_gradient(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = ops.sum(ops.softplus(ops.matmul(SHARED, x)))
        return value, tape.gradient(value, x)

    function = tf.function(vectorized(value_and_gradient)).get_concrete_function(tf.TensorSpec((4, 3), tf.float32))
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(node for part in definition.library.function for node in part.node_def)]
    operations = {node.op for node in nodes}
    assert "MatMul" in operations
    assert "Transpose" not in operations


def test_unknown_shapes_are_traced() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def anything(x: tf.Tensor) -> Any:
        return ops.full_like(x, 2.0) + ops.zeros_like(x), lane_builtins.truth(ops.sum(x))

    filled, true = anything(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal(filled, [2, 2])
    assert bool(true)
    with pytest.raises(ValueError, match="unknown"):
        tf.function(
            lane_builtins.python_len, input_signature=[tf.TensorSpec([None], tf.float32)]
        ).get_concrete_function()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: ops.scan(lambda c, r: (c, None), 0.0),
            r"found the lengths \[\]; expected one for all rows, or length=",
        ),
        (lambda: ops.scan(lambda c, r: (c, None), 0.0, (REAL, REAL[:2])), r"found the lengths \['2', '4'\]"),
        (lambda: ops.scan(lambda c, r: ((c, c), None), 0.0, REAL), "the carry is array and becomes tuple"),
    ],
)
def test_loops_that_cannot_be(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_a_matrix_that_is_not_positive_definite_gives_nan() -> None:
    found = ops.cholesky(np.stack([np.eye(2), -np.eye(2)]))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
