"""`backend="auto"`: which library runs a batched function that is asked for none."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from array_libraries import needs_jax

from batchnuts.autobatch import CompileError, batch, ops, prepare
from batchnuts.autobatch.api import BatchedFunction

X = np.array([1.0, 2.0])

pytestmark = needs_jax


@batch
def neutral(x, y=0.0):
    return ops.exp(x) + y


@batch
def of_tensorflow(x):
    return tf.math.lgamma(x + 1.0)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends for which functions are compiled."""
    names: list[str] = []
    original = BatchedFunction.compiled

    def compiled(self: BatchedFunction, types: Any, backend: Any) -> Any:
        names.append(f"{backend.name} {backend.mode}")
        return original(self, types, backend)

    monkeypatch.setattr(BatchedFunction, "compiled", compiled)
    return names


def test_a_program_that_runs_on_either_runs_on_jax(taken: list[str]) -> None:
    np.testing.assert_allclose(neutral(X), np.exp(X), rtol=1e-12)
    assert set(taken) == {"jax xla"}


def test_the_library_of_the_arguments_is_taken(taken: list[str]) -> None:
    import jax.numpy as jnp

    neutral(tf.constant(X))
    assert set(taken) == {"tensorflow xla"}
    neutral(jnp.asarray(X))
    assert taken[-1] == "jax xla"
    np.testing.assert_allclose(neutral(tf.constant(X), jnp.asarray([1.0, 1.0])), np.exp(X) + 1.0, rtol=1e-12)


@pytest.mark.parametrize("options", [{"mode": "graph"}, {"mode": "eager", "style": "gather"}], ids=str)
def test_what_tensorflow_alone_has_decides(taken: list[str], options: dict[str, str]) -> None:
    import jax.numpy as jnp

    np.testing.assert_allclose(neutral.run(jnp.asarray(X, "float32"), **options), np.exp(X), rtol=1e-6)
    assert set(taken) == {f"tensorflow {options['mode']}"}


def test_the_library_that_a_program_calls_is_found_once(taken: list[str]) -> None:
    for _ in range(3):
        np.testing.assert_allclose(of_tensorflow(X), [0.0, np.log(2.0)], atol=1e-12)
    assert taken.count("jax xla") == 1


def test_the_error_is_that_of_the_library_that_is_called() -> None:
    import jax.numpy as jnp

    @batch
    def wrong_on_jax(x):
        return jnp.sin(x.reshape((3,)))

    @batch
    def wrong_on_tensorflow(x):
        y = tf.exp(x)
        return y + tf.reshape(x, (3,))

    with pytest.raises(CompileError, match=r"cannot reshape array of shape \(\)"):
        wrong_on_jax(X)
    with pytest.raises(CompileError, match="3"):
        wrong_on_tensorflow(X)


def test_a_program_by_hand_is_compiled_once_for_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("batchnuts.autobatch.prepare")
    original, compiled = module.compile_program, []

    def noting(*args: Any) -> Any:
        compiled.append(args[2].name)
        return original(*args)

    monkeypatch.setattr(module, "compile_program", noting)
    for function, expected in ((neutral, ["jax"]), (of_tensorflow, ["jax", "tensorflow"])):
        compiled.clear()
        types = ("float64",) * len(function._signature.parameters)
        prepared = prepare(function.passes(*types)["frontend"], *types)
        assert compiled == expected
        assert prepared.backend.name == expected[-1]
