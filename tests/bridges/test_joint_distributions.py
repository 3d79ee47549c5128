"""Joint distributions of TensorFlow Probability as models: densities, reports, functions of draws, mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from from_source import load

from batchnuts import Model, sample_chains
from batchnuts.cli.config import ConfigError, build_model, load_config
from batchnuts.mcmc.model.model import ModelError
from batchnuts.mcmc.model.quantities import Quantities
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

tfd, tfb = tfp.distributions, tfp.bijectors
Root = tfd.JointDistributionCoroutine.Root
Y = np.array([1.0, 2.0, 0.5, 0.7], "float32")


def sequential() -> Any:
    return tfd.JointDistributionSequential(
        [tfd.Normal(0.0, 1.0), lambda m: tfd.LogNormal(m, 1.0), lambda s, m: tfd.Sample(tfd.Normal(m, s), 4)]
    )


def named() -> Any:
    return tfd.JointDistributionNamed(
        {
            "mu": tfd.Normal(0.0, 1.0),
            "s": tfd.HalfNormal(1.0),
            "p": tfd.Dirichlet(tf.ones(3)),
            "x": lambda mu, s: tfd.Independent(tfd.Normal(mu * tf.ones(4), s), 1),
        }
    )


def coroutine() -> Any:
    def model() -> Any:
        mu = yield Root(tfd.Normal(0.0, 1.0, name="mu"))
        sigma = yield Root(tfd.HalfNormal(1.0, name="sigma"))
        yield tfd.Sample(tfd.Normal(mu, sigma), 4, name="x")

    return tfd.JointDistributionCoroutine(model)


def dependent_supports() -> Any:
    @tfd.JointDistributionCoroutineAutoBatched
    def model() -> Any:
        mu = yield tfd.Normal(0.0, 1.0, name="mu")
        s = yield tfd.Uniform(0.0, tf.exp(mu), name="s")
        yield tfd.CholeskyLKJ(3, 2.0, name="factor")
        yield tfd.Normal(mu * tf.ones(4), s, name="x")

    return model


def nested() -> Any:
    return tfd.JointDistributionNamed(
        {
            "a": tfd.Normal(0.0, 1.0),
            "inner": lambda a: tfd.JointDistributionSequential([tfd.Normal(a, 1.0), tfd.Gamma(2.0, 2.0)]),
            "x": lambda inner: tfd.Sample(tfd.Normal(inner[0], inner[1]), 4),
        }
    )


def named_auto_batched() -> Any:
    return tfd.JointDistributionNamedAutoBatched(
        {"mu": tfd.Normal(0.0, 1.0), "s": tfd.Gamma([2.0, 3.0], 1.0), "x": lambda mu: tfd.Normal(mu * tf.ones(4), 1.0)}
    )


def sequential_auto_batched() -> Any:
    return tfd.JointDistributionSequentialAutoBatched([tfd.Normal(0.0, 1.0), lambda m: tfd.Normal(m * tf.ones(4), 1.0)])


FAST = (coroutine, sequential_auto_batched)
SLOW = (sequential, named, dependent_supports, nested, named_auto_batched)
KINDS = [*FAST, *(pytest.param(make, marks=pytest.mark.slow) for make in SLOW)]


def value_and_gradient(function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return value.numpy(), tape.gradient(value, x).numpy()


@pytest.mark.parametrize("make", KINDS)
def test_density_and_gradient_are_those_of_the_library(make: Callable[[], Any]) -> None:
    """Its log_prob and the Jacobian of its own joint bijector, at the same real numbers."""
    joint = make()
    model = Model.from_joint_distribution(joint, x=Y)
    pinned = joint.experimental_pin(x=Y)
    bijector = pinned.experimental_default_event_space_bijector()
    like = bijector.inverse_event_shape(pinned.event_shape)
    sizes = [int(np.prod(shape)) for shape in tf.nest.flatten(like)]

    def theirs(position: Any) -> Any:
        parts = [tf.reshape(part, shape) for part, shape in zip(tf.split(position, sizes), tf.nest.flatten(like))]
        # nested dicts are flattened in the order of their keys, which is not that of the parts
        x = tf.nest.pack_sequence_as(like, parts)
        ranks = tf.nest.map_structure(lambda shape: shape.rank, like)
        return pinned.unnormalized_log_prob(bijector.forward(x)) + bijector.forward_log_det_jacobian(x, ranks)

    def ours(position: Any) -> Any:
        parts = dict(zip(in_order(like, model), tf.split(position, sizes), strict=True))
        return model.flat_log_density(tf.concat([parts[variable.name] for variable in model.variables], 0))

    for row in np.random.default_rng(1).uniform(-1, 1, (2, model.dimension)).astype("float32"):
        expected = value_and_gradient(theirs, tf.constant(row))
        found = value_and_gradient(ours, tf.constant(row))
        np.testing.assert_allclose(found[0], expected[0], rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(found[1], expected[1], rtol=2e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("make", [dependent_supports, nested])
def test_check_compares_the_jacobian_of_the_joint_bijector(make: Callable[[], Any]) -> None:
    findings = {f.name: f for f in Model.from_joint_distribution(make(), x=Y).check().findings}
    assert findings["Jacobian"].ok, findings["Jacobian"]
    assert "by automatic differentiation" in findings["Jacobian"].said


def in_order(like: Any, model: Model) -> list[str]:
    """The names of the leaves as `tf.nest` has them."""
    names = [variable.name for variable in model.variables]
    return sorted(names) if isinstance(like, dict) else names


def test_parts_are_reported_in_their_own_values_with_dims_and_data() -> None:
    model = Model.from_joint_distribution(
        named_auto_batched(), x=Y, dims={"s": "group", "x": ["row"]}, coords={"group": ["a", "b"], "row": list("abcd")}
    )
    by_name = {variable.name: variable for variable in model.variables}
    assert by_name["s"].axis_names == ("group",)
    assert by_name["s"].element_names() == ["s[a]", "s[b]"]
    assert model.observed_data["x"][0] == ("row",)
    np.testing.assert_array_equal(model.observed_data["x"][1], Y)
    values = model.constrain(np.full((2, 3, model.dimension), -1.0, "float32"))
    assert values["s"].shape == (2, 3, 2)
    assert (values["s"] > 0).all()
    assert model.reports_variables


def test_real_numbers_of_dependent_supports_become_the_parts() -> None:
    model = Model.from_joint_distribution(
        dependent_supports(),
        x=Y,
        initializer=lambda rng, n: {"mu": np.zeros(n), "s": np.full(n, 0.5), "factor": np.tile(np.eye(3), (n, 1, 1))},
    )
    assert not model.reports_variables
    assert [v.shape for v in model.variables] == [(), (), (3,)]
    assert model.generated is not None
    at = model.initial_positions(np.random.default_rng(0), 2)
    found = model.generated(model.constrain(tf.constant(at[0])))
    np.testing.assert_allclose(found["s"], 0.5, rtol=1e-5)
    np.testing.assert_allclose(found["factor"], np.eye(3), atol=1e-6)
    wide = model.generated({"mu": tf.constant(2.0), "s": tf.constant(9.0), "factor": tf.zeros(3)})
    assert 7 < float(wide["s"]) < np.exp(2.0)
    drawn = model.prior(tf.constant([3, 4]))  # type: ignore[misc]
    assert sorted(drawn) == ["factor", "mu", "s"]
    assert drawn["factor"].shape == (3,)


def test_a_pinned_joint_distribution_takes_further_pins() -> None:
    pinned = coroutine().experimental_pin(x=Y)
    assert [v.name for v in Model.from_joint_distribution(pinned).variables] == ["mu", "sigma"]
    assert [v.name for v in Model.from_joint_distribution(pinned, {"mu": 0.5}).variables] == ["sigma"]
    with pytest.raises(ModelError, match="'x' is pinned already"):
        Model.from_joint_distribution(pinned, x=Y)


@pytest.mark.slow
def test_functions_of_draws_have_known_moments() -> None:
    """Observations of a draw are normal about it; covariates that a free part depends on are not predicted."""

    @tfd.JointDistributionCoroutineAutoBatched
    def model() -> Any:
        scale = yield tfd.HalfNormal(1.0, name="scale")
        mu = yield tfd.Normal(0.0, scale, name="mu")
        yield tfd.Normal(mu * tf.ones(4), 2.0, name="x")

    made = Model.from_joint_distribution(model, scale=0.5, x=Y)
    compiled = Quantities(made, ExecutionSettings(backend="tensorflow"), seed=1)
    found = compiled.of_posterior(np.full((1500, 1), 3.0, "float32"), np.zeros(1500, np.int64), np.arange(1500))
    assert list(found["predictive"]) == ["x"]
    x = found["predictive"]["x"]
    assert abs(x.mean() - 3.0) < 5 * 2.0 / np.sqrt(6000)
    assert abs(x.std() - 2.0) < 5 * 2.0 / np.sqrt(12000)
    expected = tfd.Normal(3.0, 2.0).log_prob(Y).numpy()
    np.testing.assert_allclose(found["log_likelihood"]["x"][0], expected, rtol=1e-5)
    values, of_prior = compiled.of_prior()
    assert abs(values["mu"].std() - 0.5) < 5 * 0.5 / np.sqrt(2000)
    assert abs(of_prior["predictive"]["x"].std() - np.sqrt(4.25)) < 0.3


@pytest.mark.slow
def test_a_sampled_run_has_the_known_posterior() -> None:
    """Of a normal mean with a normal prior; z of mean and standard deviation. And all groups of the file."""
    joint = tfd.JointDistributionNamedAutoBatched(
        {
            "mu": tfd.Normal(0.0, 2.0),
            "p": tfd.Dirichlet([2.0, 3.0, 5.0]),
            "y": lambda mu: tfd.Normal(mu * tf.ones(4), 1.0),
        }
    )
    result = sample_chains(Model.from_joint_distribution(joint, y=Y), chains=64, warmup=200, draws=100, seed=3)
    mu, p = result["posterior"]["mu"].values, result["posterior"]["p"].values
    precision = 1 / 4 + 4
    assert abs(mu.mean() - Y.sum() / precision) < 5 * precision**-0.5 / np.sqrt(3000)
    assert abs(mu.std() * precision**0.5 - 1) < 5 / np.sqrt(2 * 3000)
    np.testing.assert_allclose(p.mean((0, 1)), [0.2, 0.3, 0.5], atol=5 * 0.15 / np.sqrt(3000))
    assert result["posterior_predictive"]["y"].shape == (64, 100, 4)
    assert result["log_likelihood"]["y"].shape == (64, 100, 4)
    assert {"prior", "prior_predictive", "observed_data"} <= set(
        result.groups() if callable(result.groups) else {g.strip("/") for g in result.groups}
    )


# Configs

SOURCE = """
import tensorflow as tf
import tensorflow_probability as tfp

