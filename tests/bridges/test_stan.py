"""`Model.from_stan`: Stan's own density and quantities, what goes into which group, and what is refused how."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts import Model
from batchnuts.cli.config import build_model, load_config
from batchnuts.mcmc.model.model import ModelError
from batchnuts.settings.schema import SettingsError
from batchnuts.settings.yaml import ConfigError

pytest.importorskip("stanli", reason="the extra stan is not installed")
from stan_models import SCHOOLS, SCHOOLS_DATA

from batchnuts.bridges.stan.columns import blocks_of
from batchnuts.bridges.stan.library import MOST_PRINTED
from batchnuts.mcmc.execution.model_description import described


def schools(**options: Any) -> Model:
    return Model.from_stan(SCHOOLS, data=SCHOOLS_DATA, name="schools", **options)


def test_log_density_and_gradient_are_stans() -> None:
    import stanli

    model = schools()
    theirs = stanli.Model(stan_code=SCHOOLS, data=SCHOOLS_DATA)
    for position in np.random.default_rng(0).normal(size=(5, 10)):
        value, gradient = model.log_density.compiled.density.evaluate((position,))
        expected = theirs.log_prob_grad(position)
        assert value == expected[0] == model.flat_log_density(position)
        np.testing.assert_array_equal(gradient, expected[1])


@pytest.mark.parametrize("backend", ["native", "jax", "numpy"])
def test_a_run_on_each_engine(backend: str) -> None:
    result = batchnuts.sample_chains(schools(), chains=4, draws=20, warmup=30, seed=1, backend=backend)
    posterior = result.posterior
    assert posterior["theta"].shape == (4, 20, 8)
    np.testing.assert_allclose(posterior["theta"], posterior["mu"] + posterior["tau"] * posterior["eta"], rtol=1e-12)
    assert posterior["table"].shape == (4, 20, 2, 3)
    np.testing.assert_array_equal(posterior["table"][..., 1, :], np.broadcast_to([2.0, 3, 4], (4, 20, 3)))
    np.testing.assert_array_equal(posterior["table"][..., 0, 0], posterior["mu"])
    assert "log_lik" not in posterior
    sigma = np.asarray(SCHOOLS_DATA["sigma"])
    z = (np.asarray(SCHOOLS_DATA["y"]) - posterior["theta"]) / sigma
    expected = -0.5 * z**2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(result.log_likelihood["log_lik"], expected, rtol=1e-10)
    assert set(result.posterior_predictive) == {"y_rep", "count_rep"}
    assert set(result.observed_data) == {"y"}


def test_predictions_do_not_depend_on_how_chains_are_divided() -> None:
    results = [
        batchnuts.sample_chains(schools(), chains=6, draws=10, warmup=20, seed=1, chunk_lanes=lanes) for lanes in (1, 6)
    ]
    first, second = (result.posterior_predictive["y_rep"].values for result in results)
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == first.size
    other = batchnuts.sample_chains(schools(), chains=6, draws=10, warmup=20, seed=2).posterior_predictive["y_rep"]
    assert not np.isin(other.values, first).any()


def test_a_program_without_random_numbers_takes_no_seed() -> None:
    source = SCHOOLS.replace("normal_rng(theta, sigma)", "to_array_1d(theta)")
    source = "\n".join(line for line in source.splitlines() if "poisson_rng" not in line)
    model = Model.from_stan(source, data=SCHOOLS_DATA)
    columns = model.log_density.compiled.columns
    assert (len(columns.inputs), len(schools().log_density.compiled.columns.inputs)) == (1, 2)
    position = np.random.default_rng(0).normal(size=10)
    values = model.of_draw.function(position, np.zeros(2, np.uint32))["generated"]
    np.testing.assert_allclose(values["theta"], position[0] + np.exp(position[1]) * position[2:], rtol=1e-14)


def test_a_model_goes_to_another_process() -> None:
    model = schools()
    again = pickle.loads(pickle.dumps(model))
    position = np.linspace(-1, 1, 10)
    assert again.flat_log_density(position) == model.flat_log_density(position)


@pytest.mark.parametrize("engine", ["c", "jax"])
def test_a_model_that_is_loaded_is_the_same_to_a_checkpoint(engine: Any) -> None:
    """What has addresses of this process is no part of it; another program or other data are."""
    model = schools(engine=engine)
    before = described(model)
    batchnuts.sample_chains(model, chains=2, draws=5, warmup=10, seed=1)
    assert described(model) == before == described(schools(engine=engine))
    other = Model.from_stan(SCHOOLS, data={**SCHOOLS_DATA, "sigma": [1.0] * 8}, name="schools", engine=engine)
    assert described(other)["function of_draw"] != before["function of_draw"]


def test_patterns_say_what_goes_into_which_group() -> None:
    model = schools(log_likelihood=["none"], predictive=["count_*"])
    result = batchnuts.sample_chains(model, chains=2, draws=5, warmup=10, seed=1)
    assert {"log_lik", "y_rep"} <= set(result.posterior)
    assert set(result.posterior_predictive) == {"count_rep"}
    assert not hasattr(result, "log_likelihood")


def test_dims_and_coords() -> None:
    names = list("ABCDEFGH")
    model = schools(dims={"theta": ["school"], "log_lik": ["school"]}, coords={"school": names})
    result = batchnuts.sample_chains(model, chains=2, draws=5, warmup=10, seed=1)
    assert result.posterior["theta"].dims == ("chain", "draw", "school")
    assert list(result.log_likelihood["log_lik"].school.values) == names


def test_blocks_of_names() -> None:
    """Stan counts from 1, the first index fastest."""
    blocks = blocks_of(["mu", "L.1.1", "L.2.1", "L.1.2", "L.2.2", "pair:1", "pair:2.1", "pair:2.2"])
    assert [(block.name, block.shape, block.is_in_order) for block in blocks] == [
        ("mu", (), True), ("L", (2, 2), False), ("pair.1", (), True), ("pair.2", (2,), True),
    ]  # fmt: skip
    np.testing.assert_array_equal(blocks[1].places, [[1, 3], [2, 4]])


def test_a_rejected_position_has_no_density() -> None:
    model = Model.from_stan('parameters { real x; } model { if (x > 0) reject("no"); x ~ normal(0, 1); }', name="half")
    assert model.flat_log_density(np.array([0.5])) == -np.inf
    draws = batchnuts.sample_chains(model, chains=8, draws=50, seed=1).posterior["x"]
    assert (draws < 0).all()


def test_a_start_that_is_rejected_has_stans_reason() -> None:
    model = Model.from_stan('parameters { real x; } model { reject("nothing fits ", 7); }')
    with pytest.raises(
        ModelError, match=r"not finite at the initial position of 2 of 2 chains.*Stan says: .*nothing fits 7"
    ):
        batchnuts.sample_chains(model, chains=2, draws=5, warmup=10, seed=1)


def test_lines_that_a_program_prints_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    model = Model.from_stan('parameters { real x; } model { x ~ normal(0, 1); print("at ", 1 + 1); }', engine="c")
    batchnuts.sample_chains(model, chains=2, draws=50, warmup=10, seed=1)
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if "Stan prints:" in line]
    assert lines == ["batchnuts: Stan prints: at 2"] * MOST_PRINTED
    assert "further lines that Stan prints are not shown" in err
    assert "at 2" not in out


def test_a_density_that_is_only_tried_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The engine is chosen by gradients at several positions."""
    model = Model.from_stan('parameters { real x; } model { x ~ normal(0, 1); print("at ", x); }')
    assert "Stan prints" not in capfd.readouterr().err
    model.rejection(np.array([2.5]))
    assert "Stan prints: at 2.5" in capfd.readouterr().err


