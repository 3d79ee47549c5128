"""Code that reads extents when it runs: it gives what code for these extents gives, and models share it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from programs import CASES, Case
from ways import NATIVE

from batchnuts import Model, sample_chains
from batchnuts.autobatch import ops
from batchnuts.autobatch.engines.native import NativeEngine
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.native.machine import NativeProgram
from batchnuts.autobatch.native.sizes import Size, extents_of
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.mcmc.execution import chain_machine


def test_what_is_computed_from_sizes_is_a_size() -> None:
    extents = extents_of([10, 5, 10])
    n, half = extents[10], extents[5]
    for number, expected in (
        (n * 4, 40),
        (4 * n, 40),
        (n + half, 15),
        (3 + n, 13),
        (n - 1, 9),
        (12 - n, 2),
        (-(-n // 4) * 4, 12),
        (n % 4, 2),
        (-1 % n, 9),
    ):
        assert (type(number), int(number)) == (Size, expected)
    assert (n * 4).key == (n * 4).key != (half * 8).key, "by how they were computed, not by their number"
    assert (n * 1) is n is (n + 0)
    assert type(n * 0) is int
    assert n == 10
    assert n.key != extents_of([5, 10])[10].key


def all_extents(compiled: CompiledFunction) -> tuple[int, ...]:
    """Those of a program's variables, but for 1."""
    shapes = (type_.shape for type_ in compiled.lowered.var_defs.values())
    return tuple(dict.fromkeys(extent for shape in shapes for extent in shape if extent > 1))


@pytest.fixture
def every_extent_varies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Machines whose code reads all extents: whether each program has any, and whether its code reads sizes."""
    machine = NativeEngine.machine
    found: list[tuple[bool, bool]] = []

    def made(self: Any, compiled: Any, arrays: Any, lanes: int, options: Any) -> Any:
        extents = all_extents(compiled)
        own = machine(self, compiled, arrays, lanes, replace(options, extents=extents))
        found.append((bool(extents), '@"sizes"' in own.native.text))
        return own

    monkeypatch.setattr(NativeEngine, "machine", made)
    return found


READS_NONE = "members"
"""The program whose one array is at the beginning, and is read at fixed places."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if i % 8 == 0 else pytest.mark.slow) for i, case in enumerate(CASES)],
)
def test_the_corpus_with_extents_that_vary(case: Case, every_extent_varies: list[tuple[bool, bool]]) -> None:
    options = {**NATIVE.options, "max_stack_depth": 5003}  # which no other test has: a machine of this one's own
    found = flatten(case.function.run(*case.inputs, **options))[0]
    assert every_extent_varies
    for has_extents, reads_sizes in every_extent_varies:
        assert reads_sizes is (has_extents and case.name != READS_NONE)
    expected = flatten(case.function.run(*case.inputs, executor="unbatched"))[0]
    for a, b in zip(found, expected, strict=True):
        rtol = max(case.rtol or 0, 2e-6 if a.dtype.itemsize < 8 else 1e-13)
        np.testing.assert_allclose(a, b.astype(a.dtype), rtol=rtol, atol=rtol)


def gaussian(dimension: int) -> Model:
    return Model.from_function(lambda q: -0.5 * ops.sum(q * q), dimension=dimension, dtype="float64")


SETTINGS: dict[str, dict[str, Any]] = {
    "nuts": {},
    "slice": {"selection": "slice"},
    "dense": {"metric": "dense"},
    "walnuts": {"transition": "walnuts"},
    "low rank": {"metric": "low_rank", "metric_rank": 4},
}


def texts_and_draws(settings: dict[str, Any], dimension: int, draws: int, texts: list[str]) -> tuple[str, Any]:
    """The text of the chains' program, and the result of a short run."""
    texts.clear()
    result = sample_chains(
        gaussian(dimension),
        chains=3,
        warmup=2,
        draws=draws,
        step_size=0.4,
        progress=False,
        backend="native",
        **settings,
    )
    return max(texts, key=len), result


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("nuts", "low rank") else pytest.mark.slow) for name in SETTINGS]
)
def test_models_share_their_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any dimension above LARGEST_FIXED, odd and even, and with any number of rows; and they draw what they drew."""
    texts: list[str] = []
    begun = NativeProgram.__init__

    def begin(self: Any, *arguments: Any) -> None:
        begun(self, *arguments)
        texts.append(self.text)

    monkeypatch.setattr(NativeProgram, "__init__", begin)
    first, _ = texts_and_draws(SETTINGS[name], 66, 3, texts)
    second, result = texts_and_draws(SETTINGS[name], 71, 40, texts)
    assert first == second
    monkeypatch.setattr(chain_machine, "LARGEST_FIXED", 10**6)
    fixed, expected = texts_and_draws(SETTINGS[name], 71, 40, texts)
    assert fixed != second
    for group in ("sample_stats", "posterior"):
        for variable, array in expected[group].data_vars.items():
            np.testing.assert_allclose(
                result[group][variable].values[:, :2], array.values[:, :2], rtol=1e-9, atol=1e-9, err_msg=str(variable)
            )
