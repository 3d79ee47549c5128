"""The limits that `sampler.until` sets on what a run may spend: seconds, and gradients.

The limit on gradients is asked at interim analyses alone, so that it depends on draws and not on the machine.
"""

from __future__ import annotations

from batchnuts.mcmc.settings.until import Until


def reason_of_gradients(until: Until, gradients: int, draws: int) -> str | None:
    """Why sampling ends after so many draws of each chain, which took so many gradients; None if it does not."""
    limit = until.gradients
    if limit is None or gradients < limit:
        return None
    return f"the draws took {gradients:.4g} gradients (limit {limit:.4g}) after {draws} draws of each chain"


def reason_of_seconds(until: Until, seconds: float, draws: int) -> str | None:
    """Why sampling ends after so many draws of each chain, of which there has to be one, and so many seconds."""
    limit = until.seconds
    if limit is None or seconds < limit or not draws:
        return None
    return f"sampling took {seconds:.1f} s (limit {limit:g} s) after {draws} draws of each chain"


def seconds_left(until: Until, seconds: float, gradients: int) -> list[float]:
    """For each limit an estimate of the seconds until it is reached; seconds, gradients: spent so far."""
    estimates = []
    if until.seconds is not None:
        estimates.append(max(until.seconds - seconds, 0.0))
    if until.gradients is not None and gradients:
        estimates.append(max(until.gradients / gradients - 1.0, 0.0) * seconds)
    return estimates
