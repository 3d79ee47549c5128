"""Gradients and seconds until the moments of thousands of chains are right: our starts, LAPS, MEADS and ChEES.

    python docs/results/many_chain_samplers.py TARGET SAMPLER [--chains 4096] [--steps N] [--german-credit FILE]
        [--once]

TARGET: german_credit_sparse, brownian_motion, item_response, stochastic_volatility, funnel, rosenbrock: of the
Inference Gym, but for the last, in JAX and float32. SAMPLER: ensemble and windows (ours, and DRAWS draws), laps,
meads, chees (BlackJAX). Every sampler begins at uniform positions on (-2, 2) in unconstrained space.

What is measured is the squared error of E[x^2] over Var[x^2], of the positions of all chains at one time: over all
coordinates the largest and the mean, as the paper on LAPS does (BlackJAX's LAPS takes as many observables as there are
coordinates, so not first moments too). The result is one line of JSON: after
how many gradients of each chain the largest was below 0.01 and stayed there, the same of the mean, how many the sampler
took in all, the seconds of a second run in the same process, and the share of these until the largest error was there,
by gradients. The truth is exact (funnel, rosenbrock), from the Gym (item_response), or from a long
run of ours, which is made where TARGET.truth.npz is missing in the folder of --truth.

german_credit_sparse needs the UCI file german.data-numeric. --once: of ours and LAPS one run alone, whose seconds have
the compilation in them.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

Density = Callable[[Any], Any]
LIMIT = 0.01
DRAWS = 20


def rosenbrock(x: Any) -> Any:
    """18 pairs: x ~ N(1, 1), y ~ N(x^2, 0.1)."""
    first, second = x[:18], x[18:]
    return -0.5 * jnp.sum((first - 1.0) ** 2) - 0.5 * jnp.sum((second - first**2) ** 2) / 0.1


def import_gym() -> Any:
    """The Inference Gym's targets in JAX: its TensorFlow Probability 0.25 looks for a table that JAX 0.10 moved."""
    import jax.interpreters.xla as xla
    from jax._src import core

    if not hasattr(xla, "pytype_aval_mappings"):
        xla.pytype_aval_mappings = core.pytype_aval_mappings  # type: ignore[attr-defined]
    import inference_gym.using_jax as gym

    return gym


def of_gym(target: Any) -> tuple[Density, int]:
    """The unconstrained density of a target, and its dimension."""
    gym = import_gym()
    vector = gym.targets.VectorModel(target)
    bijector = vector.default_event_space_bijector

    def density(x: Any) -> Any:
        return vector.unnormalized_log_prob(bijector.forward(x)) + bijector.forward_log_det_jacobian(x, event_ndims=1)

    return density, int(bijector.inverse_event_shape(vector.event_shape)[0])


def density_of(name: str, german_credit: Path) -> tuple[Density, int]:
    """The target's log-density, and its dimension."""
    if name == "rosenbrock":
        return rosenbrock, 36
    gym = import_gym()
    if name == "german_credit_sparse":
        rows = [re.findall(r"-?\d+", line) for line in german_credit.read_text().splitlines()]
        table = np.array([row for row in rows if len(row) == 25], np.float32)
        assert table.shape == (1000, 25), table.shape
        features = (table[:, :-1] - table[:, :-1].mean(axis=0)) / table[:, :-1].std(axis=0)
        labels = (table[:, -1] - 1).astype(np.int32)
        return of_gym(gym.targets.SparseLogisticRegression(jnp.asarray(features), jnp.asarray(labels)))
    makers = {
        "brownian_motion": gym.targets.BrownianMotionUnknownScalesMissingMiddleObservations,
        "item_response": gym.targets.SyntheticItemResponseTheory,
        "stochastic_volatility": gym.targets.VectorizedStochasticVolatilitySP500Small,
        "funnel": gym.targets.NealsFunnel,
    }
    return of_gym(makers[name]())


def observables(x: Any) -> Any:
    """Of one position: the squares of its coordinates."""
    return x**2


class Truth:
    """Moments E x, Var x, E x^2, Var x^2, [4, dimension]."""

    def __init__(self, moments: np.ndarray) -> None:
        self.moments = np.asarray(moments)

    @classmethod
    def of_draws(cls, draws: np.ndarray) -> Truth:
        """Of draws [n, dimension]."""
        x = draws.astype(np.float64)
        return cls(np.stack([x.mean(axis=0), x.var(axis=0), (x**2).mean(axis=0), (x**2).var(axis=0)]))

    def errors(self, observed: Any) -> Any:
        """The largest and the mean squared error of the means of `observables`."""
        _, _, mean, variance = self.moments
        errors = (observed - mean) ** 2 / variance
        return jnp.stack([errors.max(), errors.mean()])

    def of_positions(self, position: Any) -> np.ndarray:
        """Of positions [chains, dimension]."""
        x = np.asarray(position, np.float64)
        return np.asarray(self.errors((x**2).mean(axis=0)))


