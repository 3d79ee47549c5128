"""Arrays that have types and no values: what the rules say of an expression is what a trace says."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mcmc_models import quartic
from programs import COVERING, Case

from batchnuts.autobatch import batch, ops, primitive
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends import abstract
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.language import operators
from batchnuts.autobatch.language.arrays import dtype_of, static_shape
from batchnuts.autobatch.language.libraries.type_rules import NotTyped, Typed
from batchnuts.autobatch.passes.infer_types import AbstractResult
from batchnuts.autobatch.pipeline import compile_function
from batchnuts.autobatch.runtime.results import in_type
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts

Results = tuple[AbstractResult, ...]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Results | None, Results]]:
    """Of each primitive that is evaluated: its text, what the rules say (None: they do not), and the trace."""
    found: list[tuple[str, Results | None, Results]] = []
    evaluate = abstract.trace_with_literals

    def both(trace: Any, function: Primitive, arguments: tuple[Any, ...]) -> Results:
        traced = evaluate(trace, replace(function, of_language=False), arguments)
        try:
            by_rules = abstract.typed(function, arguments, abstract.USUAL) if function.of_language else None
        except Exception:
            by_rules = None
        found.append((function.text, by_rules, traced))
        return traced

    for backend in ("jax", "tensorflow"):
        module = importlib.import_module(f"batchnuts.autobatch.backends.{backend}.backend")
        monkeypatch.setattr(module, "trace_with_literals", both)
    return found


@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", COVERING, ids=lambda case: case.name)
def test_of_whole_programs(compared: list[Any], case: Case, backend: str) -> None:
    compile_function(case.function, case.function.lane_types(case.inputs), get_backend(backend, "eager"))
    for text, by_rules, traced in compared:
        assert by_rules is None or by_rules == traced, text


def nuts_types() -> tuple[Any, ...]:
    vector, scalar = np.zeros((1, 2)), np.zeros(1)
    arguments = (np.zeros((1, 2), "uint32"), vector, scalar, vector, scalar, vector, np.zeros(1, "int64"))
    return make_nuts(quartic, NutsOptions(dtype="float64")).lane_types(arguments)


def test_the_sampler_is_typed_by_rules_but_for_its_density(compared: list[Any]) -> None:
    compile_function(make_nuts(quartic, NutsOptions(dtype="float64")), nuts_types(), get_backend("jax", "eager"))
    assert {text for text, by_rules, _ in compared if by_rules is None} == {"quartic"}
    assert len(compared) > 80


seen: list[type] = []


@primitive
def noted(x: Any) -> Any:
    seen.append(type(x))
    return x * 2.0


def helper(x: Any) -> Any:
    seen.append(type(x))
    return x + 1.0


@batch
def calls_users_functions(x: Any) -> Any:
    y = noted(x) + helper(x)
    return ops.exp(y) + helper(ops.square(y))


def test_users_functions_are_never_given_arrays_without_values() -> None:
    del seen[:]
    compile_function(calls_users_functions, (as_type("float64[3]"),), get_backend("jax", "eager"))
    assert len(seen) >= 3
    assert Typed not in seen


MADE = {
    "add": lambda x, y: operators.add(x, y),
    "of a number": lambda x, y: operators.multiply(x, 2),
    "of integers": lambda x, y: operators.divide(ops.cast(x, "int32"), 3),
    "compared": lambda x, y: operators.less(x, y),
    "chosen": lambda x, y: ops.where(operators.less(x, y), x, 0.0),
    "summed": lambda x, y: ops.sum(x, axis=1),
    "kept": lambda x, y: ops.max(x, axis=(0, -1), keepdims=True),
    "multiplied": lambda x, y: ops.matmul(x, ops.transpose(x)),
    "by a vector": lambda x, y: ops.matmul(x, y),
    "dot": lambda x, y: ops.dot(y, y),
    "stacked": lambda x, y: ops.stack([y, y], axis=-1),
    "joined": lambda x, y: ops.concatenate([x, x, x], axis=1),
    "reshaped": lambda x, y: ops.reshape(x, (-1, 2)),
    "sums": lambda x, y: ops.cumsum(x, axis=0),
    "truths": lambda x, y: ops.logical_and(operators.less(x, 1.0), operators.greater(x, 0.0)),
    "bits": lambda x, y: ops.bitcast(ops.cast(x, "float32"), "uint32"),
    "filled": lambda x, y: ops.full_like(x, 1.5),
    "sliced": lambda x, y: x[1:, ..., None],
    "python's operators": lambda x, y: -(x * y + 1.0) / x,
}


@pytest.mark.parametrize("name", MADE)
def test_types_are_those_of_arrays(name: str) -> None:
    """And what they depend on are the arrays that they are made of."""
    x, y = np.ones((3, 4)), np.ones(4)
    found = MADE[name](Typed("float64", (3, 4), frozenset([0])), Typed("float64", (4,), frozenset([1])))
    expected = MADE[name](x, y)
    assert (dtype_of(found), static_shape(found)) == (dtype_of(expected), static_shape(expected))
    assert found.reads <= {0, 1}


REFUSED = {
    "truth": bool,
    "number": float,
    "numpy": np.sin,
    "elements": iter,
    "length": len,
    "array": np.asarray,
    "attribute": lambda x: x.shape,
    "another dtype": lambda x: x + np.ones(4, "float32"),
    "index": lambda x: x[x],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises((NotTyped, TypeError, AttributeError)):
        REFUSED[name](Typed("float64", (4,), frozenset([0])))


def test_results_without_axes_are_scalars() -> None:
    """As most of NumPy's own functions give them: a user's function may look one up in a dict."""
    rules: Any = SimpleNamespace(of_language=True)
    for value in (np.array(2), np.int64(2)):
        assert {2: "found"}[in_type(value, TensorType("int64"), rules, None)] == "found"
    array = in_type(np.arange(3), TensorType("int64", (3,)), rules, None)
    assert not array.flags.writeable
