"""Threads of one process against worker processes of a cluster, and a calculation for many machines.

    python -m batchnuts.experiments.clusters --config clusters.yaml [--quick] [--dry-run] [key.path=value ...]

The same run, with the same draws, on threads and on 1, 2, ... worker processes of this machine. Wall time says what a
user waits; processor time, of the process of the run and of workers, says what a cluster costs on a machine that is
busy with other work too. Then what each part costs for a chain or a task is put into a plan for many machines.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
from pydantic import Field, model_validator

from batchnuts.cli.config import build_model, check_packaged_model
from batchnuts.experiments.harness.config import check_increasing, dump_sections
from batchnuts.experiments.harness.reading import Reading
from batchnuts.mcmc.kernel.sample_statistics import draw_bytes
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.models.registry import ModelOptions
from batchnuts.settings.schema import Settings, SettingsError
from batchnuts.settings.yaml import ConfigError, to_yaml

SECTIONS = ("model", "run", "plan")

SAVE = 2.0
"""Seconds after which states are asked for here, so that short runs have some."""


class RunOptions(Settings):
    """The run that is made everywhere."""

    chains: int = Field(ge=1, description="number of chains")
    warmup: Any = Field(description="as sampler.warmup")
    draws: int = Field(ge=1, description="of each chain")
    chunk_lanes: int = Field(ge=1, description="chains of a chunk, the same everywhere")
    backend: str = Field(description="as execution.backend")
    workers: list[int] = Field(description="numbers of worker processes, one thread each")
    repetitions: int = Field(1, ge=1, description="runs of each kind; the table has medians")

    @model_validator(mode="after")
    def _increasing(self) -> RunOptions:
        check_increasing("workers", self.workers)
        return self


class PlanOptions(Settings):
    """The machines of the calculation."""

    machines: int = Field(ge=1, description="number of machines")
    threads: int = Field(ge=1, description="of each")
    chains: int = Field(ge=1, description="of all")
    draws: int = Field(ge=1, description="of each chain")
    network: float = Field(gt=0.0, description="bytes per second that the machine of the run receives")


@dataclass
class Costs:
    """Figures that were measured in one run."""

    wall: float = 0.0
    """Seconds of warmup and draws."""
    compiling: float = 0.0
    own: float = 0.0
    """Seconds of the processor, of the process of the run, during the run."""
    workers: float = 0.0
    """Seconds of processors of all workers."""
    transitions: int = 0
    tasks: int = 0
    taking: float = 0.0
    """Seconds of the processor to take what tasks gave."""
    report_bytes: list[int] = field(default_factory=list)
    """Bytes of each report, without the records of draws and states."""
    state_bytes: list[float] = field(default_factory=list)
    """Bytes of a chain's state."""
    reduced_bytes: list[float] = field(default_factory=list)
    """Bytes per chain of what is left of a window."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(prog="python -m batchnuts.experiments.clusters", description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file: a path, or clusters.yaml")
    parser.add_argument("--quick", action="store_true", help="a small run, in a minute")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config as YAML and stop")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="set a key of the config")
    options = parser.parse_intermixed_args(argv)
    try:
        model_options, run, plan = read_config(options.config, options.overrides, quick=options.quick)
    except ConfigError as error:
        print(f"the config cannot be used.\n{error}", file=sys.stderr)
        return 2
    if options.dry_run:
        sys.stdout.write(to_yaml(dump_sections({"model": model_options, "run": run, "plan": plan})))
        return 0
    model = build_model(model_options)
    columns = ("place", "wall, s", "compiling, s", "processor, s", "of workers, s", "draws/s", "tasks")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    measured = {}
    for place in (0, *run.workers):
        costs = [one_run(model, run, place) for _ in range(run.repetitions)]
        measured[place] = costs
        print(row_of(place, costs, run), flush=True)
    print()
    last = measured[run.workers[-1]][0]
    for line in calculation(last, run, plan, draw=draw_bytes(model.dimension, model.dtype)):
        print(line)
    return 0


def read_config(name: str, overrides: Sequence[str], *, quick: bool) -> tuple[ModelOptions, RunOptions, PlanOptions]:
    """The options of the model, of runs and of the calculation. Raises ConfigError."""
    reading = Reading(name, overrides, SECTIONS, quick=quick)
    options = check_packaged_model("model", reading.content.get("model"), reading.origin, reading.mistakes)
    run = reading.section("run", RunOptions)
    plan = reading.section("plan", PlanOptions)
    if run is not None:
        try:
            _settings_of(run, None)
        except SettingsError as error:
            for line in str(error).splitlines():
                key, _, text = line.partition(": ")
                reading.mistake(f"run.{key}", text)
    run, plan = reading.whole(run), reading.whole(plan)
    assert options is not None  # else there is a mistake
    return options, run, plan


def _settings_of(run: RunOptions, address: str | None) -> tuple[SamplerSettings, ExecutionSettings]:
    """Settings of sampling and execution. Raises SettingsError."""
    return split_settings(
        {
            "chains": run.chains,
            "warmup": run.warmup,
            "draws": run.draws,
            "chunk_lanes": run.chunk_lanes,
            "backend": run.backend,
            "cluster": address,
        }
    )


def one_run(model: Any, run: RunOptions, workers: int) -> Costs:
    """The costs of a run on threads (0), or on so many workers."""
    from batchnuts.cluster import stretch
    from batchnuts.cluster.connect import connected
    from batchnuts.mcmc.settings.cluster_settings import ClusterSettings
    from batchnuts.process.signals import StopSignals

    if not workers:
        return _measured(model, run, None, None)
    settings = ClusterSettings.model_validate({"class": "local", "jobs": workers})
    with StopSignals() as stop, connected(settings, stop) as client, mock.patch.object(stretch, "SAVE", SAVE):
        return _measured(model, run, client.scheduler.address, client)


def _measured(model: Any, run: RunOptions, address: str | None, client: Any) -> Costs:
    from batchnuts.cluster.execution import execution_of
    from batchnuts.mcmc.run.sampling import run_chains

    costs = Costs()

    def of_workers() -> float:
        return 0.0 if client is None else sum(client.run(time.process_time).values())

    at_start: list[float] = []

    def progress(report: Any) -> None:
        if report.phase == "compile" and report.done and not at_start:
            at_start.extend([time.process_time(), of_workers()])

    # the density of a model is kept with it, compiled: each place has one of its own
    with _counted(costs):
        draws = run_chains(replace(model), *_settings_of(run, address), progress, where=execution_of)
    costs.own, costs.workers = time.process_time() - at_start[0], of_workers() - at_start[1]
    costs.wall = draws.timings["warmup"] + draws.timings["sampling"]
    costs.compiling = draws.timings["compile"]
    costs.transitions = run.chains * (draws.warmup.transitions + run.draws)
    return costs


@contextmanager
def _counted(costs: Costs) -> Iterator[None]:
    """Within, count what comes back from tasks."""
    from batchnuts.cluster.stretch import StretchOnCluster

    take, add = StretchOnCluster.take, StretchOnCluster._add

    def counted_take(self: Any, name: Any, future: Any) -> None:
        began = time.process_time()
        take(self, name, future)
        costs.tasks += 1
        costs.taking += time.process_time() - began

    def counted_add(self: Any, group: Any, report: Any) -> None:
        add(self, group, report)
        began = time.process_time()
        bare = replace(report, rows=(), saved=None, reduced=None, ended=None)
        costs.report_bytes.append(len(pickle.dumps(bare)))
        if report.saved is not None:
            costs.state_bytes.append(len(pickle.dumps(report.saved.stretch)) / group.chains)
        if report.reduced is not None:
            costs.reduced_bytes.append(len(pickle.dumps(report.reduced)) / group.chains)
        costs.taking -= time.process_time() - began

    with (
        mock.patch.object(StretchOnCluster, "take", counted_take),
        mock.patch.object(StretchOnCluster, "_add", counted_add),
    ):
        yield


def row_of(place: int, costs: Sequence[Costs], run: RunOptions) -> str:
    """A row of the table: medians."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(cost, name) for cost in costs))

    label = f"{place} worker{'s' * (place > 1)}" if place else "threads"
    wall = median("wall")
    figures = (wall, median("compiling"), median("own"), median("workers"))
    cells = [label, *(f"{figure:.1f}" for figure in figures), f"{run.chains * run.draws / wall:,.0f}"]
    return f"| {' | '.join([*cells, str(round(median('tasks')))])} |"


