"""The rule by which sampling ends: which conditions hold of which draws, what is said, and when it is asked."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import ops
from batchnuts.mcmc.diagnostics.diagnose import diagnose
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.kernel.sample_statistics import Record, empty_records
from batchnuts.mcmc.model.declarations import positive, real
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.natural_parameters import NaturalParameters, natural_parameters
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.settings.until import CONDITIONS, Condition, Until
from batchnuts.mcmc.statistics.nested_rhat import nested_of
from batchnuts.mcmc.statistics.reductions import NESTED, in_order, reduce_draws
from batchnuts.mcmc.stopping import stopping_rule
from batchnuts.mcmc.stopping.conditions import CONDITION_KINDS
from batchnuts.mcmc.stopping.interim_analyses import Ended, InterimAnalyses
from batchnuts.mcmc.stopping.stopping_rule import Decision, StoppingRule
from batchnuts.settings.schema import SettingsError

NAMES = ("mu", "tau", "theta[0]", "theta[1]")
CHAINS = 16


def rule(superchains: int = CHAINS, **until: Any) -> StoppingRule:
    return StoppingRule(Until(**until), NAMES, CHAINS, superchains)


def draws(length: int = 40, seed: int = 0) -> np.ndarray:
    """[chains, draws, coefficients]: `tau` moves slowly, and its chains disagree."""
    values = np.random.default_rng(seed).normal(size=(CHAINS, length, 4))
    values[:, :, 1] = values[:, :, 1].cumsum(axis=1) / np.sqrt(length)
    return values


FOUND = diagnose(draws(), NAMES).columns


def test_every_condition_that_can_be_set_has_an_entry() -> None:
    assert tuple(CONDITION_KINDS) == CONDITIONS
    assert set(CONDITIONS) <= set(Until.model_fields)


@pytest.mark.parametrize("max_draws", [1, 4, 5, 10, 11, 100, 10_000])
@pytest.mark.parametrize("until", [{"ess_bulk": 400}, {"rhat": 1.01}, {"gradients": 1e6}], ids=str)
def test_interim_analyses_grow_by_a_quarter(max_draws: int, until: dict[str, float]) -> None:
    points = rule(**until).interim_analyses(max_draws)
    assert points[-1] == max_draws
    assert list(points) == sorted(set(points))
    assert all(point % 2 == 0 for point in points[:-1])
    first = 10 if "ess_bulk" in until else 4
    assert points[0] == min(first, max_draws)
    for one, other in itertools.pairwise(points[:-1]):
        assert 1.25 * one <= other < 1.25 * one + 2
    # no interim analysis depends on how many more there may be
    assert rule(**until).interim_analyses(10 * max_draws)[: len(points) - 1] == points[:-1]


def just(name: str, at: int, factor: float) -> float:
    return float(FOUND[name][at] * factor)


@pytest.mark.parametrize(
    ("until", "missing"),
    [
        ({"ess_bulk": just("ess_bulk", 1, 0.999)}, ""),
        ({"ess_bulk": just("ess_bulk", 1, 1.001)}, "bulk ESS of tau is"),
        ({"ess_tail": just("ess_tail", 1, 0.999)}, ""),
        ({"ess_tail": just("ess_tail", 1, 1.001)}, "tail ESS of tau is"),
        ({"rhat": just("r_hat", 1, 1.0001)}, ""),
        ({"rhat": just("r_hat", 1, 0.9999)}, "R-hat of tau is"),
        ({"rhat": just("r_hat", 1, 1.0)}, "R-hat of tau is"),
        ({"ess_bulk": 1, "ess_tail": 1, "rhat": 100}, ""),
        ({"ess_bulk": 1, "ess_tail": 1e6, "rhat": 100}, "tail ESS of"),
        ({"ess_bulk": 1, "rhat": 1.0001}, "R-hat of tau is"),
        ({"ess_bulk": 1e6, "rhat": 100}, "bulk ESS of"),
    ],
)
def test_all_conditions_that_are_set_must_hold_of_all_parameters(until: dict[str, float], missing: str) -> None:
    decision = rule(**until).decide(draws())
    assert (decision.reason is None) is bool(missing)
    assert decision.missing.startswith(missing)
    if not missing:
        assert decision.reason is not None
        assert decision.reason.startswith("all sampled parameters have ")
        assert decision.reason.endswith(" after 40 draws of each chain")


@pytest.mark.parametrize("superchains", [1, 4, CHAINS])
def test_nested_rhat_decides_where_chains_form_superchains(superchains: int) -> None:
    values = draws()
    if superchains == 4:
        found = nested_of(reduce_draws(in_order(values), {NESTED}), superchain_of(CHAINS, 4))
        assert found.rhat.argmax() == 1
        worst, name = float(found.rhat[1]), "nested R-hat of tau"
        allowed = np.sqrt(worst**2 - found.noise.scale[1])
    else:
        worst, name, allowed = float(FOUND["r_hat"][1]), "R-hat of tau", float(FOUND["r_hat"][1])
    said = rule(superchains, rhat=allowed * 0.9999).decide(values).missing
    assert said.startswith(f"{name} is {worst:.4f}")
    reason = rule(superchains, rhat=allowed * 1.0001).decide(values).reason
    assert reason is not None
    assert ("nested R-hat <" in reason) is (superchains == 4)


def test_rhat_that_stuck_chains_keep_from_being_met_ends_sampling() -> None:
    """Once they have been stuck for four times the draws after which they were found; else it goes on."""
    values = np.random.default_rng(0).normal(size=(64, 400, 2))
    names = ("mu", "tau")
    stuck = values.copy()
    stuck[5] = 50.0 + 1e-3 * stuck[5]
    decisions = []
    for given in (values, stuck):
        rule, last = StoppingRule(Until(rhat=1.0001, ess_bulk=1e9), names, 64, 16), Decision(None)
        for point in rule.interim_analyses(400):
            last = rule.decide(given[:, :point], last=last)
            if last.reason:
                break
        decisions.append(last)
    assert decisions[0].reason is None
    assert decisions[1].reason is not None
    assert re.fullmatch(
        r"R-hat cannot be met, because chain 5 has stayed away from all others since draw 10, after \d+ draws"
        r" of each chain",
        decisions[1].reason,
    )
    only_sizes = StoppingRule(Until(ess_bulk=1e9), names, 64, 16)
    assert only_sizes.decide(stuck, last=replace(decisions[1], reason=None)).reason is None


def test_gradients_end_sampling_in_any_case() -> None:
    """At an interim analysis too; it is said what was missing."""
    both = rule(ess_bulk=1e6, gradients=1000)
    assert both.decide(draws(), 999).reason is None
    decision = both.decide(draws(), 1000)
    assert decision.reason == "the draws took 1000 gradients (limit 1000) after 40 draws of each chain"
    assert decision.missing.startswith("bulk ESS of")
    assert rule(gradients=1000).decide(draws(), 2000).reason is not None
    assert rule(gradients=1000).decide(draws(), 2).reason is None


def test_it_is_known_what_was_found_of_each_condition() -> None:
    """The worst of the coefficients that were looked at; where it is not looked at, what was found before."""
    found = rule(ess_bulk=1e6, ess_tail=1, rhat=1.0001).decide(draws(), last=Decision(None, 1)).conditions
    assert [(one.name, one.wanted, one.met) for one in found] == [
        ("ess_bulk", 1e6, False), ("ess_tail", 1, True), ("rhat", 1.0001, False),
    ]  # fmt: skip
    assert [one.found for one in found] == pytest.approx([FOUND[name][1] for name in ("ess_bulk", "ess_tail", "r_hat")])
    (met,) = rule(ess_bulk=1).decide(draws()).conditions
    assert met.met
    assert met.found == pytest.approx(FOUND["ess_bulk"].min())
    before = (Condition("ess_bulk", 3.0, 1e6), Condition("rhat", 1.5, 99.0, met=True))
    sizes, nested = rule(4, ess_bulk=1e6, rhat=99.0).decide(draws(), last=Decision(None, 1, "", before)).conditions
    assert sizes.found > 3.0
    assert nested is before[1]
    assert rule(ess_bulk=1).decide(draws(8), last=Decision(None, 1, "", before)).conditions == before


def test_conditions_are_expected_to_hold_in_proportion_to_the_draws() -> None:
    assert rule(ess_bulk=just("ess_bulk", 1, 3.0)).decide(draws()).expected == pytest.approx(3 * 40)
    wanted = np.sqrt(1 + (FOUND["r_hat"][1] ** 2 - 1) / 5)
    assert rule(rhat=wanted).decide(draws()).expected == pytest.approx(5 * 40)
    values = draws()
    values[:, :, 2] = 1.0
    assert rule(ess_bulk=1).decide(values).expected == np.inf


def test_few_draws_are_too_few_to_tell() -> None:
    """Of 8 draws no autocorrelation is estimated, and ArviZ's effective size is larger than the number of draws."""
    assert rule(ess_bulk=1).decide(draws(8)).missing == "8 draws of each chain are too few to tell"
    assert rule(ess_bulk=1).decide(draws(10)).reason is not None
    assert rule(rhat=99.0).decide(draws(4)).reason is not None
    assert rule(rhat=99.0).decide(draws(2)).reason is None


