"""`Model.from_numpyro`: densities and values are NumPyro's own."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from bridge_models import on_jax

from batchnuts import Model
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import ModelError

numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro.infer import init_to_median, util  # noqa: E402
from numpyro_models import EFFECTS, ERRORS, MODELS, Y, factor, schools  # noqa: E402


def by_site(model: Model, position: Any) -> dict[str, Any]:
    return {name.removeprefix("unconstrained(")[:-1]: v for name, v in model.constrain(position).items()}


@pytest.mark.parametrize("wide", [False, True], ids=["user's 32 bits", "user's 64 bits"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_density_is_numpyros_and_the_jacobian(dtype: Any, wide: bool) -> None:
    """tau = exp(x) adds x to the density of values that `numpyro.infer.util.log_density` gives."""
    x = np.random.default_rng(1).normal(size=10).astype(dtype)
    values = {"mu": x[0], "tau": np.exp(x[1]), "theta_decentered": x[2:]}
    with jax.enable_x64(True):
        wider = {n: np.asarray(v, "float64") for n, v in values.items()}
        expected = jax.jit(lambda v: util.log_density(schools, (ERRORS, EFFECTS), {}, v)[0])(wider) + float(x[1])
    with jax.enable_x64(wide):
        model = Model.from_numpyro(schools, ERRORS, EFFECTS, dtype=dtype)
        value = on_jax(model, model.flat_log_density, x)
        assert jax.config.jax_enable_x64 == wide
    assert value.dtype == dtype
    np.testing.assert_allclose(value, expected, rtol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.filterwarnings("ignore:Continuous inference poorly handles circular sample site:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_values_of_latent_sites_and_positions_are_each_others(name: str) -> None:
    function, args = MODELS[name]
    model = Model.from_numpyro(function, *args, dtype="float64")
    if model.parameters is None:  # some elements of a site are observed
        assert "unobserved" in model.variables[-1].name
        return
    positions = np.random.default_rng(1).normal(size=(3, model.dimension))
    values = model.values_at(positions)
    assert values is not None
    np.testing.assert_allclose(model.unconstrain(values), positions, rtol=1e-6, atol=1e-6)
    assert model.generated is not None
    expected = on_jax(model, lambda q: model.generated(model.constrain(q)), positions[1])
    for site, value in values.items():
        np.testing.assert_allclose(value[1], expected[site], rtol=1e-9)


def test_values_outside_of_their_support_are_refused() -> None:
    def model() -> None:
        numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        numpyro.sample("s", dist.HalfNormal(1.0))

    made, p = Model.from_numpyro(model), np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    assert made.unconstrain({"p": p, "s": [1.0, 2.0]}).shape == (2, 3)
    with pytest.raises(ModelError, match=r"'s' is -2.0, which is outside of its support"):
        made.unconstrain({"p": p, "s": [1.0, -2.0]})
    with pytest.raises(ModelError, match=r"'p' is \[0.25.*, which is outside of its support"):
        made.unconstrain({"p": p + np.array([[0.05], [0.0]]), "s": [1.0, 2.0]})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Continuous inference poorly handles circular sample site:UserWarning")
@pytest.mark.parametrize("wide", [False, True], ids=["user's 32 bits", "user's 64 bits"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_density_gradient_and_values_are_numpyros(name: str, dtype: Any, wide: bool) -> None:
    """Against `potential_fn` and `postprocess_fn` of `initialize_model`, in the same precision."""
    function, args = MODELS[name]
    with jax.enable_x64(wide):
        model = Model.from_numpyro(function, *args, dtype=dtype)
        x = np.random.default_rng(1).normal(size=model.dimension).astype(dtype)
        library: Any = density_library_of(model).library
        value, gradient = library.differentiated(model.flat_log_density)(library.tensor(x))
        assert model.generated is not None
        values = on_jax(model, lambda q: model.generated(model.constrain(q)), x)
        assert jax.config.jax_enable_x64 == wide
    with jax.enable_x64(dtype == "float64"):
        info = util.initialize_model(jax.random.key(0), function, model_args=args)
        sites = {n: jnp.asarray(v) for n, v in by_site(model, x).items()}
        expected, slopes = jax.jit(jax.value_and_grad(info.potential_fn))(sites)
        theirs = jax.jit(info.postprocess_fn)(sites)
    tolerance = 1e-5 if dtype == "float32" else 1e-10
    assert value.dtype == gradient.dtype == dtype
    np.testing.assert_allclose(value, -expected, rtol=tolerance)
    flat = np.concatenate([-np.asarray(slopes[n]).reshape(-1) for n in sites])
    np.testing.assert_allclose(gradient, flat, rtol=tolerance, atol=tolerance * np.abs(flat).max())
    assert values.keys() == theirs.keys()
    for site in theirs:
        np.testing.assert_allclose(values[site], theirs[site], rtol=10 * tolerance, atol=10 * tolerance)


class Stretched(dist.constraints.Constraint):
    """Positive numbers, by a transformation of which half of the Jacobian is forgotten."""

    event_dim = 0

    def __call__(self, x: Any) -> Any:
        return x > 0

    def tree_flatten(self) -> Any:
        return (), ((), {})


class HalfOfExp(dist.transforms.ExpTransform):
    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:
        return 0.5 * x


class OnStretched(dist.HalfNormal):
    support = Stretched()


dist.biject_to.register(Stretched, lambda constraint: HalfOfExp())


def stretched() -> None:
    numpyro.sample("x", OnStretched(1.0))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "matrices" else pytest.mark.slow) for n in (*MODELS, "stretched")]
)
def test_check_compares_numpyros_jacobians(name: str) -> None:
    function, args = MODELS.get(name, (stretched, ()))
    findings = {finding.name: finding for finding in Model.from_numpyro(function, *args).check().findings}
    assert findings["Jacobian"].ok == (name != "stretched"), findings["Jacobian"]
    assert "by automatic differentiation" in findings["Jacobian"].said


def test_names_dims_and_functions_of_draws() -> None:
    model = Model.from_numpyro(schools, ERRORS, y=EFFECTS, coords={"school": list("ABCDEFGH")})
    assert model.free_names()[:3] == ["unconstrained(mu)", "unconstrained(tau)", "unconstrained(theta_decentered)[0]"]
    assert model.dims == {"mu": (), "tau": (), "theta_decentered": ("school",), "theta": ("school",)}
    dims, observed = model.observed_data["y"]
    assert dims == ("school",)
    np.testing.assert_array_equal(observed, EFFECTS)
    zeros = np.zeros(10, "float32")
    assert model.log_likelihood is not None
    assert model.predictive is not None
    assert model.prior is not None
    pointwise = on_jax(model, lambda q: model.log_likelihood(model.constrain(q)), zeros)["y"]
    with jax.enable_x64(True):
        expected = dist.Normal(0.0, ERRORS).log_prob(EFFECTS)
    np.testing.assert_allclose(pointwise, expected, rtol=1e-5)
    keys = np.arange(4000, dtype="uint32").reshape(2000, 2)

    def drawn(keys: Any) -> Any:
        return jax.vmap(lambda key: (model.predictive(model.constrain(zeros), key), model.prior(key)))(keys)

    predicted, prior = on_jax(model, drawn, keys)
    z = predicted["y"].mean(0) / (ERRORS / np.sqrt(2000))
    assert np.abs(z).max() < 4
    assert predicted["y"].std(0) == pytest.approx(ERRORS, rel=0.1)
    assert float(np.std(prior["unconstrained(mu)"])) == pytest.approx(5, rel=0.1)
    assert float(np.median(np.exp(prior["unconstrained(tau)"]))) == pytest.approx(5, rel=0.15)


def test_axes_of_events_and_nested_plates() -> None:
    def model() -> None:
        with numpyro.plate("site", 3, dim=-2), numpyro.plate("year", 2, dim=-1):
            x = numpyro.sample("x", dist.Normal(0, 1).expand([4]).to_event(1), infer={"event_dims": ["species"]})
            numpyro.deterministic("twice", 2 * x)
            numpyro.deterministic("ends", jnp.array([0.0, 1.0]))
        numpyro.sample("weights", dist.Dirichlet(np.ones(3)))

    made = Model.from_numpyro(model, dims={"weights": "part"}, coords={"part": ["a", "b", 3]})
    assert made.labels() == {"part": ["a", "b", "3"]}
    assert made.dims == {
        "x": ("site", "year", "species"),
        "ends": ("ends_dim_0",),
        "twice": ("site", "year", "twice_dim_2"),
        "weights": ("part",),
    }


def test_observations_that_are_vectors_keep_their_plate() -> None:
    """Of their likelihood, one number for each vector."""
    y = np.arange(8.0).reshape(4, 2)

    def model() -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("time", 4):
            numpyro.sample("y", dist.MultivariateNormal(mu, jnp.eye(2)), obs=y)

    made = Model.from_numpyro(model, coords={"time": [2001, 2002, 2003, 2004]})
    assert made.log_likelihood is not None
    of_each = on_jax(made, lambda q: made.log_likelihood(made.constrain(q)), np.zeros(2, "float32"))["y"]
    assert of_each.shape == (4,)
    assert made.dims_of("y", (4,)) == ("time",)
    assert made.dims_of("y", (4, 2)) == ("time", "y_dim_1")
    assert made.dims_of("y", (2,)) == ("y_dim_0",)


def test_slashes_are_dots_in_files(tmp_path: Any) -> None:
    """Of sites under `handlers.scope`, and of their plates."""

    def model() -> None:
        mu = numpyro.sample("mu", dist.HalfNormal(1.0))
        numpyro.deterministic("twice", 2 * mu)
        with numpyro.plate("row", 4):
            numpyro.sample("z", dist.Normal(mu, 1.0), obs=Z, obs_mask=KNOWN)

    made = Model.from_numpyro(
        numpyro.handlers.scope(model, prefix="a"), coords={"a.row": list("wxyz")}, dtype="float64"
    )
    plain = Model.from_numpyro(model, dtype="float64")
    assert made.dims == {"a.mu": (), "a.twice": (), "a.z_unobserved": ("a.z_unobserved_dim_0",), "a.z": ("a.row",)}
    at = np.array([0.3, -0.4])
    np.testing.assert_allclose(
        on_jax(made, made.flat_log_density, at), on_jax(plain, plain.flat_log_density, at), rtol=1e-12
    )
    for function in ("generated", "log_likelihood"):
        found, wanted = (
            on_jax(m, lambda q, m=m, role=function: getattr(m, role)(m.constrain(q)), at) for m in (made, plain)
        )
        assert {name.removeprefix("a."): value.tolist() for name, value in found.items()} == {
            name: value.tolist() for name, value in wanted.items()
        }
    key = np.zeros(2, "uint32")
    assert made.prior is not None
    assert made.predictive is not None
    assert set(on_jax(made, made.prior, key)) == {v.name for v in made.variables}
    assert set(on_jax(made, lambda q: made.predictive(made.constrain(q), key), at)) == {"a.z_observed"}


KNOWN = np.array([True, True, False, True])
Z = np.array([1.0, 2.0, 0.0, 0.5])


def partly(known: Any, of: Any = dist.Normal) -> None:
    mu = numpyro.sample("mu", dist.LogNormal(0, 1))
    with numpyro.plate("row", 4):
        numpyro.sample("z", of(mu) if of is dist.Exponential else of(mu, 1.0), obs=Z, obs_mask=known)


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("of", [dist.Normal, dist.Exponential])
def test_of_partly_observed_data_the_rest_is_sampled(of: Any, as_array: Any) -> None:
    """`obs_mask`: NumPyro's site `z_unobserved` has all elements, and those that are observed have no density."""
    model = Model.from_numpyro(partly, as_array(KNOWN), of, dtype="float64")
    assert [(v.name, v.shape) for v in model.variables][1:] == [("unconstrained(z_unobserved)", (1,))]
    assert model.dims == {"mu": (), "z_unobserved": ("z_unobserved_dim_0",), "z": ("row",)}
    at = np.array([0.3, -0.4])
    mu, z = np.exp(at[0]), Z.copy()
    z[2] = np.exp(at[1]) if of is dist.Exponential else at[1]
    density = -np.log(np.sqrt(2 * np.pi)) - 0.5 * at[0] ** 2
    of_normal = np.sum(-0.5 * (z - mu) ** 2 - np.log(np.sqrt(2 * np.pi)))
    density += np.sum(np.log(mu) - mu * z) + at[1] if of is dist.Exponential else of_normal
    np.testing.assert_allclose(on_jax(model, model.flat_log_density, at), density, rtol=1e-12)
    assert model.generated is not None
    values = on_jax(model, lambda q: model.generated(model.constrain(q)), at)
    np.testing.assert_allclose(values["z"], z)
    np.testing.assert_allclose(values["z_unobserved"], z[2:3])
    assert model.prior is not None
    assert on_jax(model, model.prior, np.zeros(2, "uint32"))["unconstrained(z_unobserved)"].shape == (1,)