def test_a_parameter_may_have_the_name_of_our_variable() -> None:
    model = Model.from_stan("parameters { vector<lower=0>[2] position; } model { position ~ exponential(1); }")
    np.testing.assert_allclose(model.unconstrain({"position": [1.0, np.e]}), [0.0, 1.0])


def test_an_initializer_gives_values_by_stans_names() -> None:
    options = {"chains": 4, "draws": 1, "warmup": 0, "seed": 1, "step_size": 1e-8}
    model = schools(initializer=lambda rng, chains: {name: [value] * chains for name, value in STARTS.items()})
    result = batchnuts.sample_chains(model, **options)
    np.testing.assert_allclose(result.posterior["tau"], 2.0, atol=1e-3)
    with pytest.raises(ModelError, match="its initializer returned values by name: 'mu' is not an array of real"):
        batchnuts.sample_chains(schools(initializer=lambda *_: STARTS | {"mu": "one"}), **options)


def test_draws_of_an_earlier_run_are_initial_values(tmp_path: Path) -> None:
    path = str(tmp_path / "first.nc")
    first = batchnuts.sample_chains(schools(), chains=4, draws=5, warmup=50, seed=1)
    first.to_netcdf(path)
    options = {"chains": 4, "draws": 1, "warmup": 0, "seed": 1, "step_size": 1e-8}
    second = batchnuts.sample_chains(schools(), init={"run": path}, **options)
    drawn = first.posterior["tau"].values.ravel()
    for value in second.posterior["tau"].values.ravel():
        assert np.isclose(drawn, value, rtol=1e-3).any()