def test_what_does_not_move_is_never_enough_unless_it_may_be_constant() -> None:
    values = draws()
    values[:, :, 2] = 1.0
    assert rule(ess_bulk=1).decide(values).missing == "theta[0] did not move, or is not finite"
    for at in (2, 3):
        may_be = tuple(i == at for i in range(4))
        decision = StoppingRule(Until(ess_bulk=1, rhat=99.0), NAMES, CHAINS, 4, may_be).decide(values)
        assert (decision.reason is not None) is (at == 2)
    values[0, :, 2] += 4 * np.finfo(values.dtype).eps  # rounding alone, by which chains differ
    for may_be in ((), (False, False, True, False)):
        decision = StoppingRule(Until(rhat=99.0), NAMES, CHAINS, 4, may_be).decide(values)
        assert (decision.reason is not None) is bool(may_be)


@pytest.mark.parametrize("at_once", [1, 640, 1300, 10**9])
def test_the_order_in_which_parameters_are_looked_at_changes_no_reason(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping_rule, "VALUES_AT_ONCE", at_once)
    for until in ({"ess_bulk": just("ess_bulk", 1, 1.001)}, {"ess_bulk": just("ess_bulk", 1, 0.999), "rhat": 99.0}):
        decisions = [rule(**until).decide(draws(), last=Decision(None, likely)) for likely in range(4)]
        assert len({decision.reason for decision in decisions}) == 1
        if decisions[0].reason is None:
            assert {decision.worst for decision in decisions} == {1}


