"""The windows of warmup: after each one all chains synchronize, and the metric and step size are pooled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """A stretch of warmup transitions. The step size adapts in all of them."""

    transitions: int
    estimates_metric: bool
    """Whether the metric is set, when the window ends, from its draws."""


def warmup_windows(warmup: int) -> tuple[Window, ...]:
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
        taken = middle if middle < 3 * length else length
        windows.append(Window(taken, True))
        middle -= taken
        length *= 2
    return (*windows, Window(last, False))
