"""Where in warmup a run is: what is pooled after a window, and all that the rest of warmup depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.execution.chain_states import ChainStates
from batchnuts.mcmc.kernel.metric_estimates import of_all_chains
from batchnuts.mcmc.statistics.window_moments import Centre, Moments
from batchnuts.mcmc.storage.draws import WindowRecords, WindowTuning
from batchnuts.mcmc.warmup.ensemble import BurnIn

ENSEMBLE, SETTLE, CHECK = -3, -2, -1
"""What comes before the first window: an ensemble's burn-in, the step size after it, the check of an earlier run's
tuning."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """What is known after a window: the states that the next one starts from, and what they are compared by."""

    states: ChainStates
    moments: Moments
    counts: NDArray[np.bool_]
    """[chains]: which chains count: those that are no outliers, and have drawn."""
    outliers: NDArray[np.bool_]
    """[chains]: see outliers.py; also those that are implausible."""
    implausible: NDArray[np.bool_]
    """[chains]: see arrival.py."""
    late: NDArray[np.bool_]
    """[chains]: which have not arrived, and do not stay where they are."""
    low: NDArray[np.bool_]
    """[chains]: which are so low that nothing that matters can be there, and came no nearer in the window."""
    far: NDArray[np.bool_]
    """[chains]: which are further away than all others in some coordinate, on their way or in a mode of their own."""
    apart: NDArray[np.bool_]
    """[chains]: which have step sizes of their own; see pooling.py."""
    restarted: NDArray[np.bool_]
    """[chains]: which start again from here."""
    kept: WindowRecords | None = None
    """The window's records, on the way into the place after it."""


@dataclass(frozen=True, eq=False)
class InWarmup:
    """Before which window a run is, and what is known so far: all that the rest of warmup depends on."""

    states: ChainStates
    window: int = 0
    """The number of the next one; CHECK for that of an earlier run's tuning."""
    before: Pooled | None = None
    """The pooled results of the last window, where windows are compared."""
    missing: tuple[str, ...] = ("there was one window only",)
    """The differences of the last two windows, in words."""
    checked: str = ""
    """What did not fit in an earlier run's tuning, in words."""
    made: tuple[WindowTuning, ...] = ()
    """The tuning that each window so far came to."""
    restarted: tuple[int, ...] = ()
    """The numbers of chains that started again."""
    not_numbers: int = 0
    """Of starts that were proposed first, those at which the log-density is not a number."""
    centre: Centre | None = None
    """[dimension]: with an ensemble start, of what the next window is compared with."""
    since: Moments | None = None
    """Of all draws since the ensemble's burn-in that count; None before there are any."""
    burn_in: BurnIn | None = None
    """The ensemble's, while it is under way."""
    burnt_in: int = 0
    """The steps that it took."""
    records: tuple[WindowRecords, ...] = ()
    """Of each window so far, where they are kept."""

    def after(self, pooled: Pooled, window: int) -> InWarmup:
        """The place after a window, before that number."""
        states, counts = pooled.states, pooled.counts
        step_size = states.step_size[counts] if counts.any() else states.step_size
        variance = of_all_chains(states.metric.scales()[0])
        tuning = WindowTuning(states.transitions_done, np.quantile(step_size, (0.0, 0.5, 1.0)), variance)
        restarted = {*self.restarted, *np.flatnonzero(pooled.restarted).tolist()}
        return replace(
            self,
            states=states,
            window=window,
            before=replace(pooled, kept=None),
            records=self.records if pooled.kept is None else (*self.records, pooled.kept),
            made=(*self.made, tuning),
            restarted=tuple(sorted(restarted)),
        )