@pytest.mark.slow
def test_partly_observed_data_are_checked_and_sampled() -> None:
    from batchnuts import sample_chains

    model = Model.from_numpyro(partly, KNOWN)
    assert model.check().ok
    result = sample_chains(model, chains=64, warmup=200, draws=100, seed=1)
    z, mu = (result["posterior"][name].values for name in ("z", "mu"))
    np.testing.assert_array_equal(z[..., KNOWN], np.broadcast_to(Z[KNOWN], (64, 100, 3)))
    assert float((z[..., 2] - mu).std()) == pytest.approx(1.0, rel=0.05)


def test_observed_in_full_or_not_at_all() -> None:
    full, none = (Model.from_numpyro(partly, np.full(4, known)) for known in (True, False))
    assert [v.name for v in full.variables] == ["unconstrained(mu)"]
    assert [v.shape for v in none.variables] == [(), (4,)]


def test_what_a_user_masks_is_sampled_whole() -> None:
    """A site without a density of its own may get one elsewhere."""

    def model() -> None:
        with numpyro.handlers.mask(mask=False):
            x = numpyro.sample("x", dist.Normal(0, 1).expand([2]))
        numpyro.factor("more", -jnp.sum((x - 3.0) ** 2))

    made = Model.from_numpyro(model, dtype="float64")
    assert [v.shape for v in made.variables] == [(2,)]
    np.testing.assert_allclose(on_jax(made, made.flat_log_density, np.array([3.0, 5.0])), -4.0)


