"""A run of many fits: where they are made, where they go, and what is said of it."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from batchnuts.autobatch.machine import processors
from batchnuts.many.data_sets import DataSet, DataSets, Padding, digest_of
from batchnuts.many.fit import HELD_OUT, Fit, FitSettings, Row
from batchnuts.many.progress import Line, ManyProgress, Report, report_of
from batchnuts.many.result import ManyResult
from batchnuts.many.store import Fits, MemoryFits, StoreError, ZarrFits
from batchnuts.many.workers import fits_here, fits_on_cluster, fits_on_processes
from batchnuts.mcmc.execution.model_description import described
from batchnuts.mcmc.model.content import Content, chosen_groups
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.starts.tuning import Tuning, read_tuning
from batchnuts.process.signals import StopSignals
from batchnuts.settings.schema import SettingsError, shown

DEFAULTS: Mapping[str, Any] = {"chains": 4, "draws": 1000}
"""Of the settings of each fit, where they differ from those of one run."""


def fit_settings(
    model: Model,
    settings: Mapping[str, Any],
    keep: frozenset[str],
    groups: Sequence[str] | None,
) -> FitSettings:
    """What all fits have in common, by the keywords of a user."""
    return settings_of(model, *split_settings({**DEFAULTS, **settings}), keep, groups)


def settings_of(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    keep: frozenset[str],
    groups: Sequence[str] | None,
) -> FitSettings:
    """The same by checked settings. Raises SettingsError for what only one run can have."""
    if sampler.chains == "auto":
        raise SettingsError("chains: found auto; expected the number of chains of each fit.")
    content, tuning = Content(groups=chosen_groups(groups)), read_tuning(model, sampler)
    computed = model if HELD_OUT in keep else content.computed(model)
    return FitSettings(computed, sampler, execution, content, keep, tuning)


class ManyRun:
    """A run of many fits: where they are made, and where they go."""

    def __init__(
        self,
        settings: FitSettings,
        *,
        path: str | os.PathLike[str] | None = None,
        resume: bool = False,
        replace_store: bool = False,
        processes: int | None = None,
        progress: Report | bool | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """attributes: of the store, beside those that it has in any case."""
        for name, flag in (("resume", resume), ("replace_store", replace_store)):
            if not isinstance(flag, bool):
                raise SettingsError(f"{name}: found {shown(flag)}; expected True or False.")
        if path is None and (resume or replace_store):
            raise SettingsError(f"{'resume' if resume else 'replace_store'}: found True without a path.")
        if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
            raise SettingsError(f"processes: found {shown(processes)}; expected an integer of at least 1.")
        self.processes = processes or processors()
        self.cluster = settings.execution.cluster
        self.settings = _on_one_core(settings)
        self.interrupted = False
        self.fits: Fits = MemoryFits()
        if path is not None:
            self.fits = ZarrFits(path, _described(settings), attributes, replace=replace_store, resume=resume)
        self.report = report_of(progress)

    def of_data(self, found: DataSets, mask: str | None = None) -> ManyResult:
        """The fits of data sets."""
        padding = Padding(self.settings.model, mask)
        result = self.of_sets((_padded(padding, data_set) for data_set in found), found.count)
        notes = (f"{100 * padding.share:.0f}% of all rows are padding",) if padding.padded else ()
        return replace(result, notes=notes)

    def of_sets(self, data_sets: Iterable[DataSet], count: int | None) -> ManyResult:
        """The fits of data sets that are ready. count: all of them, if that is known."""
        self.make(data_sets, count)
        return ManyResult(self.fits, interrupted=self.interrupted)

    def make(self, data_sets: Iterable[DataSet], count: int | None) -> None:
        """Make the fits that are not there yet. count: all of them, if that is known."""
        done = dict(self.fits.rows())
        began, failed, busy, made = time.monotonic(), 0, 0.0, 0
        try:
            with closing(self._fits(_left(data_sets, done))) as fits:
                for fit in fits:
                    self.fits.add(fit)
                    made, failed, busy = made + 1, failed + bool(fit.row.failed), busy + fit.row.seconds
                    if self.report is not None:
                        elapsed = time.monotonic() - began
                        share = min(1.0, busy / max(elapsed * self.processes, 1e-9))
                        of_all = None if count is None else count - len(done)
                        self.report(ManyProgress(made, failed, of_all, elapsed, share))
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.fits.finish()
            if isinstance(self.report, Line):
                self.report.end()

    def _fits(self, data_sets: Iterator[DataSet]) -> Generator[Fit, None, None]:
        if self.cluster is not None:
            from batchnuts.cluster.connect import connected

            with connected(self.cluster, StopSignals()) as client:
                yield from fits_on_cluster(self.settings, data_sets, client)
        elif self.processes > 1:
            yield from fits_on_processes(self.settings, data_sets, self.processes)
        else:
            yield from fits_here(self.settings, data_sets)


def _left(data_sets: Iterable[DataSet], done: Mapping[int, Row]) -> Iterator[DataSet]:
    """The data sets whose fits are not there, and those whose fits have failed with other data.

    Raises StoreError where a fit that is there had another label or other data, and where one is of no data set.
    """
    seen = 0
    for data_set in data_sets:
        seen, row = seen + 1, done.get(data_set.number)
        if row is None or (row.failed and row.digest != data_set.digest):
            yield data_set
        elif (row.label, row.digest) != (data_set.label, data_set.digest):
            what = "other data" if row.label == data_set.label else f"the label {row.label!r}"
            raise StoreError(
                f"The store has the fit {data_set.number}, {data_set.label!r}, with {what}: give the data that its run "
                "had, replace_store=True, or another path."
            )
    if done and max(done) >= seen:
        raise StoreError(f"The store has fits of {max(done) + 1:,} data sets or more; there are {seen:,} now.")


def _on_one_core(settings: FitSettings) -> FitSettings:
    """The settings for a process that uses one core: all chains of a fit in one chunk of one thread, so that draws do
    not depend on the number of processes (a window may end before the last chain of a chunk)."""
    execution = settings.execution.with_expert(shards=1).model_copy(update={"cluster": None})
    return replace(settings, execution=execution)


def _padded(padding: Padding, data_set: DataSet) -> DataSet:
    if data_set.problem or padding.mask is None:
        return data_set
    try:
        return replace(data_set, data=padding(data_set.data))
    except (ModelError, TypeError, ValueError) as error:  # of one data set: the others go on
        return replace(data_set, data=None, problem=str(error))


def _arrays_of(tuning: Tuning) -> dict[str, Any]:
    metric = tuning.metric
    of_metric = {"inverse_mass": metric.inverse_mass, "vectors": metric.eigenvectors, "values": metric.eigenvalues}
    return {"step_size": np.float64(tuning.step_size), "positions": tuning.positions, **of_metric}


def _described(settings: FitSettings) -> dict[str, Any]:
    """What a run is, in words by name, by which a store of another run is found."""
    sampler, execution = settings.sampler, settings.execution
    model = {f"model's {name}": text for name, text in described(settings.model).items() if name != "data"}
    return {
        **model,
        "settings": sampler.model_dump_json(by_alias=True),
        "tuning": None if settings.tuning is None else digest_of(_arrays_of(settings.tuning)),
        "backend": execution.backend,
        "kept": sorted(settings.keep),
        "groups": None if settings.content.groups is None else list(settings.content.groups),
        # a data set need not have all data of a model that is made again for it
        "model's data": None if settings.model.remade is None else digest_of(settings.model.remade.example),
    }