STARTS = {"mu": 1.0, "tau": 2.0, "eta": [0.5] * 8}


@pytest.mark.parametrize("values", [STARTS, {name: [value] * 2 for name, value in STARTS.items()}])
def test_initial_values_by_stans_names(values: Any) -> None:
    result = batchnuts.sample_chains(
        schools(), chains=4, draws=1, warmup=0, seed=1, step_size=1e-8, init={"values": values}
    )
    for name, value in STARTS.items():
        np.testing.assert_allclose(
            result.posterior[name], np.broadcast_to(value, result.posterior[name].shape), atol=1e-3
        )


def test_parameters_without_initial_values_start_at_random() -> None:
    model = schools()
    result = batchnuts.sample_chains(
        model, chains=4, draws=1, warmup=0, seed=1, step_size=1e-8, init={"values": {"tau": 2.0}}
    )
    np.testing.assert_allclose(result.posterior["tau"], 2.0, atol=1e-3)
    assert np.unique(np.round(result.posterior["mu"], 3)).size == 4
    assert np.abs(result.posterior["mu"]).max() < 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mu": 1.0, "nu": 2.0}, r"got values for \['mu', 'nu'\]; expected \['eta', 'mu', 'tau'\]"),
        (STARTS | {"tau": -1.0}, "Stan refuses them: .*-1"),
        (STARTS | {"eta": [0.5] * 7}, r"'eta' has shape .*7.*; expected \(8,\)"),
    ],
)
def test_initial_values_that_cannot_be(values: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=f"sampler.init.values.*{message}"):
        batchnuts.sample_chains(schools(), chains=4, draws=1, warmup=0, init={"values": values})


BOUNDED_BY_ANOTHER = """parameters { real<lower=0> top; array[2] real<lower=0, upper=top> low; }
model { top ~ exponential(1); }"""


def test_random_values_fit_bounds_that_depend_on_values_given() -> None:
    result = batchnuts.sample_chains(
        Model.from_stan(BOUNDED_BY_ANOTHER),
        chains=16,
        draws=1,
        warmup=0,
        seed=1,
        step_size=1e-8,
        init={"values": {"top": 1.0}},
    )
    np.testing.assert_allclose(result.posterior["top"], 1.0, atol=1e-3)
    assert len(np.unique(np.round(result.posterior["low"][:, 0], 4), axis=0)) == 16


def test_bounds_that_no_random_value_fits_are_reported() -> None:
    with pytest.raises(SettingsError, match=r"50.*Random values of 'top' were tried 20 times; if their supports"):
        batchnuts.sample_chains(
            Model.from_stan(BOUNDED_BY_ANOTHER), chains=4, warmup=0, draws=1, init={"values": {"low": [50.0, 50.0]}}
        )


def test_includes_are_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.stan").write_text("real half(real x) { return x / 2; }\n")
    program = tmp_path / "program.stan"
    program.write_text("functions {\n#include own.stan\n}\nparameters { real x; }\nmodel { half(x) ~ normal(0, 1); }\n")
    assert Model.from_stan(program).flat_log_density(np.array([2.0])) == pytest.approx(-0.5)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    moved = folder / "program.stan"
    moved.write_text(program.read_text())
    assert Model.from_stan(moved, include_paths=[tmp_path]).name == "program"


