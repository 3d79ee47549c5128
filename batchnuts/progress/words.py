"""Progress in words and numbers, whatever it is shown on."""

from __future__ import annotations

from batchnuts.mcmc.storage.progress import Progress
from batchnuts.settings.schema import in_words

WITH_TRANSITIONS = ("warmup", "sampling")
"""Phases that have transitions."""

_NORMAL = " (normal while adapting)"

BRIEF = 1.0
"""Seconds. Phases of the command line that have no transitions are shown where they take longer."""


def is_over(progress: Progress) -> bool:
    """Whether all transitions of the phase have been made, as far as their number is known."""
    return progress.total > 0 and progress.done >= progress.total


def is_open(progress: Progress) -> bool:
    """Whether `sampler.until` decides the end: then `total` is the most that may be made, and says nothing of it."""
    return bool(progress.until) and not is_over(progress)


def is_worth_a_line(progress: Progress, seconds: float) -> bool:
    """Whether a phase that has taken so many seconds is to stay on the screen."""
    return progress.phase not in ("start", "saving", "diagnostics") or seconds >= BRIEF


def is_known(progress: Progress) -> bool:
    """Whether it is known how much of the phase is done, and that is not only nothing or all."""
    return (
        progress.total > 0
        and not is_open(progress)
        and (progress.phase in WITH_TRANSITIONS or 0 < progress.done < progress.total)
    )


def share(progress: Progress) -> str:
    """How much of the phase is done, in percent; empty where that is not known."""
    return f"{100 * progress.done / progress.total:.0f}%" if is_known(progress) else ""


def details(progress: Progress) -> list[str]:
    """Slowest and median chain, speeds of this phase so far, utilization, divergences, and why it goes on: phrases that
    are not to be divided. None of phases without transitions."""
    if progress.phase not in WITH_TRANSITIONS:
        return []
    unit = "draws" if progress.phase == "sampling" else "transitions"
    seconds = max(progress.elapsed, 1e-9)
    phrases = []
    if progress.chains:
        most = "at most " if is_open(progress) else ""
        of_all = f" of {most}{progress.each}" if progress.each else ""
        if progress.slowest == progress.median:
            phrases.append(f"{progress.median}{of_all} {unit} of each chain")
        else:
            phrases.append(f"slowest chain {progress.slowest}, median {progress.median}{of_all} {unit}")
    if progress.window is not None and not progress.total:
        phrases.append("window {}-{}".format(*progress.window))
    phrases += [
        f"{short(progress.done / seconds)} {unit}/s",
        f"{short(progress.useful_gradients / seconds)} useful gradients/s",
        f"utilization {progress.utilization:.2f}",
        in_words(progress.divergences, "divergence")
        + _NORMAL * (progress.phase == "warmup" and progress.divergences > 0),
    ]
    return phrases + _why(progress)


def _why(progress: Progress) -> list[str]:
    """Why it goes on: what `sampler.until` asks for and what was found, or what warmup has not agreed about, where its
    length is not fixed."""
    if progress.phase == "sampling":
        begins, stop, reasons = "until", ",", [f"{reason}{' ok' * reason.met}" for reason in progress.until]
    else:
        begins, stop, reasons = "continuing:", ";", [] if progress.total else list(progress.missing)
    if reasons:
        reasons[0] = f"{begins} {reasons[0]}"
    return [*(reason + stop for reason in reasons[:-1]), *reasons[-1:]]


def left(progress: Progress, since: float = 0.0) -> str:
    """The estimate of the time left, so many seconds after the report; empty where nothing is known."""
    if progress.remaining is None:
        return ""
    about = "about " if progress.until else ""  # it depends on what the draws will be like
    return f"{about}{clock(max(progress.remaining - since, 0.0))} left"


def plain_line(progress: Progress) -> str:
    """Everything in one line, with the seconds of this phase so far."""
    parts = [f"{progress.phase} {share(progress)}".rstrip(), *details(progress)]
    time = ", ".join(filter(None, [f"{progress.elapsed:.0f} s", left(progress)]))
    return "  ".join([*parts, time])


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def short(number: float) -> str:
    """Three significant digits, with k or M: 950, 1.23k, 45.6M."""
    for limit, divisor, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if number >= limit:
            return f"{number / divisor:.3g}{unit}"
    return f"{number:.3g}"