tfd = tfp.distributions


def joint(data):
    return tfd.JointDistributionNamedAutoBatched(
        dict(mu=tfd.Normal(0.0, 1.0), y=lambda mu: tfd.Normal(mu * tf.constant(data["x"]), 1.0))
    )


fixed = tfd.JointDistributionSequentialAutoBatched([tfd.Normal(0.0, 1.0), lambda m: tfd.Normal(m, 1.0)])


def needs_more(data, other):
    return None


def fails():
    raise RuntimeError("no such file")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"joint_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / "data.csv").write_text("x,y\n1,2\n2,4\n3,7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def from_config(tmp_path: Path, text: str) -> Model:
    (tmp_path / "config.yaml").write_text(f"model: {text}\n")
    return build_model(load_config(str(tmp_path / "config.yaml")).model)


@pytest.mark.slow
def test_a_config_names_a_function_its_data_and_the_pinned_columns(tmp_path: Path, module: str) -> None:
    model = from_config(
        tmp_path, f"{{joint_distribution: '{module}:joint', data: {{path: data.csv}}, pinned: {{y: y}}}}"
    )
    assert [v.name for v in model.variables] == ["mu"]
    np.testing.assert_array_equal(model.observed_data["y"][1], [2, 4, 7])
    assert model.check().ok