def test_data_of_arrays_tables_and_files(tmp_path: Path) -> None:
    program = "data { int N; vector[N] y; array[N] int g; } parameters { real x; } model { y[g] ~ normal(x, 1); }"
    (tmp_path / "d.json").write_text('{"N": 3, "y": [1, 2.5, "Infinity"], "g": [1, 2, 2]}')
    (tmp_path / "d.csv").write_text("y,g\n1,1\n2.5,2\n4,2\n")
    position = np.array([0.3])
    expected = -0.5 * np.sum((np.array([1, 2.5, 2.5]) - 0.3) ** 2)
    for data in (
        tmp_path / "d.json",
        str(tmp_path / "d.csv"),
        {"N": np.int64(3), "y": np.array([1, 2.5, 4], "float32"), "g": np.array([1, 2, 2])},
    ):
        assert Model.from_stan(program, data=data).flat_log_density(position) == pytest.approx(expected)


SHAPED = "data { int N; int K; matrix[N, K + 1] x; } parameters { real m; } model { m ~ normal(sum(x[1]), 1); }"


MISTAKES: list[tuple[str, Any, str]] = [
    ("nothing.stan", None, "The Stan program 'nothing.stan' cannot be read"),
    (SCHOOLS.replace("real mu;", "real mu"), SCHOOLS_DATA, r"Stan's compiler says:\n(.|\n)*line 9"),
    (SCHOOLS, {**SCHOOLS_DATA, "J": 7}, r".y. \(declared in line 4\) have shape \(8,\); expected \(7,\), as J is 7\.$"),
    (SCHOOLS, {"J": 8, "y": SCHOOLS_DATA["y"]}, r"its data have no 'sigma' \(declared in line 5\)\.$"),
    (
        SCHOOLS,
        {"J": 8, "y": SCHOOLS_DATA["y"], "sigmas": SCHOOLS_DATA["y"]},
        r"no 'sigma' \(declared in line 5\); given, and not in the program: sigmas\.",
    ),
    (SCHOOLS, None, "its data have no 'J' .*: no data were given"),
    (
        "parameters { real x; } model { x ~ normal(0, 1); }\n"
        "generated quantities { matrix[1, 1] k = gp_exp_quad_cov({x}, {2.0}, 1.0, 1.0); }",
        None,
        "lacks Stan's function gp_exp_quad_cov, for the arguments that generated quantities give it, in line 2",
    ),
    (SCHOOLS, {**SCHOOLS_DATA, "J": 8.5}, "non-int values; .* variable name=J.* not even 3.0; write 3"),
    (
        SCHOOLS,
        {**SCHOOLS_DATA, "sigma": [-1.0] * 8},
        r"Stan refuses its data: sigma is -1, but must be greater .*line 5",
    ),
    (SCHOOLS, {**SCHOOLS_DATA, "y": "eight"}, "its data 'y' is the text 'eight'; expected numbers"),
    (SCHOOLS, {**SCHOOLS_DATA, "y": [1, None]}, "its data 'y' is missing values"),
    (SCHOOLS, {**SCHOOLS_DATA, "y": [[1], [1, 2]]}, "its data 'y' has rows of different lengths"),
    (SCHOOLS, {**SCHOOLS_DATA, "y": [[y] for y in SCHOOLS_DATA["y"]]}, r"'y' .* have shape \(8, 1\); expected \(8,\)"),
    (
        SHAPED,
        {"N": 3, "K": 1, "x": np.ones((2, 3))},
        r"'x' \(declared in line 1\) have shape \(2, 3\); expected \(3, 2\)",
    ),
    (
        "parameters { tuple(real, real) x; } model { x.1 ~ normal(0, x.2); }",
        None,
        r"^Model 'stan': stanli [\d.]+ lacks tuples: declare variables of real numbers\.$",
    ),
    (
        "functions {\n#include f.stan\n} parameters { real x; } model { }",
        None,
        "Set include_paths to a list of the folders",
    ),
    (SHAPED, {"N": 3, "K": 1, "x": np.ones(6)}, r"'x' .* have shape \(6,\); expected \(3, 2\)"),
    (
        "data { array[1] int n; array[n[1]] vector[2] x; } parameters { real m; } model { m ~ normal(sum(x[1]), 1); }",
        {"n": [3], "x": np.ones((2, 3))},
        r"'x' .* have shape \(2, 3\); expected \(\?, 2\)",
    ),
    (SCHOOLS, 3, "its data are 3; expected a mapping"),
    ("data {} parameters {} model {}", None, "no parameters"),
    ("parameters { real x; } model { x ~ normall(0, 1); }", None, 'No function "normall_lpdf" was found'),
    (
        "parameters { real<lower=0> x; } model { x ~ gamma(2, 1); } generated quantities {\n"
        "real u = rayleigh_rng(x);\nreal v = beta_rng(x, 1) + rayleigh_rng(1);\n real w = pareto_rng(1, x); }",
        None,
        r"lacks .* rayleigh_rng, .*, in line 2, and pareto_rng, in line 4: write them .* \(docs/stan_model\.md",
    ),
    ("parameters { matrix[2, 2] x; } model { target += trace(x); }", None, "lacks Stan's function trace, in line 1"),
    (3, None, "The Stan program is 3; expected the path"),
]


