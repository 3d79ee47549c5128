"""How often verdicts are wrong, by simulation: `python docs/results/false_alarms.py [--quick]` prints the tables.

Draws are made, not sampled: stationary autoregressive chains, of which every alarm is false, and chains with a fault of
a known size. Each set is judged as a run's file is (`diagnose`). It also makes docs/images/false_alarms.png.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from scipy import stats

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from batchnuts.experiments.harness.summary import table
from batchnuts.mcmc.diagnostics.diagnose import Diagnostics, diagnose
from batchnuts.mcmc.diagnostics.verdict import ESS_LIMIT
from batchnuts.mcmc.settings.superchains import SMALLEST, SUPERCHAINS, superchain_of

PICTURE = Path(__file__).parents[1] / "images" / "false_alarms.png"
CHAINS, DRAWS, COEFFICIENTS = (4, 16, 32, 64, 256, 1024, 4096), (5, 10, 20, 100, 1000), (1, 10, 100, 1000, 10_000)
MEMORY = (-0.3, 0.0, 0.5, 0.9)
"""The autocorrelation of successive draws; NUTS often has -0.3."""
MOST_VALUES = 4_000_000
"""Numbers in a set of draws; larger ones are left out."""
SIZES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Of faults, in standard deviations."""
FORGOTTEN = 0.2
"""Share of the draws after which a start counts for 1/e of what it did, where chains drift."""

Array = NDArray[np.float64]


def autoregressive(rng: np.random.Generator, chains: int, draws: int, coefficients: int, memory: float) -> Array:
    """Stationary normal draws [chains, draws, coefficients] with a variance of 1."""
    values = rng.normal(size=(chains, draws, coefficients))
    values[:, 1:] *= np.sqrt(1 - memory**2)
    for number in range(1, draws):
        values[:, number] += memory * values[:, number - 1]
    return values


def effective_draws(chains: int, draws: int, memory: float) -> float:
    """What such draws are worth for their mean."""
    lags = np.arange(1, draws)
    return float(chains * draws / (1 + 2 * ((1 - lags / draws) * memory**lags).sum()))


def superchains_of(chains: int) -> NDArray[np.int64] | None:
    """As a run chooses them; None: each chain is its own."""
    return superchain_of(chains, SUPERCHAINS) if chains >= SMALLEST * SUPERCHAINS else None


def judged(values: Array, log_density: Array | None = None) -> Diagnostics:
    """log_density [chains, draws]; None: that of independent normal coefficients."""
    names = [str(number) for number in range(values.shape[2])]
    log_density = -0.5 * (values**2).sum(axis=2) if log_density is None else log_density
    return diagnose(values, names, log_density=log_density, superchain=superchains_of(len(values)))


def old_limit(found: Diagnostics) -> float:
    """What R-hat had to be below before it was a test: 1.01, with the expected noise of nested R-hat."""
    each = found.chains / found.superchains if found.nested is not None else np.inf
    return float(np.sqrt(1.01**2 + 1 / (each * found.draws)))


def settings() -> Iterator[tuple[int, int, int, float]]:
    """Chains, draws, coefficients and memory of sets that are not too large."""
    for chains, draws, coefficients, memory in itertools.product(CHAINS, DRAWS, COEFFICIENTS, MEMORY):
        if chains * draws * coefficients <= MOST_VALUES:
            yield chains, draws, coefficients, memory


