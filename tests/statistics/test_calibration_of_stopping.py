"""Simulation-based calibration of whole runs: warmup that ends by itself, then draws until enough is known.

Each replication draws parameters from the prior, data given them, and runs the procedure on these data. If draws are
from the posterior, the rank of the parameters among a few of them that hardly depend on each other is uniform (Talts,
Betancourt, Simpson, Vehtari, Gelman 2018, "Validating Bayesian inference algorithms with simulation-based
calibration"); whether ranks are is judged by a band for their whole empirical distribution (Saeilynoja, Buerkner,
Vehtari 2022, "Graphical test for discrete uniformity and its applications in goodness-of-fit evaluation and multiple
sample comparison"). The likelihood of the data is ranked too (Modrak et al. 2023).

Ranks see how far draws are from the posterior in units of its spread, and so hardly what a stopping rule does: it moves
a run's mean by a fraction of the mean's own error. So means and variances of all draws of a run are compared with
the posterior's, which are known by quadrature. Rules that bias must fail the same check: it has the power to see one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import models_with_data
import numpy as np
import pytest
from models_with_data import ModelWithData
from scipy import stats

from batchnuts.mcmc.execution import program_cache
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.stopping.stopping_rule import Decision, StoppingRule
from batchnuts.mcmc.storage.draws import Draws

pytestmark = pytest.mark.slow

CHAINS = 64
ALPHA = 1e-2
"""Chance that a right procedure fails the check; seeds are fixed."""


@pytest.fixture(params=["eight_schools", "regression"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModelWithData:
    return use(request.param, monkeypatch)


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> ModelWithData:
    """The model, whose programs take the data that are set: nothing is compiled again for others."""
    made: ModelWithData = getattr(models_with_data, name)()
    monkeypatch.setattr(program_cache, "value_and_gradient", lambda *_, **__: made.density)
    return made


@dataclass(frozen=True)
class Replication:
    truth: np.ndarray
    """[dimension]: a draw of the prior."""
    data: np.ndarray
    draws: Draws


def replications(made: ModelWithData, count: int, **settings: Any) -> Iterator[Replication]:
    for seed in range(count):
        truth, data = made.simulate(np.random.default_rng(seed))
        made.data.value = data
        given = {"chains": CHAINS, "warmup": "auto", "draws": 400, "seed": seed} | settings
        yield Replication(truth, data, run_chains(made.model, *split_settings(given)))


@dataclass(frozen=True)
class Found:
    """What is looked at of one replication."""

    ranks: np.ndarray
    """[quantities and likelihood]: how many of CHAINS draws are below the truth."""
    errors: np.ndarray
    """[2 quantities]: of means, in standard deviations of the posterior, and of variances, as a share of it."""
    draws: int
    """Of each chain."""


Kept = Callable[[Draws], list[np.ndarray]]
"""Of a run the draws that count of each chain, [draws, dimension]."""


def whole(draws: Draws) -> list[np.ndarray]:
    return list(draws.position)


def look(made: ModelWithData, one: Replication, kept: Kept = whole) -> Found:
    chains = [chain for chain in kept(one.draws) if len(chain)]
    rng = np.random.default_rng(one.draws.settings.seed)
    few = np.stack([chains[i % len(chains)][rng.integers(len(chains[i % len(chains)]))] for i in range(CHAINS)])

    def ranked(position: np.ndarray) -> np.ndarray:
        likelihood = made.log_likelihood(position, one.data)
        return np.concatenate([made.quantities(position), likelihood[..., None]], axis=-1)

    known = made.expectations(one.data)
    scaled = (made.quantities(np.concatenate(chains)) - known.mean) / known.sd
    errors = np.concatenate([scaled.mean(axis=0), (scaled**2).mean(axis=0) - 1.0])
    return Found((ranked(few) < ranked(one.truth)).sum(axis=0), errors, one.draws.complete)


def failures(found: list[Found]) -> list[str]:
    """What is wrong with replications; nothing for a right procedure."""
    ranks, errors = (np.stack([getattr(one, name) for one in found]) for name in ("ranks", "errors"))
    z = errors.mean(axis=0) / (errors.std(axis=0, ddof=1) / np.sqrt(len(errors)))
    tests = ranks.shape[1] + len(z)
    print(f"\nz of means and variances: {z.round(2)}; mean errors {errors.mean(axis=0).round(4)}")
    print(f"draws of each chain: {np.unique([one.draws for one in found], return_counts=True)}")
    bound = stats.t(len(errors) - 1).isf(ALPHA / tests / 2)
    wrong = [f"average {i} is off by {value:.1f} standard errors" for i, value in enumerate(z) if abs(value) > bound]
    limit, most_extreme = band(len(ranks), ALPHA / tests), extremes(ranks.T, CHAINS)
    print(f"smallest pointwise probability of ranks: {most_extreme}, limit {limit:.2g}")
    return wrong + [f"ranks of {i} are not uniform" for i, value in enumerate(most_extreme) if value < limit]


def extremes(ranks: np.ndarray, most: int) -> np.ndarray:
    """Of ranks [samples, count] among 0 to `most`: the smallest probability, of the two tails of any point of the
    empirical distribution, under uniformity."""
    counts = np.stack([np.bincount(row, minlength=most + 1) for row in ranks])
    return _smaller_tail(counts)


def _smaller_tail(counts: np.ndarray) -> np.ndarray:
    """Of counts [samples, values] of each rank."""
    total, values = counts[0].sum(), counts.shape[1]
    up_to = np.arange(1, values) / values
    binomial = stats.binom(total, up_to[None, :])
    below = binomial.cdf(np.arange(total + 1)[:, None])
    above = binomial.sf(np.arange(total + 1)[:, None] - 1)
    tail = 2 * np.minimum(below, above)  # [count + 1, values - 1]
    reached = counts.cumsum(axis=1)[:, :-1]
    return tail[reached, np.arange(values - 1)].min(axis=1)


def band(count: int, alpha: float) -> float:
    """The pointwise probability that `count` uniform ranks fall below anywhere with probability alpha (Saeilynoja et
    al. 2022, section 2.2, by simulation)."""
    rng = np.random.default_rng(0)
    simulated = rng.multinomial(count, np.full(CHAINS + 1, 1 / (CHAINS + 1)), size=200_000)
    return float(np.quantile(_smaller_tail(simulated), alpha))


def test_gradients_are_those_of_the_density(made: ModelWithData) -> None:
    truth, data = made.simulate(np.random.default_rng(3))
    steps = 1e-5 * np.eye(len(truth))
    up, down = (made.density.function(truth + sign * steps, data)[0] for sign in (1, -1))
    _, gradient = made.density.function(truth[None], data)
    np.testing.assert_allclose(gradient[0], (up - down) / 2e-5, rtol=1e-6, atol=1e-6)


def test_the_same_seed_gives_the_same_warmup_and_draws(made: ModelWithData) -> None:
    until = {"ess_bulk": 800, "rhat": 1.05}
    one, other = (next(replications(made, 1, until=until)).draws for _ in range(2))
    assert (one.warmup, one.ended, one.complete) == (other.warmup, other.ended, other.complete)
    np.testing.assert_array_equal(one.position, other.position)


@pytest.mark.release
def test_runs_that_end_by_themselves_are_calibrated(made: ModelWithData) -> None:
    until = {"ess_bulk": 800, "ess_tail": 600, "rhat": 1.05}
    found = [look(made, one) for one in replications(made, 80, until=until)]
    lengths = [one.draws for one in found]
    assert len(set(lengths)) > 2, "the rule makes a difference"
    assert np.mean([length < 400 for length in lengths]) > 0.9, "and ends nearly all runs"
    assert failures(found) == []


@pytest.mark.release
def test_a_rule_that_waits_for_a_high_mean_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optional stopping of the kind that biases, by a mean that is higher than the posterior's."""
    made = use("regression", monkeypatch)

    def decide(self: StoppingRule, draws: np.ndarray, gradients: int = 0, last: Decision | None = None) -> Decision:
        known = made.expectations(made.data.value)
        high = draws[:, :, 1].mean() > known.mean[1] + 0.02 * known.sd[1]
        return Decision("it is high" if high else None)

    monkeypatch.setattr(StoppingRule, "decide", decide)
    wrong = failures([look(made, one) for one in replications(made, 100, until={"rhat": 1.01}, draws=48)])
    assert any(said.startswith("average 1 is off") for said in wrong), wrong


@pytest.mark.release
def test_unequal_numbers_of_draws_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a limit on gradients that does not wait for slow chains would keep of each run: here, of each chain, what
    the gradients of one transition of an average chain pay."""
    made = use("regression", monkeypatch)
    runs = list(replications(made, 60, draws=10))
    assert failures([look(made, one) for one in runs]) == []

    def paid(draws: Draws) -> list[np.ndarray]:
        spent = draws.stats["n_steps"].cumsum(axis=1)
        return [chain[kept] for chain, kept in zip(draws.position, spent <= spent[:, 0].mean(), strict=True)]

    wrong = failures([look(made, one, paid) for one in runs])
    assert any(said.startswith("average 0 is off") for said in wrong), wrong
