"""Exact cross-validation and refits, beside closed forms and a slow loop; sensitivity to priors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from fitted_models import mean_model, schools_model
from scipy import stats

import batchnuts
from batchnuts.many.run import ManyRun
from batchnuts.mcmc.model.model import Model, ModelError

Y = np.array([0.3, 1.2, -0.5, 2.1, 0.8, 1.5, 8.0, 0.1])


def model_of_y() -> Model:
    return mean_model(8).with_data({"y": Y, "mask": np.ones(8)})


def exact_elpd(parts: list[list[int]]) -> np.ndarray[Any, Any]:
    """The predictive density of a mean is normal with the posterior's mean, and its variance plus 1."""
    found = np.empty(len(Y))
    for part in parts:
        rest = np.delete(Y, part)
        mean, variance = rest.sum() / (len(rest) + 1), 1 / (len(rest) + 1)
        found[part] = stats.norm(mean, np.sqrt(1 + variance)).logpdf(Y[part])
    return found


def test_cross_validation_gives_the_predictive_densities_of_closed_form() -> None:
    result = batchnuts.cross_validate(model_of_y(), folds=[[0, 1, 2], [3, 4], [5, 6, 7]], processes=1, draws=1000)
    np.testing.assert_allclose(result.pointwise, exact_elpd([[0, 1, 2], [3, 4], [5, 6, 7]]), 0.02, 0.1)
    assert result.elpd == pytest.approx(result.pointwise.sum())
    assert "elpd " in repr(result)


