"""What is known of a TensorFlow function's computation: one key for what is the same, never one for what is not."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from identities import assert_tells_apart

import batchnuts
from batchnuts.autobatch.language.libraries import tensorflow_identity
from batchnuts.autobatch.language.libraries.tensorflow import LIBRARY
from batchnuts.autobatch.language.libraries.tensorflow_identity import identity_of, key_by_identity
from batchnuts.autobatch.pfor.registry import REGISTRY, Converter

X = np.linspace(0.1, 3.0, 4, dtype="float32")
DATA = np.arange(4, dtype="float32")

Function = Callable[[Any], Any]


def scaled(scale: Any) -> Function:
    return lambda x: tf.reduce_sum(x * scale)


def looped(trips: int, data: Any = DATA) -> Function:
    return lambda x: tf.while_loop(lambda i, y: i < trips, lambda i, y: (i + 1, y * data + x), (0, x))[1]


def within(data: Any) -> Function:
    """In a function of its own."""
    inner = tf.function(lambda y: y * data, autograph=False)
    return lambda x: inner(x) + inner(2.0 * x)


@tf.custom_gradient
def _with_a_derivative(x: Any) -> Any:
    return tf.sin(x), lambda up: 3.0 * up


def gradient_of(function: Function) -> Function:
    return lambda x: LIBRARY.value_and_gradient(lambda y: tf.reduce_sum(function(y)), x)


def chosen(n: int) -> Function:
    branches = [lambda x: x * 2.0, lambda x: tf.sin(x) * (n + 1.0)]
    return lambda x: tf.switch_case(tf.cast(x[0] > 1.0, tf.int32), [lambda b=b: b(x) for b in branches])


def scanned(n: int) -> Function:
    return lambda x: tf.scan(lambda a, b: tf.sin(a) * b + n, x)


def mapped(n: int) -> Function:
    return lambda x: tf.vectorized_map(lambda row: row * (n + 2.0), x[:, None])


def joint(n: int) -> Function:
    """With names and functions of TFP's own."""
    tfd = tfp.distributions
    scale = tf.constant(DATA + 1.0)
    parts = [tfd.Normal(0.0, 1.0 + n), lambda mu: tfd.Sample(tfd.StudentT(3.0, mu, 1.0), 4), tfd.Normal(0.0, scale)]
    model = tfd.JointDistributionSequentialAutoBatched(parts)
    return lambda x: model.log_prob([x[0], x, x])


FAMILIES: dict[str, Callable[[Any], Function]] = {
    "literal": scaled,
    "constant": lambda n: scaled(DATA + n),
    "captured": lambda n: scaled(tf.constant(np.arange(400, dtype="float32").reshape(100, 4) + n)),
    "constant within": lambda n: within(DATA + n),
    "captured within": lambda n: within(tf.constant(DATA + n)),
    "trips": lambda n: looped(n + 1),
    "constant of a loop": lambda n: looped(3, DATA + n),
    "branch": lambda n: lambda x: tf.cond(x[0] > 0.0, lambda: x * float(n + 1), lambda: x),
    "axis": lambda n: lambda x: tf.cumsum(x[:, None] * x, axis=n % 2),
    "gradient": lambda n: (
        lambda x: LIBRARY.value_and_gradient(lambda y: tf.reduce_sum(tf.math.softplus(y) ** (n + 1.0)), x)
    ),
    "gradient of a loop": lambda n: gradient_of(looped(n + 1)),
    "gradient of a branch": lambda n: gradient_of(chosen(n)),
    "gradient of a scan": lambda n: gradient_of(scanned(n)),
    "gradient of what is mapped": lambda n: gradient_of(mapped(n)),
    "gradient of a captured tensor": lambda n: gradient_of(within(tf.constant(DATA + n))),
    "gradient of a joint distribution": lambda n: gradient_of(joint(n)),
    "a derivative of the user's": lambda n: (
        lambda x: LIBRARY.value_and_gradient(lambda y: tf.reduce_sum([tf.sin, _with_a_derivative][n](y)), x)
    ),
    "asserted": lambda n: lambda x: tf.debugging.check_numerics(x, f"at place {n}"),
    "structure": lambda n: lambda x: {"ab"[n]: x},
    "no gradient": lambda n: lambda x: (tf.reduce_sum(x), [None, x][n]),
    "order of results": lambda n: lambda x: [(x, -x), (-x, x)][n],
    "order of operands": lambda n: lambda x: tf.subtract(*[tf.sin(x), tf.cos(x)][:: 1 - 2 * n]),
    "dtype": lambda n: lambda x: tf.cast(x, ["int32", "float64"][n]),
    "gathered": lambda n: lambda x: tf.gather(x, [n % 4, 1]),
}


