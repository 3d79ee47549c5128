"""What a primitive only checks is handed to it; it may make variables that it keeps."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch import AssertionWarning, batch, primitive


@primitive
def checked(a: Any, b: Any) -> Any:
    tf.debugging.assert_greater(b, 0.5)
    return a + 1.0


@batch
def one_leaf_is_only_checked(a, b):
    return checked(a, b)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_an_input_that_is_only_checked_has_its_value(mode: str) -> None:
    warned = (
        pytest.warns(AssertionWarning, match=r"test_effects.py:\d+ is not evaluated")
        if mode == "xla"
        else nullcontext()
    )
    with warned:
        result = one_leaf_is_only_checked.run(np.arange(3.0), np.ones(3, "float32"), mode=mode)
    np.testing.assert_array_equal(result, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_check_that_fails_is_raised(mode: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        one_leaf_is_only_checked.run(np.arange(3.0), np.array([1.0, 0.0, 1.0], "float32"), mode=mode)


class Scale(tf.Module):
    """Makes its variable when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.factor: Any = None

    def __call__(self, x: Any) -> Any:
        """Three times x."""
        if self.factor is None:
            self.factor = tf.Variable(np.float64(3.0), trainable=False)
        return self.factor * x


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_a_variable_that_is_made_late_and_kept(mode: str) -> None:
    scale = primitive(Scale())

    @batch
    def scaled(x):
        return scale(x)

    np.testing.assert_array_equal(scaled.run(np.arange(3.0), mode=mode), [0.0, 3.0, 6.0])
