"""`Model.from_pymc`: densities and values are PyMC's own, and what cannot be sampled is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special
from bridge_models import config_of, on_jax

from batchnuts import Model
from batchnuts.cli.config import build_model
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import ModelError
from batchnuts.settings.yaml import ConfigError

pm = pytest.importorskip("pymc", reason="the extra pymc is not installed")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import pytensor  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pymc_distributions import DENSITIES, WITHOUT, Density  # noqa: E402

import batchnuts.bridges.pymc  # noqa: E402, F401  (first, which keeps JAX's settings)
from batchnuts.bridges.pymc_functions import erfcx  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")

EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18.3])


def schools() -> Any:
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        errors = pm.Data("errors", ERRORS, dims="school")
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        eta = pm.Normal("eta", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * eta, dims="school")
        pm.Normal("y", theta, errors, observed=EFFECTS, dims="school")
    return model


def matrices() -> Any:
    with pm.Model() as model:
        pm.Dirichlet("weights", np.ones(4))
        pm.LKJCholeskyCov("factor", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, size=3))
        low = pm.Uniform("low", 0, 2)
        pm.Uniform("high", low, 5)
        pm.Normal("cuts", 0, 1, size=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
        pm.Potential("more", -(low**2))
    return model


def missing() -> Any:
    with pm.Model() as model, pytest.warns(match="imput"):
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.ma.masked_invalid([1.0, np.nan, 2.0]))
    return model


def process() -> Any:
    """A Gaussian process, marginalized."""
    x = np.linspace(0, 1, 6)[:, None]
    with pm.Model() as model:
        scale = pm.Gamma("scale", 2, 1)
        latent = pm.gp.Marginal(cov_func=pm.gp.cov.Matern52(1, ls=scale))
        latent.marginal_likelihood("y", X=x, y=np.sin(5 * x[:, 0]), sigma=pm.HalfNormal("noise", 1))
    return model


def truncated() -> Any:
    """Normal distribution functions, of which PyTensor takes a part from TensorFlow Probability."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.TruncatedNormal("length", 1, scale, lower=0.5)
        pm.TruncatedNormal("y", 0, scale, lower=0.1, observed=np.ones(3), total_size=30)
        pm.OrderedProbit("rating", eta=pm.Normal("eta"), cutpoints=[-1.0, 1.0], observed=[0, 1, 2])
        pm.ExGaussian("time", 1, scale, nu=2, observed=[0.5, 3.0])
    return model


MODELS = {"schools": schools, "matrices": matrices, "missing": missing, "process": process, "truncated": truncated}


def position_of(model: Model) -> np.ndarray:
    return model.initial_positions(np.random.default_rng(1), 1)[0]


GRADIENTS_OF_A_PROCESS = """
import jax, numpy as np, pymc as pm
from batchnuts import Model
from batchnuts.mcmc.model.library_choice import density_library_of
x = np.linspace(0, 1, 12)[:, None]
with pm.Model() as made:
    latent = pm.gp.Marginal(cov_func=pm.gp.cov.Matern52(1, ls=pm.InverseGamma("scale", 3, 1)))
    latent.marginal_likelihood("y", X=x, y=np.sin(6 * x[:, 0]), sigma=pm.HalfNormal("noise", 0.5))
model = Model.from_pymc(made)
gradient = density_library_of(model).library.compiled(jax.vmap(jax.grad(model.flat_log_density)))
expected = made.compile_dlogp()
names = [v.name for v in made.value_vars]
for point in np.array([[0.022, -1.626], [-0.234, -1.342], [-1.094, -0.848], [-1.637, -1.445]]):
    slope, alone = expected(dict(zip(names, point))), np.asarray(gradient(point[None]))[0]
    np.testing.assert_allclose(alone, slope, rtol=1e-6)
"""


@pytest.mark.slow
def test_gradients_of_a_process_are_those_of_its_density() -> None:
    """At XLA's own level of optimization, which tests do not have. Squared distances of points to themselves, zero but
    for rounding, are clipped: XLA found other ones clipped in one loop than in another."""
    users = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GRADIENTS_OF_A_PROCESS],
        env=users,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", ["schools", *(pytest.param(n, marks=pytest.mark.slow) for n in list(MODELS)[1:])])
