"""What an installed package has: every folder of code, every config."""

from __future__ import annotations

import tomllib
from pathlib import Path

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
