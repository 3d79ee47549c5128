"""The setting that XLA reads from the environment: it arrives, it leaves no trace, and the user's own is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
hlo = machine._advance.experimental_get_compiler_ir(state, *[tf.constant(n, tf.int64) for n in (5, 0)])(stage="optimized_hlo")
assert dict(os.environ) == before, "the environment has changed"
assert np.asarray(machine.results(machine.advance(state, 100))[0]).tolist() == [6, 15]
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
    assert done.stdout.splitlines()[-1] == f"whole: {whole}"
