"""What a script is asked for, and what it hands back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Request:
    """A run: a model of the packaged ones, by name, the sampler's options, and where the draws go."""

    model: str
    options: Mapping[str, Any]
    draws: int
    seed: int
    inputs: Mapping[str, Any]
    """Data and options of the model (`posterior_checks.model_inputs`)."""
    starts: Mapping[str, Any]
    """Values to start from, by parameter; empty where any will do."""
    output: str
    """The file for the draws."""
    program: Mapping[str, Any] | None = None
    """`code`, the file of a Stan program, and `data`, its own or a mapping; None: one of the packaged models."""

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The inputs that are arguments of a function."""
        return {name: self.inputs[name] for name in signature(function).parameters}

    def save(self, draws: Mapping[str, Any]) -> None:
        """Save arrays [chains, draws, ...] by the names of parameters."""
        write_arrays(Path(self.output), {name: np.asarray(array) for name, array in draws.items()})

    def report(self, gradients: int | None, *, executed: int | None = None, warmup_counted: bool) -> None:
        """Say how many gradients the run took, as far as the sampler says so."""
        gradients = None if gradients is None else int(gradients)  # not a scalar of an array library
        counts = {"gradients": gradients, "executed": executed, "warmup_counted": warmup_counted}
        report_of(Path(self.output)).write_text(json.dumps(counts), encoding="utf-8")


def read_request() -> Request:
    """The one that the command line names."""
    file = Path(sys.argv[1])
    with np.load(arrays_of(file)) as arrays:
        loaded = dict(arrays)
    content = json.loads(file.read_text(encoding="utf-8"))
    content["inputs"] |= {name[6:]: array for name, array in loaded.items() if name.startswith("input:")}
    content["starts"] = {name[6:]: array for name, array in loaded.items() if name.startswith("start:")}
    return Request(**content)


def write_request(file: Path, request: Request) -> None:
    """Write a request for `read_request` of another process."""
    arrays = {f"input:{name}": value for name, value in request.inputs.items() if isinstance(value, np.ndarray)}
    arrays |= {f"start:{name}": value for name, value in request.starts.items()}
    write_arrays(arrays_of(file), arrays)
    plain = {name: value for name, value in request.inputs.items() if not isinstance(value, np.ndarray)}
    content = {**vars(request), "inputs": plain, "starts": {}}
    file.write_text(json.dumps(content, default=str), encoding="utf-8")


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to an .npz file."""
    save: Callable[..., None] = np.savez  # its keyword arguments are arrays, and one more
    save(file, **arrays)


def arrays_of(file: Path) -> Path:
    """The file beside a request that has its arrays."""
    return file.with_suffix(".npz")


def report_of(output: Path) -> Path:
    """The file beside the draws that says what they cost."""
    return output.with_suffix(".json")
