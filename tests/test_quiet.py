"""Where we import TensorFlow for somebody, it says nothing; the user's own words, and a crash's, are never lost."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from batchnuts.process import quiet

BATCHED = """
import numpy as np
from batchnuts import autobatch
@autobatch.batch
def double(x):
    return x + x
assert double.run(np.array([1.0, 2.0]), backend="tensorflow").tolist() == [2.0, 4.0]
assert double.run(np.array([1.0, 2.0]), backend="jax").tolist() == [2.0, 4.0]
"""

PFOR = """
from batchnuts.autobatch.pfor import pfor
assert pfor(lambda i: i + 1, 3).shape == (3,)
"""

MODEL = """
import batchnuts
def log_density(q):
    import tensorflow as tf
    return -0.5 * tf.reduce_sum(q * q)
model = batchnuts.Model.from_function(log_density, dimension=2)
batchnuts.sample_chains(model, chains=2, warmup=0, draws=2, step_size=0.5, progress=False,
    expert={"executor": "unbatched"})
"""

PACKAGED = """
from batchnuts.models.neal_funnel import NealFunnelOptions, build_neal_funnel
build_neal_funnel(NealFunnelOptions())
"""

BRIDGED = """
from batchnuts.bridges.tfp import import_tfp
import_tfp().distributions.Normal(0.0, 1.0).log_prob(0.0)
"""

OF_THE_USER = """
import os
os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
import tensorflow
before = os.environ.get("TF_CPP_MIN_LOG_LEVEL")  # some version of JAX sets it where TensorFlow finds one
from batchnuts.autobatch.pfor import pfor
pfor(lambda i: i + 1, 3)
assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == before
"""


def run_python(program: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != quiet.LEVEL} | more
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(program)
        return subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, env=environment, timeout=300, check=False
        )


PROGRAMS = {"batched": BATCHED, "pfor": PFOR, "model": MODEL, "packaged": PACKAGED, "bridged": BRIDGED}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "model" else pytest.mark.slow) for name in PROGRAMS]
)
def test_what_is_imported_for_the_user_says_nothing(name: str) -> None:
    found = run_python(PROGRAMS[name])
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


NOISY = r"""
import os, sys
os.write(2, b"I0000 00:00:1795508807.125163   19824 port.cc:153] oneDNN custom operations are on.\n")
if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "3":
    os.write(2, b"2026-11-24 08:20:21.123456: W tensorflow/core/util.cc:12] a warning\n")
os._exit(5)  # a model's code must not raise SystemExit
"""


@pytest.mark.parametrize("name", ["batched", "pfor", "model"])
def test_each_way_to_import_it_filters_what_it_says(name: str, tmp_path: Path) -> None:
    """In the place of TensorFlow stands a library that says what TensorFlow does, and ends the process."""
    (tmp_path / "tensorflow.py").write_text(NOISY)
    found = run_python(PROGRAMS[name], PYTHONPATH=str(tmp_path))
    assert (found.returncode, found.stdout, found.stderr) == (5, "", "")
    if name == "batched":
        after_jax = run_python(f"import jax\n{BATCHED}", PYTHONPATH=str(tmp_path))
        assert (after_jax.returncode, after_jax.stdout, after_jax.stderr) == (5, "", ""), "JAX sets a level of its own"
        for level in ("0", "1"):
            assert "I0000" in run_python(BATCHED, PYTHONPATH=str(tmp_path), TF_CPP_MIN_LOG_LEVEL=level).stderr


@pytest.mark.slow
def test_a_tensorflow_that_the_user_imports_is_left_alone() -> None:
    found = run_python(OF_THE_USER)
    assert found.returncode == 0
    assert found.stderr != "", "its own lines"


@pytest.mark.slow
def test_a_level_that_the_user_has_set_is_respected() -> None:
    assert run_python(BATCHED, TF_CPP_MIN_LOG_LEVEL="0").stderr != "", "a level that the user has set"


TALKS = """
import os, sys
from batchnuts.process import quiet
with quiet._filtered_stderr():
    os.write(2, b"I0000 00:00:1795508807.125163   19824 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"2026-11-24 08:20:21.123456: W tensorflow/core/util.cc:12] To be left out\\n")
    os.write(2, b"I1124 08:20:21.123456 19824 mine.py:7] of the user\\n")
    os.write(2, b"2026-11-24 08:20:21.123456: I am the user's\\n")
    print("half a line", end="", file=sys.stderr)
    os.write(2, b" and the rest")
    if len(sys.argv) > 1:
        os.abort()
print("after", file=sys.stderr)
"""
OWN = (
    "I1124 08:20:21.123456 19824 mine.py:7] of the user\n2026-11-24 08:20:21.123456: I am the user's\n"
    "half a line and the rest"
)


def test_the_users_own_words_pass() -> None:
    assert run_python(TALKS).stderr == f"{OWN}after\n"


def test_so_do_those_before_a_crash() -> None:
    found = run_python(TALKS.replace("len(sys.argv) > 1", "True"))
    assert found.returncode < 0
    assert found.stderr.startswith(OWN)


def test_no_process_is_started_by_a_program_that_has_python_within() -> None:
    found = run_python("import sys\nsys.executable = '/bin/other'\n" + TALKS)
    assert found.stderr.startswith("I0000")
