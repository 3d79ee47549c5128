"""Do levels of radon have heavy tails? Adaptive quadrature for thousands of lanes: recursion that is no sampler.

The counties' intercepts of the radon model are integrated out, county by county, for a grid of models whose noise has
Student's t distribution. Data: see radon.py. Needs the extras jax and plot.
"""

import argparse
import csv
import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import integrate as scipy_integrate
from scipy.special import gammaln

from batchnuts import autobatch
from batchnuts.autobatch import ops

INTERCEPT, URANIUM, FLOOR = 1.46, 0.72, -0.67
"""As radon.py finds them."""
NU, SIGMA, TAU = (2.0, 4.0, 8.0, 16.0, 64.0), (0.55, 0.6, 0.65, 0.7, 0.75, 0.8), (0.1, 0.15, 0.2, 0.25)
"""Degrees of freedom, scale of the noise, standard deviation of counties: all combinations."""
TOLERANCE = 1e-4
"""The absolute tolerance of an integral; the integrand is about 1 at its top."""


class Lane(NamedTuple):
    """One county under one model."""

    y: Any  # [houses, padded] log radon less the effect of the floor
    measured: Any  # [houses, padded] 1 where there is a house
    mean: Any  # what the county's uranium lets expect
    nu: Any
    sigma: Any
    tau: Any


def log_density(alpha, lane):
    """log of likelihood times prior of a county's intercept, without constants."""
    away = (lane.y - alpha) / lane.sigma
    tails = ops.sum(lane.measured * ops.log1p(away * away / lane.nu))
    return -0.5 * (lane.nu + 1.0) * tails - 0.5 * ((alpha - lane.mean) / lane.tau) ** 2


@autobatch.primitive(costly=True)
def integrand(alpha, top, lane):
    """The density relative to its value `top` near the maximum."""
    return ops.exp(log_density(alpha, lane) - top)


@autobatch.batch
def integrate(a, b, at_a, at_middle, at_b, tolerance, halvings, top, lane):
    """The integral from a to b and the number of evaluations, by Simpson's rule.

    Two estimates that agree may agree by chance where points are few: so intervals are halved `halvings` times anyway.
    """
    middle = 0.5 * (a + b)
    at_left = integrand(0.5 * (a + middle), top, lane)
    at_right = integrand(0.5 * (middle + b), top, lane)
    coarse = (b - a) / 6.0 * (at_a + 4.0 * at_middle + at_b)
    left = (middle - a) / 6.0 * (at_a + 4.0 * at_left + at_middle)
    right = (b - middle) / 6.0 * (at_middle + 4.0 * at_right + at_b)
    if halvings <= 0 and abs(left + right - coarse) < 15.0 * tolerance:
        return left + right, 2
    first, used = integrate(a, middle, at_a, at_left, at_middle, 0.5 * tolerance, halvings - 1, top, lane)
    second, used_too = integrate(middle, b, at_middle, at_right, at_b, 0.5 * tolerance, halvings - 1, top, lane)
    return first + second, used + used_too + 2


@autobatch.batch
def log_evidence(lane):
    """log of the integral over the intercept, and evaluations."""
    information = ops.sum(lane.measured) / lane.sigma**2
    center = (ops.sum(lane.measured * lane.y) / lane.sigma**2 + lane.mean / lane.tau**2) / (
        information + 1.0 / lane.tau**2
    )
    top = log_density(center, lane)
    a, b = center - 8.0 * lane.tau, center + 8.0 * lane.tau
    at_a, at_b = integrand(a, top, lane), integrand(b, top, lane)
    total, used = integrate(a, b, at_a, 1.0 + 0.0 * a, at_b, TOLERANCE, 3, top, lane)
    return ops.log(total) + top, used + 2