def test_a_config_names_an_object(tmp_path: Path, module: str) -> None:
    model = from_config(tmp_path, f"{{joint_distribution: '{module}:fixed', pinned: {{x: 1.5}}}}")
    assert float(model.flat_log_density(tf.zeros(1))) == pytest.approx(-np.log(2 * np.pi) - 1.5**2 / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "joint_distribution: 'M:joint', data: {path: data.csv}, pinned: {y: yy}",
            "model.pinned.y: found 'yy'.*mean 'y'",
        ),
        ("joint_distribution: 'M:joint'", "takes .data., but 'data' is not given"),
        ("joint_distribution: 'M:needs_more', data: {path: data.csv}", "'other' is not given"),
        ("joint_distribution: 'M:fails'", "RuntimeError: no such file at .*py:22"),
        ("joint_distribution: 'M:fixed', pinned: {x: [1, 2]}", r"shape \(2,\); the part has shape \(\)"),
        ("joint_distribution: 'M:fixed', pins: {x: 1}", "model.pins: unknown key; expected one of .* pinned, "),
        ("joint_distribution: nowhere", "expected package.module:function"),
    ],
)
def test_mistakes_in_a_config_are_named(tmp_path: Path, module: str, options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_config(tmp_path, "{" + options.replace("M:", f"{module}:") + "}")


# Mistakes


class NoBijector(tfd.Normal):
    def _default_event_space_bijector(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "pins", "message"),
    [
        (lambda: tfd.Normal(0.0, 1.0), {}, "A single distribution has log_prob"),
        (coroutine, {"y": Y}, "no part 'y' to pin.*mu, sigma, x"),
        (coroutine, {"sigm": 1.0}, "did you mean 'sigma'"),
        (coroutine, {"x": Y[:3]}, r"shape \(3,\); the part has shape \(4,\)"),
        (coroutine, {"x": ["a", "b", "c", "d"]}, "not an array of numbers"),
        (coroutine, {"x": np.array([1, 2, np.nan, 4])}, r"nan at \[2\]"),
        (coroutine, {"x": np.array([1, 2, 1e39, 4])}, r"have 1e\+39, which does not fit into float32"),
        (coroutine, {"mu": 0.0, "sigma": 1.0, "x": Y}, "nothing is left to sample"),
        (
            lambda: tfd.JointDistributionNamed({"a": tfd.Deterministic(1.0), "m": lambda a: tfd.Normal(a, 1.0)}),
            {},
            "part 'a' is Deterministic, a point, which cannot be sampled",
        ),
        (
            lambda: tfd.JointDistributionNamed({"a": tfd.Normal(0.0, 1.0), "y": lambda a: tfd.Normal(float(a), 1.0)}),
            {"y": 1.0},
            "a draw from the joint distribution, .* failed with TypeError: .* at .*test_joint_distributions.py",
        ),
        (nested, {"inner": 1.0}, "expected a structure like"),
        (
            lambda: tfd.JointDistributionSequential([tfd.Poisson(2.0, name="n"), tfd.Normal(0.0, 1.0)]),
            {},
            r"free and discrete: n \(Poisson\).*pin them to data",
        ),
        (
            lambda: tfd.JointDistributionNamed({"n": tfd.Sample(tfd.Geometric(0.5), 3), "m": tfd.Normal(0.0, 1.0)}),
            {},
            r"free and discrete: n \(Geometric\)",
        ),
        (
            lambda: tfd.JointDistributionNamed({"a/b": tfd.Normal(0.0, 1.0), "a.b": tfd.Normal(0.0, 1.0)}),
            {},
            "the parts 'a[./]b' and 'a[./]b' would both be 'a.b' in files",
        ),
        (
            lambda: tfd.JointDistributionNamed({"k": tfd.Bernoulli(0.5), "m": tfd.Normal(0.0, 1.0)}),
            {},
            r"free and discrete: k \(int32\)",
        ),
        (
            lambda: tfd.JointDistributionNamed({"k": tfd.Bernoulli(0.5), "m": tfd.Normal(0.0, 1.0)}),
            {"k": 0.5},
            "not int32; expected integers",
        ),
        (
            lambda: tfd.JointDistributionNamed({"m": NoBijector(0.0, 1.0)}),
            {},
            "'m' .NoBijector. has no default bijector",
        ),
        (
            lambda: tfd.JointDistributionNamed({"m": tfd.Normal(tf.zeros(3), 1.0), "y": lambda m: tfd.Normal(m, 1.0)}),
            {"y": np.zeros(3)},
            r"log_prob has shape \(3,\).*m \(3,\), y \(3,\).*AutoBatched",
        ),
        (
            lambda: tfd.JointDistributionNamed(
                {"a": tfd.Normal(0.0, 1.0), "b": tfd.Normal(tf.constant(0.0, tf.float64), 1.0)}
            ),
            {},
            "dtypes a float32, b float64|dtypes b float64, a float32",
        ),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], pins: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Model.from_joint_distribution(make(), pins)


def test_a_model_that_raises_is_named_by_file_and_line(tmp_path: Path) -> None:
    source = "def model():\n    yield Root(tfd.Normal(0.0, 1.0))\n    raise RuntimeError('no such county')\n"
    module = load(
        tmp_path,
        "import tensorflow_probability as tfp\ntfd = tfp.distributions\nRoot = tfd.JointDistributionCoroutine.Root\n"
        + source,
    )
    with pytest.raises(ModelError, match=re.escape("RuntimeError: no such county at ") + ".*:10"):
        Model.from_joint_distribution(tfd.JointDistributionCoroutine(module.model))


def test_a_version_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfp, "__version__", "0.24.0")
    with pytest.raises(ModelError, match=r"tensorflow_probability 0\.24\.0 is installed; this bridge needs 0\.25"):
        Model.from_joint_distribution(coroutine(), x=Y)