def test_density_gradient_and_values_are_pymcs(name: str) -> None:
    """Against PyMC's functions in PyTensor's own linker, in float64."""
    made = MODELS[name]()
    model = Model.from_pymc(made)
    x = position_of(model)
    library: Any = density_library_of(model).library
    value, gradient = library.differentiated(model.flat_log_density)(library.tensor(x))
    assert model.generated is not None
    values = on_jax(model, lambda q: model.generated(model.constrain(q)), x)
    assert not jax.config.jax_enable_x64
    assert jax.device_count() == 1
    assert "device_count" not in os.environ.get("XLA_FLAGS", "")
    point = model.constrain(x)
    given = [point[v.name] for v in made.value_vars]
    reported = [v for v in made.unobserved_value_vars if not v.name.endswith("__")]
    with pytensor.config.change_flags(mode="FAST_COMPILE", on_opt_error="ignore"):
        expected, slopes = (
            pytensor.function(made.value_vars, f, on_unused_input="ignore")(*given)
            for f in (made.logp(), pt.concatenate([g.ravel() for g in pt.grad(made.logp(), made.value_vars)]))
        )
        theirs = pytensor.function(made.value_vars, reported, on_unused_input="ignore")(*given)
    # a constant of LKJCholeskyCov is of float32 in PyMC's own graph, and rounded so by JAX alone
    np.testing.assert_allclose(value, expected, rtol=1e-7 if name == "matrices" else 1e-10)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-8, atol=1e-9)
    assert set(values) == {v.name for v in reported}
    for variable, one in zip(reported, theirs, strict=True):
        np.testing.assert_allclose(values[variable.name], one, rtol=1e-9, atol=1e-12)


IN_EACH_RUN = {"Beta": {0, 1}, "Censored": {1}, "TruncatedNormal": {0}}
"""By distribution, which of its lines."""


def in_turn() -> Iterator[Any]:
    seen: Counter[str] = Counter()
    for density in DENSITIES:
        quick = seen[density.of] in IN_EACH_RUN.get(density.of, ())
        seen[density.of] += 1
        yield pytest.param(density, id=density.of, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.filterwarnings("ignore:batched_dot|pytensor.tensor.linalg.trace:FutureWarning", "ignore:The Wishart")
@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")
@pytest.mark.parametrize("density", [*in_turn()])
def test_parameters_are_checked_as_pymc_checks_them(density: Density) -> None:
    """-inf where PyMC's density is, or raises an error; and the same value and gradient where it is finite."""
    made = density.model()
    model = Model.from_pymc(made)
    library: Any = density_library_of(model).library
    ours = library.compiled(jax.value_and_grad(model.flat_log_density))
    with pytensor.config.change_flags(mode="FAST_COMPILE", on_opt_error="ignore"):
        value, gradient = made.compile_logp(), made.compile_dlogp()
    for number, p in enumerate(density.invalid):
        try:
            expected = value({"p": np.array(p)})
        except pm.logprob.utils.ParameterValueError:
            expected = -np.inf
        assert expected == -np.inf or number > 0
        np.testing.assert_allclose(ours(library.tensor(np.array(p)))[0], expected, rtol=1e-9, err_msg=str(p))
    for p in density.valid:
        found, slope = map(np.asarray, ours(library.tensor(np.array(p))))
        assert np.isfinite(found)
        np.testing.assert_allclose(found, value({"p": np.array(p)}), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(slope, gradient({"p": np.array(p)}), rtol=1e-8, atol=1e-10)


def test_the_table_has_all_of_pymcs_distributions() -> None:
    without = {name for names in WITHOUT for name in names.split()}
    assert {density.of for density in DENSITIES} | without == set(pm.distributions.__all__)


@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")
@pytest.mark.parametrize("checked", [True, False])
def test_checks_hold_within_scans_and_where_the_user_keeps_them(checked: bool) -> None:
    """`check_bounds=False` takes them out, as in PyMC."""

    def step(x: Any, scale: Any) -> Any:
        following = pm.Normal.dist(x, scale)
        return following, pm.pytensorf.collect_default_updates([following])

    def walk(steps: Any, scale: Any, size: Any) -> Any:
        return pytensor.scan(step, outputs_info=[pt.zeros(())], non_sequences=[scale], n_steps=steps)[0]

    with pm.Model(check_bounds=checked) as made:
        scale = pm.Flat("scale")
        pm.CustomDist("y", 3, scale, dist=walk, observed=[0.1, 0.2, 0.4])
    model = Model.from_pymc(made)
    found = on_jax(model, model.flat_log_density, np.array([-1.0]))
    assert found == -np.inf if checked else np.isnan(found) or np.isfinite(found)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-11)])