def of_ground_truth() -> Truth:
    """Of the item response model, whose parameters are real: the Gym's means and standard deviations of a long run of
    Stan, and the moments of a normal distribution with these, as its 501 posteriors nearly are."""
    gym = import_gym()
    target = gym.targets.SyntheticItemResponseTheory()
    place = gym.targets.VectorModel(target).sample_transformations["identity"](jnp.arange(501))
    known = target.sample_transformations["identity"]
    mean, variance = np.zeros(501), np.zeros(501)
    for name, numbers in place.items():
        mean[np.asarray(numbers, int)] = known.ground_truth_mean[name]
        variance[np.asarray(numbers, int)] = np.asarray(known.ground_truth_standard_deviation[name]) ** 2
    square = mean**2 + variance
    return Truth(np.stack([mean, variance, square, 2 * variance**2 + 4 * mean**2 * variance]))


def truth_of(name: str, density: Density, dimension: int, folder: Path) -> Truth:
    """Exact draws, or a long run of ours by windows."""
    rng = np.random.default_rng(0)
    if name == "rosenbrock":
        first = 1.0 + rng.normal(size=(4_000_000, 1))
        x = np.concatenate([first, first**2 + np.sqrt(0.1) * rng.normal(size=first.shape)], axis=1)
        return Truth(np.repeat(Truth.of_draws(x).moments, 18, axis=1))
    if name == "funnel":
        v = 3.0 * rng.normal(size=(4_000_000, 1))
        exact = Truth.of_draws(v).moments
        square = float(np.exp(4.5))  # of x = exp(v/2) z: E exp(v); Var x^2 = 3 E exp(2 v) - (E exp v)^2
        x = [0.0, square, square, 3 * float(np.exp(18.0)) - square**2]
        return Truth(np.column_stack([exact[:, 0], *[x] * 9]))
    if name == "item_response":
        return of_ground_truth()
    file = folder / f"{name}.truth.npz"
    if not file.is_file():
        settings = {"start": "windows", "target_acceptance": 0.95, "warmup": 500, "metric": "low_rank"}
        draws = our_run(density, dimension, chains=256, draws=1500, **settings)
        np.savez(file, moments=Truth.of_draws(draws.position.reshape(-1, dimension)).moments)
    with np.load(file) as there:
        return Truth(there["moments"])


def our_run(density: Density, dimension: int, **settings: Any) -> Any:
    """Draws of ours, on the default engine."""
    from batchnuts.mcmc.model.model import Model
    from batchnuts.mcmc.run.sampling import run_chains
    from batchnuts.mcmc.settings.run_settings import split_settings

    if not hasattr(our_run, "model"):
        our_run.model = Model.from_function(density, dimension=dimension, dtype="float32")  # type: ignore[attr-defined]
    return run_chains(our_run.model, *split_settings(settings))  # type: ignore[attr-defined]


Path_ = list[tuple[float, np.ndarray]]
"""Gradients of each chain so far, and errors there."""


def ours(
    density: Density, dimension: int, truth: Truth, chains: int, start: str, steps: int, once: bool
) -> tuple[Path_, float]:
    """The path of the errors, and the seconds of a run with DRAWS draws; `steps` is not used."""
    from batchnuts.mcmc.warmup import phase
    from batchnuts.mcmc.warmup.place import InWarmup

    along: Path_ = []
    after_call = phase.after_call

    def seen(run: Any, burn_in: Any) -> Any:
        after = after_call(run, burn_in)
        along.append((after.ensemble.done, truth.of_positions(after.ensemble.position)))
        return after

    settings = {"chains": chains, "draws": DRAWS, "start": start}
    windows: list[tuple[int, np.ndarray]] = []
    after_window = InWarmup.after

    def noted(self: InWarmup, *arguments: Any) -> InWarmup:
        place = after_window(self, *arguments)
        windows.append((place.states.transitions_done, truth.of_positions(place.states.position)))
        return place

    def timed() -> tuple[Any, float]:
        began = time.perf_counter()
        return our_run(density, dimension, **settings, seed=1), time.perf_counter() - began

    if not once:
        our_run(density, dimension, **settings)
        _, seconds = timed()
    phase.after_call = seen
    InWarmup.after = noted  # type: ignore[method-assign]
    draws, seconds_noted = timed()
    seconds = seconds_noted if once else seconds
    columns = draws.history.columns
    warmup = float(columns["useful_gradients"][columns["phase"] == "warmup"][-1]) / chains
    made = warmup + np.cumsum(draws.stats["n_steps"].mean(axis=0))
    of_warmup = columns["phase"] == "warmup"
    transitions, spent = (columns[name][of_warmup] / chains for name in ("transitions", "useful_gradients"))
    along += [(float(np.interp(count, transitions, spent)), errors) for count, errors in windows]
    along += [(float(count), truth.of_positions(draws.position[:, k])) for k, count in enumerate(made)]
    return along, seconds