def test_starts_by_numpyros_strategies() -> None:
    def model() -> None:
        numpyro.sample("x", dist.Normal(100.0, 1.0))
        numpyro.sample("scale", dist.LogNormal(3.0, 0.1))

    made = Model.from_numpyro(model, init_strategy=init_to_median)
    starts = made.initial_positions(np.random.default_rng(0), 50)
    assert np.abs(starts - [100, 3]).max() < 3
    assert starts.std(0).min() > 0


def test_data_that_the_model_computes_are_reported_unless_they_depend_on_parameters() -> None:
    def model(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("log_y", dist.Normal(mu, 1), obs=jnp.log(y))
        numpyro.sample("residual", dist.Normal(0, 1), obs=y - mu)

    made = Model.from_numpyro(model, np.array([1.0, 2.0]))
    assert list(made.observed_data) == ["log_y"]
    np.testing.assert_allclose(made.observed_data["log_y"][1], np.log([1.0, 2.0]), rtol=1e-6)


@pytest.mark.parametrize("named", [False, True])
def test_deterministic_sites_of_observed_ones_are_computed_again(named: bool) -> None:
    def model(x: Any, y: Any) -> None:
        b = numpyro.deterministic("b", 2.0 * numpyro.sample("half", dist.Normal(0, 1)))
        with numpyro.plate("row", 3):
            x = numpyro.sample("x", dist.Normal(0, 1), obs=x)
            mu = numpyro.deterministic("mu", 100 * x + b) if named else 100 * x + b
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    made = Model.from_numpyro(model, np.array([5.0, 6.0, 7.0]), np.array([500.0, 600.0, 700.0]))
    keys = np.arange(4000, dtype="uint32").reshape(2000, 2)
    predictive = made.predictive
    assert predictive is not None
    found = on_jax(made, jax.vmap(lambda key: predictive({"unconstrained(half)": jnp.zeros((), "float32")}, key)), keys)
    residuals = found["y"] - 100 * found["x"]
    assert np.abs(residuals.mean(0)).max() < 4 / np.sqrt(2000)
    assert residuals.std(0) == pytest.approx(1, rel=0.1)
    assert made.of_data == ({"mu"} if named else set())


@pytest.mark.parametrize("kind", ["at", "fori_loop", "vmap", "jit"])
def test_which_deterministic_sites_are_computed_from_data_is_found_by_tracing(kind: str) -> None:
    """Latent values are JAX's, and only what needs the observations counts."""

    def model(x: Any, y: Any) -> None:
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(3), 1))
        x = jnp.asarray(numpyro.sample("x", dist.Normal(0, 1).expand([3]).to_event(1), obs=x))
        if kind == "at":
            own, other = theta.at[0].set(0.0), x.at[0].set(0.0)
        elif kind == "fori_loop":
            own = jax.lax.fori_loop(0, 3, lambda i, total: total + theta[i], 0.0)
            other = jax.lax.fori_loop(0, 3, lambda i, total: total + x[i], 0.0)
        elif kind == "vmap":
            own, other = (jax.vmap(lambda i, of=of: 2 * of[i])(jnp.arange(3)) for of in (theta, x))
        else:
            own, other = jax.jit(lambda a, b: (2 * a, 2 * b))(theta, x)
        numpyro.deterministic("own", own)
        numpyro.deterministic("other", other)
        numpyro.sample("y", dist.Normal(jnp.sum(theta), 1), obs=y)

    assert Model.from_numpyro(model, np.ones(3), 1.0).of_data == {"other"}


