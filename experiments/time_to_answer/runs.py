"""In a task's process: runs with more and more draws until they are enough, first starts, and second starts.

Every run is a process of its own, started as a user starts it. What is prepared for it (its data) and what is looked at
when it has ended (the worth of its draws) is not part of its time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from batchnuts.bridges.sections import StanOptions
from batchnuts.cli.config import RunConfig, build_model
from batchnuts.experiments.harness.processes import Unavailable
from batchnuts.experiments.harness.task import Figures, Preparation, Runnable
from batchnuts.experiments.posterior_checks.model_inputs import inputs_of
from batchnuts.experiments.time_to_answer.commands import run_timed, users_environment
from batchnuts.experiments.time_to_answer.config import asking_for
from batchnuts.experiments.time_to_answer.judging import Judged, judge
from batchnuts.experiments.time_to_answer.registry import REGISTRY, BatchnutsOptions, PeerOptions
from batchnuts.experiments.time_to_answer.scripts.request import Request, report_of, write_request
from batchnuts.experiments.time_to_answer.search import Tried, first_draws, search
from batchnuts.experiments.time_to_answer.task import Task
from batchnuts.mcmc.model.model import Model

SCRIPTS = "batchnuts.experiments.time_to_answer.scripts"


@dataclass(frozen=True)
class Cost:
    """What a run's draws cost, as far as its sampler says so; see the columns of a Measurement."""

    gradients: float | None
    executed: float | None
    warmup: int | None
    warmup_counted: bool


class Caches:
    """A folder of what a sampler compiled for a posterior, which says what it is warm for."""

    def __init__(self, folder: Path, *, for_draws: bool, for_goal: bool = False) -> None:
        """for_draws, for_goal: it is warm only for numbers of draws, or goals, that were run."""
        self.folder = folder
        self.for_draws = for_draws
        self.for_goal = for_goal

    def empty(self) -> None:
        """Remove what was compiled, as before the first start."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mark(self, draws: int, goal: int) -> Path:
        of_draws, of_goal = f"-{draws}" if self.for_draws else "", f"-to-{goal}" if self.for_goal else ""
        return self.folder / f"ran{of_draws}{of_goal}"

    def warm(self, draws: int, goal: int) -> bool:
        """A run with as many draws to that goal finds all that it needs."""
        return self._mark(draws, goal).exists()

    def ran(self, draws: int, goal: int) -> None:
        """There was one."""
        self._mark(draws, goal).touch()

    def forget_fits(self) -> None:
        """httpstan keeps draws too, and would give those of the last run with the same seed."""
        for fits in self.folder.rglob("fits"):
            shutil.rmtree(fits, ignore_errors=True)


@dataclass(frozen=True)
class Made:
    """A run that has ended."""

    tried: Tried
    seed: int
    was_warm: bool
    judged: Judged
    cost: Cost
    load: float


@dataclass(eq=False)
class Runs:
    """The runs of one sampler on one posterior."""

    task: Task
    config: RunConfig
    model: Model
    caches: Caches
    scratch: Path
    """A folder for requests and draws."""
    made: list[Made] = field(default_factory=list)

    def run(self, draws: int, seed: int) -> Tried:
        """Make one run. Raises OverLimit, CommandFailed."""
        output = self.scratch / f"draws{REGISTRY[self.task.sampler].suffix}"
        for stale in (output, report_of(output)):
            stale.unlink(missing_ok=True)
        command = self.command(draws, seed, output)
        self.caches.folder.mkdir(parents=True, exist_ok=True)
        self.caches.forget_fits()
        was_warm, load = self.caches.warm(draws, self.task.goal), os.getloadavg()[0]
        seconds = run_timed(
            command, users_environment(self.caches.folder), self.task.limit, self.scratch / "printed.txt"
        )
        self.caches.ran(draws, self.task.goal)
        judged = judge(output, list(self.model.value_shapes))
        tried = Tried(draws, seconds, judged.ess, judged.rhat, judged.reached(self.task.goal))
        self.made.append(Made(tried, seed, was_warm, judged, self.cost(output), load))
        print(f"{self.task.sampler}, ESS {self.task.goal}, {'warm' if was_warm else 'cold'}: {tried}")
        return tried

    def command(self, draws: int, seed: int, output: Path) -> list[str]:
        """The command of a run; for ours, `draws` times as many effective draws are asked for as are wanted."""
        options, python = self.task.options, [sys.executable, "-m"]
        if REGISTRY[self.task.sampler].ours:
            rule = [f"sampler.draws={draws}"]
            if options["until"]:
                rule = asking_for(draws * self.task.goal)
            return [
                *python, "batchnuts.sample", "--config", self.task.config, *self.task.overrides, *rule,
                f"sampler.seed={seed}", f"execution.backend={options['backend']}", f"output.path={output}", "--force",
            ]  # fmt: skip
        program = stan_program_of(self.config)
        request = Request(
            model=name_of(self.config),
            options=options,
            draws=draws,
            seed=seed,
            inputs=inputs_of(self.config.model, self.model) if program is None else {},
            starts=starts_of(self.model, seed),
            output=str(output),
            program=program,
        )
        file = self.scratch / "request.json"
        write_request(file, request)
        return [*python, f"{SCRIPTS}.{REGISTRY[self.task.sampler].script}", str(file)]

    def cost(self, output: Path) -> Cost:
        """The cost of a run, as its file or a report beside it says."""
        if not REGISTRY[self.task.sampler].ours:
            report = json.loads(report_of(output).read_text(encoding="utf-8"), parse_int=float)  # as rows have them
            return Cost(warmup=self.task.options["warmup"], **report)
        import xarray

        with xarray.open_dataset(output, group="sample_stats") as stats:
            gradients, utilization = float(stats.attrs["useful_gradients"]), float(stats.attrs["utilization"])
            executed = gradients / utilization if utilization else None
            return Cost(gradients, executed, int(stats.attrs["warmup"]), warmup_counted=True)


def name_of(config: RunConfig) -> str:
    """The packaged model's; empty for a user's own, which no peer has."""
    return str(getattr(config.model, "name", ""))


def stan_program_of(config: RunConfig) -> dict[str, Any] | None:
    """The files of a user's Stan program and of its data, or these; None of another model."""
    options = config.model
    return {"code": options.stan, "data": options.data} if isinstance(options, StanOptions) else None


