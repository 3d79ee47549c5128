"""Values of settings as plain Python, whatever they were given as: settings are strict, and saved with a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def as_lists(value: Any) -> Any:
    """Arrays of any library, also in mappings and lists, as lists."""
    if isinstance(value, dict):
        return {name: as_lists(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_lists(one) for one in value]
    if hasattr(value, "numpy"):  # of TensorFlow
        value = value.numpy()
    return value.tolist() if hasattr(value, "tolist") else value


def of_json(path: str | os.PathLike[str]) -> Any:
    """What a JSON file holds, as Stan's of initial values. Raises ValueError where it cannot be read."""
    try:
        return json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the file {os.fspath(path)!r} cannot be read as JSON: {error}") from None


def as_pythons(value: Any) -> Any:
    """A scalar of NumPy, also in a mapping, as Python's."""
    if isinstance(value, Mapping):
        return {name: as_pythons(inner) for name, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value
