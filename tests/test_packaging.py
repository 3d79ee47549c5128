"""What an installed package has: every folder of code, every config, and the bounds of the extras that it checks."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path
from typing import Any

import pytest

from batchnuts.bridges.registry import BRIDGES
from batchnuts.bridges.users import NUMPYRO, PYMC, Library
from batchnuts.mcmc.model import ModelError
from batchnuts.settings.yaml import ConfigError

ROOT = Path(__file__).parent.parent


def test_every_folder_with_code_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = set()
    for folder in ("batchnuts", "models", "experiments"):
        for file in (ROOT / folder).rglob("__init__.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join(parts if folder == "batchnuts" else ("batchnuts", *parts)))
    assert found | {"batchnuts.configs"} == set(settings["packages"])


def test_every_config_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["batchnuts.configs"]
    configs = ROOT / "configs"
    installed = {file for pattern in patterns for file in configs.glob(pattern)}
    assert installed == set(configs.rglob("*.yaml"))


@pytest.mark.parametrize("library", [NUMPYRO, PYMC], ids=lambda library: library.package)
def test_a_library_of_models_that_is_missing_or_too_old_is_named_before_it_is_imported(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a config too, whose module would fail within the library. The bound is that of the extra."""
    needed = ".".join(map(str, library.oldest))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"{library.package}>={needed}" in extras[library.package]
    installed: str | None = f"{library.oldest[0]}.{library.oldest[1] - 1}.7"

    def found(_: str) -> Any:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError
        return installed

    monkeypatch.setattr(importlib.metadata, "version", found)
    bridge = BRIDGES[library.package]
    options = bridge.options.model_validate({library.package: "no_such_module:model"})
    with pytest.raises(ConfigError, match=rf"{installed} is too old.* {needed} .*pip install -U '.*>={needed}'"):
        bridge.build(options)
    installed = None
    with pytest.raises(ConfigError, match=rf"{library.title}, which is not installed: .*\[{library.package}\]"):
        bridge.build(options)
    installed = f"{needed}.1"
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        bridge.build(options)
    with (
        pytest.raises(ModelError, match=rf"{needed}.1 cannot be used: .*'moved'.*pip install -U '.*>={needed},<"),
        library.importing(),
    ):
        raise ImportError("cannot import name 'moved'")
