"""The setting that XLA reads from the environment: it arrives, it leaves no trace, and the user's own is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import BatchedFunction, batch, get_backend, ops
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.tensorflow.backend import TensorFlowBackend
from batchnuts.autobatch.backends.tensorflow.xla_flags import PLAIN_LOOP_BYTES

PROGRAM = """
import os
import numpy as np
import tensorflow as tf
from batchnuts.autobatch import batch
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.backends.tensorflow.environment import PROCESS

@batch
def triangular(n):
    if n == 0:
        return 0
    return n + triangular(n - 1)

before = dict(os.environ)
machine = triangular.machine((as_type("int64"),), 2, get_backend("tensorflow", "xla"), "sweep", 8)
state = machine.start((np.array([3, 5]),))
budget = [np.asarray(n) for n in (5, 0)]
hlo = machine._advance.compiled_text(state, *budget)
assert dict(os.environ) == before, "the environment has changed"
assert np.asarray(machine.results(machine.advance(state, 100))[0]).tolist() == [6, 15]
entry = hlo[hlo.index("ENTRY"):]
kinds = {(str(array.dtype), array.shape) for array in state.values() if array.shape}
print("functions besides:", entry.count(" fusion("), len(kinds), len(state))
print("whole:", "xla_cpu_small_call" in hlo)
print("bound:", PROCESS.small_loop_bytes)
"""


@pytest.mark.parametrize(
    ("flags", "whole"),
    [
        pytest.param(None, True, marks=pytest.mark.slow),
        pytest.param("--xla_cpu_multi_thread_eigen=true", True, marks=pytest.mark.slow),
        ("--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1", False),
    ],
    ids=["none", "others", "the-same"],
)
def test_small_loops_are_compiled_whole(flags: str | None, whole: bool, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"XLA_FLAGS": flags} if flags else {}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    besides, found, bound = done.stdout.splitlines()[-3:]
    assert (found, bound) == (f"whole: {whole}", f"bound: {PLAIN_LOOP_BYTES if whole else 0}")
    if whole:  # the state's arrays are cut apart in a loop that is compiled whole too
        functions, kinds, arrays = map(int, besides.removeprefix("functions besides: ").split())
        # zeros of each type that the loop begins with, and one that joins the results: none for each array
        assert functions <= kinds + 1 < arrays


@batch
def shrunk(x, n):
    while n > 0:
        x = ops.tanh(x)
        n = n - 1
    return x


@batch
def shrunk_matrix(x, n):
    while n > 0:
        x = ops.tanh(np.eye(3) @ x)
        n = n - 1
    return x


@pytest.mark.parametrize(
    ("function", "lanes", "plain"), [(shrunk_matrix, 1, True), (shrunk_matrix, 4, False), (shrunk, 4, True)]
)
def test_plain_loops_only_where_no_matrices_are_multiplied(
    function: BatchedFunction, lanes: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound that the first program of a process would set."""
    asked: list[bool] = []
    make = TensorFlowBackend.compile_machine

    def spy(backend: TensorFlowBackend, machine: Any, plain: bool) -> Any:
        asked.append(plain)
        return make(backend, machine, plain)

    monkeypatch.setattr(TensorFlowBackend, "compile_machine", spy)
    types = as_type("float64[3]"), as_type("int64")
    function.machine(types, lanes, get_backend("tensorflow", "xla"), "sweep", 8)
    assert asked == [plain]
