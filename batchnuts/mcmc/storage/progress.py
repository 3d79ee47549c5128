"""How far a run has come: the phases, the fields of a report, and the keys of a line of JSON (`Progress.as_dict`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from batchnuts.mcmc.settings.until import Condition

RunPhase = Literal["compile", "warmup", "sampling"]
"""The phases of a run, in their order; each has its time in the file."""

Phase = Literal["start", RunPhase, "saving", "diagnostics"]
"""The phases of the command line, in their order: `start` imports libraries and builds the model."""

RUN_PHASES: tuple[RunPhase, ...] = get_args(RunPhase)


@dataclass(frozen=True)
class Progress:
    """How far one phase of a run has come.

    `done` of `total` transitions over all chains together, `total` 0 where it is not known, and with `sampler.until`
    the maximum; `elapsed` seconds, `useful_gradients` and `divergences` since this phase began; `utilization` is the
    useful share (0 to 1) of the gradient lanes executed in this phase so far. Phases without transitions have done 0 or
    1 of 1, or a percentage of 100.
    """

    phase: Phase
    done: int
    total: int
    elapsed: float
    useful_gradients: int = 0
    utilization: float = 0.0
    divergences: int = 0
    chains: int = 0
    slowest: int = 0
    """Transitions that every chain has made in this phase."""
    median: int = 0
    """Transitions that at least half of the chains have made in this phase."""
    window: tuple[int, int] | None = None
    """The window of warmup that is under way: the numbers of its first and last transition, from 1."""
    remaining: float | None = None
    """An estimate of the seconds until this phase ends; None where nothing is known."""
    missing: tuple[str, ...] = ()
    """Why the phase goes on, in words: of a warmup that ends by itself what its windows did not agree about, of
    sampling which condition of `sampler.until` did not hold, when it was looked at last."""
    until: tuple[Condition, ...] = ()
    """What `sampler.until` asks for, and what was found of it last."""

    @property
    def each(self) -> int:
        """Transitions that each chain makes in this phase; 0 where that is not known."""
        return self.total // self.chains if self.chains else 0

    def as_dict(self) -> dict[str, Any]:
        """The progress for programs, as in the lines of `python -m batchnuts.sample --json`.

        Of strings, numbers, booleans, None (not known), lists and dicts; docs/progress.md says what each key means.
        """

        def per_second(count: int) -> float | None:
            return float(f"{count / self.elapsed:.4g}") if self.elapsed > 0 else None

        return {
            "phase": self.phase,
            "done": self.done,
            "total": self.total or None,
            "chains": self.chains or None,
            "each": self.each or None,
            "slowest": self.slowest,
            "median": self.median,
            "window": list(self.window) if self.window else None,
            "seconds": round(self.elapsed, 3),
            "draws_per_second": per_second(self.done) if self.chains else None,
            "gradients": self.useful_gradients,
            "gradients_per_second": per_second(self.useful_gradients) if self.chains else None,
            "utilization": round(self.utilization, 4) if self.useful_gradients else None,
            "divergences": self.divergences,
            "eta_seconds": None if self.remaining is None else round(self.remaining, 3),
            "missing": list(self.missing),
            "until": {
                condition.name: {
                    "found": condition.found if math.isfinite(condition.found) else None,
                    "wanted": condition.wanted,
                    "met": condition.met,
                }
                for condition in self.until
            },
        }