def test_leave_one_out_random_folds_and_labels() -> None:
    loo = batchnuts.cross_validate(model_of_y(), folds=8, processes=1, draws=500)
    assert np.argmin(loo.pointwise) == 6
    np.testing.assert_allclose(loo.pointwise, exact_elpd([[i] for i in range(8)]), 0.04, 0.2)
    labelled = batchnuts.cross_validate(model_of_y(), folds=list("aabbccdd"), processes=1, draws=100)
    assert [part.tolist() for part in labelled.folds] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    divided = batchnuts.cross_validate(model_of_y(), folds=3, processes=1, draws=100)
    assert sorted(np.concatenate(divided.folds).tolist()) == list(range(8))


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (1, "expected 2 to 8"),
        (True, "expected a number of folds"),
        ([[0, 9]], "fold 0 is .*; expected numbers of observations, 0 to 7"),
        ([list(range(8))], "fold 0 leaves nothing to fit"),
    ],
)
def test_wrong_folds_are_refused(folds: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        batchnuts.cross_validate(model_of_y(), folds=folds)


def test_models_that_cannot_be_cross_validated_are_refused() -> None:
    with pytest.raises(ModelError, match="cross-validation needs a log-likelihood of each observation: the function"):
        batchnuts.cross_validate(schools_model())
    with pytest.raises(ModelError, match="rows: found 'z', which is no array of the data"):
        batchnuts.cross_validate(model_of_y(), rows=["z"])
    with pytest.raises(ModelError, match="its functions take no data; make it with data="):
        batchnuts.cross_validate(batchnuts.Model.from_function(lambda x: -0.5 * x * x, variables={"x": []}))


STAN = """
data { int n; int m; vector[n] y; vector[m] unused; }
parameters { real mu; }
model { mu ~ normal(0, 1); y ~ normal(mu, 1); }
generated quantities { vector[n] log_lik; for (i in 1:n) log_lik[i] = normal_lpdf(y[i] | mu, 1); }
"""


def of_stan(_: Any) -> Model:
    return Model.from_stan(STAN, data={"n": 8, "m": 8, "y": Y, "unused": np.zeros(8)}, name="mean")


def of_numpyro(numpyro: Any) -> Model:
    def mean(y: Any = None) -> None:
        mu = numpyro.sample("mu", numpyro.distributions.Normal(0, 1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", numpyro.distributions.Normal(mu, 1), obs=y)

    return Model.from_numpyro(mean, y=Y, dtype="float64")


def of_pymc(pymc: Any) -> Model:
    with pymc.Model() as mean:
        mu = pymc.Normal("mu", 0, 1)
        pymc.Normal("likelihood", mu, 1, observed=pymc.Data("y", Y))
    return Model.from_pymc(mean)


@pytest.mark.parametrize(
    ("name", "make", "rows"), [("stanli", of_stan, ["y"]), ("numpyro", of_numpyro, None), ("pymc", of_pymc, ["y"])]
)
def test_models_of_other_libraries(name: str, make: Any, rows: Any) -> None:
    model, parts = make(pytest.importorskip(name)), [[0, 1, 2, 3], [4, 5, 6, 7]]
    result = batchnuts.cross_validate(model, folds=parts, rows=rows, processes=1, draws=1000)
    np.testing.assert_allclose(result.pointwise, exact_elpd(parts), 0.03, 0.15)


def test_sensitivity_of_a_stan_program() -> None:
    pytest.importorskip("stanli")
    program = STAN.replace("int m;", "int m; real<lower=0> scale;").replace("normal(0, 1)", "normal(0, scale)")
    data = {"n": 8, "m": 1, "y": Y, "unused": [0.0], "scale": 1.0}
    table = batchnuts.sensitivity(Model.from_stan(program, data=data), {"scale": [0.1]}, processes=1, draws=500).table
    exact = {"own": Y.sum() / 9, "scale=0.1": Y.sum() / 108}
    for label, mean in exact.items():
        assert table.loc[(label, "mu"), "mean"] == pytest.approx(mean, abs=0.05)


def test_rows_of_a_stan_program_are_those_of_one_length() -> None:
    pytest.importorskip("stanli")
    with pytest.raises(ModelError, match="it has no observed_data among its data; name them, or give rows"):
        batchnuts.cross_validate(of_stan(None), processes=1)
    alone = STAN.replace("int m; ", "").replace("vector[m] unused; ", "")
    model = Model.from_stan(alone, data={"n": 8, "y": Y})
    loo = batchnuts.cross_validate(model, folds=8, processes=1, draws=500)
    np.testing.assert_allclose(loo.pointwise, exact_elpd([[i] for i in range(8)]), 0.04, 0.2)


def test_variables_that_depend_on_the_observations_are_refused() -> None:
    numpyro = pytest.importorskip("numpyro")

    def each(y: Any = None) -> None:
        with numpyro.plate("rows", len(y)):
            mu = numpyro.sample("mu", numpyro.distributions.Normal(0, 1))
            numpyro.sample("y", numpyro.distributions.Normal(mu, 1), obs=y)

    result = batchnuts.cross_validate(Model.from_numpyro(each, y=Y), folds=2, rows=["y"], processes=1, draws=50)
    assert len(result.fits.failed) == 2
    assert "needs variables that do not depend on" in next(iter(result.fits.failed.values()))


def test_a_log_likelihood_of_other_observations_is_refused() -> None:
    pytest.importorskip("stanli")
    whole = STAN.replace("vector[n] log_lik; for (i in 1:n)", "vector[m] log_lik; for (i in 1:m)").replace(
        "lpdf(y[i]", "lpdf(unused[i]"
    )
    model = Model.from_stan(whole, data={"n": 8, "m": 8, "y": Y, "unused": np.zeros(8)})
    with pytest.raises(ModelError, match=r"log_likelihood\['log_lik'\] has shape \(8,\) for 4 observations that a fit"):
        batchnuts.cross_validate(model, folds=2, rows=["y"], processes=1, draws=50)


def test_reloo_refits_the_observations_of_bad_shapes() -> None:
    import arviz

    model = model_of_y()
    result = batchnuts.sample_chains(model, chains=4, draws=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = arviz.loo(result, pointwise=True)
    threshold = float(np.sort(before.pareto_k.values)[-2]) - 1e-6
    after = batchnuts.reloo(model, result, threshold=max(threshold, 1e-3), processes=1, draws=1000)
    refitted = np.flatnonzero(after.pareto_k.values == 0)
    assert 6 in refitted
    exact = exact_elpd([[i] for i in range(8)])
    np.testing.assert_allclose(after.loo_i.values[refitted], exact[refitted], 0.04, 0.2)
    others = np.setdiff1d(np.arange(8), refitted)
    np.testing.assert_array_equal(after.loo_i.values[others], before.loo_i.values[others])
    assert after["elpd_loo"] == pytest.approx(after.loo_i.values.sum())
    assert batchnuts.reloo(model, result, threshold=5.0, processes=1)["elpd_loo"] == before["elpd_loo"]


@pytest.mark.parametrize("tuned", [True, False])
def test_refits_of_reloo_start_from_the_tuning_of_the_result(tuned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = model_of_y(), []
    result = batchnuts.sample_chains(model, chains=4, draws=200)
    if not tuned:
        del result.adaptation
    of_sets = ManyRun.of_sets

    def noted(*arguments: Any) -> Any:
        made.append(of_sets(*arguments))
        return made[-1]

    monkeypatch.setattr(ManyRun, "of_sets", noted)
    batchnuts.reloo(model, result, threshold=1e-6, processes=1, draws=200)
    confirmed = made[0].table["warmup"] == 100  # after one window
    assert confirmed.any() == tuned


def test_sensitivity_compares_posteriors_of_several_priors() -> None:
    result = batchnuts.sensitivity(schools_model(), {"scale": [0.1, 5.0]}, processes=1, draws=500)
    assert result.fits.labels == ["own", "scale=0.1", "scale=5"]
    table = result.table
    assert table.loc[("own", "tau"), "shift"] == 0
    assert table.loc[("scale=0.1", "tau"), "mean"] < 0.2 < table.loc[("scale=5", "tau"), "mean"]
    assert abs(table.loc[("scale=5", "mu"), "shift"]) < 0.3
    assert "Largest shift: tau" in repr(result)
    with pytest.raises(ModelError, match="priors: 'scal' is no entry of the model's data; did you mean 'scale'"):
        batchnuts.sensitivity(schools_model(), [{"scal": 1.0}])
    with pytest.raises(ModelError, match=r"priors.scale: found 1.0; expected a list of values"):
        batchnuts.sensitivity(schools_model(), {"scale": 1.0})