def laps(
    density: Density, dimension: int, truth: Truth, chains: int, start: str, steps: int, once: bool
) -> tuple[Path_, float]:
    """LAPS with its defaults; steps: of its first phase, at most, and adjusted transitions of its second."""
    from blackjax.adaptation.laps import laps as run_laps

    mesh = jax.sharding.Mesh(np.array(jax.devices()), "chains")

    def run(seed: int) -> Any:
        return run_laps(
            logdensity_fn=density,
            sample_init=lambda key: jax.random.uniform(key, (dimension,), minval=-2.0, maxval=2.0),
            ndims=dimension,
            num_steps1=steps,
            num_steps2=steps,
            num_chains=chains,
            mesh=mesh,
            rng_key=jax.random.key(seed),
            observables_for_bias=observables,
            contract=truth.errors,
        )

    if not once:
        run(0)
    began = time.perf_counter()
    info, gradients_of_step, _, state = run(1)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - began
    history1, history2 = info["phase_1"], info["phase_2"]
    count = len(history1["bias"])
    along: Path_ = [(i + 1, np.asarray(e)) for i, e in enumerate(np.asarray(history1["bias"])[:count])]
    per_sample = gradients_of_step * int(np.asarray(history2["steps_per_sample"]).ravel()[0])
    along += [(count + (i + 1) * per_sample, np.asarray(e)) for i, e in enumerate(np.asarray(history2["bias"]))]
    return along, seconds


def adaptation(
    density: Density, truth: Truth, chains: int, dimension: int, kind: str, steps: int
) -> tuple[Path_, float]:
    """The adaptation of MEADS or ChEES, as many steps as that: errors after each."""
    import blackjax
    import optax

    def kept(state: Any, info: Any, _: Any) -> Any:
        x = state.position
        made = getattr(info, "num_integration_steps", jnp.ones(()))
        return truth.errors(jax.vmap(observables)(x).mean(axis=0)), jnp.mean(made)

    if kind == "chees":
        warmup = blackjax.chees_adaptation(density, num_chains=chains, adaptation_info_fn=kept)
        more: tuple[Any, ...] = (0.1, optax.adam(0.02), steps)
    else:
        warmup = blackjax.meads_adaptation(density, num_chains=chains, adaptation_info_fn=kept)
        more = (steps,)
    start = jax.random.uniform(jax.random.key(2), (chains, dimension), minval=-2.0, maxval=2.0)
    warmup.run(jax.random.key(0), start, *more)
    began = time.perf_counter()
    result, info = warmup.run(jax.random.key(1), start, *more)
    jax.block_until_ready(result.state)
    seconds = time.perf_counter() - began
    info = getattr(info, "_wrapped_info", info)
    errors, made = (np.asarray(each) for each in info)
    return list(zip(np.cumsum(made), errors, strict=True)), seconds


def reached(along: Path_, which: int) -> float | None:
    """After how many gradients an error (0: the largest, 1: the mean) was below LIMIT, and stayed there."""
    below = [gradients for gradients, error in along if error[which] < LIMIT]
    above = [gradients for gradients, error in along if not error[which] < LIMIT]
    last = max(above, default=0.0)
    return min((gradients for gradients in below if gradients > last), default=None)


def main() -> None:
    """Measure one sampler on one target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("sampler", choices=["ensemble", "windows", "laps", "meads", "chees", "truth"])
    parser.add_argument("--chains", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--german-credit", type=Path, default=Path("german.data-numeric"))
    parser.add_argument("--truth", type=Path, default=Path())
    parser.add_argument("--once", action="store_true")
    asked = parser.parse_args()
    density, dimension = density_of(asked.target, asked.german_credit)
    truth = truth_of(asked.target, density, dimension, asked.truth)
    if asked.sampler == "truth":
        return
    common = density, dimension, truth, asked.chains, asked.sampler, asked.steps
    if asked.sampler in ("ensemble", "windows"):
        along, seconds = ours(*common, asked.once)
    elif asked.sampler == "laps":
        along, seconds = laps(*common, asked.once)
    else:
        along, seconds = adaptation(density, truth, asked.chains, dimension, asked.sampler, asked.steps)
    total = float(along[-1][0])
    largest, mean = (reached(along, which) for which in (0, 1))
    print(
        json.dumps(
            {
                "target": asked.target,
                "dimension": dimension,
                "sampler": asked.sampler,
                "chains": asked.chains,
                "largest": None if largest is None else float(largest),
                "mean": None if mean is None else float(mean),
                "gradients": total,
                "seconds": round(seconds, 3),
                "seconds_until_largest": None if largest is None else round(seconds * float(largest) / total, 3),
                "last_errors": [float(f"{e:.3g}") for e in along[-1][1]],
            }
        )
    )


if __name__ == "__main__":
    main()
