"""The library that a density is written in decides what runs it; one written with `ops` runs on either, alike."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from moments import assert_expectations

import batchnuts
from batchnuts.api.sampling import sample_chains
from batchnuts.autobatch import ops
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.model.library_choice import (
    DensityLibrary,
    choose_density_library,
    density_library_for,
    density_library_of,
    written_in,
)
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, split_settings
from batchnuts.models import REGISTRY, build
from batchnuts.models.eight_schools import EFFECTS, ERRORS
from batchnuts.settings.schema import SettingsError

SCALE = np.array([1.0, 2.0])


DENSITIES: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "tensorflow": (lambda q: -0.5 * tf.reduce_sum((q / SCALE) ** 2), "tensorflow"),
    "tensorflow, not for NumPy": (lambda q: -0.5 * tf.reduce_sum(q**2) / q.shape.rank, "tensorflow"),
    "jax": (lambda q: -0.5 * jnp.sum((q / SCALE) ** 2), "jax"),
    "jax, not for NumPy": (lambda q: -0.5 * jnp.sum(q.at[0].set(2.0 * q[0]) ** 2), "jax"),
    "ops": (lambda q: -0.5 * ops.sum(ops.square(q / SCALE)), None),
    "operators": (lambda q: -0.5 * (q[0] * q[0] + q[1] * q[1]), None),
}


def model_of(density: Callable[[Any], Any], dtype: Any = "float64") -> Model:
    return Model.from_function(density, dimension=2, dtype=dtype)


@pytest.mark.parametrize("variables", [{"x": [3]}, {"x": []}, {"x": batchnuts.positive()}, {"x": [], "y": [2]}])
def test_a_density_of_named_variables_is_machine_code(variables: dict[str, Any]) -> None:
    model = Model.from_function(lambda p: -sum(ops.sum(x * x) for x in p.values()), variables=variables)
    _, execution = choose_density_library(model, ExecutionSettings(), np.zeros(model.dimension))
    assert execution.backend == "native_numpy"


@pytest.mark.parametrize(
    ("density", "said"),
    [
        (lambda q: (ops.sum(q * q), 1.0), "returned a tuple of 2; expected a scalar tensor alone"),
        (lambda q: {"a": ops.sum(q)}, "returned a dict of 1; expected a scalar tensor alone"),
        (lambda q: None, "returned NoneType; expected a scalar tensor"),
        (lambda q: "x", "returned str; expected a scalar tensor"),
        (lambda q: 3.0, "returned float; expected a scalar tensor"),
        (lambda q: -q * q, r"returned shape \(2,\); expected a scalar"),
    ],
)
def test_what_a_density_returns_is_said_before_it_is_differentiated(density: Any, said: str) -> None:
    model = Model.from_function(density, dimension=2)
    with pytest.raises(ModelError, match=said):
        batchnuts.sample_chains(model, chains=4, warmup=5, draws=5, progress=False)


def test_few_chains_have_larger_gradients_in_machine_code() -> None:
    """Many share the products of the array library."""
    matrix = np.eye(300, dtype="float32")
    model = Model.from_function(lambda q: -0.5 * ops.matmul(q, ops.matmul(matrix, q)), dimension=300)
    for chains, place in ((4, "in machine code"), (1_024, "by JAX")):
        library, _ = choose_density_library(model, ExecutionSettings(), np.ones(300), chains)
        assert library.reason.startswith(f"with gradients {place}, because"), chains


@pytest.mark.parametrize("library", ["jax", "ops"])
def test_functions_of_draws_may_be_written_in_another_library(library: str) -> None:
    """A density in machine code alone: what is not written with `ops` is computed by its library."""
    exp = ops.exp if library == "ops" else pytest.importorskip("jax").numpy.exp
    model = Model.from_function(
        lambda q: -0.5 * ops.sum(q * q),
        dimension=2,
        generated=lambda values: {"scale": exp(values["position"])},
    )
    result = batchnuts.sample_chains(model, chains=4, warmup=20, draws=10, seed=1, progress=False)
    assert result.posterior.attrs["backend"] == "native_numpy"
    np.testing.assert_allclose(result.posterior["scale"], np.exp(result.posterior["position"]), rtol=1e-6)


@pytest.mark.parametrize("name", DENSITIES)
def test_the_library_of_a_density_is_found(name: str) -> None:
    density, library = DENSITIES[name]
    model = model_of(density)
    assert written_in(model) == library
    density_library, execution = choose_density_library(model, ExecutionSettings(), np.ones(2))
    assert density_library.backend == (library or "numpy")
    engines = {"jax": "native", "tensorflow": "native_tensorflow", None: "native_numpy"}
    assert execution.backend == engines[library]
    gradients = "by TensorFlow" if library == "tensorflow" else "in machine code"
    assert density_library.reason.startswith(f"with gradients {gradients}, because ")
    assert {density_library_for(model, asked).backend for asked in ("auto", "native")} == {library or "numpy"}
    of_family = choose_density_library(model, ExecutionSettings(backend="native"), np.ones(2))
    assert of_family == (density_library, execution)
    asked_and_library = {"tensorflow": "tensorflow", "jax": "jax", "native_tensorflow": "tensorflow"}
    if library is None:
        found, _ = choose_density_library(model, ExecutionSettings(backend="native_numpy"), np.ones(2))
        assert found == DensityLibrary("numpy", "", in_machine_code=True)
    else:
        with pytest.raises(ModelError, match="cannot be computed in machine code alone"):
            choose_density_library(model, ExecutionSettings(backend="native_numpy"), np.ones(2))
    for asked, differentiates in asked_and_library.items():
        if library in (differentiates, None):
            found, _ = choose_density_library(model, ExecutionSettings(backend=asked), np.ones(2))
            assert found == DensityLibrary(differentiates, "")
        else:
            whose = ", whose gradients are computed by TensorFlow" if asked == "native_tensorflow" else ""
            said = f"written in .*, but execution.backend is {asked}{whose}. Use backend"
            with pytest.raises(ModelError, match=said):
                choose_density_library(model, ExecutionSettings(backend=asked), np.ones(2))


def test_a_twin_may_decide() -> None:
    def by_hand(x: Any) -> tuple[Any, Any]:
        return -0.5 * tf.reduce_sum(x * x, axis=1), -x

    density = DENSITIES["operators"][0]
    model = Model(name="twin", log_density=density, dimension=2, batched_value_and_gradient=by_hand)
    assert written_in(model) == "tensorflow"


def test_a_graph_is_tensorflows() -> None:
    neutral, on_jax = (model_of(DENSITIES[name][0]) for name in ("ops", "jax"))
    assert (
        choose_density_library(neutral, ExecutionSettings(expert={"mode": "graph"}), np.ones(2))[1].backend
        == "tensorflow"
    )
    for model, backend in ((on_jax, "auto"), (neutral, "jax")):
        with pytest.raises(SettingsError, match="mode: found 'graph', which only TensorFlow has; on the backend jax"):
            run_chains(model, *split_settings({"expert": {"mode": "graph"}, "backend": backend, "chains": 2}))


def packaged() -> dict[str, dict[str, Any]]:
    cheap: dict[str, dict[str, Any]] = {
        "logistic_regression": {"rows": 50, "columns": 5},
        "correlated_gaussian": {"dimension": 5},
    }
    named = {name: {"name": name, **cheap.get(name, {})} for name in REGISTRY}
    named["eight_schools, centered"] = {"name": "eight_schools", "parametrization": "centered"}
    named["correlated_gaussian, diagonal"] = {"name": "correlated_gaussian", "dimension": 5, "covariance": "diagonal"}
    return named


@pytest.mark.parametrize("name", packaged())
def test_packaged_models_are_one_function_on_both(name: str) -> None:
    options = packaged()[name]
    model = build(REGISTRY[options["name"]].options.model_validate({**options, "dtype": "float64"}))
    assert written_in(model) is None
    position = np.random.default_rng(1).normal(size=(3, model.dimension))
    found = []
    for backend in ("jax", "tensorflow"):
        density_library = choose_density_library(model, ExecutionSettings(backend=backend), position[0])[0]  # type: ignore[arg-type]
        lib = density_library.library
        found.append([lib.value_and_gradient(model.flat_log_density, lib.tensor(row)) for row in position])
        if model.batched_value_and_gradient is not None:
            values, gradients = lib.call(model.batched_value_and_gradient, lib.tensor(position))
            for k, (value, gradient) in enumerate(found[-1]):
                np.testing.assert_allclose(values[k], value, rtol=1e-10)
                np.testing.assert_allclose(gradients[k], gradient, rtol=1e-8, atol=1e-10)
    for (value, gradient), (other_value, other_gradient) in zip(*found, strict=True):
        np.testing.assert_allclose(value, other_value, rtol=1e-12)
        np.testing.assert_allclose(gradient, other_gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_the_same_posterior_on_both(backend: str) -> None:
    """Means and variances of a bivariate Gaussian of known scales."""
    settings = {"backend": backend, "chains": 64, "warmup": 60, "draws": 100, "seed": 4}
    draws = run_chains(model_of(DENSITIES["ops"][0], "float32"), *split_settings(settings))
    assert draws.execution.backend == backend
    scaled = draws.position.astype("float64") / SCALE
    assert_expectations(np.concatenate([scaled, scaled**2], axis=-1), [0.0, 0.0, 1.0, 1.0], 0.1)


def schools(q: Any) -> Any:
    """Eight schools in TensorFlow's own functions: mu, log tau, and eight effects."""
    y, sigma = (tf.constant(x, q.dtype) for x in (EFFECTS, ERRORS))
    mu, tau, eta = q[0], tf.exp(q[1]), q[2:]
    prior = q[1] - 0.02 * mu**2 - tf.math.log1p(tf.square(tau / 5.0)) - 0.5 * tf.reduce_sum(eta**2)
    return prior - 0.5 * tf.reduce_sum(((y - mu - tau * eta) / sigma) ** 2)


