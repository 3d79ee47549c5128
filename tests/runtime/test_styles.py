"""Masking and gather: the same results, and exactly the rows that each promises to compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import Case, fibonacci
from ways import covering_rotating

from batchnuts.autobatch import batch, ops, primitive
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend, with_style
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime.regions import Compute, plan_block

EAGER = {"backend": "tensorflow", "mode": "eager"}

rows_seen: list[Any] = []


@primitive(batched=True)
def seen(n):
    rows_seen.append(n)
    return n - 1


@batch
def count_down(n):
    """Lane i takes n[i] rounds; the row of an inactive lane would be 0, on which the division raises."""
    rounds = 0
    while n > 0:
        rounds += 12 // n
        n = seen(n)
    return rounds


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
@pytest.mark.parametrize("backend", [{"backend": "numpy"}, EAGER], ids=["numpy", "tensorflow"])
def test_the_rows_computed(backend: dict[str, str], executor: str) -> None:
    n = np.array([1, 3, 0, 2])
    expected = [12, 22, 0, 18]

    def rows(style: str) -> list[list[int]]:
        count_down.run(n, executor=executor, style=style, **backend)  # compiles: type inference calls primitives too
        rows_seen.clear()
        found = count_down.run(n, executor=executor, style=style, **backend)
        np.testing.assert_array_equal(found, expected)
        return [np.asarray(rows).tolist() for rows in rows_seen]

    assert rows("gather") == [[1, 3, 2], [2, 1], [1]]  # the active lanes', in order
    assert rows("masking") == [
        [1, 3, 1, 2],
        [2, 2, 2, 1],
        [1, 1, 1, 1],
    ]  # inactive lanes' rows are an active one's


def some_rotating() -> list[Any]:
    """Of covering programs and executors a few: `test_executors` runs each of these programs in both styles, too."""
    params = covering_rotating({name: name for name in ("virtual_machine", "stackless")})
    return [
        param if i < 10 else pytest.param(*param.values, id=param.id, marks=pytest.mark.slow)
        for i, param in enumerate(params)
    ]


@pytest.mark.parametrize(("case", "executor"), some_rotating())
def test_both_styles_give_the_same_on_tensorflow(case: Case, executor: str) -> None:
    """(On NumPy: test_executors.)"""
    options = {"executor": executor, **EAGER}
    masked, gathered = (case.function.run(*case.inputs, style=style, **options) for style in ("masking", "gather"))
    for a, b in zip(flatten(masked)[0], flatten(gathered)[0], strict=True):
        assert a.dtype == b.dtype
        tolerance = {"float32": 2e-6, "float64": 1e-13}.get(a.dtype.name, 0.0)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("style", ["masking", "gather"])
def test_an_eager_region_is_traced_once_for_any_number_of_active_lanes(style: str) -> None:
    traced: list[Any] = []

    def helper(x):
        traced.append(x)
        return ops.exp(-x) * 2.0

    @batch
    def program(x, n):
        while n > 0:
            x = helper(x)
            n -= 1
        return x

    inputs = np.zeros(5), np.array([1, 4, 2, 0, 3])
    program.run(*inputs, style=style, **EAGER)
    before = len(traced)
    expected = np.zeros(5)
    for k in range(4):
        expected = np.where(inputs[1] > k, np.exp(-expected) * 2.0, expected)
    np.testing.assert_allclose(program.run(*inputs, style=style, **EAGER), expected, rtol=1e-14)
    program.run(np.ones(5), inputs[1][::-1], style=style, **EAGER)
    assert len(traced) == before


def test_gathers_trace_count() -> None:
    backend = get_backend("tensorflow", "eager", "gather")
    double = backend.vectorize(lambda x: (x + x,), (as_type("float64"),), (as_type("float64"),))
    for rows in (1, 4, 2, 7):
        np.testing.assert_array_equal(backend.to_numpy(double(backend.full((rows,), 1.0, "float64"))[0]), [2.0] * rows)
    assert double.experimental_get_tracing_count() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_gather_needs_shapes_that_may_change(mode: str, executor: str) -> None:
    with pytest.raises(ValueError, match=f"style='gather' computes as many rows .* but mode='{mode}' compiles"):
        fibonacci.run(np.array([3]), executor=executor, mode=mode, style="gather")


def test_what_auto_is() -> None:
    assert get_backend("numpy", "eager") is get_backend("numpy", "xla", "gather")
    assert get_backend("tensorflow", "eager") is get_backend("tensorflow", "eager", "masking")
    assert with_style(get_backend("numpy", ""), "auto") is get_backend("numpy", "")
    with pytest.raises(ValueError, match="style='masking', but the backend 'numpy' was made for 'gather'"):
        with_style(get_backend("numpy", ""), "masking")
    with pytest.raises(ValueError, match="style must be one of auto, masking, gather; found 'scatter'"):
        fibonacci.run(np.array([3]), style="scatter")


def test_constants_need_no_inputs() -> None:
    """A region without inputs gives its constants to every lane, in every style."""
    numpy = {"backend": "numpy"}
    for options in (numpy, {**numpy, "style": "masking"}, EAGER, {**EAGER, "style": "gather"}):
        backend = get_backend(options["backend"], "eager", options.get("style", "auto"))

        @batch
        def constant(n):
            return np.arange(3.0), 7

        program = constant.compiled((as_type("int64"),), backend).lowered
        block = program.graph.block(program.graph.entry)
        (step,) = plan_block(block, frozenset(program.vars_out), program.var_defs, backend)
        assert isinstance(step, Compute)
        assert step.vars_in == ()
        vectors, numbers = constant.run(np.array([1, 2]), **options)
        np.testing.assert_array_equal(vectors, [[0, 1, 2], [0, 1, 2]])
        np.testing.assert_array_equal(numbers, [7, 7])
