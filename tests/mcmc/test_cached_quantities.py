"""What is computed from draws, where programs are on disk: found again by what the model's functions compute."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax

import batchnuts
from batchnuts import Model, lower, positive, real
from batchnuts.autobatch import api, ops, random
from batchnuts.disk_cache.folder import entries_of, keeping
from batchnuts.mcmc.model import quantities, quantity_functions
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.quantities import Quantities, check_quantities
from batchnuts.mcmc.settings.run_settings import split_settings

pytestmark = needs_jax

JAX = DensityLibrary("jax", "")
ROLES = ("generated", "log_likelihood", "predictive", "prior")
Y = np.array([0.5, -1.0, 2.0, 0.0], "float32")
FACTOR = 2.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of models that are called, by role."""
    seen: list[str] = []
    whole = quantity_functions.called

    def counted(model: Model, role: str, *others: Any) -> Any:
        seen.append(role)
        return whole(model, role, *others)

    monkeypatch.setattr(batchnuts, "BEGAN", time.time())  # programs are found by the files of the package
    monkeypatch.setattr(quantity_functions, "called", counted)
    return seen


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that the compiler's passes see, and those that JAX traces, by name."""
    from batchnuts.autobatch.language.libraries import jax_programs

    seen: list[str] = []
    passes, by_jax = api.compile_function, jax_programs.compiled

    def counted(function: Any, *others: Any) -> Any:
        seen.append(function.__name__)
        return passes(function, *others)

    def counted_too(*arguments: Any) -> Any:
        seen.append("jax")
        return by_jax(*arguments)

    monkeypatch.setattr(api, "compile_function", counted)
    monkeypatch.setattr(jax_programs, "compiled", counted_too)
    return seen


def model(scale: Any = 1.0, dtype: str = "float32", bound: float = 0.0, **functions: Any) -> Model:
    """With a scale in the closure of its functions."""
    y = Y.astype(dtype)

    def pointwise(p: dict[str, Any]) -> Any:
        return -0.5 * ((y - p["mu"]) / p["tau"]) ** 2 * scale

    given: dict[str, Any] = {
        "generated": lambda p: {"ratio": p["mu"] / p["tau"] * scale},
        "log_likelihood": pointwise,
        "predictive": lambda p, seed: p["mu"] + p["tau"] * random.normal(seed, (4,), dtype),
        "prior": lambda seed: {
            "mu": random.normal(seed, (), dtype) * scale,
            "tau": bound + ops.exp(random.normal(random.fold_in(seed, 1), (), dtype)),
        },
    }
    return Model.from_function(
        lambda p: ops.sum(pointwise(p)) - 0.5 * p["mu"] ** 2 - p["tau"],
        dtype=dtype,
        variables={"mu": real(), "tau": lower(bound) if bound else positive()},
        observed_data={"y": (("row",), Y)},
        **(given | functions),
    )