def test_scaled_complementary_error_function(dtype: str, tolerance: float) -> None:
    """And its derivative, 2 x erfcx(x) - 2 / sqrt(pi), on both sides of where its series begins."""
    x = np.concatenate([np.linspace(-4, 12, 200), [30.0, 1e4]]).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        value, slope = (np.asarray(f(jnp.asarray(x))) for f in (erfcx, jax.vmap(jax.grad(erfcx))))
    assert value.dtype == slope.dtype == dtype
    exact = scipy.special.erfcx(x.astype("float64"))
    np.testing.assert_allclose(value, exact, rtol=tolerance)
    np.testing.assert_allclose(slope[:-1], (2 * x * exact - 2 / np.sqrt(np.pi))[:-1], rtol=tolerance)
    np.testing.assert_allclose(slope[-1], -1 / (np.sqrt(np.pi) * 1e8), rtol=1e-5)


class HalfOfLog(pm.logprob.transforms.LogTransform):
    """A transformation of which half of the Jacobian is forgotten."""

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        return 0.5 * super().log_jac_det(value, *inputs)


def stretched() -> Any:
    with pm.Model() as model:
        pm.HalfNormal("x", 1.0, default_transform=None, transform=HalfOfLog())
    return model


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("matrices", "float64"),
        pytest.param("schools", "float32", marks=pytest.mark.slow),
        pytest.param("stretched", "float64", marks=pytest.mark.slow),
    ],
)
def test_check_compares_pymcs_jacobians(name: str, dtype: Any) -> None:
    made = {**MODELS, "stretched": stretched}[name]()
    findings = {finding.name: finding for finding in Model.from_pymc(made, dtype=dtype).check().findings}
    assert findings["Jacobian"].ok == (name != "stretched"), findings["Jacobian"]
    assert "by automatic differentiation" in findings["Jacobian"].said


def test_names_dims_and_functions_of_draws() -> None:
    model = Model.from_pymc(schools())
    assert [v.name for v in model.variables] == ["mu", "tau_log__", "eta"]
    assert model.dims == {"mu": (), "tau": (), "eta": ("school",), "theta": ("school",)}
    assert model.labels() == {"school": list("ABCDEFGH")}
    assert model.observed_data["y"][0] == model.constant_data["errors"][0] == ("school",)
    np.testing.assert_array_equal(model.observed_data["y"][1], EFFECTS)
    zeros = np.zeros(10)
    assert model.log_likelihood is not None
    pointwise = on_jax(model, lambda q: model.log_likelihood(model.constrain(q)), zeros)["y"]
    np.testing.assert_allclose(pointwise, -0.5 * (EFFECTS / ERRORS) ** 2 - np.log(ERRORS * np.sqrt(2 * np.pi)))
    keys = np.arange(4000, dtype="uint32").reshape(2000, 2)
    predictive, prior = model.predictive, model.prior
    assert predictive is not None
    assert prior is not None

    def drawn(keys: Any) -> Any:
        return jax.vmap(lambda key: (predictive(model.constrain(zeros), key), prior(key)))(keys)

    predicted, values = on_jax(model, drawn, keys)
    assert np.abs(predicted["y"].mean(0) / (ERRORS / np.sqrt(2000))).max() < 4
    assert predicted["y"].std(0) == pytest.approx(ERRORS, rel=0.1)
    assert float(np.std(values["mu"])) == pytest.approx(5, rel=0.1)
    assert float(np.median(np.exp(values["tau_log__"]))) == pytest.approx(5, rel=0.15)
    assert abs(np.corrcoef(values["mu"], values["eta"][:, 0])[0, 1]) < 0.1


def test_float32_where_it_is_asked_for() -> None:
    made = schools()
    model, wide = Model.from_pymc(made, dtype="float32"), Model.from_pymc(made)
    x = position_of(wide)
    value = on_jax(model, model.flat_log_density, x.astype("float32"))
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, on_jax(wide, wide.flat_log_density, x), rtol=1e-5)


@pytest.mark.parametrize("name", ["schools", *(pytest.param(n, marks=pytest.mark.slow) for n in list(MODELS)[1:])])
def test_values_of_random_variables_and_positions_are_each_others(name: str) -> None:
    made = MODELS[name]()
    model = Model.from_pymc(made)
    positions = model.initial_positions(np.random.default_rng(1), 3)
    values = model.values_at(positions)
    assert values is not None
    assert set(values) == {variable.name for variable in made.free_RVs}
    np.testing.assert_allclose(model.unconstrain(values), positions, rtol=1e-6, atol=1e-6)
    assert model.generated is not None
    expected = on_jax(model, lambda q: model.generated(model.constrain(q)), positions[1])
    for variable, value in values.items():
        np.testing.assert_allclose(value[1], expected[variable], rtol=1e-9)


