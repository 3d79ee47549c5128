"""Hares and lynxes, 1900 to 1920: a differential equation, from the models that come with batchnuts.

Data: pelts that the Hudson's Bay Company collected. Model: Carpenter, "Predator-prey population dynamics: the
Lotka-Volterra model in Stan" (2018). Needs the extras jax and plot.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import batchnuts
from batchnuts.models import REGISTRY, build

STAN = {
    "alpha": (0.55, 0.07),
    "beta": (0.028, 0.004),
    "gamma": (0.80, 0.10),
    "delta": (0.024, 0.004),
    "sigma[hare]": (0.25, 0.05),
    "sigma[lynx]": (0.25, 0.05),
    "start[hare]": (33.9, 2.9),
    "start[lynx]": (5.9, 0.5),
}
"""Means and standard deviations in Carpenter's case study."""


def draw(path, pelts, predicted):
    """The pelts, and the 90 % band of what the model predicts for each year."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    years = pelts["year"].values
    figure, panels = plt.subplots(2, 1, figsize=(7.2, 3.6), sharex=True, layout="constrained")
    for axes, species, colour in zip(panels, ("hare", "lynx"), ("#4477aa", "#ee6677")):
        values = predicted.sel(species=species).values.reshape(-1, len(years))
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
        axes.fill_between(years, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(years, middle, color=colour, linewidth=1)
        axes.plot(years, pelts.sel(species=species), "k.", markersize=5)
        axes.set_ylabel(f"{species} pelts (thousands)")
        axes.set_ylim(0)
    panels[1].set_xticks(years[::5])
    figure.savefig(path, dpi=120)


def main(picture):
    """Sample until enough is known, print what was found, and draw a picture."""
    batchnuts.use_own_threads(backend="jax")  # one for each core, as the command line does
    began = time.perf_counter()
    model = build(REGISTRY["lotka_volterra"].options(name="lotka_volterra"))
    until = {"ess_bulk": 1000, "ess_tail": 1000, "rhat": 1.01}
    result = batchnuts.sample_chains(model, chains=64, warmup="auto", draws=1000, until=until, seed=1)
    seconds = time.perf_counter() - began
    posterior, pelts = result["posterior"], result["observed_data"]["pelts"]
    print(f"{pelts.size} numbers of pelts, {model.dimension} parameters")
    print(batchnuts.check(result))
    print("               mean ± sd       Stan")
    for name, (estimate, error) in STAN.items():
        variable, _, species = name.rstrip("]").partition("[")
        values = (posterior[variable].sel(species=species) if species else posterior[variable]).values
        digits = 3 if estimate < 0.1 else 1 if estimate > 2 else 2
        print(f"{name:12} {values.mean():7.{digits}f} ± {values.std():.{digits}f}   {estimate} ± {error}")
    predicted = result["posterior_predictive"]["pelts"]
    low, high = np.quantile(predicted.values, [0.05, 0.95], axis=(0, 1))
    inside = int(((pelts.values >= low) & (pelts.values <= high)).sum())
    print(f"{inside} of {pelts.size} numbers lie within the 90 % intervals predicted for them")
    print(f"time: {seconds:.0f} s from the model to the draws")
    if picture:
        draw(picture, pelts, predicted)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    main(parser.parse_args().picture)
