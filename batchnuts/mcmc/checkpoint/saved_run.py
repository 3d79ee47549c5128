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
    """See `made_with`."""
    model: dict[str, str]
    """See `described`."""
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
    """That phases took before this stretch."""
    counts: dict[str, Any]
    """Likewise: Counts (execution/runner.py)."""
    elapsed: float
    """Seconds since the stretch began."""
    stretch: Any
    """See Runner.saved; None where the stretch had not begun."""
    parts: tuple[str, ...]
    """Files with the stretch's records (storage/logged.py), in order."""
    interim_analyses: Any
    """See InterimAnalyses.saved; None without."""
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
        f"{name}: {then} then, {now or 'missing'} now"
        for name, then, now in _differences(saved.made_with, made_with(backend))
    ]
    if problems:
        raise CheckpointError(
            "The run cannot go on exactly with other versions than it began with; install these, or begin again.\n"
            + "\n".join(problems)
        )
    changed = [name for name, _, _ in _differences(saved.model, described(model))]
    if changed:
        raise CheckpointError(
            f"The model has changed since the checkpoint was written ({', '.join(changed)}): its draws would be of two "
            "models. Restore it as it was, or begin again."
        )


ROUNDING = 1000
"""Two compiled programs may give numbers that differ by so many units of it, of the largest number."""


def require_same_density(saved: SavedRun, now: tuple[NDArray[Any], NDArray[Any]]) -> None:
    """The same where the density, evaluated at the same positions, gives other numbers.

    Those of a run that had ended come from another program, so they are compared up to rounding.
    """
    for what, then, found in zip(("log-density", "gradient"), saved.density, now, strict=True):
        if np.isnan(then).all():  # it is not known
            continue
        about = 0.0
        if saved.stretch is None and getattr(saved.place, "earlier", None):
            about = ROUNDING * float(np.finfo(then.dtype).eps * np.abs(then[np.isfinite(then)]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            same = (then == found) | (np.isnan(then) & np.isnan(found)) | (np.abs(then - found) <= about)
        differs = ~same.reshape(len(then), -1).all(axis=1)
        if differs.any():
            chain = int(np.argmax(differs))
            raise CheckpointError(
                f"The model's {what} has other values than when the checkpoint was written (at the position of chain "
                f"{chain}: {found[chain]}, and {then[chain]} then): its code or data have changed, or the processor is "
                "of another kind. Restore them as they were, or begin again."
            )


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            yield name, then.get(name, "missing"), now.get(name, "")
