"""What a checkpoint holds, and what it says of the run that it is of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.files.sealed_file import CheckpointError
from batchnuts.mcmc.execution.model_description import described, made_with
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.starts.tuning import Tuning


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run at one moment: where it is between stretches, and how far in the stretch that began there."""

    config: dict[str, Any]
    """All settings, as the run was started with them."""
    made_with: dict[str, str]
    """The versions of what makes the run's numbers, as `made_with` gives them."""
    model: dict[str, str]
    """The model in words, as `described` gives it."""
    chains: int
    chains_reason: str
    backend: str
    place: Any
    """InWarmup (warmup/phase.py) or InDraws (chain_states.py)."""
    density: tuple[NDArray[Any], NDArray[Any]]
    """Log-density [chains] and gradient [chains, dimension] at the positions there; evaluated by themselves, but for a
    run that had ended."""
    tuning: Tuning | None
    """The tuning of an earlier run, from which warmup began."""
    seconds: dict[str, float]
    """Seconds that phases took before this stretch."""
    counts: dict[str, Any]
    """Counts (execution/runner.py) of phases before this stretch."""
    elapsed: float
    """Seconds since the stretch began."""
    stretch: Any
    """The stretch, as `RunningStretch.save` gives it; None where it had not begun."""
    parts: tuple[str, ...]
    """Files with the stretch's records (storage/logged.py), in order."""
    interim_analyses: Any
    """The state that `InterimAnalyses.saved` gives; None for a run without them."""
    history: Any
    """What was done at which time: HistoryKeeper (history.py)."""

    def wrong_field(self) -> str | None:
        """The name of a field that is of another type than declared, if there is one: no run has written this."""
        plain: dict[str, Any] = {"config": dict, "made_with": dict, "model": dict, "chains": int, "chains_reason": str}
        plain |= {"backend": str, "density": tuple, "tuning": (Tuning, type(None)), "seconds": dict, "counts": dict}
        plain |= {"elapsed": (int, float), "parts": tuple}
        return next((name for name, kind in plain.items() if not isinstance(getattr(self, name), kind)), None)

    @property
    def lanes(self) -> int | None:
        """Chains of a chunk, if the stretch had begun in chunks."""
        return getattr(self.stretch, "lanes", None)

    @property
    def rows(self) -> int | None:
        """The rows of a machine's buffers, if the stretch had begun in chunks."""
        return getattr(self.stretch, "rows", None)


def require_same(saved: SavedRun, model: Model, backend: str) -> None:
    """Refuse a checkpoint that cannot go on exactly, with what differs. Raises CheckpointError."""
    problems = [
        f"{name}: {earlier} then, {current or 'missing'} now"
        for name, earlier, current in _differences(saved.made_with, made_with(backend))
    ]
    if problems:
        raise CheckpointError(
            "The run cannot continue exactly with versions other than those it started with; install these, or start "
            "again.\n" + "\n".join(problems)
        )
    changed = [name for name, _, _ in _differences(saved.model, described(model))]
    if changed:
        raise CheckpointError(
            f"The model has changed since the checkpoint was written ({', '.join(changed)}): its draws would be of two "
            "models. Restore it as it was, or start again."
        )


ROUNDING = 1000
"""Two compiled programs may give numbers that differ by so many units of it, of the largest number."""


def require_same_density(saved: SavedRun, current: tuple[NDArray[Any], NDArray[Any]]) -> None:
    """Raise CheckpointError where the density, evaluated at the same positions, gives other numbers.

    Those of a run that had ended come from another program, so they are compared up to rounding.
    """
    for quantity, earlier, values in zip(("log-density", "gradient"), saved.density, current, strict=True):
        if np.isnan(earlier).all():  # it is not known
            continue
        about = 0.0
        if saved.stretch is None and getattr(saved.place, "earlier", None):
            about = ROUNDING * float(
                np.finfo(earlier.dtype).eps * np.abs(earlier[np.isfinite(earlier)]).max(initial=0.0)
            )
        with np.errstate(invalid="ignore"):
            same = (earlier == values) | (np.isnan(earlier) & np.isnan(values)) | (np.abs(earlier - values) <= about)
        differs = ~same.reshape(len(earlier), -1).all(axis=1)
        if differs.any():
            chain = int(np.argmax(differs))
            raise CheckpointError(
                f"The model's {quantity} has other values than when the checkpoint was written (at the position of "
                f"chain {chain}: {values[chain]}, and {earlier[chain]} then): its code or data have changed, or the "
                "processor is of another kind. Restore them as they were, or start again."
            )


def _differences(earlier: Mapping[str, str], current: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(earlier.keys() | current.keys()):
        if earlier.get(name) != current.get(name):
            yield name, earlier.get(name, "missing"), current.get(name, "")
