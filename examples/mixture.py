"""Velocities of galaxies: a mixture that NUTS does not sample, and how one sees that.

Data: 82 galaxies in the Corona Borealis region, in 1,000 km/s (Postman, Huchra and Geller 1986; Roeder, "Density
estimation with confidence sets exemplified by superclusters and voids in the galaxies", Journal of the American
Statistical Association 1990). Needs the extras jax and plot.
"""

import argparse
import time
from pathlib import Path

import arviz
import numpy as np
import xarray
from scipy import special, stats

import batchnuts
from batchnuts.autobatch import ops

MEASURED = (
    "9172 9350 9483 9558 9775 10227 10406 16084 16170 18419 18552 18600 18927 19052 19070 19330 19343 "
    "19349 19440 19473 19529 19541 19547 19663 19846 19856 19863 19914 19918 19973 19989 20166 20175 20179 "
    "20196 20215 20221 20415 20629 20795 20821 20846 20875 20986 21137 21492 21701 21814 21921 21960 22185 "
    "22209 22242 22249 22314 22374 22495 22746 22747 22888 22914 23206 23241 23263 23484 23538 23542 23666 "
    "23706 23711 24129 24285 24289 24366 24717 24990 25633 26690 26995 32065 32789 34279"
)
VELOCITIES = np.array(MEASURED.split(), "float32") / 1000
GRID = np.array([10.0, 20.0, 23.0, 33.0], "float32")
"""Velocities at which the density is looked at, whatever the components are called."""


def log_mixture(p, y):
    """log of the density at each of y, [n]."""
    above = (y[:, None] - p["mu"]) / p["sigma"]
    parts = ops.log(p["weight"]) - ops.log(p["sigma"]) - 0.5 * above**2
    top = ops.max(parts, axis=1)
    return top + ops.log(ops.sum(ops.exp(parts - top[:, None]), axis=1)) - 0.5 * np.log(2 * np.pi)


def log_density(p):
    """The log-density of one chain. The prior is the same for all components, so exchanging them does not change it."""
    prior = -0.5 * ops.sum(((p["mu"] - 20.0) / 10.0) ** 2) - 0.5 * ops.sum((ops.log(p["sigma"]) / 0.7) ** 2)
    return prior - ops.sum(ops.log(p["sigma"])) + ops.sum(log_mixture(p, VELOCITIES))


def starts(rng, chains):
    """Means at three of the galaxies, in any order."""
    means = rng.choice(VELOCITIES, (chains, 3)) + rng.normal(0, 0.1, (chains, 3))
    return {"mu": means, "sigma": np.full((chains, 3), 2.0), "weight": np.full((chains, 3), 1 / 3)}


def ordered_starts(rng, chains):
    """The same, in ascending order."""
    found = starts(rng, chains)
    return found | {"mu": np.sort(found["mu"], axis=1)}


def sample(means, initializer):
    """`means`: what mu is declared as."""
    model = batchnuts.Model.from_function(
        log_density,
        variables={"weight": batchnuts.simplex(3), "mu": means, "sigma": batchnuts.positive(3)},
        generated=lambda p: {"density": ops.exp(log_mixture(p, GRID))},
        initializer=initializer,
    )
    return batchnuts.sample_chains(model, chains=64, warmup=200, draws=150, seed=1)


def modes_of(posterior):
    """What each draw is in, [chains, draws].

    "apart": the cluster at 10 has a component of its own. "within": two components lie within the large cluster, and
    the third is wide and has the rest. "": something else.
    """
    mu, sigma = posterior["mu"].values, posterior["sigma"].values
    widest = sigma.argmax(axis=-1)[..., None]
    others = np.where(np.arange(3) == widest, 21, mu)
    within = (sigma.max(axis=-1) > 4) & ((others > 17) & (others < 26)).all(axis=-1) & (mu.min(axis=-1) > 12.5)
    return np.where(mu.min(axis=-1) < 12.5, "apart", np.where(within, "within", ""))


def log_evidence(posterior, mode, rng):
    """log of the integral of the density over one mode, by importance sampling from a t distribution fitted to it.

    Components are named in one way: where clusters are apart by their means, else the widest first. Also gives the
    effective sample size of the weights.
    """
    chosen, apart = modes_of(posterior) == mode, mode == "apart"
    mu, sigma, weight = (posterior[name].values[chosen].astype("float64") for name in ("mu", "sigma", "weight"))
    order = np.argsort(mu, axis=1)
    if not apart:
        widest = np.take_along_axis(sigma, order, 1).argmax(axis=1)
        front = np.arange(3) == widest[:, None]
        order = np.take_along_axis(order, np.argsort(~front, axis=1, kind="stable"), 1)
    mu, sigma, weight = (np.take_along_axis(values, order, 1) for values in (mu, sigma, weight))
    points = np.hstack([mu, np.log(sigma), np.log(weight[:, :2] / weight[:, 2:])])
    fitted = stats.multivariate_t(points.mean(axis=0), 1.5 * np.cov(points.T), df=5, seed=rng)
    found = fitted.rvs(50_000)
    mu, log_sigma = found[:, :3], found[:, 3:6]
    logits = np.hstack([found[:, 6:], np.zeros((len(found), 1))])
    log_weight = logits - special.logsumexp(logits, axis=1, keepdims=True)
    parts = log_weight[:, None] + stats.norm.logpdf(VELOCITIES[:, None], mu[:, None], np.exp(log_sigma)[:, None])
    log_prior = stats.norm.logpdf(mu, 20, 10).sum(axis=1) + stats.norm.logpdf(log_sigma, 0, 0.7).sum(axis=1)
    log_value = special.logsumexp(parts, axis=2).sum(axis=1) + log_prior + log_weight.sum(axis=1)  # with the Jacobian
    widest_first = (log_sigma.argmax(axis=1) == 0) & (mu[:, 1] < mu[:, 2])
    named = (np.diff(mu, axis=1) > 0).all(axis=1) if apart else widest_first
    drawn = {"mu": xarray.DataArray(mu), "sigma": xarray.DataArray(np.exp(log_sigma))}
    log_value[~named | (modes_of(drawn) != mode)] = -np.inf
    log_ratio = log_value - fitted.logpdf(found)
    total = special.logsumexp(log_ratio)
    return total - np.log(len(found)), np.exp(2 * total - special.logsumexp(2 * log_ratio))


