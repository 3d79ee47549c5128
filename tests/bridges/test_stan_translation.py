"""Stan programs in JAX: the same log-density up to a constant, and the same gradient, as Stan's C function gives."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stanli", reason="the extra stan is not installed")
jax = pytest.importorskip("jax", reason="the extra jax is not installed")
from stan_functions import FAMILIES, OF_DATA, program, program_of_data  # noqa: E402
from stan_models import DATA, EQUATIONS, LOOPS, SHARDS, SHARDS_DATA, Case, loop_program  # noqa: E402

import batchnuts  # noqa: E402
from batchnuts import Model  # noqa: E402
from batchnuts.autobatch.machine import EXPRESSIONS, tensor_library  # noqa: E402
from batchnuts.bridges.stan import engines, kept  # noqa: E402
from batchnuts.bridges.stan.data import read_data  # noqa: E402
from batchnuts.bridges.stan.functions.solvers import is_possible  # noqa: E402
from batchnuts.bridges.stan.functions.table import TABLE  # noqa: E402
from batchnuts.bridges.stan.lanes import NotTranslated  # noqa: E402
from batchnuts.bridges.stan.library import StanError, StanModel, compile_program  # noqa: E402
from batchnuts.bridges.stan.mir import MAGIC, NotRead, read_program  # noqa: E402
from batchnuts.bridges.stan.translate import translated  # noqa: E402
from batchnuts.disk_cache.folder import for_models, keeping  # noqa: E402
from batchnuts.mcmc.model.model import ModelError  # noqa: E402


def compared(source: str, data: Any, points: int = 3, spread: float = 1.0) -> tuple[float, float]:
    """The largest relative error of differences of the log-density, and of the gradient, at random positions."""
    values, mir = read_data("test", data), compile_program(source, [])
    stan = StanModel(mir, values)
    density = translated(read_program(mir), values, stan.dimension)
    library = tensor_library("jax")
    both = library.compiled(jax.value_and_grad(density))
    generator, differences, theirs, worst = np.random.default_rng(3), [], [], 0.0
    for _ in range(points):
        position = generator.uniform(-spread, spread, stan.dimension)
        try:
            expected, slope = stan.log_density(position)
        except StanError:
            continue
        value, gradient = map(np.asarray, both(library.tensor(position)))
        differences.append(float(value) - expected)
        theirs.append(expected)
        worst = max(worst, float(np.max(np.abs(gradient - slope)) / max(1.0, np.max(np.abs(slope)))))
    assert differences, "no position has a density"
    return float(np.ptp(differences) / max(1.0, np.max(np.abs(theirs)))), worst


APPROXIMATE = {"tails", "special"}
"""Families with gradients for which Stan, or JAX, has a series of few terms: by the shape of an incomplete gamma
function, and of the normal distribution function."""


@pytest.mark.parametrize("family", FAMILIES)
def test_functions(family: str) -> None:
    value, gradient = compared(program(FAMILIES[family]), {})
    assert value < 1e-8
    assert gradient < (1e-6 if family in APPROXIMATE else 1e-8)


def test_functions_of_data() -> None:
    value, gradient = compared(program_of_data(OF_DATA), {})
    assert max(value, gradient) < 1e-10


def test_every_function_is_in_a_program() -> None:
    """Those of operators are in the family `arithmetic`, by their signs."""
    text = " ".join([*OF_DATA, *(e for family in FAMILIES.values() for e in family)])
    unseen = [
        name
        for name in TABLE
        if not name.endswith("__") and not name.startswith("Fn") and f"{name}(" not in text.replace("_lupdf", "_lpdf")
    ]
    assert unseen == []


@pytest.mark.parametrize("case", LOOPS.values(), ids=LOOPS)
def test_loops_and_branches(case: Case) -> None:
    source = loop_program(case)
    value, gradient = compared(source, DATA)
    assert value < 1e-10
    assert gradient < 1e-10


@pytest.mark.parametrize("case", LOOPS.values(), ids=LOOPS)
def test_a_loop_is_not_written_out(case: Case) -> None:
    """The jaxpr of a program with forty passes is not one of forty bodies."""
    mir, values = compile_program(loop_program(case), []), read_data("test", DATA)
    density = translated(read_program(mir), values, StanModel(mir, values).dimension)
    library = tensor_library("jax")
    traced = library.call(jax.make_jaxpr(density), library.tensor(np.zeros(9)))
    assert len(traced.jaxpr.eqns) <= case.equations


of_equations = pytest.mark.skipif(not is_possible(), reason="the extra stan-ode is not installed")


@of_equations
@pytest.mark.parametrize("function", EQUATIONS)
def test_differential_equations(function: str) -> None:
    """To the tolerance of their solvers."""
    value, gradient = compared(EQUATIONS[function], {})
    assert value < 1e-6
    assert gradient < 1e-5


@of_equations
def test_an_equation_without_a_finite_solution_has_no_density() -> None:
    """Nor a derivative, and a trajectory that comes there has diverged; no error ends the run."""
    mir = compile_program(EQUATIONS["ode_bdf"], [])
    density = translated(read_program(mir), {}, StanModel(mir, {}).dimension)
    library = tensor_library("jax")
    value, gradient = library.differentiated(density)(library.tensor(np.array([528.0, 60.0, -115.0, 766.0])))
    assert np.isnan(value)
    assert np.isnan(gradient).any()


@pytest.mark.parametrize("function", SHARDS)
def test_sums_in_parallel(function: str) -> None:
    value, gradient = compared(SHARDS[function], SHARDS_DATA)
    assert max(value, gradient) < 1e-10


REFUSED = {
    "random numbers": "transformed data { real z = normal_rng(0, 1); } parameters { real x; } model { }",
    "`while` whose condition": "parameters { real x; } model { real z = x; while (z > 0) z -= 1; target += z; }",
    "a derivative that JAX lacks": "parameters { real<lower=0> x; } model { target += beta_lcdf(0.3 | x, 1); }",
    "the function wiener_lpdf, in line 1": "parameters { real<lower=0> x; } model { 0.5 ~ wiener(x, 0.1, 0.5, 0.2); }",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_translated_is_named(reason: str) -> None:
    with pytest.raises(ModelError, match=f"cannot be translated to JAX, because of .*{reason}"):
        Model.from_stan(REFUSED[reason], engine="jax")


def test_a_cheap_program_takes_the_c_function() -> None:
    model = Model.from_stan("parameters { real x; } model { x ~ normal(0, 1); }", engine="auto")
    assert model.library is None
    assert model.computed_by == "Stan's C function, in float64"


NORMAL = "parameters { vector[3] x; } model { x ~ normal(0, 1); }"


def choose_by(seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gradient take so long by each: C, machine code, and XLA."""

    def of_function(function: Any, position: Any, record: Any = None) -> float:
        return seconds["c" if record is None else "code"]

    monkeypatch.setenv("BATCHNUTS_CACHE", "")
    monkeypatch.setattr(engines, "_seconds", of_function)
    monkeypatch.setattr(engines, "_timed", lambda *_: (seconds["jax"], ""))


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"c": 1e-6, "code": 1e-7, "jax": 1e-7}, "Stan's C function, in float64"),
        (
            {"c": 1e-5, "code": 2e-6, "jax": 1e-6},
            "machine code, translated from Stan: 2 us each, Stan's C function 10 us",
        ),
        ({"c": 1e-5, "code": 2e-5, "jax": 1e-6}, "Stan's C function, in float64, 10 us each, machine code 20 us"),
        (
            {"c": 1e-4, "code": 2e-4, "jax": 1e-6},
            "translated from Stan: JAX 1 us with 128 chains on one core each, Stan's C function 100 us",
        ),
        (
            {"c": 1e-4, "code": 2e-4, "jax": 2e-4},
            "Stan's C function, in float64, 100 us each, machine code 200 us, JAX 200 us with 128 chains on one core",
        ),
    ],
)
def test_what_takes_least_is_taken(seconds: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_by(seconds, monkeypatch)
    model = Model.from_stan(NORMAL)
    assert model.computed_by == chosen
    assert model.library == ("jax" if chosen.startswith("translated") else None)


def test_a_program_that_prints_stays_with_c_unless_that_is_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    prints = NORMAL.replace("model {", 'model { print("here");')
    choose_by({"c": 1e-5, "code": 2e-6, "jax": 1e-6}, monkeypatch)
    assert Model.from_stan(prints).computed_by == "Stan's C function, in float64"
    commented = NORMAL.replace("model {", 'model { // print("here");\n /* print("there");\n */')
    assert Model.from_stan(commented).computed_by.startswith("machine code")
    choose_by({"c": 1e-4, "code": 2e-6, "jax": 1e-6}, monkeypatch)
    assert Model.from_stan(prints).computed_by.startswith("machine code")


def test_a_choice_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So the same command makes the same draws, whatever a second measurement would give."""
    choose_by({"c": 1e-5, "code": 2e-6, "jax": 1e-6}, monkeypatch)
    monkeypatch.setattr(engines, "key_of", lambda *_: "key")  # a patched library has none
    with keeping(str(tmp_path)):
        first = Model.from_stan(NORMAL)
        monkeypatch.setattr(engines, "_seconds", None)
        assert Model.from_stan(NORMAL).computed_by == first.computed_by


def test_machine_code_and_c_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CHEAP", 0.0)
    assert "us each, " in Model.from_stan(NORMAL).computed_by


def test_another_density_than_stans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHNUTS_CACHE", "")  # or what a right table gave may be found
    wrong = dataclasses.replace(TABLE["normal_lpdf"], call=lambda m, y, mu, sigma: -m.np.sum(m.np.abs(y)))
    monkeypatch.setitem(TABLE, "normal_lpdf", wrong)
    source = "parameters { real x; } model { x ~ normal(0, 1); }"
    with pytest.raises(ModelError, match="another density than Stan's own"):
        Model.from_stan(source, engine="jax")
    monkeypatch.setattr(engines, "CHEAP", 0.0)
    model = Model.from_stan(source)
    assert model.library is None
    assert "not JAX, because of another density" in model.computed_by


def test_an_error_within_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHNUTS_CACHE", "")
    monkeypatch.setitem(TABLE, "normal_lpdf", dataclasses.replace(TABLE["normal_lpdf"], call=lambda m: None))
    with pytest.raises(ModelError, match="an error of batchnuts, TypeError"):
        Model.from_stan("parameters { real x; } model { x ~ normal(0, 1); }", engine="jax")


KEPT = """
data { int n; vector[n] y; }
parameters { real mu; real<lower=0> sigma; vector[3] z; }
model { mu ~ normal(0, 5); sigma ~ lognormal(0, 1); z ~ student_t(4, 0, 1); y ~ normal(mu + z[1], sigma); }
"""
SECOND = """
import sys
import numpy as np
import batchnuts
model = batchnuts.Model.from_stan(sys.argv[1], data={"n": 4, "y": [1.0, 2.0, 0.5, 3.0]}, engine="jax")
result = batchnuts.sample_chains(model, chains=4, draws=20, warmup=20)
assert "jax" not in sys.modules and "tensorflow" not in sys.modules, "machine code alone"
print(repr(model.computed_by), result.posterior["mu"].values.sum())
"""


def test_a_second_start_takes_what_the_first_recorded_without_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHNUTS_CACHE", str(tmp_path))
    data = {"n": 4, "y": [1.0, 2.0, 0.5, 3.0]}
    first = Model.from_stan(KEPT, data=data, engine="jax")
    assert first.computed_by == "machine code, translated from Stan"
    rng = np.random.default_rng(0)
    library, alone = tensor_library("jax"), EXPRESSIONS.differentiated(first.flat_log_density)
    in_jax = library.differentiated(first.flat_log_density)
    for position in rng.normal(size=(5, first.dimension)):
        values = [np.asarray(part) for part in alone(position)]
        for ours, theirs in zip(values, in_jax(library.tensor(position)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    again = pickle.loads(pickle.dumps(first.log_density))
    assert again.gradient == first.log_density.gradient
    draws = batchnuts.sample_chains(first, chains=4, draws=20, warmup=20).posterior["mu"].values.sum()
    second = subprocess.run([sys.executable, "-c", SECOND, KEPT], capture_output=True, text=True, check=True)
    assert second.stdout == f"'machine code, translated from Stan' {draws}\n"


def test_entries_that_are_none_are_dropped_and_no_cache_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHNUTS_CACHE", str(tmp_path))
    key = kept.key_of("a program")
    kept.keep(key, kept.Kept(False, "a reason"))
    assert kept.read(key) == kept.Kept(False, "a reason")
    entries = for_models()
    assert entries is not None
    assert key is not None
    entries.put(key, b"no pickle")
    assert kept.read(key) is None
    assert entries.get(key) is None
    with keeping(None):
        kept.keep(key, kept.Kept(False, "a reason"))
        assert kept.read(key) is None
    assert entries.get(key) is None


@pytest.mark.parametrize("text", ["", "(program)", MAGIC, MAGIC + "AAAA", MAGIC + "!", MAGIC + "BQAAAAEAAAB"])
def test_another_encoding_is_not_read(text: str) -> None:
    with pytest.raises(NotRead):
        read_program(text)


def test_programs_of_a_folder(request: pytest.FixtureRequest) -> None:
    """Of posteriordb, say: each NAME.stan with NAME.json beside it. --stan-programs FOLDER."""
    folder = request.config.getoption("--stan-programs")
    if folder is None:
        pytest.skip("no folder of programs: --stan-programs")
    lines, wrong = [], []
    for file in sorted(Path(folder).glob("*.stan")):
        data = json.loads(file.with_suffix(".json").read_text())
        try:
            value, gradient = compared(file.read_text(), data, points=10)
        except NotTranslated as reason:
            lines.append(f"{file.stem}: C, because of {reason}")
            continue
        except StanError as reason:
            lines.append(f"{file.stem}: none, {reason}")
            continue
        lines.append(f"{file.stem}: JAX, {value:.1e}, {gradient:.1e}")
        if max(value, gradient) > 1e-8:
            wrong.append(lines[-1])
    print("\n".join(lines))
    assert not wrong