def test_initial_values_and_predictions_by_names_of_random_variables() -> None:
    from batchnuts import predict, sample_chains
    from batchnuts.mcmc.settings.run_settings import SettingsError

    with pm.Model() as made:
        x = pm.Data("x", np.zeros(3))
        tau = pm.HalfNormal("tau", 1.0)
        pm.Uniform("low", 0, tau)
        pm.Normal("y", x * tau, 0.1, observed=[0.5, 1.0, 1.5], shape=x.shape)
    model = Model.from_pymc(made)
    settings = {"chains": 4, "draws": 1, "warmup": 0, "step_size": 1e-8, "max_tree_depth": 1, "seed": 1}
    started = sample_chains(model, **settings, init={"values": {"tau": 2.0, "low": 0.5}})["posterior"]
    np.testing.assert_allclose(started["tau"], 2.0, rtol=1e-4)
    np.testing.assert_allclose(started["low"], 0.5, rtol=1e-4)
    np.testing.assert_allclose(sample_chains(model, **settings, init={"values": {"tau": 2.0}})["posterior"]["tau"], 2.0)
    with pytest.raises(SettingsError, match=r"'tau' is -2.0, which is outside of its support"):
        sample_chains(model, **settings, init={"values": {"tau": -2.0}})
    with pytest.raises(SettingsError, match=r"'low' is 3.0, which is outside of its support"):
        sample_chains(model, **settings, init={"values": {"tau": 2.0, "low": 3.0}})
    result = sample_chains(model, chains=4, draws=20, warmup=50)
    part = result.sel(draw=slice(0, 9))
    predicted = predict(part, {"x": [0.0, 0.0, 100.0]}, model=model).predictions["y"]
    slopes = np.asarray(predicted)[..., 2] / 100
    np.testing.assert_allclose(slopes, part["posterior"]["tau"].values, atol=0.01)


def test_starts_lie_around_pymcs_initial_point() -> None:
    with pm.Model() as made:
        pm.Normal("x", 100, 1, initval=90)
    starts = Model.from_pymc(made).initial_positions(np.random.default_rng(0), 1000)
    assert np.abs(starts - 90).max() <= 1
    assert np.ptp(starts) > 1.9


@pytest.mark.slow
def test_sampled_moments_of_a_conjugate_model() -> None:
    """share ~ Beta(2, 2), successes ~ Binomial(10, share): Beta(2 + successes, 12 - successes)."""
    from moments import assert_expectations

    from batchnuts import sample_chains

    successes = np.array([1, 5, 9])
    with pm.Model(coords={"site": ["a", "b", "c"]}) as made:
        pm.Binomial("y", 10, pm.Beta("share", 2, 2, dims="site"), observed=successes, dims="site")
    result = sample_chains(Model.from_pymc(made), chains=64, warmup=200, draws=200, seed=1)
    shares = result["posterior"]["share"].values
    first = (2 + successes) / 14
    assert_expectations(shares, first, 0.05)
    assert_expectations(shares**2, first * (3 + successes) / 15, 0.05)  # not with the former, which say nearly the same
    assert result["log_likelihood"]["y"].dims == ("chain", "draw", "site")


# Mistakes


def discrete() -> Any:
    with pm.Model() as model:
        pm.Normal("y", pm.Bernoulli("z", 0.5), 1, observed=1.0)
    return model


def observed_alone() -> Any:
    with pm.Model() as model:
        pm.Normal("y", 0, 1, observed=1.0)
    return model


def reserved() -> Any:
    with pm.Model() as model:
        pm.Normal("chain", 0, 1)
    return model


class Opaque(pt.Op):  # type: ignore[misc]
    """An operation that JAX does not know."""

    itypes = (pt.dscalar,)
    otypes = (pt.dscalar,)

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = np.asarray(inputs[0] ** 2)


def opaque() -> Any:
    with pm.Model() as model:
        pm.Potential("more", Opaque()(pm.Normal("x", 0, 1)))
    return model