def test_where_there_are_no_draws_a_line_says_what_to_call(capsys: pytest.CaptureFixture[str]) -> None:
    """In NumPyro itself; why is one sentence, with the line, and not all that JAX has to say."""

    def plain(y: Any) -> None:
        x = numpyro.sample("x", dist.Normal(0, 1))
        if numpyro.sample("z", dist.Normal(x, 1), obs=y) is not y:  # not when it is conditioned: when it is drawn
            np.log(np.asarray(x))

    made = Model.from_numpyro(plain, 0.5)
    assert (made.predictive, made.prior) == (None, None)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("there will be no ")[2].partition(",")[0] for line in said] == [
        "posterior predictive draws",
        "prior draws",
    ]
    for line, call in zip(said, ("model, {name: values of `posterior`}", "model, num_samples=1000"), strict=True):
        assert f"call numpyro.infer.Predictive({call})" in line
        assert re.search(
            r"since TracerArrayConversionError: [^.]*(\.\w[^.]*)* at .*test_numpyro.py:\d+\. Posterior draws", line
        ), line


def test_no_prior_draws_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    def improper(y: Any) -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.positive, (), ()))
        numpyro.sample("y", dist.Normal(0, x), obs=y)

    assert Model.from_numpyro(factor).prior is None
    assert capsys.readouterr().err == ""
    made = Model.from_numpyro(improper, Y)
    assert (made.prior, made.predictive is None) == (None, False)
    assert "there will be no prior draws, since the prior of 'x' is improper" in capsys.readouterr().err