def draw(path, posterior):
    """The data with the density of both modes; where each chain's mu[0] is; ranks of mu[0] in four chains."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(8.4, 2.9), layout="constrained")
    left.hist(VELOCITIES, bins=40, density=True, color="#cccccc")
    places = np.linspace(5, 38, 300)
    modes = modes_of(posterior)
    colours = {"apart": "#4477aa", "within": "#ee6677"}
    for mode, colour in colours.items():
        mu, sigma, weight = (posterior[name].values[modes == mode][::50] for name in ("mu", "sigma", "weight"))
        density = (weight[:, None] * stats.norm.pdf(places[:, None], mu[:, None], sigma[:, None])).sum(axis=2)
        left.plot(places, density.mean(axis=0), color=colour, label=mode)
    left.set_xlabel("velocity (1,000 km/s)")
    left.set_yticks([])
    left.legend(frameon=False, fontsize=7)
    low, high = np.quantile(posterior["mu"].values[..., 0], [0.05, 0.95], axis=1)
    most = np.where((modes == "apart").mean(axis=1) > 0.5, "apart", "within")
    middle.vlines(np.arange(len(low)), low, high, color=[colours[mode] for mode in most], linewidth=1.5)
    middle.set_xlabel("chain")
    middle.set_title("90 % interval of mu[0]", fontsize=8, loc="left")
    values = posterior["mu"].values[..., 0]
    ranks = stats.rankdata(values).reshape(values.shape) / values.size
    means = values.mean(axis=1)
    shown = [int(np.abs(means - place).argmin()) for place in (10, 20, 21.4, 33)]  # unlike each other
    for k, chain in enumerate(shown):
        counts, edges = np.histogram(ranks[chain], bins=20, range=(0, 1))
        right.stairs(counts / counts.max() * 0.9 + k, edges, baseline=k, fill=True, color="#777777")
        right.axhline(k, color="black", linewidth=0.5)
    right.set_yticks(range(4), [str(chain) for chain in shown])
    right.set_ylabel("chain")
    right.set_title("ranks of mu[0]; flat if mixed", fontsize=8, loc="left")
    right.set_xlabel("rank / number of draws")
    figure.savefig(path, dpi=120)


def main(picture):
    """Sample twice, print what chains found, and draw a picture."""
    batchnuts.use_own_threads(backend="jax")  # one for each core, as the command line does
    began = time.perf_counter()
    runs = {"in any order": (batchnuts.real(3), starts), "mu ascending": (batchnuts.ordered(3), ordered_starts)}
    results = {name: sample(*declared) for name, declared in runs.items()}
    seconds = time.perf_counter() - began
    for name, result in results.items():
        posterior = result["posterior"]
        print(f"--- {name}")
        print(str(batchnuts.check(result)).split("->")[0].rstrip())
        rhat = arviz.rhat(posterior)
        print("R-hat of mu:", *(f"{value:.2f}" for value in rhat["mu"].values))
        at = ", ".join(f"{value:g}" for value in GRID)
        print(f"R-hat of the density at {at}:", *(f"{value:.2f}" for value in rhat["density"].values))
        modes = modes_of(posterior)
        for mode in ("apart", "within"):
            print(f"Chains all of whose draws are in the mode {mode!r}: {(modes == mode).all(axis=1).sum()}")
        orders = {tuple(row) for row in np.argsort(posterior["mu"].values.mean(axis=1), axis=1)}
        print(f"Orders of the means among chains: {len(orders)}")
    posterior = results["in any order"]["posterior"]
    modes, rng = modes_of(posterior), np.random.default_rng(1)
    evidence = {mode: log_evidence(posterior, mode, rng) for mode in ("apart", "within")}
    odds = np.exp(evidence["apart"][0] - evidence["within"][0])
    print("--- by importance sampling within each mode")
    print(f"The mode 'apart' is {odds:.0f} times as probable as 'within'")
    print(f"Effective weights of 50000: {evidence['apart'][1]:.0f} and {evidence['within'][1]:.0f}")
    print(f"Draws of the chains in them: {(modes == 'apart').mean():.0%} and {(modes == 'within').mean():.0%}")
    print(f"time: {seconds:.0f} s for both runs")
    if picture:
        draw(picture, posterior)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    main(parser.parse_args().picture)