def batches() -> Any:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x"), 1, observed=pm.Minibatch(np.zeros(100), batch_size=10), total_size=100)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (discrete, "its variable 'z' is discrete, which NUTS cannot sample"),
        (observed_alone, "no free random variable.*its observed variables: y"),
        (reserved, "cannot be called 'chain'"),
        (opaque, "PyTensor cannot translate its log-density to JAX: NotImplementedError.*Opaque.*jax_funcify"),
        (batches, "depends on random numbers"),
        (lambda: schools, r"is the function schools; expected a pymc.Model: call it, as in `schools\(\)`"),
        (lambda: "schools", "is the string 'schools'; expected a pymc.Model"),
        (lambda: None, "is None; expected a pymc.Model"),
        (lambda: pm.Model, "expected a pymc.Model, as `with pymc.Model"),
    ],
)
def test_mistakes(make: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Model.from_pymc(make())


@pytest.mark.parametrize(
    ("initval", "words"),
    [
        (-1.0, "the `initval` of 'x' is -1.0, outside its support .its transform LogTransform is not finite"),
        ([1.0, 0.0], r"the `initval` of 'x' is 0.0 at \[1\], outside its support"),
    ],
)
@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered:RuntimeWarning")
def test_an_initval_outside_its_support_is_named(initval: Any, words: str) -> None:
    with pm.Model() as made:
        pm.HalfNormal("x", 1, shape=np.shape(initval), initval=initval)
    with pytest.raises(ModelError, match=words):
        Model.from_pymc(made)


def test_a_model_of_float32_is_not_computed_in_float64() -> None:
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as made:
        pm.Normal("x", 0, 1)
    assert Model.from_pymc(made).dtype == "float32"
    with pytest.raises(ModelError, match="floatX = float32, so it cannot be computed in float64"):
        Model.from_pymc(made, dtype="float64")


def test_what_jax_cannot_draw_is_left_out_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pm.Model() as made:
        pm.Normal("y", pm.Flat("x"), 1, observed=1.0)
    model = Model.from_pymc(made)
    assert (model.prior is None, model.predictive is None) == (True, False)
    said = capsys.readouterr().err
    assert "there will be no prior draws, since NotImplementedError" in said
    assert "for the missing ones, call pymc.sample_prior_predictive(model=model) afterwards." in said


def test_a_prior_that_leaves_its_transform_is_left_out_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """PyMC draws cutpoints without regard to their order."""
    for transform in (pm.distributions.transforms.ordered, pm.distributions.transforms.Interval(-90, 90)):
        with pm.Model() as made:
            pm.Normal("y", pm.Normal("c", 0, 2, shape=2, transform=transform, initval=[-1, 1]), 1, observed=[0.0, 1.0])
        kept = Model.from_pymc(made).prior is not None
        said = "no prior draws, since PyMC draws 'c' without regard to its transform Ordered" in capsys.readouterr().err
        assert (kept, said) == ((False, True) if transform is pm.distributions.transforms.ordered else (True, False))


def test_what_is_computed_of_observed_variables_is_known() -> None:
    with pm.Model() as made:
        b = pm.Normal("b")
        with pytest.warns(pm.exceptions.ImputationWarning):
            x = pm.Normal("x", 0, 1, observed=np.ma.masked_greater(np.array([1.0, 2.0, 30.0]), 9.0))
        pm.Normal("y", pm.Deterministic("mu", 100 * x + b), 1, observed=np.zeros(3))
        pm.Deterministic("twice", 2 * b)
    model = Model.from_pymc(made)
    assert {"mu", "x", "twice"} < set(model.dims)
    assert model.of_data == {"mu", "x"}


# Configs

MODULE = """
import numpy as np
import pymc as pm

def line(x, y):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("slope") * x, 1, observed=y)
    return model

def forgets():
    with pm.Model():
        pm.Normal("x")

def raises():
    raise ValueError("no data")

made = line(np.ones(2), np.zeros(2))
"""


@pytest.mark.parametrize(
    ("section", "data"),
    [
        ("{pymc: own_pymc:made}", [0.0, 0.0]),
        ("{pymc: own_pymc:line, args: [[1.0, 2.0]], kwargs: {y: [3, 4]}}", [3.0, 4.0]),
        ("{pymc: own_pymc:line, data: {path: table.csv}}", [2.0, 4.5]),
    ],
)
def test_config(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, section: str, data: list[float]) -> None:
    model = build_model(config_of(tmp_path, monkeypatch, "own_pymc", MODULE, section))
    np.testing.assert_array_equal(model.observed_data["y"][1], data)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{pymc: own_pymc:lin}", "did you mean 'line'"),
        ("{pymc: own_pymc:line}", "failed with TypeError: .*missing 2 required"),
        ("{pymc: own_pymc:made, args: [1]}", "is a Model, so args, kwargs and data have no effect"),
        ("{pymc: own_pymc:forgets}", "returned None; expected it to return the model"),
        ("{pymc: own_pymc:raises}", r"failed with ValueError: no data at .*own_pymc.py:15"),
        ("{pymc: own_pymc:pm}", "is <module"),
    ],
)
def test_mistakes_in_a_config(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, section: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_model(config_of(tmp_path, monkeypatch, "own_pymc", MODULE, section))
