"""Calls of LAPACK on JAX are for one matrix each, at any depth of a program, with the same results."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax

pytestmark = needs_jax

LANES = 7
CALLS = "cholesky|lu|triangular_solve|svd|eigh|fft|qr|householder_product|geqrf"


def one_lane(x: Any, b: Any) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    matrix = x @ x.T + jnp.eye(4)
    factor = jnp.linalg.cholesky(matrix)
    white = jax.lax.linalg.triangular_solve(factor, b[:, None], left_side=True, lower=True)
    branch = jax.lax.cond(b[0] > 0, lambda: jnp.linalg.slogdet(matrix)[1], lambda: jnp.linalg.eigvalsh(matrix).sum())
    _, solved = jax.lax.scan(lambda carry, _: (carry, jnp.linalg.solve(matrix, b)), 0.0, None, length=2)
    several = jnp.linalg.cholesky(jnp.stack([matrix, matrix + 1])).sum()
    others = (
        jnp.linalg.svd(matrix, compute_uv=False).sum() + jnp.abs(jnp.fft.fft(b)).sum() + jnp.linalg.qr(matrix)[1].sum()
    )
    return (jnp.sum(white**2) + branch + solved.sum() + several + others,)


def with_gradient(x: Any, b: Any) -> tuple[Any, ...]:
    import jax

    value, gradients = jax.value_and_grad(lambda *inputs: one_lane(*inputs)[0], argnums=(0, 1))(x, b)
    return (value, *gradients)


def batched_calls(function: Callable[..., Any], *inputs: Any) -> set[str]:
    import jax

    text = str(jax.make_jaxpr(function)(*inputs))
    return set(re.findall(rf":[a-z]+\d+\[{LANES},[^\]]*\][^=\n]*= ({CALLS})\b", text))


@pytest.mark.parametrize("function", [one_lane, with_gradient], ids=["value", "gradient"])
def test_each_call_is_for_one_matrix(function: Callable[..., Any]) -> None:
    import jax

    from batchnuts.autobatch.backends.jax.products import vectorized

    rng = np.random.default_rng(0)
    x, b = rng.normal(size=(LANES, 4, 4)).astype("float32"), rng.normal(size=(LANES, 4)).astype("float32")
    assert {"cholesky", "triangular_solve", "svd", "fft"} <= batched_calls(jax.vmap(function), x, b)
    assert batched_calls(vectorized(function), x, b) == set()
    expected, found = jax.jit(jax.vmap(function))(x, b), jax.jit(vectorized(function))(x, b)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_program_without_such_calls_stays_as_it_is() -> None:
    from batchnuts.autobatch.backends.jax.lapack import one_after_another

    def doubled(x: Any) -> tuple[Any, ...]:
        return (2 * x,)

    assert one_after_another(doubled, [np.zeros(3, "float32")]) is doubled


PROGRAM = """
import batchnuts
from batchnuts.models import REGISTRY, build

batchnuts.use_own_threads(2, backend="jax")
model = build(REGISTRY["gaussian_process"].options(points=40))
batchnuts.sample_chains(model, chains=64, chunk_lanes=32, warmup=150, draws=50, backend="jax", progress=False)
print("ended")
"""


@pytest.mark.slow
def test_two_shards_do_not_wait_for_each_other() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines()[-1:] == ["ended"], done.stderr


KEPT = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from batchnuts.autobatch.language.libraries.jax_programs import Jitted
from batchnuts.disk_cache.folder import keeping

def all_of(x):
    spread = jnp.abs(jnp.linalg.eigvals(x)).sum() if jax.default_backend() == "cpu" else 0.0
    return jnp.linalg.cholesky(x).sum(), jnp.linalg.inv(x).sum(), jnp.linalg.svd(x)[1].sum(), spread

with keeping(sys.argv[1]) as kept:
    results = Jitted(all_of)(np.eye(3, dtype="float32") + np.float32(0.5))
    print(kept.tally.found, *map(float, results))
"""


def test_a_program_that_another_process_compiled_calls_lapack(tmp_path: Path) -> None:
    """JAX looks up LAPACK's functions where it lowers a call; a loaded program is not lowered, and called address 0."""
    first, second = (
        subprocess.run([sys.executable, "-c", KEPT, str(tmp_path)], capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    found, *results = second.stdout.split()
    assert (first.stdout.split()[0], found) == ("0", "2"), "its key by its trace, and itself"
    assert results == first.stdout.split()[1:]