def false_alarms(budget: float) -> list[dict[str, Any]]:
    """One row for each setting: shares of sets of which each part of the verdict, or all of it, says that chains have
    not converged. budget: numbers of draws that are made for a setting, at least three sets and at most 100."""
    rows = []
    for number, (chains, draws, coefficients, memory) in enumerate(settings()):
        rng = np.random.default_rng(number)
        sets = int(np.clip(budget / (chains * draws * coefficients), 3, 100))
        seen: dict[str, list[float]] = {name: [] for name in ("old", "rhat", "stuck", "late", "lasting", "all", "size")}
        for _ in range(sets):
            found = judged(autoregressive(rng, chains, draws, coefficients, memory))
            seen["old"].append(not (found.deciding_rhat < old_limit(found)).all())
            seen["rhat"].append(not found.agrees)
            seen["stuck"].append(bool(found.stuck))
            seen["late"].append(bool(found.late))
            seen["lasting"].append(found.persists)
            seen["all"].append(found.converged is False)
            seen["size"].append(float(np.median(found.ess)) / effective_draws(chains, draws // 2 * 2, memory))
        rows.append(
            {"chains": chains, "draws": draws, "coefficients": coefficients, "memory": memory, "sets": sets}
            | {
                "enough": effective_draws(chains, draws, memory) >= ESS_LIMIT,
                "moved": draws * (1 - memory) > 1 + memory,
            }
            | {name: float(np.mean(values)) for name, values in seen.items()}
        )
    return rows


TAILS: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "Laplace": (stats.laplace.ppf, lambda x, z: stats.laplace.logpdf(x)),
    "Student's t, 3": (stats.t(3).ppf, lambda x, z: stats.t(3).logpdf(x)),
    "Cauchy": (stats.cauchy.ppf, lambda x, z: stats.cauchy.logpdf(x)),
    "half-Cauchy": (stats.halfcauchy.ppf, lambda x, z: stats.halfcauchy.logpdf(x) + np.log(x)),
    "inverse gamma, 1": (stats.invgamma(1).ppf, lambda x, z: stats.invgamma(1).logpdf(x) + np.log(x)),
    "log-normal, 3": (lambda u: np.exp(3 * stats.norm.ppf(u)), lambda x, z: stats.norm.logpdf(z)),
    "exp(t), t of 3": (lambda u: np.exp(stats.t(3).ppf(u)), lambda x, z: stats.t(3).logpdf(np.log(x))),
}
"""Quantile functions, and log-densities of x on the line (z is the normal number that x is a quantile of)."""


def heavy_tails(sets: int) -> list[tuple[str, ...]]:
    """Rows: of independent coefficients with tails heavier than normal ones, how many tables have which alarm."""
    rows = []
    for number, (name, (quantiles, log_density)) in enumerate(TAILS.items()):
        counts = dict.fromkeys(("number", "rhat", "stuck", "late", "lasting", "all"), 0)
        for chains, draws, coefficients in itertools.product((32, 64, 256), (20, 200), (1, 10, 50)):
            if effective_draws(chains, draws, 0.3) < ESS_LIMIT:
                continue
            rng = np.random.default_rng((number, chains, draws, coefficients))
            for _ in range(sets):
                normal = autoregressive(rng, chains, draws, coefficients, 0.3)
                values = quantiles(stats.norm.cdf(normal))
                found = judged(values, log_density(values, normal).sum(axis=2))
                counts["number"] += 1
                counts["rhat"] += not found.agrees
                counts["stuck"] += bool(found.stuck)
                counts["late"] += bool(found.late)
                counts["lasting"] += found.persists
                counts["all"] += found.converged is False
        tables = counts.pop("number")
        rows.append((name, str(tables), *(percent(count / tables) for count in counts.values())))
    return rows


def one_chain_elsewhere(values: Array, size: float, rng: np.random.Generator) -> Array:
    """A chain that is so far from where it would be, in one coefficient."""
    values[1, :, 0] += size
    return values


def two_modes(values: Array, size: float, rng: np.random.Generator) -> Array:
    """Half of the chains, whatever their superchains."""
    values[rng.permutation(len(values)) % 2 == 0, :, 0] += size
    return values


def drifting_start(values: Array, size: float, rng: np.random.Generator) -> Array:
    """Each start forgotten slowly: a distance with a standard deviation of `size`, the same for chains of one start."""
    superchain = superchains_of(len(values))
    starts = np.arange(len(values)) if superchain is None else superchain
    distance = size * rng.normal(size=len(values))[starts]
    draws = values.shape[1]
    values[:, :, 0] += distance[:, None] * np.exp(-np.arange(draws) / (FORGOTTEN * draws))
    return values


def late_chain(values: Array, size: float, rng: np.random.Generator) -> Array:
    """A chain whose first tenth of draws is so far away, ten times the size, in all coefficients."""
    values[1, : max(1, values.shape[1] // 10)] += 10 * size
    return values


FAULTS: dict[str, Callable[[Array, float, np.random.Generator], Array]] = {
    "one chain elsewhere": one_chain_elsewhere,
    "two modes": two_modes,
    "starts that drift": drifting_start,
    "one late chain (x 10)": late_chain,
}


def power(sets: int) -> dict[tuple[str, int, int], list[float]]:
    """By fault, chains and draws: the share of sets, of 10 coefficients, in which a fault of each of SIZES is found."""
    found = {}
    for fault, chains, draws in itertools.product(FAULTS, (4, 64, 1024), (20, 100)):
        rng = np.random.default_rng(chains + draws)
        shares = []
        for size in SIZES:
            made = (FAULTS[fault](autoregressive(rng, chains, draws, 10, 0.5), size, rng) for _ in range(sets))
            shares.append(float(np.mean([judged(values).converged is False for values in made])))
        found[fault, chains, draws] = shares
    return found


def draw(rows: list[dict[str, Any]], found: dict[tuple[str, int, int], list[float]]) -> None:
    """Left: false alarms by draws of each chain, before and now; right: faults of 64 chains that are found."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
    for chains, colour in zip((16, 64, 1024), ("tab:blue", "tab:orange", "tab:green"), strict=True):
        for name, style in (("old", ":"), ("rhat", "-")):
            some = [row for row in rows if row["chains"] == chains and row["enough"]]
            by_draws = {draws: [row[name] for row in some if row["draws"] == draws] for draws in DRAWS}
            points = [(draws, np.mean(shares)) for draws, shares in by_draws.items() if shares]
            left.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3)
        left.plot([], [], color=colour, label=f"{chains} chains")
    left.plot([], [], "k:", label="1.01, before")
    left.plot([], [], "k-", label="as a test")
    left.set(xscale="log", xlabel="draws of each chain", ylabel="share of healthy tables that fail", ylim=(-0.03, 1.03))
    beneath = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncol": 2, "frameon": False, "fontsize": 7}
    left.legend(**beneath)
    for fault in FAULTS:
        right.plot(SIZES, found[fault, 64, 20], marker="o", markersize=3, label=fault)
    right.set(xlabel="size, in standard deviations", ylabel="share of sets in which it is found", xscale="symlog")
    right.legend(**beneath)
    figure.savefig(PICTURE, dpi=150)


def percent(share: float) -> str:
    """As it is shown."""
    return f"{100 * share:.1f}%" if share else "0"


def main() -> None:
    """Print the tables and make the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tails", action="store_true", help="heavy tails only")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sets, of three at least")
    arguments = parser.parse_args()
    scale = 0.1 if arguments.quick else 1.0
    start = time.perf_counter()
    head = ("coefficients", "number", "R-hat", "stuck", "late", "lasting", "any")
    print(table(head, heavy_tails(int(np.ceil(scale * 20)))))
    print()
    if arguments.tails:
        return
    rows = false_alarms(scale * 3e5)
    judged_by_rhat = [row for row in rows if row["enough"] and row["moved"]]
    groups = [("400 effective draws or more", judged_by_rhat)]
    groups += [(f"- of {n} chains", [r for r in judged_by_rhat if r["chains"] == n]) for n in CHAINS]
    groups += [("- but chains of less than one effective draw", [r for r in rows if r["enough"] and not r["moved"]])]
    groups += [("fewer than 400 effective draws", [row for row in rows if not row["enough"]])]
    parts = ("old", "rhat", "stuck", "late", "lasting", "all")
    lines = []
    for name, some in groups:
        if not some:
            continue
        weights = [row["sets"] for row in some]
        worst = max(some, key=lambda row: (row["all"], row["sets"]))
        where = f"{worst['chains']} x {worst['draws']} x {worst['coefficients']}, {worst['memory']:g}"
        shares = [percent(float(np.average([row[part] for row in some], weights=weights))) for part in parts]
        lines.append((name, str(sum(weights)), *shares, f"{percent(worst['all'])} ({where})"))
    print(table(("sets", "number", "1.01 before", "R-hat", "stuck", "late", "lasting", "any", "worst setting"), lines))
    print()
    ratios = {
        (chains, draws): [r["size"] for r in rows if (r["chains"], r["draws"]) == (chains, draws)]
        for chains, draws in itertools.product(CHAINS, DRAWS)
    }
    head = ("chains", *(f"{draws} draws" for draws in DRAWS))
    print(table(head, [
        (str(chains), *(f"{min(r):.2f} to {max(r):.2f}" if (r := ratios[chains, draws]) else "" for draws in DRAWS))
        for chains in CHAINS
    ]))  # fmt: skip
    print()
    found = power(int(np.ceil(scale * 10)))
    lines = [(f"{n}, {c} x {d}", *(f"{100 * share:.0f}%" for share in found[n, c, d])) for n, c, d in found]
    print(table(("fault, chains x draws", *(f"{size:g} sd" for size in SIZES)), lines))
    draw(rows, found)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
