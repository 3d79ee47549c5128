"""Models of NumPyro that cannot be sampled, and wrong arguments, are refused by name."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest

from batchnuts import Model
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import ModelError

numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro_models import EFFECTS, ERRORS, Y, factor, schools  # noqa: E402
from pandas import Series  # noqa: E402


def subsampled(y: Any) -> None:
    x = numpyro.sample("x", dist.Normal(0, 1))
    with numpyro.plate("row", 12, subsample_size=5) as rows:
        numpyro.sample("y", dist.Normal(x, 1), obs=y[rows])


def discrete(y: Any) -> None:
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(z, 1), obs=y)


X = np.linspace(-1.0, 1.0, 12)


def line(x: Any, y: Any) -> None:
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)


def branching(y: Any) -> None:
    x = numpyro.sample("x", dist.Normal(0, 1))
    if x > 0:
        numpyro.sample("y", dist.Normal(x, 1), obs=y)


def raising(y: Any) -> None:
    numpyro.sample("x", dist.Normal(0, 1))
    raise ValueError(f"no such thing as {len(y)}")


def indexing(y: Any) -> None:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y[jnp.argsort(x * jnp.ones(3))])


def of_shape(y: Any, rows: int = 12) -> None:
    x = numpyro.sample("x", dist.Normal(0, 1))
    with numpyro.plate("row", rows):
        numpyro.sample("y", dist.Normal(x, 1), obs=y)


LARGE_COUNTS = np.array([3_000_000_000, 3_000_000_001])


def of_large_counts() -> None:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 0.1), obs=jnp.asarray(LARGE_COUNTS) / 3e9)


def pair() -> None:
    numpyro.sample("a", dist.Normal(jnp.zeros(2), 1))
    numpyro.sample("b", dist.Normal(jnp.zeros(3), 1))


def alike() -> None:
    numpyro.sample("a/x", dist.Normal(0, 1))
    numpyro.sample("a.x", dist.Normal(0, 1))


def slope(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1).expand([12]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 1), obs=y)


@pytest.mark.parametrize(
    ("model", "args", "kwargs", "words"),
    [
        (discrete, (Y,), {}, r"its site 'z' is a discrete latent variable \(BernoulliProbs\)"),
        (subsampled, (Y,), {}, "its plate 'row' takes a random subsample of 5 of 12 rows"),
        (lambda: numpyro.sample("v", dist.ProjectedNormal(jnp.ones(3))), (), {}, "spherical sample site 'v'"),
        (lambda: numpyro.sample("v", dist.Normal(numpyro.param("p", 1.0), 1)), (), {}, "'p' is a `numpyro.param`"),
        (lambda: numpyro.sample("v", dist.Delta(1.0)), (), {}, "'v' has a delta distribution"),
        (lambda: numpyro.sample("draw", dist.Normal(0, 1)), (), {}, "cannot be called 'draw'"),
        (alike, (), {}, "the sites 'a/x' and 'a.x' would both be 'a.x' in files, where names cannot have slashes;"),
        (lambda: numpyro.sample("v", dist.Normal(0, 1), obs=1.0), (), {}, r"its sites are v \(observed\)"),
        (lambda: 3, (), {}, "it has no `numpyro.sample` statement"),
        (of_shape, (Y[:, None],), {}, r"observations of shape \(12, 1\), but its distribution has shape \(12,\)"),
        (branching, (Y,), {}, r"TracerBoolConversionError.* at .*_mistakes.py:\d+. JAX traces it: write branches"),
        (raising, (Y,), {}, r"failed with ValueError: no such thing as 12 at .*test_numpyro_mistakes.py:\d+"),
        (raising, (), {}, r"takes \(y: 'Any'\) -> 'None', but .* missing a required argument: 'y'"),
        (schools, (ERRORS,), {"y": EFFECTS, "coord": {}}, "did you mean 'coords'"),
        (of_shape, (np.full(12, 1e39),), {}, "the argument 0 .* has 1e[+]39, which does not fit into float32"),
        (of_shape, (np.full(12, 2**40),), {}, "has 1099511627776, which does not fit into int32"),
        (of_large_counts, (), {}, "the variable 'LARGE_COUNTS' .int64. has 3000000000, which does not fit"),
        (of_shape, (Y,), {"dims": {"z": ["a"]}}, "dims has 'z', which is not one of its sites"),
        (of_shape, (Y,), {"dims": {"x": ["a"]}}, r"dims names 1 axes of 'x', which has shape \(\)"),
        (of_shape, (Y,), {"init_strategy": 3}, "init_strategy is 3; expected one of numpyro.infer.init_to_"),
        (of_shape, (Y,), {"rows": 7}, "give data of that shape, or correct plates"),
        (schools, (ERRORS,), {"Y": EFFECTS}, r"do not fit: it has no argument 'Y'; did you mean 'y'"),
        (schools, (jax.random.key(0), ERRORS), {"y": EFFECTS}, r"leave out the key: .*sample_chains\(..., seed=1\)"),
        (schools, (jax.random.PRNGKey(0), ERRORS), {"y": EFFECTS}, "leave out the key"),
        (of_shape, (Series(Y),), {}, "'y' has observations in a Series of pandas; pass its .to_numpy"),
        (slope, (Series(Y), Y), {}, "The argument 0 is a Series of pandas: pass its .to_numpy"),
        (branching, (Series(Y),), {}, "in place of numpy.$"),
        (indexing, (Y,), {}, r"index jax.numpy.asarray\(data\)\[i\] by them, not an array of NumPy or a list"),
        (raising, (list(Y),), {}, r"no such thing as 12 at .*:\d+\.$"),
        (slope, (list(Y), Y), {}, r"test_numpyro_mistakes.py:\d+. The argument 0 is a list: pass numpy.array"),
        (of_shape, (np.array(["a"] * 12),), {}, "not an array of numbers, but an array of dtype <U1: "),
        (of_shape, ([None, *Y[1:]],), {}, "not an array of numbers, but a list: .*without None"),
        (of_shape, ({"y": Y},), {}, "not an array of numbers, but a dict"),
        (schools, (ERRORS, EFFECTS), {"coords": {"schol": [1]}}, "labels of 'schol', .*; did you mean 'school'"),
        (schools, (ERRORS, EFFECTS), {"coords": {"zz": [1]}}, "'zz', which is not an axis of a site; its axes"),
        (factor, (), {"coords": {"x": [1]}}, "'x', which is not an axis of a site; no site has an axis"),
        (schools, (ERRORS, EFFECTS), {"coords": {"school": 8}}, "is 8; expected a list with a label"),
        (schools, (ERRORS, EFFECTS), {"coords": ["A"]}, r"coords is \['A'\]; expected labels by the name of an axis"),
        (schools, (ERRORS, EFFECTS), {"dims": ["A"]}, "expected names of axes by the name of an array"),
        (pair, (), {"dims": {"a": "k", "b": "k"}}, "an axis of 'b', of length 3, 'k', which has 2 elements elsewhere"),
        (pair, (), {"dims": {"a": ["chain"]}}, "an axis of 'a', of length 2, 'chain', which is an axis of all draws"),
        (jax.jit(pair), (), {}, "is wrapped in jax.jit, .* give the function itself"),
        (of_shape, (np.ma.masked_greater(Y, 1.0),), {}, "argument 0 is a masked array.*leave out missing observations"),
        (lambda: numpyro.sample("v", dist.Normal(jnp.zeros(0), 1)), (), {}, "'v' has shape .0,., so there is noth"),
        (schools, (ERRORS, EFFECTS), {"coords": {"school": ["A"]}}, "1 labels of 'school', but 'y' has 8 elem"),
        (lambda dtype: None, (), {"dtype": "float32"}, "'dtype' has the name of an option of from_numpyro"),
        ("schools", (), {}, "is the string 'schools'; expected the function itself"),
        (None, (), {}, "give the function, without calling it"),
        (dist.Normal(0, 1), (), {}, "is the distribution Normal; expected a function"),
        (numpyro.infer.NUTS(schools), (), {}, "is a NUTS, which is a sampler"),
    ],
)  # fmt: skip
def test_mistakes(model: Any, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        Model.from_numpyro(model, *args, **kwargs)
    assert "libraries/jax.py" not in str(caught.value)
    assert not getattr(caught.value, "__notes__", []), "of JAX, on its frames"


def test_a_model_without_observations_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Model.from_numpyro(schools, ERRORS)
    assert "Model 'schools': no site is observed and there is no factor, so its draws" in capsys.readouterr().err
    Model.from_numpyro(schools, ERRORS, y=EFFECTS)
    assert "observed" not in capsys.readouterr().err


def test_an_improper_site_is_named_as_the_user_does() -> None:
    """And no other name is proposed, which the density uses."""

    def model() -> None:
        numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("mv", dist.ImproperUniform(dist.constraints.real, (2,), ()))

    with pytest.raises(ModelError, match=r"does not depend on 'mv': .* or leave it out of the model\.$"):
        Model.from_numpyro(model).check()


def made_in_double(x: Any, y: Any) -> Model:
    return Model.from_numpyro(line, x, y=y, dtype="float64")


def made_again(x: Any, y: Any) -> Model:
    return Model.from_numpyro(line, X, y=Y).with_data({"x": x, "y": y})


@pytest.mark.parametrize("make", [made_in_double, made_again])
def test_a_refused_model_leaves_nothing_behind(make: Any) -> None:
    """JAX remembers constants of a failed trace by their identity: with old numbers, or in another precision."""
    x, y = X.copy(), Y.copy()
    with pytest.raises(ModelError, match="observations of shape"):
        make(x, y[:5])
    assert jax.jit(lambda a: a * x)(1.0).dtype == "float32"
    x *= 10
    made = Model.from_numpyro(line, x, y=y)
    library: Any = density_library_of(made).library
    _, gradient = library.differentiated(made.flat_log_density)(library.tensor(np.array([0.5], "float32")))
    assert gradient[0] == pytest.approx(-0.5 + np.sum((y - 0.5 * x) * x), rel=1e-4)


def test_a_missing_observation_is_left_out_by_a_mask() -> None:
    """Its data, NaN, do not touch the gradient; without the mask `Model.check` names it."""
    y = Y.copy()
    y[3] = np.nan

    def model(y: Any, known: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("row", len(y)), numpyro.handlers.mask(mask=known):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    made = Model.from_numpyro(model, y, ~np.isnan(y))
    library: Any = density_library_of(made).library
    value, gradient = library.differentiated(made.flat_log_density)(library.tensor(np.array([0.5], "float32")))
    assert gradient[0] == pytest.approx(-0.5 + np.nansum(y - 0.5), rel=1e-5)
    assert np.isfinite(value)
    starts = Model.from_numpyro(model, y, np.full(12, True)).check().findings[0]
    assert not starts.ok
    assert re.search("for 1 of 12 observations of 'y', first for y.3. = nan. Leave out what is missing", starts.said)


def test_an_argument_with_the_name_of_an_option_is_bound_beforehand() -> None:
    def model(name: str) -> None:
        numpyro.sample(name, dist.Normal(0, 1))

    assert Model.from_numpyro(functools.partial(model, name="x")).dims == {"x": ()}