@pytest.mark.parametrize("machine", ["numpy", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_machine_code_visits_what_a_virtual_machine_visits(machine: str) -> None:
    """A density of TensorFlow's: `auto` and `native` take machine code, with its gradients."""
    model = Model.from_function(schools, dimension=10, dtype="float64")
    settings = {"chains": 4, "warmup": 0, "draws": 3, "step_size": 0.3, "seed": 5}
    expected = run_chains(model, *split_settings({**settings, "backend": machine}))
    for backend in ("auto", "native"):
        found = run_chains(model, *split_settings({**settings, "backend": backend}))
        assert found.execution.backend == "native_tensorflow"
        assert found.backend_reason.startswith("with gradients by TensorFlow, because the log-density is written in ")
        np.testing.assert_array_equal(found.stats["n_steps"], expected.stats["n_steps"])
        np.testing.assert_allclose(found.position, expected.position, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_arrays_that_a_density_makes_have_its_dtype(dtype: str) -> None:
    """JAX's own default is float32 where the position is, and float64 where that is, whatever `jax_enable_x64` says."""

    def density(q: Any) -> Any:
        return -0.5 * jnp.sum((q - jnp.zeros(2)) ** 2 / jnp.array([1.0, 4.0]))

    draws = run_chains(
        model_of(density, dtype), *split_settings({"chains": 3, "warmup": 2, "draws": 2, "expert": {"mode": "eager"}})
    )
    assert draws.position.dtype == dtype


def test_plain_python_computes_with_numpy() -> None:
    for name in ("jax", "tensorflow"):
        model = model_of(DENSITIES[name][0])
        value, gradient = value_and_gradient(model, density_library_of(model))(np.array([1.0, 2.0]))
        assert type(value) is np.float64
        np.testing.assert_array_equal(gradient, [-1.0, -0.5])


WITHOUT = """
import importlib.util, sys
absent, model, backend = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in absent else found(name, *more)
sys.meta_path.insert(0, Absent)
import numpy as np
import batchnuts
from batchnuts import autobatch
def of_ops(q):
    return -0.5 * autobatch.ops.sum(q * q)
def of_jax(q):
    import jax.numpy as jnp
    return -0.5 * jnp.sum(q * q)
@autobatch.batch
def halvings(n):
    return 0 if n <= 1 else 1 + halvings(n // 2)
assert halvings(np.array([9, 1])).tolist() == [3, 0], "without any of them"
settings = {"chains": 2, "warmup": 0, "draws": 2, "step_size": 0.5, "progress": False}
try:
    made = batchnuts.Model.from_function(globals()[model], dimension=2)
    print(batchnuts.sample_chains(made, backend=backend, **settings).posterior.attrs["backend"])
except batchnuts.BatchnutsError as error:
    print(type(error).__name__, error)
"""
NEITHER = r"ModelError .*needs JAX, .*: pip install 'batchnuts\[jax\]', or TensorFlow, .*: pip install tensorflow\.$"
ABSENT = [
    ("jax,tensorflow", "of_ops", "jax", "ModelError .*needs JAX, which is not installed: pip install .*"),
    ("jax,tensorflow", "of_ops", "auto", "native_numpy$"),
    ("jax,tensorflow", "of_jax", "native", NEITHER),
    ("jax", "of_ops", "native", "native_numpy$"),
    ("jax", "of_ops", "jax", "ModelError .*needs JAX, which is not installed: pip install .*auto.$"),
    ("jax", "of_jax", "native", "ModelError .*No module named 'jax' at "),
    ("tensorflow", "of_jax", "native", "native$"),
    (
        "tensorflow",
        "of_ops",
        "native_tensorflow",
        "ModelError .*needs TensorFlow, .*: pip install tensorflow; .*auto.$",
    ),
]


@pytest.mark.parametrize(
    ("absent", "model", "backend", "said"),
    [pytest.param(*case, marks=pytest.mark.slow if number else ()) for number, case in enumerate(ABSENT)],
)
def test_a_library_that_is_not_installed_is_named_where_it_is_needed(
    tmp_path: Path, absent: str, model: str, backend: str, said: str
) -> None:
    """With what to install, and as an error of ours."""
    program = tmp_path / "program.py"
    program.write_text(WITHOUT)
    packages = absent.replace("jax", "jax,jaxlib").replace("tensorflow", "tensorflow,tensorflow_probability,tf_keras")
    command = [sys.executable, str(program), packages, model, backend]
    environment = {**os.environ, "PYTHONPATH": str(Path(batchnuts.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(said, done.stdout.splitlines()[-1]), done.stdout


RUN = """
import sys
from batchnuts.sample import main
arguments = ["--config", "eight_schools.yaml", "--quiet", *sys.argv[1:]]
code = main([*arguments, "sampler.chains=2", "sampler.warmup=0", "sampler.draws=1", "execution.expert.mode=eager"])
bridges = [name for name in sys.modules if name.startswith("batchnuts.bridges.") and not name.endswith(".registry")]
print(code, *[name for name in ("jax", "tensorflow", "scipy", "xarray", "pandas") if name in sys.modules], *bridges)
"""


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        (["execution.backend=auto"], ["jax"]),
        (["execution.expert.executor=unbatched"], ["jax", "scipy"]),  # for normal numbers, one by one
        pytest.param(["execution.backend=tensorflow"], ["tensorflow", "scipy", "pandas"], marks=pytest.mark.slow),
        (["--dry-run"], []),
    ],
    ids=["auto", "unbatched", "tensorflow", "dry-run"],
)
def test_a_run_imports_the_library_that_runs_it_alone(tmp_path: Path, arguments: list[str], loaded: list[str]) -> None:
    """None of the others, and nothing else that takes long."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.splitlines()[-1].split() == ["0", *loaded], done.stderr
    said = re.sub(r"(?s)^batchnuts: forecast of this run:\nmemory: .*\ndisk: [^\n]*\n", "", done.stderr)
    assert said == ""


@pytest.mark.parametrize("density", ["jax", "ops"])
def test_arrays_that_a_density_reads_keep_their_dtype_for_others(density: str) -> None:
    """JAX remembers for what it took a NumPy array as long as a program holds it, with 64 bits off or on."""
    scale = np.array([1 / 3, 2.0])
    sum_of = {"jax": jnp.sum, "ops": ops.sum}[density]
    models = [model_of(lambda q: -0.5 * sum_of((q / scale) ** 2), dtype) for dtype in ("float32", "float64")]
    for model in models:  # which keep their programs
        run_chains(model, *split_settings({"backend": "jax", "chains": 2, "warmup": 0, "draws": 1, "step_size": 0.5}))
        assert jnp.asarray(scale).dtype == "float32"
        with jax.enable_x64(True):
            np.testing.assert_array_equal(jnp.asarray(scale), scale, strict=True)
    value, gradient = value_and_gradient(models[1], density_library_of(models[1]))(np.array([0.1, 1.0]))
    np.testing.assert_allclose(value, -0.5 * (0.09 + 0.25), rtol=1e-15)
    np.testing.assert_allclose(gradient, [-0.9, -0.25], rtol=1e-15)


@pytest.mark.slow
def test_the_gradient_of_a_loop_without_a_bound_is_refused_with_what_to_write() -> None:
    """Under XLA; in a graph it runs."""

    def density(q: Any) -> Any:
        def step(i: Any, x: Any) -> tuple[Any, Any]:
            return i + 1, 0.5 * x + tf.sin(q[0]) * x

        trips = tf.where(q[1] > 1e6, 4, 3)
        return tf.while_loop(lambda i, _: i < trips, step, (0, q[1]))[1] - tf.reduce_sum(q**2)

    model = Model.from_function(density, dimension=2)
    with pytest.raises(
        ModelError, match=r"give tf.while_loop maximum_iterations=, or run with execution.expert.mode=graph"
    ):
        sample_chains(model, chains=2, warmup=4, draws=2, seed=0)
    result = sample_chains(model, chains=2, warmup=4, draws=2, seed=0, expert={"mode": "graph"})
    assert np.isfinite(result["posterior"]["position"].values).all()