def computed(folder: Path | None, made: Model, meanwhile: Callable[[], Any] = lambda: None) -> dict[str, np.ndarray]:
    """By role and name: of draws and of the prior, after a check; meanwhile: what happens between the two."""
    _, execution = split_settings({"backend": "jax", "cache": None if folder is None else str(folder)})
    rows = np.random.default_rng(0).normal(size=(50, 2)).astype(made.dtype)
    with keeping(execution.cache):
        check_quantities(made, JAX, rows[0])
    meanwhile()
    compiled_for_draws = Quantities(made, execution, 3)
    of_draws = compiled_for_draws.of_posterior(rows, np.arange(50) // 10, np.arange(50) % 10)
    values, of_prior = compiled_for_draws.of_prior(20)
    found = {f"posterior {role} {name}": x for role, of_role in of_draws.items() for name, x in of_role.items()}
    found |= {f"prior {role} {name}": x for role, of_role in of_prior.items() for name, x in of_role.items()}
    return found | {f"prior {name}": x for name, x in values.items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """To the last bit."""
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape), name
        assert array.tobytes() == expected[name].tobytes(), name


def test_a_second_start_calls_each_function_once_and_compiles_nothing(
    tmp_path: Path, calls: list[str], compiled: list[str]
) -> None:
    alone = computed(None, model())
    entries = entries_of(str(tmp_path))
    assert entries is not None
    del calls[:], compiled[:]
    first = computed(tmp_path, model())
    assert sorted(calls) == sorted(ROLES), "the check traces them; all else uses its traces"
    assert sorted(compiled) == ["draw", "jax", "jax", "prior"]
    written = entries.tally.written
    assert (written, entries.tally.missing) == (2 * 3, 2 * 3), "what the passes made, a program, and its other key"
    del calls[:], compiled[:]
    second = computed(tmp_path, model())
    assert sorted(calls) == sorted(ROLES)
    assert compiled == []
    assert (entries.tally.written, entries.tally.dropped) == (written, 0)
    for found in (first, second):
        assert_same(found, alone)


def globally() -> Model:
    return model(generated=lambda p: {"ratio": p["mu"] * FACTOR})


def by_default(factor: float) -> Any:
    return lambda p, factor=factor: {"ratio": p["mu"] * factor}


OTHERS: dict[str, tuple[Callable[[], Model], Callable[[], Model]]] = {
    "number": (lambda: model(2.0), lambda: model(3.0)),
    "array": (lambda: model(np.ones(4, "float32")[0]), lambda: model(np.full(4, 1.5, "float32")[0])),
    "data": (
        lambda: model(log_likelihood=lambda p: p["mu"] - np.array([1.0, 2.0, 3.0, 4.0], "float32")),
        lambda: model(log_likelihood=lambda p: p["mu"] - np.array([1.0, 2.0, 3.0, 5.0], "float32")),
    ),
    "default": (lambda: model(generated=by_default(2.0)), lambda: model(generated=by_default(3.0))),
    "name": (
        lambda: model(generated=lambda p: {"one": p["mu"]}),
        lambda: model(generated=lambda p: {"two": p["mu"]}),
    ),
    "shape": (
        lambda: model(generated=lambda p: {"one": p["mu"]}),
        lambda: model(generated=lambda p: {"one": ops.stack([p["mu"]])}),
    ),
    "dtype": (model, lambda: model(dtype="float64")),
    "support": (lambda: model(bound=1.0), lambda: model(bound=2.0)),
    "function that is left out": (model, lambda: model(predictive=None)),
    "code": (
        lambda: model(predictive=lambda p, seed: p["mu"] + random.normal(seed, (4,))),
        lambda: model(predictive=lambda p, seed: p["mu"] - random.normal(seed, (4,))),
    ),
}


IN_EACH_RUN = ("number", "data")


@pytest.mark.parametrize(
    "what", [name if name in IN_EACH_RUN else pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]
)
def test_what_is_kept_of_other_functions_is_not_used(tmp_path: Path, calls: list[str], what: str) -> None:
    first, second = OTHERS[what]
    before = computed(tmp_path, first())
    expected = computed(None, second())
    as_bytes = [{name: (x.shape, x.tobytes()) for name, x in found.items()} for found in (before, expected)]
    assert as_bytes[0] != as_bytes[1]
    for _ in range(2):
        assert_same(computed(tmp_path, second()), expected)


@pytest.mark.slow
def test_what_is_kept_of_another_global_is_not_used(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = computed(tmp_path, globally())
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    found = computed(tmp_path, globally())
    assert_same(found, computed(None, globally()))
    np.testing.assert_allclose(found["posterior generated ratio"], 1.5 * before["posterior generated ratio"])


@pytest.mark.parametrize("what", ["array", pytest.param("global", marks=pytest.mark.slow)])
def test_a_change_after_the_check_is_seen(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Programs of the functions as the check found them are on disk."""
    scale = np.array(2.0, "float32")

    def made() -> Model:
        return model(scale) if what == "array" else globally()

    def change() -> None:
        scale[()] = 3.0
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)

    before = computed(tmp_path, made())
    del calls[:]
    found = computed(tmp_path, made(), change)
    assert sorted(calls) == sorted(2 * ROLES)
    assert_same(found, computed(None, made()))
    np.testing.assert_allclose(found["posterior generated ratio"], 1.5 * before["posterior generated ratio"])


def opaque(factor: float) -> Any:
    import jax

    @jax.custom_batching.custom_vmap
    def times(x: Any) -> Any:
        return x * factor

    @times.def_vmap
    def _(size: int, batched: Any, x: Any) -> Any:
        return x * factor, True

    return lambda p: {"ratio": times(p["mu"])}


def test_functions_of_which_not_all_is_known_are_traced_as_without_a_cache(tmp_path: Path, calls: list[str]) -> None:
    """A batching rule is a Python function, which leaves no mark in the trace."""
    del calls[:]
    alone = computed(None, model(generated=opaque(2.0)))
    count = calls.count("generated")
    assert count > 1
    for factor in (2.0, 3.0, 2.0):
        del calls[:]
        found = computed(tmp_path, model(generated=opaque(factor)))
        assert calls.count("generated") == count
        np.testing.assert_allclose(
            found["posterior generated ratio"], factor / 2 * alone["posterior generated ratio"], rtol=1e-6
        )
    assert_same(found, alone)


def test_before_a_check_no_trace_of_an_earlier_one_is_used(tmp_path: Path, calls: list[str]) -> None:
    """As chains that start at draws of the prior are."""
    made = model()
    computed(tmp_path, made)
    _, execution = split_settings({"backend": "jax", "cache": str(tmp_path)})
    for checked, expected in ((True, []), (False, ["prior"])):
        del calls[:]
        quantities.Quantities(made, execution, 3, checked=checked)._finite_draws(5)
        assert calls == expected


def test_traces_are_no_part_of_a_copy(tmp_path: Path, calls: list[str]) -> None:
    made = model()
    computed(tmp_path, made)
    assert made.cache.traces is not None
    assert copy.copy(made).cache.traces is None


SCRIPT = """
import json, sys
from batchnuts.mcmc.model import quantity_functions
calls, whole = [], quantity_functions.called
def counted(model, role, *others):
    calls.append(role)
    return whole(model, role, *others)
quantity_functions.called = counted
from batchnuts.sample import main
try:
    main(sys.argv[1:])
finally:
    print("CALLS", json.dumps(calls))
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str, str], tuple[list[str], dict[str, bytes]]]:
    """Starts the command line in a process of its own: which functions it called, and the arrays of its file."""
    import h5py

    def started(name: str, cache: str) -> tuple[list[str], dict[str, bytes]]:
        path = tmp_path / f"{name}.nc"
        options = ["sampler.chains=4", "sampler.warmup=10", "sampler.draws=5", "execution.backend=jax"]
        arguments = ["--config", "eight_schools.yaml", f"output.path={path}", f"execution.cache={cache}", *options]
        found = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
        line = next(line for line in found.stdout.splitlines() if line.startswith("CALLS "))
        arrays: dict[str, bytes] = {}
        with h5py.File(path) as file:
            for group in ("posterior", "log_likelihood", "posterior_predictive", "prior", "prior_predictive"):
                arrays |= {f"{group} {key}": x[()].tobytes() for key, x in file[group].items() if x.dtype.kind == "f"}
        return json.loads(line.removeprefix("CALLS ")), arrays

    return started


@pytest.mark.slow
def test_a_second_process_calls_each_function_once(tmp_path: Path, start: Any) -> None:
    alone, expected = start("alone", "null")
    assert len(alone) > len(ROLES)
    for name in ("first", "second"):
        calls, arrays = start(name, str(tmp_path / "kept"))
        assert sorted(calls) == sorted(ROLES)
        assert arrays == expected
