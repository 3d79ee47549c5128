"""The pound against the dollar, 1981 to 1985: stochastic volatility, with a density of one's own.

Data: daily closing rates from 1 October 1981 to 28 June 1985, the series of Harvey, Ruiz and Shephard ("Multivariate
stochastic variance models", Review of Economic Studies 1994) and of Kim, Shephard and Chib ("Stochastic volatility:
likelihood inference and comparison with ARCH models", Review of Economic Studies 1998). Needs the extras jax and plot.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np

import batchnuts
from batchnuts.autobatch import ops

PAPER = {"phi": (0.978, 0.011), "sigma": (0.158, 0.031), "beta": (0.649, 0.094)}
"""Kim, Shephard and Chib, table 5."""


def read_returns():
    """Dates, and percent changes of the rate from one day to the next less their mean."""
    with open(Path(__file__).parent / "data" / "pound_dollar.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    changes = 100 * np.diff(np.log([float(row["dollars"]) for row in rows]))
    return [row["date"] for row in rows][1:], changes - changes.mean()


DATES, RETURNS = read_returns()
DAYS = len(RETURNS)


def log_variance(p):
    """h_t = mu + phi (h_{t-1} - mu) + sigma z_t of all days, in log2(days) steps on whole vectors."""
    h = ops.concatenate([(p["h_1"] - p["mu"])[None], p["sigma"] * p["z"]])
    shift, power = 1, p["phi"]
    while shift < DAYS:  # after n steps each day has the innovations of the 2^n days up to it
        h = h + power * ops.concatenate([ops.zeros_like(h[:shift]), h[:-shift]])
        shift, power = 2 * shift, power * power
    return p["mu"] + h


def log_density(p):
    """The log-density of one chain: a return has the standard deviation exp(h / 2)."""
    h = log_variance(p)
    likelihood = -0.5 * ops.sum(h + RETURNS.astype("float32") ** 2 * ops.exp(-h))
    persistence = 19.0 * ops.log(1 + p["phi"]) + 0.5 * ops.log(1 - p["phi"])  # (phi + 1) / 2 ~ beta(20, 1.5)
    prior = persistence - 0.5 * (p["mu"] / 5) ** 2 - 0.5 * (p["sigma"] / 0.5) ** 2 - 0.5 * ops.sum(p["z"] ** 2)
    variance = p["sigma"] ** 2 / ((1 - p["phi"]) * (1 + p["phi"]))  # of h where it is stationary
    return likelihood + prior - 0.5 * ops.log(variance) - 0.5 * (p["h_1"] - p["mu"]) ** 2 / variance


def starts(rng, chains):
    """Volatile and calm, persistent and less so; innovations small, as long as nothing is known of them."""
    return {
        "mu": rng.normal(-1, 1, chains),
        "phi": rng.uniform(0.7, 0.99, chains),
        "sigma": rng.uniform(0.05, 0.5, chains),
        "h_1": rng.normal(-1, 1, chains),
        "z": 0.3 * rng.normal(size=(chains, DAYS - 1)),
    }


def draw(path, volatility):
    """Returns, and the daily volatility with its 90 % band."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    low, middle, high = np.quantile(volatility.reshape(-1, DAYS)[::8], [0.05, 0.5, 0.95], axis=0)
    days = np.array(DATES, dtype="datetime64[D]")
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.2, 3.6), sharex=True, layout="constrained")
    above.vlines(days, 0, RETURNS, color="#777777", linewidth=0.6)
    above.set_ylabel("return (%)")
    below.fill_between(days, low, high, color="#4477aa", alpha=0.3, linewidth=0)
    below.plot(days, middle, color="#4477aa", linewidth=1)
    below.set_ylim(0)
    below.set_ylabel("volatility (% a day)")
    figure.savefig(path, dpi=120)


def main(picture):
    """Sample, print what was found, and draw a picture."""
    batchnuts.use_own_threads(backend="jax")  # one for each core, as the command line does
    began = time.perf_counter()
    model = batchnuts.Model.from_function(
        log_density,
        variables={
            "mu": batchnuts.real(),
            "phi": batchnuts.interval(-1, 1),
            "sigma": batchnuts.positive(),
            "h_1": batchnuts.real(),
            "z": batchnuts.real(DAYS - 1),
        },
        generated=lambda p: {"beta": ops.exp(0.5 * p["mu"]), "volatility": ops.exp(0.5 * log_variance(p))},
        dims={"volatility": ["day"]},
        coords={"day": DATES},
        initializer=starts,
    )
    result = batchnuts.sample_chains(model, chains=64, warmup="auto", draws=100, target_acceptance=0.9, seed=1)
    seconds = time.perf_counter() - began
    posterior = result["posterior"]
    print(f"{DAYS} returns, {model.dimension} parameters")
    print(batchnuts.check(result))
    steps = result["sample_stats"]["n_steps"].values
    print(f"Gradients of a transition: {np.median(steps):.0f} in the median, {steps.max()} at most")
    print("           mean ± sd       Kim, Shephard and Chib")
    for name, (estimate, error) in PAPER.items():
        values = posterior[name].values
        print(f"{name:8} {values.mean():6.3f} ± {values.std():.3f}   {estimate:.3f} ± {error:.3f}")
    volatility = posterior["volatility"].values
    means = volatility.mean(axis=(0, 1))
    for word, day in (("calmest", means.argmin()), ("wildest", means.argmax())):
        low, high = np.quantile(volatility[..., day], [0.05, 0.95])
        print(f"{word} day: {DATES[day]}, volatility {means[day]:.2f} % (90 % interval {low:.2f} to {high:.2f})")
    print(f"time: {seconds:.0f} s from the model to the draws")
    if picture:
        draw(picture, volatility)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    main(parser.parse_args().picture)