def test_predictions_have_the_shape_of_the_data() -> None:
    """Also where one distribution, without a plate, is that of all observations: each is drawn for itself."""

    def model() -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("of one", dist.Normal(mean, 1.0), obs=np.zeros((2, 3)))
        of_rows = dist.Normal(jnp.zeros((2, 1)) + mean, 1.0)
        numpyro.sample("of rows", of_rows, obs=np.zeros((2, 3)))
        numpyro.sample("of vectors", dist.MultivariateNormal(mean * jnp.ones(2), jnp.eye(2)), obs=np.zeros((5, 2)))
        with numpyro.handlers.mask(mask=np.array([True, False])):
            numpyro.sample("masked", dist.Normal(mean, 1.0), obs=np.zeros(2))

    made = Model.from_numpyro(model)
    predictive = made.predictive
    assert predictive is not None
    keys = np.arange(4000, dtype="uint32").reshape(2000, 2)
    drawn = on_jax(made, jax.vmap(lambda key: predictive({"unconstrained(mean)": jnp.zeros((), "float32")}, key)), keys)
    assert {name: array.shape[1:] for name, array in drawn.items()} == {
        name: np.shape(array) for name, (_, array) in made.observed_data.items()
    }
    for name, array in drawn.items():
        flat = np.asarray(array).reshape(2000, -1)
        apart = np.corrcoef(flat.T) - np.eye(flat.shape[1])
        assert np.abs(apart).max() < 5 / np.sqrt(2000), name
        assert np.abs(flat.mean(0)).max() < 5 / np.sqrt(2000), name


def test_attributes_are_no_variables_around_a_model() -> None:
    """And a variable of the closure may have no value yet."""

    class Data:
        LARGE_COUNTS = Y

    def model() -> None:
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(x + later, 1), obs=Data.LARGE_COUNTS)

    with pytest.raises(ModelError, match="later"):  # of the model itself
        Model.from_numpyro(model)
    later = 0.0
    assert Model.from_numpyro(model).name == "model"


@pytest.mark.slow
def test_sampled_moments_of_a_conjugate_model() -> None:
    """rate ~ Gamma(2, 1), counts ~ Poisson(rate): Gamma(2 + counts, 2)."""
    from moments import assert_expectations

    from batchnuts import sample_chains

    counts = np.array([0, 3, 7])

    def model(counts: Any) -> None:
        with numpyro.plate("site", 3):
            rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
            numpyro.sample("count", dist.Poisson(rate), obs=counts)

    result = sample_chains(Model.from_numpyro(model, counts), chains=64, warmup=200, draws=200, seed=1)
    shape = 2 + counts
    rates = result["posterior"]["rate"].values
    second = shape * (shape + 1) / 4
    assert_expectations(np.concatenate([rates, rates**2], axis=-1), np.concatenate([shape / 2, second]), 0.05)
    predicted = result["posterior_predictive"]["count"].values
    assert_expectations(predicted, shape / 2, 0.05)
    assert result["log_likelihood"]["count"].dims == ("chain", "draw", "site")
    np.testing.assert_allclose(result["prior"]["rate"].mean(), 2, rtol=0.1)
