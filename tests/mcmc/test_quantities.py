"""What is computed from draws: as one draw at a time gives it, in ArviZ's groups, reproducibly; and what is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax
from fake_run import make_draws

import batchnuts
from batchnuts import Model, positive, real
from batchnuts.autobatch import ops, random
from batchnuts.cli.finish import unless_stopped
from batchnuts.mcmc.model import quantities
from batchnuts.mcmc.model.content import FUNCTION_OF_GROUP, Content
from batchnuts.mcmc.model.model import ModelError
from batchnuts.mcmc.output.datasets import to_arviz, to_datasets
from batchnuts.mcmc.run.forecast import Size
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.process.signals import StopSignals
from batchnuts.settings.schema import SettingsError

Y = np.array([0.5, -1.0, 2.0, 0.0], "float32")
OF_FUNCTIONS = ("log_likelihood", "posterior_predictive", "prior", "prior_predictive")
SETTINGS: dict[str, Any] = {"chains": 6, "warmup": 50, "draws": 20, "seed": 3}


def density(p: dict[str, Any]) -> Any:
    return ops.sum(pointwise(p)) - 0.5 * p["mu"] ** 2 - p["tau"]


def pointwise(p: dict[str, Any]) -> Any:
    return -0.5 * ((Y - p["mu"]) / p["tau"]) ** 2 - ops.log(p["tau"])


def model(**fields: Any) -> Model:
    given: dict[str, Any] = {
        "variables": {"mu": real(), "tau": positive()},
        "observed_data": {"y": (("row",), Y)},
        "generated": lambda p: {"ratio": p["mu"] / p["tau"], "both": ops.stack([p["mu"], p["tau"]])},
        "log_likelihood": pointwise,
        "predictive": lambda p, seed: p["mu"] + p["tau"] * random.normal(seed, (4,)),
        "prior": lambda seed: {"mu": random.normal(seed), "tau": ops.exp(random.normal(random.fold_in(seed, 1)))},
        "coords": {"row": list("abcd")},
    }
    return Model.from_function(density, **(given | fields))


def drawn_from(model: Model, backend: str = "auto") -> Any:
    """The result of a run, whose positions are random numbers."""
    sampler, execution = split_settings({**SETTINGS, "backend": backend})
    return to_arviz(to_datasets(make_draws(model, sampler, execution), model))


BACKENDS = ["tensorflow", pytest.param("jax", marks=needs_jax)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_group_has_what_one_draw_alone_gives(backend: str) -> None:
    drawn = drawn_from(model(), backend)
    posterior = drawn["posterior"]
    mu, tau = posterior["mu"].values, posterior["tau"].values
    np.testing.assert_allclose(posterior["ratio"], mu / tau, rtol=1e-5)
    np.testing.assert_allclose(posterior["both"].values, np.stack([mu, tau], axis=-1), rtol=1e-6)
    assert posterior["ratio"].attrs["generated"] == 1
    expected = -0.5 * ((Y - mu[..., None]) / tau[..., None]) ** 2 - np.log(tau)[..., None]
    np.testing.assert_allclose(drawn["log_likelihood"]["y"], expected, rtol=1e-4, atol=1e-5)
    assert drawn["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    assert list(drawn["log_likelihood"]["row"].values) == list("abcd")
    seed = quantities.Quantities(model(), split_settings({})[1], 3)._stream("posterior")
    keys = [[random.fold_in(chain, draw) for draw in range(20)] for chain in random.lane_keys(seed, 6)]
    noise = np.array([[random.normal(key, (4,)) for key in chain] for chain in keys])
    predicted = drawn["posterior_predictive"]["y"]
    np.testing.assert_allclose(predicted, mu[..., None] + tau[..., None] * noise, rtol=1e-3, atol=1e-4)
    assert drawn["prior"]["tau"].shape == drawn["prior"]["ratio"].shape == (1, quantities.PRIOR_DRAWS)
    assert drawn["prior_predictive"]["y"].shape == (1, quantities.PRIOR_DRAWS, 4)
    assert (drawn["prior"]["tau"].values > 0).all()
    assert batchnuts.check(drawn).diagnostics.names == ("mu", "tau", "both[0]", "both[1]", "ratio")


def test_keys_of_all_chains_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of each chain alone, in any order and number: a call for each took a tenth of a second for 256."""
    made = quantities.Quantities(model(), split_settings({})[1], 3)
    chain, draw = np.array([7, 5, 9, 5, 7]), np.array([0, 1, 2, 3, 0])
    stream = made._stream("posterior")
    alone = [random.fold_in(random.lane_keys(stream, 1, first=int(c))[0], d) for c, d in zip(chain, draw)]
    calls: list[int] = []
    true = random.lane_keys
    monkeypatch.setattr(random, "lane_keys", lambda *args, **first: calls.append(1) or true(*args, **first))
    np.testing.assert_array_equal(made._keys(chain, draw), alone)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((), set()),
        (("log_likelihood",), {"log_likelihood"}),
        (("prior",), {"prior"}),
        (("prior", "posterior_predictive"), {"prior", "prior_predictive", "posterior_predictive"}),
        (None, set(OF_FUNCTIONS)),
    ],
)
def test_groups_may_be_left_out(groups: tuple[str, ...] | None, expected: set[str]) -> None:
    """Their functions are not called then, and their memory is not forecast."""
    asked: list[str] = []

    def noted(name: str, function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            asked.append(name)
            return function(*arguments)

        return called

    functions = {name: noted(name, getattr(model(), name)) for name in ("log_likelihood", "predictive", "prior")}
    given, content = model(**functions), Content(groups=groups)
    sampler, execution = split_settings(SETTINGS)
    found = to_datasets(run_chains(given, sampler, execution, content=content), given, content=content)
    assert set(found) & set(OF_FUNCTIONS) == expected
    assert "ratio" in found["posterior"]
    assert set(asked) == {FUNCTION_OF_GROUP[group] for group in expected & set(FUNCTION_OF_GROUP)}
    assert Size.of(given, content).of_data == 4 * len(expected & {"log_likelihood", "posterior_predictive"})


def test_groups_of_a_program() -> None:
    drawn = batchnuts.sample_chains(model(), groups=iter(["log_likelihood"]), **SETTINGS)
    assert "log_likelihood" in drawn
    assert "prior" not in drawn


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (["log_likelihod"], r"found 'log_likelihod' in it; did you mean 'log_likelihood'\?$"),
        (["prior_predictive"], r"found 'prior_predictive' in it; expected None or a list of some of 'log_likelihood',"),
        ("prior", r"found 'prior'; expected None or a list"),
        ("", r"found ''; expected None or a list"),
        ({"prior": False}, r"found {'prior': False}; expected None or a list"),
        (5, r"found 5; expected None or a list"),
        ([None], r"found None in it; expected"),
        ([["prior"]], r"found \['prior'\] in it; expected"),
    ],
)
def test_groups_that_are_no_names_of_groups(groups: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=f"^groups: {said}"):
        batchnuts.sample_chains(model(), groups=groups, **SETTINGS)


