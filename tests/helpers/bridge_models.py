"""What tests of models of other libraries share: a model's functions compiled as a run compiles them, and configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchnuts import Model
from batchnuts.cli.config import load_config
from batchnuts.mcmc.model.library_choice import density_library_of


def on_jax(model: Model, function: Any, *inputs: Any) -> Any:
    """A function of arrays, compiled in the model's precision; its results as NumPy's."""
    import jax

    library: Any = density_library_of(model).library
    return jax.tree.map(np.asarray, library.compiled(function)(*map(library.tensor, inputs)))


def config_of(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str, section: str) -> Any:
    """The section `model` of a config in the folder, beside a module of that text and a table with columns x and y."""
    (folder / f"{module}.py").write_text(text)
    (folder / "table.csv").write_text("x,y\n1,2\n3,4.5\n")
    (folder / "run.yaml").write_text(f"model: {section}\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return load_config("run.yaml").model
