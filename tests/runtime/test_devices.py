"""What TensorFlow is prepared for before it begins: XLA's programs are stored, and no draw changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import batchnuts

SAMPLED = """
import sys
import numpy as np
import batchnuts
assert batchnuts.use_own_threads(2)
assert not batchnuts.use_own_threads(1)
import tensorflow as tf
import os
assert "TF_XLA_FLAGS" not in os.environ
model = batchnuts.Model.from_function(lambda x: -0.5 * tf.reduce_sum(x * x), dimension=3)
from batchnuts.disk_cache.folder import entries_of
tally = entries_of("auto").tally
settings = {"chains": 12, "warmup": 20, "draws": 10, "chunk_lanes": 4, "expert": {"shards": 2}, "backend": "tensorflow"}
data = batchnuts.sample_chains(model, seed=3, **settings)
used = tally.found + tally.missing
assert used == tally.found + tally.written == 9, "machine, first step size, density: of compiler, graph and XLA"
same = batchnuts.Model.from_function(lambda x: -0.5 * tf.reduce_sum(x * x), dimension=3)
again = batchnuts.sample_chains(same, seed=3, **settings)
assert tally.found + tally.missing == 2 * used and tally.missing == tally.written <= used, "none was compiled again"
assert (again.posterior["position"].values == data.posterior["position"].values).all()
from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
assert len(os.listdir(PROCESS.programs.name)) >= 3, "the machine, the first step size, the density"
print(PROCESS.programs.name)
np.save(sys.argv[1], data.posterior["position"].values)
"""


@pytest.mark.slow
def test_chains_whose_programs_are_stored_draw_the_same(tmp_path) -> None:
    file = tmp_path / "stored.npy"
    environment = {name: value for name, value in os.environ.items() if name != "TF_XLA_FLAGS"}
    command = [sys.executable, "-c", SAMPLED, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.splitlines()[-1]).exists()
    model = batchnuts.Model.from_function(lambda x: -0.5 * tf.reduce_sum(x * x), dimension=3)
    settings = {"chains": 12, "warmup": 20, "draws": 10, "seed": 3, "chunk_lanes": 4, "expert": {"shards": 2}}
    settings |= {"backend": "tensorflow"}
    drawn = batchnuts.sample_chains(model, **settings).posterior["position"].values
    assert drawn.shape == (12, 10, 3)
    np.testing.assert_array_equal(np.load(file), drawn)