def test_parts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn_from(model())
    monkeypatch.setattr(quantities, "ROWS", 7)
    parts = drawn_from(model())
    for group in ("posterior", "log_likelihood", "posterior_predictive", "prior", "prior_predictive"):
        for name, array in whole[group].data_vars.items():
            np.testing.assert_allclose(parts[group][name], array, rtol=1e-5, atol=1e-6, err_msg=f"{group} {name}")


def test_functions_of_tensorflow_with_its_own_random_numbers() -> None:
    import tensorflow as tf

    def predictive(p: Any, seed: Any) -> Any:
        return {"counts": tf.random.stateless_poisson([3], seed, lam=tf.exp(p["mu"]), dtype=tf.int32)}

    given = model(log_likelihood=None, generated=None, prior=None, predictive=predictive)
    one, other = (drawn_from(given, "tensorflow") for _ in range(2))
    counts = one["posterior_predictive"]["counts"]
    assert counts.dtype == np.int32
    assert counts.dims == ("chain", "draw", "counts_dim_0")
    assert len(np.unique(counts.values[..., 0])) > 2
    np.testing.assert_array_equal(counts, other["posterior_predictive"]["counts"])
    with pytest.raises((KeyError, AttributeError)):
        one["log_likelihood"]


@needs_jax
def test_functions_of_jax_with_its_own_random_numbers() -> None:
    import jax
    import jax.numpy as jnp

    def predictive(p: Any, seed: Any) -> Any:
        return {"y": p["mu"] + p["tau"] * jax.random.normal(seed, (4,)), "n": jnp.int32(3)}

    drawn = drawn_from(model(log_likelihood=None, prior=None, predictive=predictive))
    predicted = drawn["posterior_predictive"]["y"].values
    z = (predicted - drawn["posterior"]["mu"].values[..., None]) / drawn["posterior"]["tau"].values[..., None]
    assert abs(z.mean()) < 5 / np.sqrt(z.size)
    assert abs(z.std() - 1) < 5 / np.sqrt(2 * z.size)
    assert (drawn["posterior_predictive"]["n"] == 3).all()


@needs_jax
def test_the_prior_of_a_model_in_float64_has_64_bits_on_jax() -> None:
    def prior(seed: Any) -> Any:
        return {"mu": random.normal(seed, (), "float64"), "tau": ops.exp(random.normal(seed, (), "float64"))}

    drawn = drawn_from(model(dtype="float64", log_likelihood=None, predictive=None, prior=prior), "jax")["prior"]
    assert drawn["mu"].dtype == "float64"
    np.testing.assert_allclose(np.exp(drawn["mu"].values), drawn["tau"].values, rtol=1e-14)
    assert (drawn["mu"].values.astype("float32") != drawn["mu"].values).any()


