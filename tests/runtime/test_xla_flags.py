"""The setting that XLA reads from the environment: it arrives, it leaves no trace, and the user's own is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BOUND = """
import sys
import numpy as np
from batchnuts.autobatch import batch, ops
from batchnuts.autobatch.api import as_type, get_backend
from batchnuts.autobatch.backends.tensorflow.environment import PROCESS

@batch
def shrunk(x, n):
    while n > 0:
        x = ops.tanh(np.eye(3) @ x) if sys.argv[1] == "matrix" else ops.tanh(x)
        n = n - 1
    return x

types = as_type("float64[3]"), as_type("int64")
shrunk.machine(types, int(sys.argv[2]), get_backend("tensorflow", "xla"), "sweep", 8)
print(PROCESS.small_loop_bytes)
"""

PROGRAM = """
import os
import numpy as np
import tensorflow as tf
from batchnuts.autobatch import batch
from batchnuts.autobatch.api import as_type, get_backend

@batch
def triangular(n):
    if n == 0:
        return 0
    return n + triangular(n - 1)

before = dict(os.environ)
machine = triangular.machine((as_type("int64"),), 2, get_backend("tensorflow", "xla"), "sweep", 8)
state = machine.start({"main.n": np.array([3, 5])})
budget = [np.asarray(n) for n in (5, 0)]
hlo = machine._advance.compiled_text(state, *budget)
assert dict(os.environ) == before, "the environment has changed"
assert np.asarray(machine.results(machine.advance(state, 100))[0]).tolist() == [6, 15]
entry = hlo[hlo.index("ENTRY"):]
kinds = {(str(array.dtype), array.shape) for array in state.values() if array.shape}
print("functions besides:", entry.count(" fusion("), len(kinds), len(state))
print("whole:", "xla_cpu_small_call" in hlo)
"""


@pytest.mark.parametrize(
    ("flags", "whole"),
    [
        (None, True),
        ("--xla_cpu_multi_thread_eigen=true", True),
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
    besides, found = done.stdout.splitlines()[-2:]
    assert found == f"whole: {whole}"
    if whole:  # the state's arrays are cut apart in a loop that is compiled whole too
        functions, kinds, arrays = map(int, besides.removeprefix("functions besides: ").split())
        # zeros of each type that the loop begins with, and one that joins the results: none for each array
        assert functions <= kinds + 1 < arrays


@pytest.mark.parametrize(
    ("what", "lanes", "bound"), [("matrix", "1", "300000"), ("matrix", "4", "30000"), ("vector", "4", "300000")]
)
def test_plain_loops_only_where_no_matrices_are_multiplied(what: str, lanes: str, bound: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BOUND)
    command = [sys.executable, str(tmp_path / "program.py"), what, lanes]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == bound
