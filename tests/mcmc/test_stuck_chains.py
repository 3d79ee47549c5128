"""Stuck chains of which R-hat sees nothing: they are found, listed, and end no run; healthy ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from batchnuts.mcmc.diagnostics.diagnose import diagnose
from batchnuts.mcmc.diagnostics.verdict import judge
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.settings.until import Until
from batchnuts.mcmc.statistics.nested_rhat import nested_of
from batchnuts.mcmc.statistics.reductions import NESTED, in_order, reduce_draws
from batchnuts.mcmc.statistics.stuck_chains import PERSISTENCE_LIMIT, find_stuck
from batchnuts.mcmc.stopping.stopping_rule import StoppingRule


def healthy(chains: int, draws: int, coefficients: int = 4, memory: float = 0.5, seed: int = 0) -> np.ndarray:
    """[chains, draws, coefficients]: N(0, 1), autoregressive."""
    noise = np.random.default_rng(seed).normal(size=(draws, chains, coefficients))
    values = [noise[0]]
    for step in noise[1:]:
        values.append(memory * values[-1] + np.sqrt(1 - memory**2) * step)
    return np.stack(values, axis=1)


def one_elsewhere(chains: int) -> np.ndarray:
    """Chain 5 is in a mode six standard deviations away, in one coefficient."""
    values = healthy(chains, 40)
    values[5, :, 2] += 6.0
    return values


def one_on_a_ledge(chains: int) -> np.ndarray:
    values = healthy(chains, 40)
    values[5] += 1000.0
    return values


def one_that_never_moves(chains: int) -> np.ndarray:
    values = healthy(chains, 40)
    values[5] = [0.7, -0.6, 0.0, 0.3]  # nowhere far
    return values


@pytest.mark.parametrize("chains", [256, 1024])
@pytest.mark.parametrize("failure", [one_elsewhere, one_on_a_ledge, one_that_never_moves])
def test_one_stuck_chain_is_found(failure: object, chains: int) -> None:
    values = failure(chains)  # type: ignore[operator]
    assert np.flatnonzero(find_stuck(values).mask).tolist() == [5]
    rule = StoppingRule(Until(rhat=1.05), ("a", "b", "c", "d"), chains, 16)
    assert rule.decide(healthy(chains, 40)).reason is not None
    decision = rule.decide(values)
    assert decision.reason is None
    if failure is one_elsewhere:
        assert decision.missing == "chain 5 stays away from all others, in c"
        nested = nested_of(reduce_draws(in_order(values), {NESTED}), superchain_of(chains, 16))
        assert (nested.rhat < nested.noise.limits_for(1.05)).all(), "unseen"


def two_modes(chains: int, share: float, seed: int = 1) -> np.ndarray:
    """Each chain is in one of two modes, ten standard deviations apart, whatever its superchain."""
    values = healthy(chains, 40)
    values[np.random.default_rng(seed).permutation(chains)[: round(share * chains)], :, 1] += 10.0
    return values


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.3, 0.5, 0.9])
def test_two_modes_are_found_whatever_their_shares(share: float) -> None:
    values = two_modes(512, share)
    found = find_stuck(values)
    assert found.mask.any() or found.persistence[1] > PERSISTENCE_LIMIT
    assert (np.delete(found.persistence, 1) < PERSISTENCE_LIMIT).all()
    assert StoppingRule(Until(rhat=1.3), ("a", "b", "c", "d"), 512, 16).decide(values).reason is None
    if share in (0.02, 0.1):
        assert found.mask.sum() == round(share * 512)


def test_equal_modes_that_start_in_one_point_or_in_each() -> None:
    """With superchains of both modes in equal shares nested R-hat sees nothing; with one mode for each, all."""
    superchain = superchain_of(256, 16)
    mixed, apart = healthy(256, 40), healthy(256, 40)
    mixed[np.arange(256) // 16 % 2 == 0, :, 1] += 10.0
    apart[superchain % 2 == 0, :, 1] += 10.0
    of_mixed, of_apart = (nested_of(reduce_draws(in_order(x), {NESTED}), superchain) for x in (mixed, apart))
    assert of_mixed.rhat[1] < of_mixed.noise.limits_for(1.01)[1] < 2.0 < of_apart.rhat[1]
    names = ("a", "b", "c", "d")
    found = diagnose(mixed, names, superchain=superchain)
    assert found.agrees
    assert found.converged is False
    assert (
        "of the variance of b is between chains and persists: chains are stuck in different places" in found.verdict()
    )
    said = StoppingRule(Until(rhat=1.01), names, 256, 16).decide(mixed).missing
    assert said.endswith("of the variance of b is between chains and persists")


def test_chains_that_mix_may_have_few_effective_draws() -> None:
    for memory, draws in ((0.0, 10), (0.5, 10), (0.8, 20), (0.95, 100)):
        found = find_stuck(healthy(256, draws, memory=memory))
        assert not found.mask.any()
        assert (found.persistence < PERSISTENCE_LIMIT).all()
    heavy = np.random.default_rng(0).standard_t(1, size=(256, 20, 3))
    assert not find_stuck(heavy).mask.any()


@pytest.mark.parametrize("rare", [0.002, 0.01, 0.02, 0.1])
@pytest.mark.parametrize("chains", [64, 256])
def test_rare_states_make_no_chain_stuck(chains: int, rare: float) -> None:
    """Alone, as a variable of a hidden Markov model's decoded states is, or beside real numbers."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        values = healthy(chains, 200)
        values[..., 1:] = rng.random((chains, 200, 3)) < rare
        assert not find_stuck(values).mask.any()
        assert not find_stuck(values[..., 1:]).mask.any()
        assert not find_stuck(1.0 + (rng.random((chains, 200, 1)) < rare)).mask.any()


