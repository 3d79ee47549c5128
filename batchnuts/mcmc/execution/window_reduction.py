"""A window of warmup, reduced to what pooling needs: a few numbers of each chain, whatever the window's length.

Each chain's part depends on that chain alone. So chains may be reduced in parts, where their draws are, and the parts
joined: on a cluster no draw of warmup leaves the machine that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.execution.evaluation import GradientService
from batchnuts.mcmc.execution.metric_draws import DrawsWithGradients, draws_with_gradients
from batchnuts.mcmc.kernel.chain_program import ChainResult
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.statistics.window_moments import Moments, moments_of
from batchnuts.mcmc.storage.draws import WindowRecords


@dataclass(frozen=True)
class Reduction:
    """Says what of a window is asked for."""

    transitions: int
    chains: int
    """The chains of the run; the number of their draws at which gradients are evaluated depends on it."""
    leaves: bool
    """Whether some chains may have been left behind: then all are where their last transition led."""
    second_half: bool
    """Whether moments are those of the second half of the window alone (`moments_of`)."""
    errors: bool
    """Whether moments have errors (`moments_of`)."""
    gradients: bool
    """Whether draws with gradients are asked for, from which a metric is estimated."""
    keeps: bool = False
    """Whether the records of the window are kept."""


@dataclass(frozen=True, eq=False)
class ReducedWindow:
    """What is left of a window, of some chains."""

    moments: Moments
    position: NDArray[np.floating]
    """[chains, dimension]: where they are after it."""
    log_density: NDArray[np.floating]
    """[chains]."""
    gradient: NDArray[np.floating]
    """[chains, dimension]."""
    log_step: NDArray[np.floating]
    """[chains]: the step sizes that they adapted."""
    log_step_used: NDArray[np.float64]
    """[chains]: the mean of the log step sizes that they made the second half of the window with."""
    acceptance: NDArray[np.float64]
    """[chains]: the mean acceptance rate of the same transitions."""
    diverged: NDArray[np.float64]
    """[chains]: the share of a chain's transitions that diverged."""
    drawn: DrawsWithGradients | None
    """None where they were not asked for."""
    kept: WindowRecords | None = None
    """None where they were not asked for."""


def reduce_window(
    result: ChainResult, before: NDArray[np.floating], reduction: Reduction, gradients: GradientService
) -> ReducedWindow:
    """The reduction of the result of some chains with records; before [chains, dimension]: where they began."""
    records, n = result.records, reduction.transitions
    done = np.asarray(result.done)
    moments = moments_of(
        records.position[:, :n],
        records.lp[:, :n],
        done,
        second_half=reduction.second_half,
        errors=reduction.errors,
    )
    position, log_density, gradient = result.position, result.log_density, result.gradient
    if reduction.leaves:
        last = records.position[np.arange(len(done)), np.maximum(done - 1, 0)]
        position = np.where((done > 0)[:, None], last, before)
        log_density, gradient = gradients.evaluate(position)
    drawn = None
    if reduction.gradients:
        drawn = draws_with_gradients(
            records.position,
            done - moments.count,
            done,
            gradient,
            lambda positions: gradients.evaluate(positions)[1],
            of_run=reduction.chains,
            at_once=gradients.at_once(len(position)),
        )
    counted = (np.arange(n) < done[:, None]) & (np.arange(n) >= done[:, None] // 2)
    return ReducedWindow(
        moments,
        position,
        log_density,
        gradient,
        log_step=result.adaptation.log_step_mean,
        log_step_used=_mean_of(np.log(np.where(counted, records.step_size[:, :n], 1.0)), counted),
        acceptance=_mean_of(records.acceptance_rate[:, :n], counted),
        diverged=np.asarray(result.divergences) / np.maximum(done, 1),
        drawn=drawn,
        kept=_kept(records, n, done) if reduction.keeps else None,
    )


def _kept(records: Record, transitions: int, done: NDArray[np.int64]) -> WindowRecords:
    named = {name: array for name, array in records._asdict().items() if name != "last_position"}
    return WindowRecords({name: np.array(array[:, :transitions]) for name, array in named.items()}, np.array(done))


def _mean_of(values: NDArray[np.floating], counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[chains]: of values [chains, transitions] those that count; 0 where none does."""
    total: NDArray[np.float64] = np.sum(values, axis=1, dtype=np.float64, where=counted)
    mean: NDArray[np.float64] = total / np.maximum(counted.sum(axis=1), 1)
    return mean


def joined(parts: Sequence[ReducedWindow]) -> ReducedWindow:
    """The reduced window of all chains, from parts in their order."""

    def all_of(name: str, part_of: Callable[[ReducedWindow], object] = lambda part: part) -> NDArray[Any]:
        return np.concatenate([getattr(part_of(part), name) for part in parts])

    moments = Moments(*(all_of(field.name, lambda part: part.moments) for field in fields(Moments)))
    drawn = [part.drawn for part in parts if part.drawn is not None]
    kept = [part.kept for part in parts if part.kept is not None]
    return ReducedWindow(
        moments,
        all_of("position"),
        all_of("log_density"),
        all_of("gradient"),
        log_step=all_of("log_step"),
        log_step_used=all_of("log_step_used"),
        acceptance=all_of("acceptance"),
        diverged=all_of("diverged"),
        drawn=_joined_draws(drawn) if drawn else None,
        kept=_joined_records(kept) if kept else None,
    )


def _joined_records(parts: Sequence[WindowRecords]) -> WindowRecords:
    names = parts[0].records
    return WindowRecords(
        {name: np.concatenate([part.records[name] for part in parts]) for name in names},
        np.concatenate([part.done for part in parts]),
    )


def _joined_draws(parts: Sequence[DrawsWithGradients]) -> DrawsWithGradients:
    """Join the draws of parts; where chains of one have fewer than those of another, the rest is not valid."""
    most = max(part.valid.shape[1] for part in parts)

    def padded(array: NDArray[np.generic]) -> NDArray[np.generic]:
        widths = [(0, 0)] * array.ndim
        widths[1] = 0, most - array.shape[1]
        return np.pad(array, widths)

    positions, gradients, valid = (
        np.concatenate([padded(getattr(part, name)) for part in parts]) for name in ("positions", "gradients", "valid")
    )
    useful, evaluated = (sum(getattr(part, name) for part in parts) for name in ("useful", "evaluated"))
    return DrawsWithGradients(positions, gradients, valid, useful, evaluated)
