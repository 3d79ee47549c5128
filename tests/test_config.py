import sys
from pathlib import Path

import numpy as np
import pytest

from batchnuts.config import ConfigError, TargetOptions, build_model, describe_keys, load_config, packaged_configs
from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings

GAUSS = "model: {name: correlated_gaussian, dimension: 3}\n"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Write a config into an empty current folder and load it."""
    monkeypatch.chdir(tmp_path)

    def load(text, *overrides):
        Path("my.yaml").write_text(text)
        return load_config("my.yaml", overrides)

    return load


@pytest.mark.parametrize("name", packaged_configs())
def test_packaged_configs_are_valid_and_found_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(name) == load_config(name.removesuffix(".yaml"))
    assert load_config(name).output.path == name.replace(".yaml", ".nc")


def test_a_path_wins_over_a_packaged_name(config):
    Path("logreg.yaml").write_text(GAUSS)
    assert load_config("logreg.yaml").model.name == "correlated_gaussian"


def test_defaults_and_overrides(config):
    run = config(GAUSS, "sampler.draws=7", "sampler.draws=8", "execution.mode=eager", "output.path=x.nc")
    assert run.sampler == SamplerSettings(draws=8)
    assert run.execution == ExecutionSettings(mode="eager")
    assert run.output.path == "x.nc"
    assert config(GAUSS).output.path == "my.nc"
    assert config(GAUSS + "sampler:\n", "sampler.seed=3").sampler.seed == 3


@pytest.mark.parametrize(
    "text",
    [
        GAUSS,
        "model: {name: correlated_gaussian, covariance: diagonal}\nsampler: {step_size: 0.1}\n",
        "model: {name: logistic_regression, data: a.csv, label: 3, features: [a, 1]}\n",
        "model: {target: 'm:f', variables: {mu: [], theta: [8, 2]}}\nexecution: {max_stack_depth: 5}\n",
    ],
)
def test_resolved_config_is_a_config_of_the_same_run(config, text):
    run = config(text)
    again = config(run.to_yaml())
    assert again == run
    assert again.to_yaml() == run.to_yaml()


BAD = [
    ("sampler:\n  chians: 3\n", (), "my.yaml:3: sampler.chians: unknown key; did you mean 'chains'?"),
    ("sampler:\n  chains: x\n", (), "my.yaml:3: sampler.chains: found 'x' (a text); expected an integer at least 1"),
    ("sampler:\n  chains: 0\n", (), "my.yaml:3: sampler.chains: found 0 (an integer); expected an integer at least 1"),
    ("sampler: {draws: -5}\n", (), "my.yaml:2: sampler.draws: found -5 (an integer); expected an integer at least 1"),
    ("sampler: {adapt_metric: yes}\n", (), "found 'yes' (a text); expected true or false"),
    ("sampler: {mode: xla}\n", (), "sampler.mode: unknown key; did you mean 'execution.mode'?"),
    ("execution: {backend: tensrflow}\n", (), "one of tensorflow, numpy; did you mean 'tensorflow'?"),
    ("sampler: 5\n", (), "my.yaml:2: sampler: found 5; expected a mapping with keys among chains, warmup"),
    ("sampelr: {}\n", (), "my.yaml:2: sampelr: unknown section; did you mean 'sampler'?"),
    ("chains: 4\n", (), "my.yaml:2: chains: unknown section; did you mean 'sampler.chains'?"),
    ("sampler: {seed: 1}\nsampler: {seed: 2}\n", (), "my.yaml:3: the key 'sampler' is given twice"),
    ("sampler: {seed: 1\n", (), "this is not YAML"),
    ("sampler: {1: 2}\n", (), "found the key 1; expected names as keys"),
    ("sampler: {seed: !!binary aGk=}\n", (), "my.yaml:2: sampler.seed: found a "),
    ("output: {summary_rows: 0}\n", (), "output.summary_rows: found 0"),
    ("output: {path: ''}\n", (), "output.path: found ''"),
    ("", ("sampler.chians=3",), "command line, sampler.chians=3: sampler.chians: unknown key; did you mean 'chains'?"),
    ("", ("sampler.chains",), "expected key.path=value"),
    ("", ("sampler..chains=2",), "expected key.path=value"),
    ("", ("sampler.chains=",), "there is no value; write null"),
    ("", ("sampler.chains=[1",), "the value is not YAML"),
    ("sampler: {seed: 3}\n", ("sampler.seed.deep=2",), "sampler.seed is 3, which has no keys"),
    ("", ("model.name=corelated_gausian",), "did you mean 'correlated_gaussian'?"),
    ("", ("model.name=logistic_regression",), "my.yaml:1: model.dimension: unknown key"),
    ("", ("model.target=a:b",), "found both name and target"),
    ("", ("model.correlation=0.5",), "correlation: found 0.5, which has no effect on covariance 'wishart'"),
    ("", ("model.covariance=equicorrelated", "model.correlation=-0.6"), "expected a number above -0.5"),
    ("", ("model=7",), "model: found 7; expected a mapping with name"),
]


@pytest.mark.parametrize(("text", "overrides", "message"), BAD)
def test_bad_configs_are_named_with_their_place(config, text, overrides, message):
    with pytest.raises(ConfigError) as caught:
        config(GAUSS + text, *overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found neither name nor target; expected one of them: name (one of logistic_regression, "),
        ("- 1\n", "found a list; expected the sections model, sampler"),
        ("hello\n", "found a str; expected the sections"),
        ("model: {target: nocolon, dimension: 3}", "target is 'nocolon'; expected package.module:function"),
        ("model: {target: 'a:b'}", "exactly one of dimension"),
        ("model: {target: 'a:b', dimension: 2, variables: {a: []}}", "exactly one of dimension"),
        ("model: {target: 'a:b', variables: {}}", "variables is empty"),
        ("model: {target: 'a:b', variables: {mu: 3}}", "model.variables.mu: found 3 (an integer); expected"),
        ("model: {dimension: 2}", "neither name nor target"),
        ("model: {name: logistic_regression, label: y}", "label: found 'y', which has no effect on synthetic data"),
        ("model: {name: logistic_regression, data: a.csv, rows: 5}", "rows: found 5, which has no effect where data"),
    ],
)
def test_bad_models_are_named(config, text, message):
    with pytest.raises(ConfigError) as caught:
        config(text)
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once(config):
    with pytest.raises(ConfigError) as caught:
        config(GAUSS + "sampler: {chains: 0, drawz: 1}\nfoo: 1\n", "execution.mode=3")
    assert len(str(caught.value).splitlines()) == 4


def test_unreadable_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"did you mean 'logreg.yaml'\?.*Packaged configs: correlated_gaussian.yaml, "
    ):
        load_config("logrg.yaml")
    with pytest.raises(ConfigError, match="this is a folder"):
        load_config(".")
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a UTF-8 text file"):
        load_config("binary.yaml")


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module of the user's in the current folder, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def write(text, name):
        Path(f"{name}.py").write_text(text)
        return name

    yield write
    for name in [n for n in sys.modules if n.startswith("user_model_")]:
        del sys.modules[name]


def test_user_target_by_dimension_and_by_variables(user_module):
    name = user_module("def f(q):\n    return q[0]\ndef g(p):\n    return p['mu']\n", "user_model_good")
    flat = build_model(TargetOptions(target=f"{name}:f", dimension=2, dtype="float64"))
    assert (flat.dimension, flat.dtype, flat.structured) == (2, "float64", False)
    named = build_model(TargetOptions(target=f"{name}:g", variables={"mu": [], "theta": [8]}))
    assert (named.dimension, named.structured) == (9, True)
    assert named.flat_log_density(np.arange(9.0)) == 0


@pytest.mark.parametrize(
    ("name", "text", "target", "message"),
    [
        ("user_model_a", "", "user_model_nothing:f", "there is no module 'user_model_nothing'; expected one in "),
        (
            "user_model_b",
            "def density(q): return q\n",
            "user_model_b:densty",
            "has no 'densty'; did you mean 'density'?",
        ),
        ("user_model_c", "f = 3\n", "user_model_c:f", "is int; expected a function"),
        ("user_model_d", "x = 1\n1 / 0\n", "user_model_d:f", "ZeroDivisionError: division by zero ("),
        ("user_model_e", "def f(:\n", "user_model_e:f", "SyntaxError: "),
        ("user_model_f", "import user_model_gone\n", "user_model_f:f", "No module named 'user_model_gone'"),
        ("user_model_g", "raise SystemExit(0)\n", "user_model_g:f", "SystemExit: 0"),
    ],
)
def test_bad_targets_are_config_errors(user_module, name, text, target, message):
    user_module(text, name)
    with pytest.raises(ConfigError) as caught:
        build_model(TargetOptions(target=target, dimension=2))
    assert message in str(caught.value)
    if name == "user_model_d":
        assert "user_model_d.py, line 2" in str(caught.value)


def test_help_describes_every_key():
    text = describe_keys()
    for schema, section in ((SamplerSettings, "sampler"), (ExecutionSettings, "execution"), (TargetOptions, "model")):
        for key, field in schema.model_fields.items():
            assert f"{section}.{key}  (" in text
            assert (field.description or "")[:40] in text
    assert "output.summary_rows  (an integer at least 1; default 12)" in text