def of_slashes() -> Any:
    joint = tfd.JointDistributionNamed(
        {
            "noise": tfd.HalfNormal(1.0),
            "level/scale": tfd.LogNormal(0.0, 1.0),
            "y": lambda noise: tfd.Normal(0.0, noise),
        }
    )
    return joint.experimental_pin(y=0.5)


def of_a_series() -> Any:
    """TensorFlow Probability has them in names of its own."""
    series = np.cumsum(np.random.default_rng(0).normal(size=12)).astype("float32")
    sts = tfp.sts
    made = sts.Sum([sts.LocalLevel(observed_time_series=series), sts.Seasonal(4, observed_time_series=series)])
    return made.joint_distribution(observed_time_series=series)


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (of_slashes, {"noise": 0.5, "level.scale": 0.7}),
        pytest.param(
            of_a_series,
            {"observation_noise_scale": 0.5, "LocalLevel._level_scale": 0.7, "Seasonal._drift_scale": 0.2},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_slashes_are_dots_in_files(make: Callable[[], Any], x: dict[str, float]) -> None:
    joint = make()
    model = Model.from_joint_distribution(joint)
    assert [variable.name for variable in model.variables] == list(x)
    there = {name.replace(".", "/"): tf.constant(value) for name, value in x.items()}
    values = {name: tf.constant(value) for name, value in x.items()}
    np.testing.assert_allclose(model.log_density(values), joint.unnormalized_log_prob(**there), rtol=1e-5)
    assert set(model.prior(tf.constant([1, 2]))) == set(x)


def test_draws_of_the_prior_that_are_not_finite_are_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The bijector's inverse is not defined at 0 or 1, which a Kumaraswamy of small parameters gives in float32."""

    @tfd.JointDistributionCoroutineAutoBatched
    def joint() -> Any:
        top = yield tfd.HalfNormal(1.0, name="top")
        yield tfd.Uniform(0.0, top * tf.ones(2), name="x")
        share = yield tfd.Kumaraswamy(0.02, 2.0, name="share")
        yield tfd.Normal(share, 1.0, name="y")

    model = Model.from_joint_distribution(joint, y=0.3)
    values, computed = Quantities(model, ExecutionSettings(), 0).of_prior(200)
    assert all(len(array) == 200 and np.isfinite(array).all() for array in values.values())
    assert len(computed["predictive"]["y"]) == 200
    said = capsys.readouterr().err
    assert re.search(r"\d+ of \d+ prior draws were made again, since its 'share' is not finite", said), said
