"""Radon in the houses of Minnesota: a hierarchical regression in PyMC, with partial pooling of 85 counties.

Data: 919 houses of the State Residential Radon Survey of the US Environmental Protection Agency, with the county's
uranium in the soil, as in Gelman and Hill, "Data Analysis Using Regression and Multilevel/Hierarchical Models" (2007),
chapter 12. Needs the extras pymc and plot.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import pymc as pm

import batchnuts

BOOK = {
    "intercept": (1.47, 0.04),
    "uranium": (0.72, 0.09),
    "floor": (-0.67, 0.07),
    "tau": (0.16, None),
    "sigma": (0.76, None),
}
"""Estimates and standard errors by lmer (Gelman and Hill, section 12.6)."""


def read_houses():
    """The survey: counties' names, each house's county, floor and log radon, and each county's log uranium."""
    with open(Path(__file__).parent / "data" / "radon.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names, county = np.unique([row["county"] for row in rows], return_inverse=True)
    floor = np.array([float(row["floor"]) for row in rows])
    level = np.log([float(row["radon"]) for row in rows])
    uranium = np.zeros(len(names))
    uranium[county] = [float(row["log_uranium"]) for row in rows]
    return names, county, floor, level, uranium


NAMES, COUNTY, FLOOR, LEVEL, URANIUM = read_houses()

with pm.Model(coords={"county": NAMES}) as radon:
    intercept = pm.Normal("intercept", 0, 2)
    uranium = pm.Normal("uranium", 0, 2)
    floor = pm.Normal("floor", 0, 2)
    tau = pm.HalfNormal("tau", 1)
    sigma = pm.HalfNormal("sigma", 1)
    eta = pm.Normal("eta", 0, 1, dims="county")
    alpha = pm.Deterministic("alpha", intercept + uranium * URANIUM + tau * eta, dims="county")
    pm.Normal("level", alpha[COUNTY] + floor * FLOOR, sigma, observed=LEVEL)


def draw(path, houses, alone, alone_error, alpha):
    """Each county's intercept above what its uranium lets expect, by its number of houses."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.2), sharex=True, sharey=True, layout="constrained")
    places = houses * np.exp(np.random.default_rng(0).uniform(-0.06, 0.06, len(houses)))  # apart where counts are equal
    pooled = alpha.mean(axis=(0, 1)), alpha.std(axis=(0, 1))
    titles = ("each county alone", "partial pooling, with uranium")
    for axes, title, (mean, error), colour in zip(
        panels, titles, ((alone, alone_error), pooled), ("#ee6677", "#4477aa")
    ):
        axes.errorbar(places, mean, error, fmt=".", markersize=4, linewidth=0.8, color=colour)
        axes.set_xscale("log")
        axes.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("houses measured in the county")
    panels[0].set_ylabel("log radon in a basement\n(estimate ± 1 sd)")
    figure.savefig(path, dpi=130)


def main(picture):
    """Sample, print what was found, and draw a picture."""
    batchnuts.use_own_threads(backend="jax")  # one for each core, as the command line does
    began = time.perf_counter()
    model = batchnuts.Model.from_pymc(radon, dtype="float32")
    result = batchnuts.sample_chains(model, chains=64, warmup="auto", draws=200, seed=1)
    seconds = time.perf_counter() - began
    posterior = result["posterior"]
    print(f"{len(LEVEL)} houses in {len(NAMES)} counties, {model.dimension} parameters")
    print(batchnuts.check(result))
    print("           mean ± sd        Gelman and Hill")
    for name, (estimate, error) in BOOK.items():
        values = posterior[name].values
        given = f"{estimate:5.2f}" + (f" ± {error:.2f}" if error else "")
        print(f"{name:10} {values.mean():5.2f} ± {values.std():.2f}     {given}")

    alpha = posterior["alpha"].values
    houses = np.bincount(COUNTY)
    # Each county alone: the mean of its houses, those on a first floor brought to the basement, with the same sigma.
    shift, spread = posterior["floor"].values.mean(), posterior["sigma"].values.mean()
    alone = np.bincount(COUNTY, LEVEL - shift * FLOOR) / houses
    alone_error = spread / np.sqrt(houses)
    print("county             houses  alone ± sd    pooled ± sd")
    for name in ("St Louis", "Hennepin", "Lac Qui Parle", "Wilkin"):
        k = list(NAMES).index(name)
        pooled = alpha[..., k]
        own = f"{alone[k]:.2f} ± {alone_error[k]:.2f}"
        print(f"{name:18} {houses[k]:6}   {own}   {pooled.mean():.2f} ± {pooled.std():.2f}")
    print(f"time: {seconds:.0f} s from the model to the draws")
    if picture:
        draw(picture, houses, alone, alone_error, alpha)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    main(parser.parse_args().picture)