def test_a_check_that_fails_again_looks_at_one_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping_rule, "VALUES_AT_ONCE", 1)
    seen = []
    whole = StoppingRule._statistics
    monkeypatch.setattr(StoppingRule, "_statistics", lambda self, *part: seen.append(part) or whole(self, *part))
    assert rule(ess_bulk=just("ess_bulk", 1, 1.001)).decide(draws(), last=Decision(None, 1)).worst == 1
    assert len(seen) == 1


def test_conditions_that_are_far_away_are_not_looked_at_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before half of the draws that an effective size in proportion to them needs, or four times as many.

    The limit on gradients counts meanwhile."""
    asked = rule(ess_bulk=just("ess_bulk", 1, 3.0), gradients=1000)
    last = asked.decide(draws(), 10)
    assert last.not_before == pytest.approx(1.5 * 40)
    assert rule(ess_bulk=1e9).decide(draws()).not_before == 4 * 40
    assert rule(rhat=just("r_hat", 1, 1.0)).decide(draws()).not_before == pytest.approx(20)
    monkeypatch.setattr(StoppingRule, "_statistics", lambda *_: pytest.fail("it is not looked at"))
    assert asked.decide(draws(59), 999, last) == last
    ended = asked.decide(draws(59), 1000, last)
    assert (ended.missing, str(ended.reason)[:9]) == (last.missing, "the draws")
    with pytest.raises(pytest.fail.Exception):
        asked.decide(draws(61), 10, last)


# ---- which parameters ------------------------------------------------------------------------------------------------

PARAMETERS = NaturalParameters(NAMES, lambda position: 10 * position, (False,) * 4)


def of_model(asked: list[str] | None) -> NaturalParameters:
    """A model of `mu`, `tau` above 0 and `theta`, which generates `theta2` and `one`, from whole names to elements."""

    def density(values: Any) -> Any:
        return -0.5 * values["mu"] ** 2 - values["tau"] - 0.5 * ops.sum(values["theta"] ** 2)

    def generated(values: Any) -> Any:
        return {"square": values["theta"] ** 2, "one": ops.exp(0.0 * values["mu"])}

    model = Model.from_function(
        density,
        variables={"mu": real(), "tau": positive(), "theta": real(2)},
        dtype="float64",
        generated=generated,
        dims={"square": ["side"]},
        coords={"side": ["left", "right"]},
    )
    execution = ExecutionSettings(backend="numpy")
    return natural_parameters(model, density_library_of(model), execution, 0, asked, "until.parameters")


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (None, ["mu", "tau", "theta[0]", "theta[1]"]),
        (["mu"], ["mu"]),
        (["theta"], ["theta[0]", "theta[1]"]),
        (["theta[1]", "tau"], ["tau", "theta[1]"]),
        (["theta", "theta[0]"], ["theta[0]", "theta[1]"]),
        (["square", "mu"], ["mu", "square[left]", "square[right]"]),
        (["square[right]", "one"], ["one", "square[right]"]),
    ],
)
def test_parameters_are_named_whole_or_by_element(asked: list[str] | None, taken: list[str]) -> None:
    found = of_model(asked)
    assert found.names == tuple(taken)
    position = np.array([[0.5, 0.3, -1.0, 2.0], [-0.5, 0.0, 3.0, 4.0]])
    expected = {
        "mu": position[:, 0],
        "tau": np.exp(position[:, 1]),
        "theta[0]": position[:, 2],
        "theta[1]": position[:, 3],
        "square[left]": position[:, 2] ** 2,
        "square[right]": position[:, 3] ** 2,
        "one": np.ones(2),
    }
    np.testing.assert_allclose(found.values(position), np.stack([expected[name] for name in taken], axis=1))
    assert found.may_be_constant == tuple(name.startswith(("square", "one")) for name in taken)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["nu"], "until.parameters: found 'nu', which is not a parameter of the model; did you mean 'mu'?"),
        (["theta[7]"], "found 'theta[7]', which is not a parameter of the model; did you mean 'theta"),
        (
            ["qqqqq"],
            "found 'qqqqq', which is not a parameter of the model; expected some of mu, tau, theta, one, square",
        ),
    ],
)
def test_unknown_parameters_are_refused(asked: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        of_model(asked)
    assert message in str(caught.value)


# ---- the interim analyses of a run -----------------------------------------------------------------------------------


class Chains:
    """A stretch whose chains have come so far; it notes what is asked of it."""

    def __init__(self, positions: np.ndarray) -> None:
        self.positions = positions
        self.done = 0
        self.wanted: list[int] = []

    def records(self, transitions: int) -> Record | None:
        self.wanted.append(transitions)
        if self.done < transitions:
            return None
        zero = empty_records(transitions, 4, "float64")
        many = Record(*(np.stack([array] * CHAINS) for array in zero))
        return many._replace(position=self.positions[:, :transitions], n_steps=np.ones((CHAINS, transitions), int))


def looked(steps: list[int], until: dict[str, Any], max_draws: int = 100, spent: float = 0.0) -> tuple[Any, Chains]:
    """What came of looking when all chains had made so many draws, one after another."""
    running = Chains(draws(max_draws))
    checks = InterimAnalyses(rule(**until), PARAMETERS, max_draws)
    for done in steps:
        running.done = done
        if checks.look(running, Counts(complete=done), spent):  # type: ignore[arg-type]
            break
    return checks.ended, running


@pytest.mark.parametrize("steps", [[100], [7, 100], list(range(101)), [30, 31, 32, 99, 100]], ids=len)
@pytest.mark.parametrize("until", [{"ess_bulk": 18.0}, {"rhat": 1.9}, {"gradients": 640.0}], ids=str)
def test_how_far_chains_are_when_they_are_looked_at_changes_nothing(steps: list[int], until: dict[str, float]) -> None:
    ended, _ = looked(steps, until)
    expected, running = looked(list(range(101)), until)
    assert ended == expected
    assert isinstance(ended, Ended)
    assert 4 <= ended.draws < 100
    points = rule(**until).interim_analyses(100)
    assert set(running.wanted) == {point for point in points if point <= ended.draws}


def test_the_limit_on_seconds() -> None:
    """Once every chain has a draw, and at any number of them."""
    until = {"ess_bulk": 1e6, "seconds": 5.0}
    assert looked([0, 0], until, spent=9.0)[0] is None
    assert looked([3, 13], until, spent=4.9)[0] is None
    ended, _ = looked([0, 13], until, spent=5.1)
    assert ended.draws == 13
    assert ended.reason.startswith("sampling took 5.1 s (limit 5 s) after 13 draws of each chain; bulk ESS of")
    assert looked([0, 13], {"seconds": 5.0}, spent=5.1)[0].reason.endswith("after 13 draws of each chain")


def test_at_the_maximum_of_draws_it_is_said_what_is_missing() -> None:
    ended, _ = looked([5, 37], {"ess_bulk": 1e6}, max_draws=37)
    assert ended.draws == 37
    assert ended.reason.startswith("all 37 draws of each chain were made (sampler.draws); bulk ESS of ")
    ended, _ = looked([37], {"ess_bulk": 1.0}, max_draws=37)
    assert ended.reason == "all sampled parameters have bulk ESS >= 1 after 10 draws of each chain"


def test_the_time_left_is_that_of_the_furthest_condition_or_of_a_limit() -> None:
    def left(done: int, **until: float) -> float | None:
        running, checks = Chains(draws(100)), InterimAnalyses(rule(**until), PARAMETERS, 100)
        running.done = done
        checks.look(running, Counts(complete=done), 5.0)  # type: ignore[arg-type]
        assert [one.name for one in checks.conditions] == [name for name in until if name in ("ess_bulk", "rhat")]
        return checks.remaining(float, 5.0, 1000)

    assert left(0, ess_bulk=40.0) is None
    assert left(0, gradients=4000.0) == 15.0
    assert left(0, ess_bulk=40.0, seconds=7.0) == 2.0
    assert left(0, seconds=700.0) == 100.0
    points = rule(ess_bulk=1).interim_analyses(100)
    checks = InterimAnalyses(rule(ess_bulk=1e9), PARAMETERS, 100)
    checks.left, checks.last = list(points), Decision(None, expected=20.5)
    assert checks.remaining(float, 5.0, 0) == min(point for point in points if point >= 20.5)
    checks.last = Decision(None, expected=1e6)
    assert checks.remaining(float, 5.0, 0) == 100.0
    assert left(100, ess_bulk=1.0) == 0.0
    unknown = InterimAnalyses(rule(4, ess_bulk=400, rhat=1.01), PARAMETERS, 100).conditions
    assert [str(one) for one in unknown] == ["ess_bulk ?/400", "rhat ?/1.0100"]
