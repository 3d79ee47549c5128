"""Disasters in British coal mines, 1851 to 1962: a Gaussian process as the logarithm of a rate, in JAX.

Data: explosions in coal mines that killed ten men or more (Jarrett, "A note on the intervals between coal-mining
disasters", Biometrika 1979), counted by calendar years. Needs the extras jax and plot.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # JAX factors matrices with it; many small ones are slower on more

import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np

import batchnuts

DISASTERS = np.array(
    list(
        map(
            int,
            "45410434063340263354531441553425223421322111130010110031"
            "03220111010100021000110233112111123300014000100000100101",
        )
    )
)
"""The number of disasters in each year from 1851 on."""
YEARS = 1851 + np.arange(len(DISASTERS))
WIDTH = 4
COUNTS = DISASTERS.reshape(-1, WIDTH).sum(axis=1)
MIDDLES = YEARS.reshape(-1, WIDTH).mean(axis=1) + 0.5
SQUARES = ((MIDDLES[:, None] - MIDDLES) ** 2).astype("float32")


def log_rate(p):
    """log of disasters a year, [28]: a level, and a Gaussian process with a squared exponential kernel."""
    kernel = p["amplitude"] ** 2 * jnp.exp(-0.5 * SQUARES / p["length"] ** 2)
    jitter = 1e-4 * p["amplitude"] ** 2 + 1e-6
    lower = jnp.linalg.cholesky(kernel + jitter * jnp.eye(len(COUNTS)))
    return p["level"] + lower @ p["white"]


def log_density(p):
    """The log-density of one chain."""
    log_mean = log_rate(p) + np.log(WIDTH)
    likelihood = jnp.sum(COUNTS * log_mean - jnp.exp(log_mean))
    prior = stats.norm.logpdf(p["level"], 0, 1) + stats.norm.logpdf(p["amplitude"], 0, 1)
    prior += stats.norm.logpdf(jnp.log(p["length"]), np.log(20), 0.7) - jnp.log(p["length"])
    return likelihood + prior + jnp.sum(stats.norm.logpdf(p["white"]))


EXAMPLE = {"level": 0.0, "amplitude": 1.0, "length": 20.0, "white": np.zeros(len(COUNTS))}


def draw(path, rate):
    """Counts of years, and the rate with its 90 % band."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    low, middle, high = np.quantile(rate.reshape(-1, len(COUNTS)), [0.05, 0.5, 0.95], axis=0)
    figure, axes = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
    axes.bar(YEARS + 0.5, DISASTERS, width=0.8, color="#bbbbbb", label="disasters of a year")
    axes.fill_between(MIDDLES, low, high, color="#4477aa", alpha=0.3, linewidth=0, label="90 % interval")
    axes.plot(MIDDLES, middle, color="#4477aa", label="rate, median")
    axes.set_xlim(1851, 1963)
    axes.set_ylabel("disasters a year")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


def main(picture):
    """Sample, print what was found, and draw a picture."""
    batchnuts.use_own_threads(backend="jax")  # one for each core, as the command line does
    began = time.perf_counter()
    positive = batchnuts.positive
    model = batchnuts.Model.from_jax(
        log_density,
        EXAMPLE,
        supports={"amplitude": positive(), "length": positive()},
        generated=lambda p: {"rate": jnp.exp(log_rate(p))},
    )
    result = batchnuts.sample_chains(model, chains=64, warmup="auto", draws=100, target_acceptance=0.99, seed=1)
    seconds = time.perf_counter() - began
    posterior = result["posterior"]
    print(f"{DISASTERS.sum()} disasters in {len(DISASTERS)} years, {model.dimension} parameters")
    print(batchnuts.check(result))
    for name, unit in (("amplitude", ""), ("length", " years")):
        values = posterior[name].values
        low, high = np.quantile(values, [0.05, 0.95])
        print(f"{name}: median {np.median(values):.2f}{unit}, 90 % interval {low:.2f} to {high:.2f}")
    rate = posterior["rate"].values
    for year in (1860, 1890, 1920, 1940):
        values = rate[..., np.abs(MIDDLES - year).argmin()]
        low, high = np.quantile(values, [0.05, 0.95])
        print(f"rate in {year}: {values.mean():.2f} a year, 90 % interval {low:.2f} to {high:.2f}")
    steepest = MIDDLES[np.diff(rate, axis=-1).argmin(axis=-1)] + WIDTH / 2
    low, high = np.quantile(steepest, [0.05, 0.95])
    print(f"steepest fall: {np.median(steepest):.0f}, 90 % interval {low:.0f} to {high:.0f}")
    risen = (rate[..., np.abs(MIDDLES - 1940).argmin()] > rate[..., np.abs(MIDDLES - 1920).argmin()]).mean()
    print(f"probability that the rate of 1940 was above that of 1920: {risen:.2f}")
    print(f"time: {seconds:.0f} s from the model to the draws")
    if picture:
        draw(picture, rate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    main(parser.parse_args().picture)
