"""Configs that name a log density of the user's: found, or refused with what is wrong with its module."""

import sys
from pathlib import Path

import numpy as np
import pytest

from batchnuts.cli.config import ConfigError, TargetOptions, build_model


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