def starts_of(model: Model, seed: int) -> Mapping[str, Any]:
    """Values by parameter where a model brings starts of its own, as an equation may need; else none."""
    if model.initializer is None:
        return {}
    initial = model.initializer(np.random.default_rng(seed), 1)
    return {name: np.asarray(array)[0] for name, array in initial.items()} if isinstance(initial, Mapping) else {}


def prepare(task: Task) -> Runnable:
    """Find out how many draws are enough, and measure the first start. Raises Unavailable, NotReached."""
    began = time.perf_counter()
    config = task.run_config(asking_for(task.goal))
    registered = REGISTRY[task.sampler]
    model = build_model(config.model)
    check_available(task, name_of(config), is_stan_program=stan_program_of(config) is not None)
    caches = Caches(Path(task.caches), for_draws=registered.compiles_for_draws, for_goal=registered.compiles_for_goal)
    scratch = Path(task.caches).parent / f"{Path(task.caches).name}-files"
    scratch.mkdir(parents=True, exist_ok=True)
    runs = Runs(task, config, model, caches, scratch)
    options = registered.options.model_validate(task.options)
    if isinstance(options, PeerOptions):
        draws = first_draws(options.draws, options.chains, task.goal)
    else:
        assert isinstance(options, BatchnutsOptions)
        draws = 1 if options.until else options.draws
    if task.first_start:
        caches.empty()

    def attempt(draws: int) -> Tried:
        if task.first_start and registered.compiles_for_draws:
            caches.empty()
        return runs.run(draws, task.search_seed)

    tried = search(attempt, draws, task.goal)
    enough = tried[-1].draws
    first = None
    if task.first_start:
        if runs.made[-1].was_warm:
            caches.empty()
            runs.run(enough, task.search_seed)
        first = runs.made[-1].tried.seconds
    known = {"runs": len(tried), "first_seconds": first}
    return Runnable(Preparation(time.perf_counter() - began, figures=known), partial(second_start, runs, enough))


def second_start(runs: Runs, draws: int, seed: int) -> Figures:
    """A run that reaches the goal, with caches that are warm for it; `draws` of each chain were enough before."""
    goal, last = runs.task.goal, runs.made[-1]
    if last.seed != seed or not last.was_warm:
        draws = search(lambda draws: runs.run(draws, seed), draws, goal)[-1].draws
        if not runs.made[-1].was_warm:
            search(lambda draws: runs.run(draws, seed), draws, goal)
        last = runs.made[-1]
    judged, cost = last.judged, last.cost
    return {
        "seconds": last.tried.seconds,
        "chains": judged.chains,
        "draws": judged.draws,
        "ess": judged.ess,
        "ess_of": judged.ess_of,
        "rhat": judged.rhat,
        "rhat_limit": judged.rhat_limit,
        "load": last.load,
        **asdict(cost),
    }


def check_available(task: Task, model: str, *, is_stan_program: bool = False) -> None:
    """Raise Unavailable where a sampler cannot be run, or has no version of a model."""
    registered = REGISTRY[task.sampler]
    absent = [module for module in registered.needs if importlib.util.find_spec(module) is None]
    if absent:
        raise Unavailable(
            f"Sampler {task.sampler} needs {', '.join(absent)}, which is not installed. Install "
            "'batchnuts[peers]', and for nutpie and walnutpie PyMC too."
        )
    written = registered.models is None or model in registered.models
    if not written and not (is_stan_program and registered.takes_stan_programs):
        raise Unavailable(f"{registered.library} has no version of {model}: it is not written.")
