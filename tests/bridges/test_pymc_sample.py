"""`batchnuts.pymc.sample` takes the arguments of `pm.sample`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

pm = pytest.importorskip("pymc")

import batchnuts.pymc as theirs  # noqa: E402
from batchnuts.autobatch import BatchnutsError  # noqa: E402


def normal() -> Any:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfNormal("tau", 1)
        pm.Deterministic("twice", 2 * mu)
        pm.Normal("y", mu, tau, observed=[0.5, 1.5, 1.0])
    return model


MODEL = normal()


def test_it_takes_every_keyword_of_pm_sample() -> None:
    own = set(inspect.signature(theirs.sample).parameters)
    accepted = own | {*theirs.WITHOUT_EFFECT, *theirs.REFUSED, "nuts_sampler"}
    assert set(inspect.signature(pm.sample).parameters) <= accepted


def test_settings_and_results_are_those_of_pm_sample(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    seen: dict[str, Any] = {}
    sample_chains = theirs.sample_chains

    def noted(model: Any, **settings: Any) -> Any:
        seen.update(settings)
        return sample_chains(model, **settings)

    monkeypatch.setattr(theirs, "sample_chains", noted)
    with MODEL:
        result = theirs.sample(
            50, tune=60, chains=8, cores=4, random_seed=np.int64(3), target_accept=0.9, nuts={"max_treedepth": 7},
            init="adapt_full", initvals=[{"mu": 1.0, MODEL["tau"]: 2.0}, {"mu": -1.0, "tau": 1.0}],
            var_names=["mu", "twice"], idata_kwargs={"log_likelihood": True}, progressbar=False,
            discard_tuned_samples=False,
        )  # fmt: skip
    starts = seen.pop("init")["values"]
    np.testing.assert_allclose(starts["mu"], [1.0, -1.0])
    np.testing.assert_allclose(starts["tau"], [2.0, 1.0])
    assert seen == {
        **{"draws": 50, "warmup": 60, "chains": 8, "seed": 3, "target_acceptance": 0.9, "max_tree_depth": 7},
        **{"metric": "dense", "progress": False, "groups": ["log_likelihood"], "keep_warmup": True},
    }
    assert set(result["posterior"].data_vars) == {"mu", "twice"}
    assert result["posterior"]["mu"].shape == (8, 50)
    assert result["warmup_posterior"]["tau"].shape == (8, 60)
    assert result["log_likelihood"]["y"].shape == (8, 50, 3)
    said = capfd.readouterr().err
    assert "cores has no effect" in said
    assert "8 chains x 50 draws" in said


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"step": 1}, "step: batchnuts samples all variables with NUTS"),
        ({"init": "advi"}, "init: found 'advi'; expected one of auto"),
        ({"target_acept": 0.9}, "did you mean 'target_acceptance'"),
        ({"nuts": {"target": 1}}, "nuts: found 'target'"),
        ({"nuts_sampler": "nutpie"}, "nuts_sampler: found 'nutpie'"),
        ({"random_seed": "a"}, "random_seed: found 'a'; expected an integer"),
        ({"var_names": ["muu"]}, "var_names: found 'muu'; did you mean 'mu'"),
        ({"initvals": {"m": 1.0}}, "initvals: found 'm'; did you mean 'mu'"),
        ({"initvals": [{"mu": 1.0}, {"tau": 1.0}]}, "found starts of different variables"),
        ({"idata_kwargs": {"dims": {}}}, "idata_kwargs: found 'dims'"),
        ({"return_inferencedata": False}, "return_inferencedata: found False"),
    ],
)
def test_what_it_does_not_do(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(BatchnutsError, match=message):
        theirs.sample(model=MODEL, **keywords)


def test_it_needs_a_model() -> None:
    with pytest.raises(BatchnutsError, match="no model on context stack"):
        theirs.sample()