@pytest.mark.parametrize(("program", "data", "message"), MISTAKES, ids=[message[:30] for *_, message in MISTAKES])
def test_mistakes(program: Any, data: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Model.from_stan(program, data=data)


@pytest.mark.parametrize("x", [[[1.0, 2.0]] * 3, np.ones((3, 2))])
def test_data_of_the_declared_shape(x: Any) -> None:
    """A number and a list of it alone mean the same."""
    assert Model.from_stan(SHAPED, data={"N": [3], "K": 1, "x": x}).dimension == 1


def test_without_jax_it_is_stans_c_function(tmp_path: Path) -> None:
    program = tmp_path / "run.py"
    program.write_text(
        "import sys\n"
        "sys.modules['jax'] = None\n"
        "import batchnuts\n"
        f"model = batchnuts.Model.from_stan({SCHOOLS!r}, data={SCHOOLS_DATA!r})\n"
        "result = batchnuts.sample_chains(model, chains=16, warmup=50, draws=5)\n"
        "print(model.computed_by, result.posterior['mu'].shape)\n"
    )
    environment = {**os.environ, "BATCHNUTS_CACHE": str(tmp_path)}  # where no earlier choice is kept
    command = [sys.executable, str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert ended.stdout == "Stan's C function, in float64, JAX is not installed (16, 5)\n", ended.stderr


def test_parameters_have_their_names_in_what_is_said_of_a_position() -> None:
    program = "parameters { real s; matrix[2, 3] b; } model { s ~ normal(b[2, 1], 1); b[1] ~ normal(0, 1); }"
    model = Model.from_stan(program)
    assert model.free_names() == ["s", "b[0, 0]", "b[1, 0]", "b[0, 1]", "b[1, 1]", "b[0, 2]", "b[1, 2]"]
    assert repr(model) == "<Model 'stan' of 7 numbers, float64: s, b[2, 3]>"
    with pytest.raises(ModelError, match=re.escape("does not depend on 'b[1, 1]'")):
        batchnuts.sample_chains(model, chains=4, draws=10)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"groups": []}, set()),
        ({"groups": ["log_likelihood"]}, {"log_likelihood"}),
        ({}, {"log_likelihood", "posterior_predictive"}),
    ],
)
def test_groups_may_be_left_out(settings: Any, expected: set[str]) -> None:
    model = Model.from_stan(SCHOOLS, data=SCHOOLS_DATA)
    result = batchnuts.sample_chains(model, chains=4, warmup=100, draws=5, **settings)
    of_draws = {"log_likelihood", "posterior_predictive"}
    assert {name for name in of_draws if hasattr(result, name)} == expected
    assert "theta" in result.posterior


def test_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schools.stan").write_text(SCHOOLS)
    Path("run.yaml").write_text(f"model: {{stan: schools.stan, data: {SCHOOLS_DATA}}}\n".replace("'", ""))
    model = build_model(load_config("run.yaml").model)
    assert model.name == "schools"
    assert model.dimension == 10
    for change, message in (
        ("model.stan=none.stan", "none.stan"),
        ("model.data.J=7", re.escape("model.stan: Model 'schools': its data 'y' (declared in line 4)")),
        ("model.engine=gpu", "engine"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_model(load_config("run.yaml", [change]).model)
