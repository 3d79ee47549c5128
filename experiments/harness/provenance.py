"""What a measurement was made with: versions, processor, memory, threads."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from batchnuts.experiments.harness.rows import MeasurementsError

_PACKAGES = (
    "batchnuts", "tensorflow", "tensorflow-probability", "numpy", "scipy", "arviz", "jax", "jaxlib", "blackjax",
    "numpyro", "pystan", "httpstan", "stanli", "nutpie", "numba",
)  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "XLA_FLAGS", "OPENBLAS_NUM_THREADS")


def describe_environment() -> dict[str, Any]:
    """Plain data: packages and their versions (None: not installed), the machine, and what limits threads."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "processors": psutil.cpu_count(),
        "processors_usable": _usable(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": _gpu(),
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
    }


def note_environment(file: Path) -> str:
    """Add the present environment to a JSON file of environments by name; its name there."""
    environments = read_environments(file) if file.exists() else {}
    environment = describe_environment()
    name = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:8]
    environments[name] = environment
    scratch = file.with_suffix(".new")
    scratch.write_text(json.dumps(environments, indent=2) + "\n", encoding="utf-8")
    scratch.replace(file)
    return name


def read_environments(file: Path) -> dict[str, Any]:
    """Environments by name. Raises MeasurementsError for a file that cannot be read."""
    try:
        environments = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise MeasurementsError(
            f"{file}: found a file that is not JSON ({error}); expected environments by name. Delete it: rows then "
            "name environments that are unknown."
        ) from error
    if not isinstance(environments, dict):
        raise MeasurementsError(
            f"{file}: found a {type(environments).__name__}; expected environments by name. Delete it."
        )
    return environments


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the checkout that this code is in, with + where it was changed; None outside one.

    A virtual environment inside a project's folder is in that project's checkout, but not of it.
    """
    folder = Path(__file__).resolve().parent
    try:
        _output("git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name)
        commit = _output("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
        changed = _output("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def _processor() -> str:
    """The name that the processor gives itself, where it has one; else its architecture."""
    import archspec.cpu  # of the extra `experiments`

    return archspec.cpu.brand_string() or platform.processor() or platform.machine()


def _usable() -> int | None:
    """Cores that this process may use; macOS reports none, and it may use all."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()


def _gpu() -> str | None:
    """The name of the first NVIDIA GPU, as its driver's tool gives it."""
    try:
        return _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
