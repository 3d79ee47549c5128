"""Stan through PyStan 3, in float64 whatever the problem's dtype, on the CPU, one leapfrog per leaf.

PyStan has one sampler, which adapts, and its first step size comes from a search. Three of its arguments undo that:

- `stepsize` above 1e7 skips the search (`base_hmc::init_stepsize`);
- `num_warmup=1`: one transition at that step size. It diverges in its first leapfrog, so its acceptance statistic is 0
  and the chain stays where it starts. With fewer than 20 warmup transitions the metric stays the identity;
- `gamma`: warmup ends with the step size exp(mu - h / gamma), where mu = log(10 stepsize) and h = delta / (1 + t0)
  after one transition with statistic 0 (Hoffman and Gelman 2014, Algorithm 6). So gamma can be chosen to end at any.

`stepsize__` of every run is compared with what was asked.

A run is timed as a user waits for it: PyStan starts an HTTP server in this process, sends it the data as JSON once per
chain, and polls it every 0.05 s. That is most of a short run: of the 1.8 s of a chain of 5 transitions on 10,000 x 100
data, Stan sampled for 0.16 s; of the 4.7 s of one of 100 transitions, for 3.2 s (2 cores, 31 leapfrogs a transition).
Stan reports its own sampling time, to 1 ms, in the messages `Elapsed Time` of `fit.stan_outputs`. A fit with a seed is
kept on disk and read back when asked for again; those of the program are deleted before each run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from batchnuts.experiments.samplers.jax_densities import missing
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import StanOptions
from batchnuts.experiments.samplers.stan_programs import program
from batchnuts.experiments.samplers.task import Outcome, Prepared, Task, require_plain

# Of warmup's one transition; see the module's docstring. The search is skipped above 1e7.
WARMUP_STEP_SIZE = 1e8
DELTA = 0.8
T0 = 10.0


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare Stan. Compiles the program, or finds it in httpstan's cache; needs a C++ compiler."""
    options = StanOptions.model_validate(task.options)
    require_plain("stan", task)
    try:
        import stan
    except ImportError as error:
        raise missing("stan", "pystan") from error
    source = program(problem)
    with _silence():
        model = stan.build(source.code, source.data)
    arguments = {
        "num_warmup": 1,
        "num_samples": task.transitions,
        "stepsize": WARMUP_STEP_SIZE,
        "delta": DELTA,
        "t0": T0,
        "gamma": DELTA / (1 + T0) / math.log(10 * WARMUP_STEP_SIZE / task.step_size),
        "max_depth": task.max_tree_depth,
    }

    def lay_out(seed: int) -> Callable[[], Outcome]:
        starts = [{"position": start.tolist()} for start in problem.starts(task.start, task.chains, seed)]
        groups = range(0, task.chains, options.processes)
        seeds = np.random.SeedSequence(seed).generate_state(len(groups)) % 2**31  # Stan's seeds are C++ ints
        return partial(run, [(int(key), starts[i : i + options.processes]) for i, key in zip(groups, seeds)])

    def run(groups: list[tuple[int, list[dict[str, list[float]]]]]) -> Outcome:
        _forget_fits(model.model_name)
        draws, leapfrogs = [], []
        for seed, starts in groups:
            with _silence():
                seeded = dataclasses.replace(model, random_seed=seed)
                fit = seeded.sample(num_chains=len(starts), init=starts, **arguments)
            step_sizes = fit["stepsize__"]
            if not np.allclose(step_sizes, task.step_size, rtol=1e-9, atol=0):
                raise AssertionError(
                    f"Stan's step size was {step_sizes.min()} to {step_sizes.max()}, asked {task.step_size}"
                )
            # [..., transitions * chains], the chain's index running faster
            leapfrogs.append(fit["n_leapfrog__"].reshape(task.transitions, len(starts)).T.astype("int64"))
            draws.append(fit["position"].reshape(problem.dimension, task.transitions, len(starts)).T)
        return Outcome(
            leapfrogs=np.concatenate(leapfrogs),
            executed_gradients=None,
            draws=np.concatenate(draws) if task.measure_ess else None,
        )

    return lay_out


def _forget_fits(model_name: str) -> None:
    """Delete the program's fits from httpstan's cache, so that a seed used before is sampled, not read back."""
    import httpstan.cache

    shutil.rmtree(httpstan.cache.fit_path(f"{model_name}/fits/any").parent, ignore_errors=True)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep PyStan's progress, Stan's messages and the compiler's warnings off the terminal.

    They become a note of the exception where something fails. The compiler writes to the process' own streams.
    """
    with contextlib.ExitStack() as stack:
        captured = stack.enter_context(tempfile.TemporaryFile("w+"))
        for stream in (1, 2):
            terminal = os.dup(stream)
            stack.callback(os.close, terminal)
            os.dup2(captured.fileno(), stream)
            stack.callback(os.dup2, terminal, stream)
        stack.enter_context(contextlib.redirect_stdout(captured))
        stack.enter_context(contextlib.redirect_stderr(captured))
        try:
            yield
        except Exception as error:
            captured.seek(0)
            error.add_note(captured.read())
            raise