def calculation(costs: Costs, run: RunOptions, plan: PlanOptions, *, draw: int) -> Iterator[str]:
    """The plan for many machines, line by line, from what one run cost. draw: bytes of one draw of a chain."""
    from batchnuts.cluster.groups import sizes_of
    from batchnuts.cluster.stretch import REPORTS, SAVE, SEGMENT, STATE_RATE
    from batchnuts.mcmc.storage.streamed import BLOCK_BYTES

    threads = plan.machines * plan.threads
    sizes = sizes_of(plan.chains, run.chunk_lanes, threads)
    groups = len(sizes)
    transition = costs.workers / costs.transitions
    compute = plan.chains * plan.draws * transition / threads
    seconds = max(SEGMENT, min(groups, threads) / REPORTS)
    reports = min(groups, threads) / seconds
    taking = costs.taking / max(costs.tasks, 1)
    state = float(np.mean(costs.state_bytes)) if costs.state_bytes else 0.0
    reduced = float(np.mean(costs.reduced_bytes)) if costs.reduced_bytes else float("nan")
    report = float(np.mean(costs.report_bytes)) * sizes[0] / max(1, run.chunk_lanes)
    rows = max(1, min(BLOCK_BYTES // (sizes[0] * draw), -(-plan.draws // 20)))
    files = groups * -(-plan.draws // rows)
    yield f"{plan.machines} machines of {plan.threads} threads, {plan.chains:,} chains, {plan.draws:,} draws of each:"
    yield f"- {groups:,} groups of {sizes[0]} chains; a task takes {seconds:.0f} s"
    yield f"- draws take {compute:.0f} s of all threads ({1e6 * transition:.1f} us of the processor for a transition)"
    yield f"- {reports:.0f} reports a second, {1e3 * taking:.2f} ms each: {100 * reports * taking:.1f}% of one core"
    yield f"- reports: {reports * report / 1e6:.1f} MB/s"
    if costs.state_bytes:
        yield (
            f"- states: {state / 1e3:.1f} kB a chain, {state * plan.chains / 1e9:.1f} GB in the process of the run, "
            f"each every {max(SAVE, state * plan.chains / STATE_RATE):.0f} s, at most {STATE_RATE / 1e6:.0f} MB/s"
        )
    else:
        yield f"- states: not known, since no run took the {SAVE:.0f} s after which they are asked for"
    yield (
        f"- a window of warmup: {reduced / 1e3:.2f} kB a chain, {reduced * plan.chains / 1e9:.2f} GB, "
        f"{reduced * plan.chains / plan.network:.1f} s to receive"
    )
    yield f"- draws: {draw * plan.chains * plan.draws / 1e12:.2f} TB; {files:,} files for each variable of the store"


if __name__ == "__main__":
    sys.exit(main())
