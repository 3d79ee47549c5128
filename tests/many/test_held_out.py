"""Exact cross-validation and refits, beside closed forms and a slow loop; sensitivity to priors."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from fitted_models import mean_model, schools_model
from scipy import stats

import batchnuts
from batchnuts.many.run import ManyRun
from batchnuts.mcmc.model.data_argument import Remade
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
    with pytest.raises(ModelError, match="cross-validation needs data that are a dict, and the function"):
        batchnuts.cross_validate(schools_model())
    with pytest.raises(ModelError, match="rows: found 'z', which is no array of the data"):
        batchnuts.cross_validate(model_of_y(), rows=["z"])
    bridged = dataclasses.replace(mean_model(), data=None, remade=Remade({"y": np.ones(1)}, lambda data: None))
    with pytest.raises(ModelError, match="not for models of other libraries yet, whose data are their own; expected"):
        batchnuts.cross_validate(bridged)


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
