"""What an installed package has: every folder of code, every config, and the bounds of the extras that it checks."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import batchnuts.pymc
from batchnuts.autobatch import BatchnutsError
from batchnuts.bridges.registry import BRIDGES
from batchnuts.bridges.versions import NUMPYRO, PYMC, Library
from batchnuts.experiments.__main__ import main as list_experiments
from batchnuts.mcmc.model.model import ModelError
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


def test_a_release_has_one_number() -> None:
    """The package's, the distribution's, the citation's, and the newest one of the changelog, with its day."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert batchnuts.__version__ == version
    citation = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text())
    headings = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[:2] == [("Unreleased", ""), (version, citation["date-released"])]
    assert citation["version"] == version


def test_the_conda_recipe_is_of_this_version_and_its_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = YAML(typ="safe").load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == project["version"]
    assert recipe["about"]["summary"] == project["description"]
    needs_python, *needed = recipe["requirements"]["run"]
    assert needs_python == f"python {project['requires-python']}"
    assert [entry.replace(" ", "") for entry in needed] == project["dependencies"]


def test_the_list_of_experiments_has_each_with_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_experiments([]) == 0
    pattern = r"^python -m batchnuts\.experiments\.(\w+) (?:--help|--config (.+)\.yaml)$"
    listed = re.findall(pattern, capsys.readouterr().out, flags=re.M)
    assert {config for _, config in listed if config} == {
        path.stem for path in (ROOT / "configs/experiments").iterdir()
    }
    commands = {path.stem for path in (ROOT / "experiments").glob("[a-z]*.py") if "__main__" in path.read_text()}
    assert {module for module, _ in listed} == commands


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
    if library is PYMC:
        with pytest.raises(BatchnutsError, match=r"PyMC.* not installed: .*\[pymc\]"):
            batchnuts.pymc.sample()
    installed = f"{needed}.1"
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        bridge.build(options)
    with (
        pytest.raises(ModelError, match=rf"{needed}.1 cannot be used: .*'moved'.*pip install -U '.*>={needed},<"),
        library.importing(),
    ):
        raise ImportError("cannot import name 'moved'")


@pytest.mark.parametrize(
    ("guess", "said"),
    [("sample", "expected batchnuts.sample_chains"), ("from_stan", "models are made by batchnuts.Model.from_stan")],
)
def test_a_name_that_is_elsewhere_is_said(guess: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(batchnuts, guess, raising=False)  # the module of the command line, where it is imported
    with pytest.raises(AttributeError, match=f"has no attribute '{guess}'; {said}"):
        getattr(batchnuts, guess)