def test_of_real_numbers_beside_discrete_ones_a_stuck_chain_is_found() -> None:
    values = healthy(256, 40)
    values[..., 0] = np.random.default_rng(0).poisson(0.02, values.shape[:2])
    values[5, :, 1] += 8.0
    assert np.flatnonzero(find_stuck(values).mask).tolist() == [5]


def test_a_chain_that_comes_back_is_not_stuck() -> None:
    values = healthy(256, 40)
    values[5, :15, 2] += 6.0
    assert not find_stuck(values).mask.any()


def test_what_cannot_be_told() -> None:
    """Few draws, few chains, coefficients that are not finite or constant; and more chains apart than others."""
    stuck = one_on_a_ledge(256)
    assert not find_stuck(stuck[:, :9]).mask.any()
    assert not find_stuck(stuck[:16]).mask.any()
    stuck[0, 0, 0], stuck[:, :, 1] = np.nan, 3.0
    found = find_stuck(stuck)
    assert np.flatnonzero(found.mask).tolist() == [5]
    assert found.persistence[:2].tolist() == [0.0, 0.0]
    assert not find_stuck(np.full((64, 20, 2), 1.0)).mask.any()
    assert not find_stuck(two_modes(256, 0.4)).mask.any()


def test_slices_of_coefficients_change_nothing() -> None:
    values = one_elsewhere(64)
    one, other = find_stuck(values), find_stuck(values, at_once=1)
    for name in ("mask", "persistence", "furthest"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.furthest[5] == 2


def test_the_verdict_lists_them_by_number() -> None:
    numbers = np.arange(256) + 1000
    found = diagnose(one_elsewhere(256), ("a", "b", "c", "d"), superchain=superchain_of(256, 16), numbers=numbers)
    assert found.stuck == (1005,)
    assert "WARNING: 1 of 256 chains never mixed with the other chains: 1005 (furthest in c)." in found.verdict()
    judged = judge(found)
    assert not judged.ok
    assert any(line.startswith("Chain 1005 stays where others do not go") for line in judged.advice)


@pytest.mark.parametrize(
    ("below", "said"),
    [
        (0.0, "is like the others': in another mode, or in a part"),
        (500.0, "is far below"),
        (-1e9, "is far above the others': another mode, which has most of the probability if it is not very narrow"),
    ],
)
def test_what_is_said_of_stuck_chains_depends_on_their_log_density(below: float, said: str) -> None:
    values = healthy(64, 40)
    log_density = -0.5 * (values**2).sum(axis=2)
    values[5, :, 2] += 50.0
    log_density[5] -= below
    found = diagnose(values, ("a", "b", "c", "d"), log_density=log_density)
    assert found.stuck == (5,)
    assert found.low == ((5,) if below > 0 else ())
    assert found.high == ((5,) if below < 0 else ())
    assert found.names[found.most_suspect_first()[0]] == "c"
    assert "never mixed with the other chains: 5 (furthest in c). The log-density" in found.verdict()
    assert f"The log-density of chain 5 {said}" in found.verdict()
