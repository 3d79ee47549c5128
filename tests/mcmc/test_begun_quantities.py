"""What is computed from draws, where it is machine code: LLVM begins with it before the chains' program is compiled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts import Model, real, sample_chains
from batchnuts.autobatch import api, ops
from batchnuts.autobatch.native import outlined


def test_its_code_is_begun_before_the_chains_program_and_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make, compile_function = outlined._make, api.compile_function

    def begun(expression: Any) -> Any:
        made.append(expression)
        return make(expression)

    def compiled(function: Any, *others: Any) -> Any:
        made.append(function.__name__)
        return compile_function(function, *others)

    monkeypatch.setattr(batchnuts, "BEGAN", time.time())  # programs are found by the files of the package
    monkeypatch.setattr(outlined, "_make", begun)
    monkeypatch.setattr(api, "compile_function", compiled)
    model = Model.from_function(
        lambda p: -0.5 * ops.sum(p["x"] ** 2), variables={"x": real(3)}, generated=lambda p: {"twice": 2.0 * p["x"]}
    )
    result = sample_chains(
        model, chains=4, warmup=3, draws=2, seed=1, progress=False, cache=str(tmp_path), backend="native_numpy"
    )
    posterior = result["posterior"]
    np.testing.assert_array_equal(posterior["twice"].values, 2.0 * posterior["x"].values)
    names = [one for one in made if isinstance(one, str)]
    expressions = [one for one in made if not isinstance(one, str)]
    assert names[:2] == ["evaluate", "run_chain"]
    assert names[-1] == "draw"
    before = made[: made.index("run_chain")]
    assert [one for one in before if not isinstance(one, str)] == expressions, "nothing is begun later"
    assert len(expressions) == 2 == len(set(expressions)), "the density, and what is computed from draws"
