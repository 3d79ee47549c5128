"""Devices of one thread each: made only before TensorFlow begins, used by the sampler's threads; no draw changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import batchnuts
from batchnuts.autobatch.backends.tensorflow.devices import on_shard, use_own_threads

SAMPLED = """
import sys
import numpy as np
import batchnuts
from batchnuts.autobatch.backends.tensorflow.devices import on_shard
assert not batchnuts.use_own_threads(1)
assert batchnuts.use_own_threads(2)
assert batchnuts.use_own_threads(2)
assert not batchnuts.use_own_threads(3)
import tensorflow as tf
assert len(tf.config.list_logical_devices("CPU")) == 2
assert tf.config.threading.get_intra_op_parallelism_threads() == 1
seen = []
for shard in range(3):
    with on_shard(shard):
        seen.append((tf.constant(1.0) + 1.0).device[-1])
assert seen == ["0", "1", "0"]
import os
assert "TF_OVERRIDE_GLOBAL_THREADPOOL" not in os.environ
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
kept = PROCESS.programs
def programs():
    return {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(kept.name)}
twice = tf.function(lambda x: 2 * x, jit_compile=True)
before = programs()
assert len(before) >= 3, "the machine, the first step size, the density"
for shard in (0, 1):
    with on_shard(shard):
        twice(tf.constant(1.0))
    if shard == 0:
        first = programs()
assert len(first) == len(before) + 1
assert programs() == first, "loaded, not compiled again"
print(kept.name)
np.save(sys.argv[1], data.posterior["position"].values)
"""


def test_too_late_it_changes_nothing() -> None:
    tf.constant(1.0)
    before = tf.config.threading.get_intra_op_parallelism_threads()
    assert not use_own_threads(2)
    assert len(tf.config.list_logical_devices("CPU")) == 1
    assert tf.config.threading.get_intra_op_parallelism_threads() == before
    with on_shard(1):
        assert (tf.constant(1.0) + 1.0).device.endswith("CPU:0")


@pytest.mark.slow
def test_chains_on_devices_of_their_own_draw_the_same(tmp_path) -> None:
    file = tmp_path / "own.npy"
    environment = {name: value for name, value in os.environ.items() if name != "TF_XLA_FLAGS"}
    command = [sys.executable, "-c", SAMPLED, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.splitlines()[-1]).exists()
    own = np.load(file)
    model = batchnuts.Model.from_function(lambda x: -0.5 * tf.reduce_sum(x * x), dimension=3)
    settings = {"chains": 12, "warmup": 20, "draws": 10, "seed": 3, "chunk_lanes": 4, "expert": {"shards": 2}}
    settings |= {"backend": "tensorflow"}
    shared = batchnuts.sample_chains(model, **settings).posterior["position"].values
    assert own.shape == (12, 10, 3)
    np.testing.assert_allclose(own, shared, rtol=1e-4, atol=1e-5)
