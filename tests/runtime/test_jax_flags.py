"""XLA's bound for small loops on JAX: it arrives, it leaves no trace, and the user's own settings are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from array_libraries import needs_jax

PROGRAM = """
import os, sys
import jax.numpy as jnp
import numpy as np
from batchnuts.autobatch import batch
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.language.libraries.jax_flags import SMALL_LOOP_BYTES, options_in_force

@batch
def triangular(n):
    if n == 0:
        return 0
    return n + triangular(n - 1)

if sys.argv[1:]:
    jnp.ones(3)
before = dict(os.environ)
machine = triangular.machine((as_type("int64"),), 100, get_backend("jax", "xla"), "sweep", 8)
state = machine.start((np.arange(100) % 5,))
text = machine.compiled_text(state)
assert dict(os.environ) == before, "the environment has changed"
assert np.asarray(machine.results(machine.advance(state, 100))[0])[:5].tolist() == [0, 1, 3, 6, 10]
print(str(SMALL_LOOP_BYTES).encode() in options_in_force(), "xla_cpu_small_call" in text)
"""


@needs_jax
@pytest.mark.parametrize(
    ("flags", "used_before", "ours", "whole"),
    [
        (None, False, True, True),
        ("--xla_cpu_multi_thread_eigen=true", False, True, True),
        ("--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1", False, False, False),
        (None, True, False, None),  # as XLA has it by itself: jaxlib 0.12 compiles this loop whole, 0.10 does not
    ],
    ids=["none", "others", "the-same", "too-late"],
)
def test_small_loops_are_compiled_whole(
    flags: str | None, used_before: bool, ours: bool, whole: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"XLA_FLAGS": flags} if flags else {}
    command = [sys.executable, str(tmp_path / "program.py"), *(["used before"] if used_before else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    in_force, compiled_whole = done.stdout.split()[-2:]
    assert in_force == str(ours)
    assert whole is None or compiled_whole == str(whole)
