"""Configs of NumPyro models: `model: {numpyro: package.module:function, ...}`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bridge_models import config_of, on_jax

from batchnuts.cli.config import build_model
from batchnuts.settings.yaml import ConfigError

pytest.importorskip("numpyro", reason="the extra numpyro is not installed")

MODULE = """
import numpyro
import numpyro.distributions as dist

def rates(n, count=None, data=None):
    with numpyro.plate("site", 3):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.sample("count", dist.Poisson(n * rate), obs=count)

def table(data):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(slope * data["x"], 1), obs=data["y"])

def columns(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)

def any_columns(**given):
    columns(**given)

def masked(y, known):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.handlers.mask(mask=known):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)
"""


def test_config_with_arguments(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    section = "{numpyro: own_numpyro:rates, args: [[1.0, 2, 3]], kwargs: {count: [1, 0, 4]}, coords: {site: [a, b, c]}}"
    model = build_model(config_of(tmp_path, monkeypatch, "own_numpyro", MODULE, section))
    dims, counts = model.observed_data["count"]
    assert (dims, counts.tolist(), counts.dtype) == (("site",), [1, 0, 4], np.int32)
    assert model.labels() == {"site": ["a", "b", "c"]}


def test_config_with_a_mask(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    section = "{numpyro: own_numpyro:masked, kwargs: {y: [1.0, 2.0, 30.0], known: [true, true, false]}}"
    model = build_model(config_of(tmp_path, monkeypatch, "own_numpyro", MODULE, section))
    pointwise = on_jax(model, lambda q: model.log_likelihood(model.constrain(q)), np.zeros(1, "float32"))["y"]
    np.testing.assert_allclose(pointwise, [-0.5 - np.log(2 * np.pi) / 2, -2 - np.log(2 * np.pi) / 2, 0], rtol=1e-5)


@pytest.mark.parametrize("function", ["table", "columns", "any_columns"])
def test_config_with_columns(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    section = f"{{numpyro: own_numpyro:{function}, data: {{path: table.csv}}}}"
    model = build_model(config_of(tmp_path, monkeypatch, "own_numpyro", MODULE, section))
    np.testing.assert_array_equal(model.observed_data["y"][1], [2, 4.5])


def test_config_with_a_category_that_is_no_axis(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    section = config_of(
        tmp_path, monkeypatch, "own_numpyro", MODULE, "{numpyro: own_numpyro:table, data: {path: table.csv}}"
    )
    (tmp_path / "table.csv").write_text("x,y,county\n1,2,A\n3,4.5,B\n")
    model = build_model(section)
    assert (model.labels(), model.dims) == ({"county": ["A", "B"]}, {"slope": ()})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{numpyro: own_numpyro:rates, args: [[1, 2, 3]], kwargs: {cuont: [1, 0, 4]}}", "no argument 'cuont'; did you"),
        ("{numpyro: own_numpyro:rates, args: [[1, 2, 3]], kwargs: {count: [1, null, 4]}}", "without None"),
        ("{numpyro: own_numpyro:rates, args: [[1, 2, 3], [1, 0, 4]], coords: {site: [a, ~, 3]}}", "label None"),
        ("{numpyro: own_numpyro:rates, args: [[1, 2, 3], [1, 0, 4]], coords: {site: [a, [b], 3]}}", "join several"),
        ("{numpyro: own_numpyro:rates, args: [[1, 2, 3], [1, 0, 4]], coords: {sites: [a]}}", "did you mean 'site'"),
        ("{numpyro: own_numpyro}", r"numpyro is 'own_numpyro'; expected package.module:function"),
        ("{numpyro: own_numpyro:rate}", "did you mean 'rates'"),
        ("{numpyro: own_numpyro:rates}", "model.numpyro: .*missing a required argument: 'n'"),
        ("{numpyro: own_numpyro:columns, kwargs: {x: 1}, data: {path: table.csv}}", "model.kwargs.x: .*column"),
        ("{numpyro: own_numpyro:columns, data: {path: table.csv, columns: {z: x}}}", "column 'z' is not an argument"),
        ("{numpyro: own_numpyro:table, data: {path: table.csv, observed: [y]}}", "model.data.observed: .*leave it out"),
        ("{numpyro: own_numpyro:table, name: logistic_regression}", "found both name and numpyro"),
    ],
)  # fmt: skip
def test_mistakes_in_a_config(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, section: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_model(config_of(tmp_path, monkeypatch, "own_numpyro", MODULE, section))


def test_a_function_that_exits_is_an_error_of_the_config() -> None:
    from batchnuts.bridges.sections import called

    def leave() -> None:
        raise SystemExit(0)

    with pytest.raises(ConfigError, match=r"model.pymc: 'a:b' failed with SystemExit: 0; .* at .*configs.py:\d+"):
        called("pymc", "a:b", leave)