def fails(p: Any) -> Any:
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"generated": fails},
            r"its function generated, given one draw, failed with RuntimeError: no such thing at .*:\d",
        ),
        ({"generated": lambda p: p["mu"]}, "its function generated returns an array; expected a dict of names"),
        ({"generated": lambda p: (p["mu"], 1.0)}, "its function generated returns a tuple; expected a dict of names"),
        ({"generated": lambda p: {"a": ops.stack([p["mu"]])[1]}}, r"the index 1 is outside an axis of 1 elements.*:\d"),
        ({"generated": lambda p: {"mu": p["mu"]}}, r"its function generated returns \['mu'\], which are its variables"),
        (
            {"generated": lambda p: {"both_dim_0": p["mu"], "both": ops.stack([p["mu"], p["tau"]])}},
            "its function generated: 'both_dim_0' is the name of an array and of an axis, of 'both'",
        ),
        ({"generated": lambda p: {"chain": p["mu"]}}, "'chain' is called 'chain', or an axis of it is"),
        ({"generated": lambda p: {"a/b": p["mu"]}}, "the name 'a/b' has a slash"),
        ({"generated": lambda p: {"a": [p["mu"], p["mu"]]}}, "returns a list for 'a'; expected an array"),
        ({"generated": lambda p: {}}, r"returns a dict of \[\]; expected names and arrays"),
        ({"log_likelihood": lambda p: p["sigma"]}, "its function log_likelihood, given one draw, failed with KeyError"),
        (
            {"observed_data": {}},
            "log_likelihood returns an array; .* an array alone is for models with one observed",
        ),
        (
            {"prior": lambda seed: {"mu": random.normal(seed)}},
            r"prior returns arrays of shapes \{'mu': \(\)\}",
        ),
        ({"dims": {"ratio": ("row",)}}, r"'ratio' has shape \(\), but its dims are \('row',\)"),
        ({"dims": {"both": ("row",)}}, "'both' has 2 elements along 'row', which has 4 labels"),
        ({"generate": fails}, "there is no field 'generate'; did you mean 'generated'"),
        ({"dimensions": 2, "variables": None}, r"there is no field 'dimensions'; did you mean 'dimension'\?$"),
        ({"generated": 3}, "generated is 3; expected a function"),
        ({"of_data": {"ration"}}, r"of_data names 'ration', which .* does not return; did you mean 'ratio'\?"),
        ({"dims": {"ration": ["k"]}}, "dims has 'ration', which is not one of its variables, .*; did you mean 'ratio'"),
        ({"coords": {"zz": [1, 2]}}, "coords has labels of 'zz', which is not one of its axes; its axes are "),
        ({"of_data": {"mu"}, "generated": None}, "of_data names 'mu', which its function generated does not return"),
    ],
)
def test_mistakes_are_found_before_a_run(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        batchnuts.sample_chains(model(**fields), progress=False, **SETTINGS)


def test_draws_are_kept_where_a_function_fails_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Callable[..., Any]] = []

    def later(*_: Any) -> Any:
        calls.append(later)
        raise ModelError("Model 'm': a function failed.")

    monkeypatch.setattr(quantities.Quantities, "of_posterior", later)
    drawn = drawn_from(model())
    assert calls
    assert drawn["posterior"]["mu"].shape == (6, 20)
    assert "a function failed. The draws are kept without it." in capsys.readouterr().err
    assert drawn["posterior"].attrs["left_out"] == "Model 'm': a function failed."


def test_a_signal_while_they_are_computed_leaves_them_out_and_keeps_the_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quantities, "ROWS", 30)
    sampler, execution = split_settings(SETTINGS)
    draws, shares = make_draws(model(), sampler, execution), list[float]()
    stop = StopSignals()
    whole = to_datasets(draws, model(), between=unless_stopped(stop, shares.append))
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]  # of the draws, then of the prior's
    assert "log_likelihood" in whole

    def advance(share: float) -> None:
        if share == 0.5:
            stop.first, stop.count = signal.SIGTERM, 1

    kept = to_datasets(draws, model(), between=unless_stopped(stop, advance))
    assert whole.keys() - kept.keys() == {"log_likelihood", "posterior_predictive", "prior", "prior_predictive"}
    np.testing.assert_array_equal(kept["posterior"]["mu"], whole["posterior"]["mu"])
    assert (
        "Quantities computed from draws are left out: ended by SIGTERM at 50%. The draws are kept"
        in capsys.readouterr().err
    )


def test_generated_quantities_that_are_constant_or_not_finite_are_not_judged() -> None:
    def generated(p: Any) -> Any:
        return {"one": p["mu"] * 0 + 1, "log": ops.log(p["mu"]), "square": p["mu"] ** 2}

    found = batchnuts.check(drawn_from(model(generated=generated)))
    assert found.diagnostics.names == ("mu", "tau", "square")


def test_a_copy_of_a_model_has_its_functions() -> None:
    assert replace(model(), name="other").generated is not None


def test_draws_of_the_prior_have_nothing_that_is_computed_of_data() -> None:
    assert set(drawn_from(model(of_data=frozenset({"ratio"})))["prior"]) == {"mu", "tau", "both"}