def read_lanes():
    """All counties under all models, models first; and each lane's number of houses."""
    with open(Path(__file__).parent / "data" / "radon.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    counties = {}
    for row in rows:
        found = counties.setdefault(row["county"], (INTERCEPT + URANIUM * float(row["log_uranium"]), []))
        found[1].append(np.log(float(row["radon"])) - FLOOR * float(row["floor"]))
    most = max(len(levels) for _, levels in counties.values())
    y, measured = np.zeros((2, len(counties), most), "float32")
    for k, (_, levels) in enumerate(counties.values()):
        y[k, : len(levels)], measured[k, : len(levels)] = levels, 1
    models = np.array(list(itertools.product(NU, SIGMA, TAU)), "float32")
    mean = np.array([mean for mean, _ in counties.values()], "float32")
    tile, repeat = len(models), len(counties)
    lanes = Lane(
        np.tile(y, (tile, 1)), np.tile(measured, (tile, 1)), np.tile(mean, tile), *np.repeat(models, repeat, axis=0).T
    )
    return models, lanes, measured.sum(axis=1)


def pick(lanes, which):
    """Some of the lanes."""
    return Lane(*(field[which] for field in lanes))


def by_scipy(lane):
    """The same integral by QUADPACK."""
    information = lane.measured.sum() / lane.sigma**2 + 1 / lane.tau**2
    center = ((lane.measured * lane.y).sum() / lane.sigma**2 + lane.mean / lane.tau**2) / information
    top = log_density(center, lane)
    ends = center - 8 * lane.tau, center + 8 * lane.tau
    found, _ = scipy_integrate.quad(
        lambda alpha: np.exp(log_density(alpha, lane) - top), *ends, points=[center], epsabs=TOLERANCE, epsrel=0
    )
    return np.log(found) + top


def draw(path, models, values, evaluations, houses):
    """Log-likelihood over degrees of freedom, and how many evaluations counties take."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
    best = values.max()
    for sigma, colour in zip(SIGMA, plt.get_cmap("viridis")(np.linspace(0, 0.9, len(SIGMA)))):
        of_nu = [values[(models[:, 0] == nu) & np.isclose(models[:, 1], sigma)].max() for nu in NU]
        left.plot(NU, np.array(of_nu) - best, "o-", markersize=3, color=colour, label=f"sigma = {sigma:g}")
    left.set_xscale("log", base=2)
    left.set_xticks(NU, [f"{nu:g}" for nu in NU])
    left.set_ylim(-40, 2)
    left.set_xlabel("degrees of freedom of the noise")
    left.set_ylabel("log-likelihood, less the best")
    left.legend(frameon=False, fontsize=7)
    right.plot(np.tile(houses, len(models)), evaluations, ".", markersize=2, alpha=0.3, color="#4477aa")
    right.set_xscale("log")
    right.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    right.set_xlabel("houses of the county")
    right.set_ylabel("evaluations of the integrand")
    figure.savefig(path, dpi=120)


def main(picture):
    """Integrate, print what was found, and draw a picture."""
    models, lanes, houses = read_lanes()
    count = len(lanes.mean)
    seconds = {}

    def timed(name, run):
        began = time.perf_counter()
        found = run()
        seconds[name] = time.perf_counter() - began
        return found

    timed("first", lambda: log_evidence.run(lanes, backend="jax"))
    integrals, evaluations = timed("second", lambda: log_evidence.run(lanes, backend="jax"))
    some = np.arange(0, count, count // 200)[:200]
    few = [pick(lanes, k) for k in some]
    alone = timed("python", lambda: log_evidence.run(pick(lanes, some), executor="unbatched"))
    quadpack = timed("scipy", lambda: [by_scipy(lane) for lane in few])

    print(f"{len(houses)} counties under {len(models)} models: {count} integrals")
    print(f"evaluations of an integral: from {evaluations.min()} to {evaluations.max()}, mean {evaluations.mean():.1f}")
    print(f"largest difference to plain Python, of 200: {np.abs(alone[0] - integrals[some]).max():.0e}")
    print(f"largest difference to SciPy's quad, of 200: {np.abs(np.array(quadpack) - integrals[some]).max():.0e}")
    n = houses.sum()
    nu, sigma, tau = models.T
    constant = n * (gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi) - np.log(sigma))
    values = integrals.reshape(len(models), -1).sum(axis=1) + constant - len(houses) * np.log(tau * np.sqrt(2 * np.pi))
    best = values.argmax()
    print(f"best model: nu = {nu[best]:g}, sigma = {sigma[best]:.2f}, tau = {tau[best]:.2f}")
    for one in NU:
        print(f"nu = {one:2g}: log-likelihood {values[nu == one].max() - values[best]:6.1f} below the best")
    per_lane = {"python": seconds["python"] / 200, "scipy": seconds["scipy"] / 200}
    compiling = seconds["first"] - seconds["second"]
    print(f"time: all lanes together {seconds['second']:.2f} s, and {compiling:.1f} s to compile")
    print(f"time: plain Python, lane by lane, {per_lane['python'] * count:.0f} s (200 lanes measured)")
    print(f"time: SciPy's quad, lane by lane, {per_lane['scipy'] * count:.0f} s (200 lanes measured)")
    if picture:
        draw(picture, models, values, evaluations, houses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    main(parser.parse_args().picture)
