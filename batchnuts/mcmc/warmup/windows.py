"""The windows of warmup: after each one all chains synchronize, and the metric and step size are pooled."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchnuts.mcmc.settings.run_settings import WarmupSettings

FIRST = 10
"""Transitions of the first automatic window."""

POOLED = 100
"""Transitions of all chains together in it, at least."""

GROWTH = 1.5
"""How much longer each automatic window is than the one before. With hundreds of chains even the first has thousands of
draws; it is the time to reach the typical set, and to forget the start, that is not known."""

SETTLE = 15
"""Transitions of the window after the last estimate of the metric: the step size settles, and all chains finish."""

SINGLE = 4
"""How many times longer the check of an earlier run's tuning is where each chain is a superchain of its own."""

LEAVE = 0.75
"""Share of a chunk's chains that need not finish an automatic window: with 0 utilization is that of the slowest chain.
What they have done counts. Not in the last window: the chains that a window leaves behind are in regions where
trajectories are long, so where chains are when it ends is not a draw from the posterior."""


@dataclass(frozen=True)
class Window:
    """A stretch of warmup transitions. The step size adapts in all of them."""

    transitions: int
    estimates_metric: bool
    """Whether the metric is set, when the window ends, from its draws."""
    leave: float = 0.0
    """Share of each chunk's chains that need not finish."""
    compared: bool = False
    """Whether it is compared with another one, or with an earlier run: then the second half of its draws counts, and
    the step size is searched for again only where the metric has changed much."""
    whole: bool = False
    """Whether all of its draws count where it is compared, because chains were at the posterior before it."""


def fixed_windows(warmup: int) -> tuple[Window, ...]:
    """How `warmup` transitions are split (after Stan's reference manual, section "automatic parameter tuning").

    15% find the typical set, 10% at the end settle the step size, and between them windows of doubling length estimate
    the metric; the first has an eighth of that middle part, and the last one takes what is left. With hundreds of
    chains pooled even a short window has thousands of draws. Fewer than 20 transitions are one window that only adapts
    the step size.
    """
    if warmup < 20:
        return (Window(warmup, False),) if warmup else ()
    first, last = round(0.15 * warmup), round(0.1 * warmup)
    middle = warmup - first - last
    windows = [Window(first, False)]
    length = max(middle // 8, 5)
    while middle:
        # a remainder shorter than the next doubling joins this window
        transitions = middle if middle < 3 * length else length
        windows.append(Window(transitions, True))
        middle -= transitions
        length *= 2
    return (*windows, Window(last, False))


def automatic_windows(chains: int, maximum: int) -> tuple[Window, ...]:
    """The windows that may be needed, in order; `settling_window` follows the one after which nothing changes.

    Their lengths grow by GROWTH, and with that of the last one sum to at most `maximum`, unless that is shorter than
    the first.
    """
    length = float(_first(chains))
    remaining = maximum - settling_window(chains).transitions
    windows = []
    while remaining > 0:
        transitions = round(length)
        if remaining - transitions < round(GROWTH * length):  # a remainder shorter than the next one joins this one
            transitions = remaining
        windows.append(Window(transitions, True, LEAVE, compared=True))
        remaining -= transitions
        length *= GROWTH
    return tuple(windows)


def settling_window(chains: int) -> Window:
    """The last automatic one."""
    return Window(max(SETTLE, _first(chains)), False)


def windows_of(settings: WarmupSettings, chains: int, made: int = 0) -> tuple[Window, ...]:
    """The windows of these settings: those that are made, or, where warmup ends by itself, those that may be.

    made: transitions of a warmup that ends by itself before these, in a window that checks an earlier run's tuning.
    """
    if settings.transitions == "auto":
        return (*automatic_windows(chains, settings.maximum - made), settling_window(chains))
    return fixed_windows(settings.transitions)


def check_window(chains: int, single: bool, maximum: int) -> Window:
    """The one in which the tuning of an earlier run is checked; no chain is left behind, because it may be the last.

    single: whether each chain is a superchain of its own. Then chains are compared by means of their own, which need
    more draws.
    """
    transitions = settling_window(chains).transitions * (SINGLE if single else 1)
    return Window(min(transitions, maximum), True, compared=True)


SETTLE_STEP = 5
"""Transitions in which a step size is found after an ensemble's burn-in."""

LIKELY_WINDOWS, LIKELY_DRAWS = 4, 800
LIKELY_WINDOWS_ALONE, LIKELY_DRAWS_ALONE, LIKELY_LENGTH = 3, 300, 40
"""An automatic warmup likely ends with its fourth window or a later one: the first that has so many draws of all
chains. Where chains are compared by means of their own, with its third or a later one: of so many, and so many of each.
Measured for packaged models (docs/results/chains.md): 3 to 7 windows with superchains, without them 3 to 7."""


LIKELY_BURN_IN = 15
"""An ensemble's burn-in takes the gradients of about so many transitions: of twelve packaged models 3 to 30
(docs/results/ensemble_start.md)."""


def likely_transitions(settings: WarmupSettings, chains: int, *, nested: bool, ensemble: bool = False) -> int:
    """How many transitions a warmup is expected to make, or what takes the gradients of so many.

    nested: whether chains form superchains of several. ensemble: whether it begins with an ensemble.
    """
    burn_in = LIKELY_BURN_IN if ensemble else 0
    if settings.transitions != "auto":
        return settings.transitions + burn_in
    if ensemble:
        windows = automatic_windows(chains, settings.maximum)[: 1 if nested else LIKELY_WINDOWS_ALONE]
        return burn_in + max(SETTLE_STEP + sum(window.transitions for window in windows), settings.minimum)
    if settings.from_ is not None:  # and that is confirmed
        return check_window(chains, not nested, settings.maximum).transitions
    total = 0
    for number, window in enumerate(automatic_windows(chains, settings.maximum), 1):
        total += window.transitions
        first, draws, length = (
            (LIKELY_WINDOWS, LIKELY_DRAWS, 0) if nested else (LIKELY_WINDOWS_ALONE, LIKELY_DRAWS_ALONE, LIKELY_LENGTH)
        )
        enough = window.transitions * chains >= draws and window.transitions >= length
        if number >= first and enough and chains > 1:
            break
    total += settling_window(chains).transitions
    return max(total, settings.minimum)


def _first(chains: int) -> int:
    return max(FIRST, math.ceil(POOLED / chains))