WITH_COUNTERS = [name for name in FAMILIES if name.startswith("gradient of") or "within" in name]
"""Whose graphs have counters of the process in many names."""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_function_has_the_same_identity_and_others_have_not(family: str) -> None:
    assert_tells_apart(identity_of, FAMILIES[family], X)


def test_types_matter() -> None:
    arguments = [X, X[:3], X.astype("float64"), X.reshape(2, 2)]
    assert len({identity_of(lambda x: x * 2, argument) for argument in arguments}) == len(arguments)


@pytest.mark.slow
def test_another_process_gives_the_same() -> None:
    """Whose counters of functions are others."""
    code = (
        "import test_tensorflow_identity as t; t.identity_of(t.scaled(1.0), t.X); "
        "print(*(t.identity_of(t.FAMILIES[name](0), t.X) for name in t.WITH_COUNTERS))"
    )
    here = Path(__file__).parent
    folders = os.pathsep.join(map(str, (here, here.parent, here.parent / "helpers")))
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": folders},
        check=True,
    )
    assert found.stdout.split() == [identity_of(FAMILIES[name](0), X) for name in WITH_COUNTERS]


def _in_python(x: Any) -> Any:
    return tf.ensure_shape(tf.py_function(lambda y: y * 2.0, [x], tf.float32), x.shape)


VARIABLE = tf.Variable(X)


@pytest.mark.parametrize(
    "function",
    [
        _in_python,
        lambda x: tf.numpy_function(lambda y: y, [x], tf.float32, stateful=False),
        lambda x: x * VARIABLE,
        lambda x: x + tf.random.normal([4]),
        lambda x: (tf.print(x), x)[1],
        lambda x: x + tf.io.decode_raw(tf.io.read_file("x"), tf.float32),
        lambda x: x + tf.ones(7),
    ],
    ids=["Python", "Python without effects", "variable", "random numbers", "effect", "file", "an error"],
)
def test_what_is_not_known_for_certain_has_none(function: Function) -> None:
    with warnings.catch_warnings(action="ignore"):
        assert identity_of(function, X) is None


def test_a_converter_of_the_users_leaves_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it makes of the op for many rows is not in the graph."""
    function = scaled(2.0)
    assert identity_of(function, X) is not None
    monkeypatch.setitem(REGISTRY, "Mul", Converter("Mul", "own", lambda site: [], "any", xla=True, always=False))
    assert identity_of(function, X) is None


def test_large_data_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_identity, "MOST_CONSTANT_BYTES", 10_000)
    many = np.zeros((100, 4), "float32")
    assert identity_of(lambda x: x * tf.constant(many), X) is not None
    captured = [tf.constant(many + n) for n in range(8)]
    assert identity_of(lambda x: sum(x * data for data in captured), X) is None
    assert identity_of(lambda x: x * np.zeros((1000, 4), "float32"), X) is None


def test_keys_are_of_this_library_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchnuts, "BEGAN", np.inf)
    key = key_by_identity("a", "b")
    assert key is not None
    assert key == key_by_identity("a", "b")
    assert key != key_by_identity("ab", "")
    with monkeypatch.context() as patch:
        patch.setenv("TF_SOMETHING", "1")
        assert key_by_identity("a", "b") not in (None, key)
    with monkeypatch.context() as patch:  # as tf.experimental.numpy.experimental_enable_numpy_behavior leaves it
        patch.setattr(tf.Tensor, "ravel", None, raising=False)
        assert key_by_identity("a", "b") is None
    monkeypatch.setattr(batchnuts, "BEGAN", 0.0)
    assert key_by_identity("a", "b") is None
