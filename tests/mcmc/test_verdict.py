"""`batchnuts.check`: the verdict on a result of ours, on a file of it, and on what is none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import arviz
import numpy as np
import pytest
from fake_run import make_draws

import batchnuts
from batchnuts.files.saving import save
from batchnuts.mcmc.diagnostics.coefficient_parts import DiagnosticsError
from batchnuts.mcmc.diagnostics.diagnose import diagnose
from batchnuts.mcmc.diagnostics.kept_diagnostics import diagnostics_group
from batchnuts.mcmc.diagnostics.verdict import judge
from batchnuts.mcmc.model.model import Model, Variable
from batchnuts.mcmc.output.datasets import to_arviz, to_datasets
from batchnuts.mcmc.settings.run_settings import SamplerSettings
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.report import print_report
from batchnuts.report.run_file import verdict_at_end

MODEL = Model(
    name="m",
    log_density=lambda parts: parts["mu"],
    dimension=7,
    variables=(
        Variable("mu"),
        Variable("beta", (2,), ("feature",), {"feature": ["age", "dose"]}),
        Variable("matrix", (2, 2)),
    ),
    structured=True,
)
GOOD = make_draws(MODEL, SamplerSettings(chains=8, draws=300))


def result_of(draws: Draws) -> Any:
    return to_arviz(to_datasets(draws, MODEL))


def with_stats(**stats: Any) -> Draws:
    return replace(GOOD, stats={**GOOD.stats, **stats})


def test_good_draws_are_ok_and_the_numbers_are_those_of_the_summary() -> None:
    found = batchnuts.check(result_of(GOOD))
    expected = diagnose(GOOD.position, MODEL.element_names())
    assert found.diagnostics.names == expected.names
    for name, values in expected.columns.items():
        np.testing.assert_allclose(found.diagnostics.columns[name], values, rtol=1e-12, err_msg=name)
    assert found.ok
    assert found.advice == ()
    assert found.worst_rhat == expected.rhat.max() < 1.01
    assert found.min_ess == expected.columns["ess_bulk"].min()
    text = str(found)
    assert text == repr(found)
    assert text.startswith("OK: 8 chains x 300 draws\nR-hat < 1.01 on all 7 coefficients: yes, worst ")
    assert "->" not in text


def test_a_file_gives_the_same_verdict(tmp_path: Any) -> None:
    path = save(to_datasets(GOOD, MODEL), tmp_path / "a.nc")
    opened = arviz.from_netcdf(str(path))
    assert str(batchnuts.check(opened)) == str(batchnuts.check(result_of(GOOD)))


shifted = GOOD.position + np.arange(8)[:, None, None].astype("float32")
few = make_draws(MODEL, SamplerSettings(chains=2, draws=20))


@pytest.mark.parametrize(
    ("draws", "advice"),
    [
        (replace(GOOD, position=shifted), "The chains do not agree (R-hat above 1.01): double draws, and warmup"),
        (few, "There are few effective draws: raise draws until the minimum bulk ESS is 400"),
        (with_stats(diverging=np.ones((8, 300), bool)), "Some trajectories diverged: raise target_acceptance"),
        (
            make_draws(MODEL, SamplerSettings(chains=1, draws=50)),
            "Convergence cannot be assessed: run at least 2 chains",
        ),
    ],
    ids=["rhat", "ess", "divergences", "one chain"],
)
def test_what_is_wrong_is_said_with_what_to_do(draws: Draws, advice: str) -> None:
    found = batchnuts.check(result_of(draws))
    assert not found.ok
    assert any(line.startswith(advice) for line in found.advice), found.advice
    assert str(found).startswith("NOT OK: ")
    assert f"-> {advice}" in str(found)


def flagged(count: int) -> np.ndarray:
    """[8, 300]: this many of the 2,400 draws."""
    return (np.arange(2400) < count).reshape(8, 300)


@pytest.mark.parametrize(
    ("name", "count", "ok", "advised"),
    [
        ("diverging", 1, True, False),
        ("diverging", 4, True, False),
        ("diverging", 5, False, True),  # more than one in 500
        ("reached_max_treedepth", 24, True, False),
        ("reached_max_treedepth", 120, True, True),
        ("reached_max_treedepth", 600, True, True),
        ("reached_max_treedepth", 601, False, True),  # more than one in 4
    ],
)
def test_divergences_and_trees_cut_off_fail_by_their_share(name: str, count: int, ok: bool, advised: bool) -> None:
    found = batchnuts.check(result_of(with_stats(**{name: flagged(count)})))
    assert found.ok is ok
    assert bool(found.advice) is advised
    if advised:
        said = {"diverging": "Some trajectories diverged", "reached_max_treedepth": "Many trajectories were cut off at"}
        assert found.advice[0].startswith(said[name])


@pytest.mark.parametrize(("dtype", "said"), [("float32", True), ("float64", False)])
def test_places_that_rounding_makes_are_named_where_the_dtype_is_narrow(dtype: str, said: bool) -> None:
    errors = np.where(flagged(40), np.inf, GOOD.stats["max_energy_error"])
    result = result_of(with_stats(diverging=flagged(40), max_energy_error=errors))
    assert result["posterior"].attrs["dtype"] == "float32"
    result["posterior"].attrs["dtype"] = dtype
    found = batchnuts.check(result)
    assert any("compute in float64" in line for line in found.advice) is said


@pytest.mark.parametrize(
    ("used", "advice"),
    [(0.8, "(0.9, 0.95)"), (0.9, "(0.95, 0.99)"), (0.97, "(0.99, 0.999)"), (0.9995, "diverged: reparametrize")],
)
def test_only_a_target_above_the_one_used_is_advised(used: float, advice: str) -> None:
    settings = GOOD.settings.model_copy(update={"target_acceptance": used})
    found = batchnuts.check(result_of(replace(with_stats(diverging=flagged(100)), settings=settings)))
    assert advice in found.advice[0]


@pytest.mark.parametrize(("metric", "advised"), [("diag", True), ("dense", False), ("low_rank", False)])
def test_a_metric_of_correlations_is_advised_where_there_is_none(metric: str, advised: bool) -> None:
    settings = GOOD.settings.model_copy(update={"metric": metric})
    found = batchnuts.check(result_of(replace(with_stats(reached_max_treedepth=flagged(100)), settings=settings)))
    assert ("sampler.metric to low_rank or dense" in found.advice[0]) is advised


def test_trajectories_that_leave_where_the_density_is_finite_are_counted() -> None:
    errors = np.where(flagged(30), np.inf, GOOD.stats["max_energy_error"])
    found = batchnuts.check(result_of(with_stats(diverging=flagged(40), max_energy_error=errors)))
    assert "Trajectories that ended where the log-density is not finite: 30 of these" in str(found)
    assert any("batchnuts.positive() for a scale" in line for line in found.advice)
    assert any("raise target_acceptance" in line for line in found.advice)  # the other ten
    found = batchnuts.check(result_of(with_stats(diverging=flagged(30), max_energy_error=errors)))
    assert not any("raise target_acceptance" in line for line in found.advice)


@pytest.mark.parametrize("left", [0, 2, 5, 8, 10])
def test_divergences_that_fail_a_verdict_come_with_advice(left: int) -> None:
    errors = np.where(flagged(left), np.inf, GOOD.stats["max_energy_error"])
    found = batchnuts.check(result_of(with_stats(diverging=flagged(10), max_energy_error=errors)))
    assert not found.ok
    assert found.advice


@pytest.mark.parametrize(
    ("until", "shift", "advice"),
    [
        ({"ess_bulk": 50}, 0.0, "set sampler.until.ess_bulk to 400 or more"),
        ({"ess_bulk": 1000}, 1.0, "add sampler.until.rhat=1.01"),
        ({"rhat": 1.05}, 1.0, "lower sampler.until.rhat from 1.05 to 1.01"),
        ({"rhat": 1.01, "ess_bulk": 50}, 1.0, "raise sampler.until.ess_bulk"),
    ],
)
def test_advice_names_what_ended_the_run(until: dict[str, float], shift: float, advice: str) -> None:
    settings = SamplerSettings.model_validate({**GOOD.settings.model_dump(), "until": until})
    draws = make_draws(MODEL, SamplerSettings(chains=8, draws=20 if not shift else 300))
    moved = draws.position + shift * np.arange(8)[:, None, None].astype("float32")
    found = batchnuts.check(result_of(replace(draws, position=moved, settings=settings, ended="conditions hold")))
    assert any(advice in line for line in found.advice), found.advice
    assert not any("double draws" in line or "raise draws" in line or "stuck" in line for line in found.advice)


def test_chains_that_begin_far_away_are_named_in_the_first_line() -> None:
    """By their log-densities; by their draws; and not where all begin there."""
    many = make_draws(MODEL, SamplerSettings(chains=64, draws=60, superchains=64))
    assert batchnuts.check(result_of(many)).ok
    lp = np.array(many.stats["lp"])
    lp[[3, 58], :4] -= 200 * lp.std()
    found = batchnuts.check(result_of(replace(many, stats={**many.stats, "lp": lp})))
    assert not found.ok
    assert str(found).startswith("NOT OK: 64 chains x 60 draws; chains 3, 58 have draws far from all others\n")
    assert found.advice[0].startswith("Chains 3, 58 have draws far from all others: ")
    lp[:, :4] -= 400 * lp.std()
    assert batchnuts.check(result_of(replace(many, stats={**many.stats, "lp": lp}))).ok
    position, lp = np.array(many.position), np.array(many.stats["lp"])
    position[58, 20:24, 2] += 60
    assert batchnuts.check(result_of(replace(many, position=position))).ok  # a heavy tail, by their log-densities
    lp[58, 20:24] -= 60**2 / 2
    found = batchnuts.check(result_of(replace(many, position=position, stats={**many.stats, "lp": lp})))
    assert found.diagnostics.late == (58,)
    assert "1 of 64 chains has draws far from all others: 58" in str(found)


@pytest.mark.parametrize(
    ("restart", "why"),
    [
        ("auto", "from a log-density too low for any mode of weight"),
        (True, "as sampler.warmup.restart asks"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_chains_that_started_again_are_named_once_with_the_reason(
    restart: Any, why: str, complete: bool, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    warmup = GOOD.settings.warmup.model_copy(update={"restart": restart})
    settings = GOOD.settings.model_copy(update={"warmup": warmup})
    done = GOOD.done if complete else np.minimum(GOOD.done, np.arange(8))
    draws = replace(GOOD, settings=settings, warmup=replace(GOOD.warmup, restarted=(2, 5)), done=done)
    groups = to_datasets(draws, MODEL)
    said = f"In warmup chains 2, 5 restarted near others, {why}."
    if complete:
        assert str(batchnuts.check(to_arviz(groups))).count(said) == 1
    print_report(draws, groups, tmp_path / "run.nc", 0.1)
    assert capsys.readouterr().out.count("restarted near others") == 1


def test_an_interruption_is_advice_alone() -> None:
    cut = replace(GOOD, done=np.full(8, 200), interrupted=True)
    found = batchnuts.check(result_of(cut))
    assert found.interrupted
    assert found.diagnostics.draws == 200
    assert "The run was interrupted" in str(found)


@pytest.mark.parametrize("what", [None, 3, {}, {"posterior": 3}, "a.nc", np.zeros(3)], ids=repr)
def test_what_is_no_result_is_refused(what: Any) -> None:
    with pytest.raises(DiagnosticsError, match=r"check takes the result of sample_chains, or what arviz\.from_netcdf"):
        batchnuts.check(what)


def test_no_draws_are_refused_with_the_place_of_those_that_are() -> None:
    cut = replace(GOOD, done=np.array([0] + [5] * 7), interrupted=True)
    with pytest.raises(DiagnosticsError, match="the group 'unfinished' has the draws so far"):
        batchnuts.check(result_of(cut))


@pytest.mark.parametrize(
    ("log_density", "dtype", "rounding"),
    [(-1e8, "float32", 8.0), (1e6, "float32", 0.0625), (-1e3, "float32", 6.1e-5), (-1e8, "float64", 1.5e-8)],
)
def test_a_rounded_log_density_is_reported(log_density: float, dtype: str, rounding: float, tmp_path: Any) -> None:
    """In the result, in the verdict and in the file; an ordinary one is not."""
    lp = (log_density + np.zeros((*GOOD.done.shape, 300))).astype(dtype)
    result = result_of(with_stats(lp=lp))
    found = batchnuts.check(result)
    assert found.diagnostics.rounding == pytest.approx(rounding, rel=0.02)
    assert result.posterior.attrs["log_density_rounding"] == found.diagnostics.rounding
    reported = rounding > 0.05
    assert found.ok is not reported
    assert ("the log-density is so large that it is rounded by" in found.diagnostics.verdict()) is reported
    assert any('float64 (dtype="float64" of the model' in line for line in found.advice) is reported
    opened = arviz.from_netcdf(save(to_datasets(with_stats(lp=lp), MODEL), tmp_path / "a.nc"))
    assert batchnuts.check(opened).diagnostics.rounding == found.diagnostics.rounding


def test_a_large_float32_density_is_reported_after_a_real_run() -> None:
    model = Model.from_function(lambda q: -0.5 * (q[0] * q[0] + q[1] * q[1]) - 1e8, dimension=2)
    numpy = {"expert": {"executor": "virtual_machine"}, "backend": "numpy", "progress": False}
    found = batchnuts.check(batchnuts.sample_chains(model, chains=4, warmup=10, draws=10, **numpy))
    assert found.diagnostics.rounding == 8.0
    assert not found.ok
    assert found.advice[0].startswith("The log-density is rounded by 8, ")
    assert len(found.advice) > 1, "what may follow from it comes later"


def test_generated_quantities_that_are_not_finite_are_named(tmp_path: Any) -> None:
    """In the verdict and in the JSON of a report, also where a store has kept what was diagnosed."""
    result = result_of(GOOD)
    bad = np.where(np.arange(result.posterior.sizes["draw"]) < 3, np.nan, result.posterior["mu"])
    result.posterior["half"] = (("chain", "draw"), bad, {"generated": 1})
    found = batchnuts.check(result)
    count = 3 * result.posterior.sizes["chain"]
    assert found.diagnostics.not_finite == {"half": count}
    said = rf"^half: {count} of \d+ draws are not finite; excluded from diagnostics$"
    assert re.search(said, str(found), re.MULTILINE)
    groups = {name: result[name] for name in ("posterior", "sample_stats")}
    group = {"diagnostics": diagnostics_group(found.diagnostics)}
    for kept in ({}, group):
        verdict, _ = verdict_at_end(tmp_path, groups | kept, 1, 1)
        assert verdict["not_finite"] == {"half": count}
        assert verdict["ok"] is found.ok


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quantities_that_are_constant_but_for_rounding_are_not_judged(dtype: str) -> None:
    """The diagonal of correlations that were computed from a Cholesky factor; a sampled variable always counts."""
    result = result_of(GOOD)
    shape = result.posterior["mu"].shape
    chosen = np.random.default_rng(0).integers(-1, 2, shape)
    ones = (1.0 + np.finfo(dtype).eps * chosen).astype(dtype)
    correlations = np.stack([ones, np.tanh(result.posterior["mu"].values).astype(dtype)], -1)
    result.posterior["corr"] = (("chain", "draw", "corr_dim_0"), correlations, {"generated": 1})
    found = batchnuts.check(result).diagnostics
    assert [name for name in found.names if name.startswith("corr")] == ["corr[1]"]
    assert not found.not_finite
    result.posterior["corr"].attrs["generated"] = 0
    assert "corr[0]" in batchnuts.check(result).diagnostics.names


@pytest.mark.parametrize(
    ("offset", "dtype", "coarse"), [(2e7, "float32", True), (2e7, "float64", False), (1e4, "float32", False)]
)
def test_draws_that_rounding_leaves_few_values_are_reported(offset: float, dtype: str, coarse: bool) -> None:
    result = result_of(GOOD)
    result.posterior["mu"] = (result.posterior["mu"].astype("float64") + offset).astype(dtype)
    found = batchnuts.check(result)
    assert found.diagnostics.coarse == (("mu",) if coarse else ())
    assert ("mu lies so far from 0 that rounding leaves the draws few distinct values" in str(found)) is coarse
    assert any("rounded to few values: sample in float64" in line for line in found.advice) is coarse
    assert not (coarse and found.ok)


def test_the_worst_of_several_limits_is_nearest_to_its_own() -> None:
    drawn = diagnose(GOOD.position, MODEL.element_names())
    limits = 1 + 3 * (drawn.rhat - 1) + 0.01
    limits[3] = 1 + 2 * (drawn.rhat[3] - 1)
    found = judge(replace(drawn, limits=limits))
    assert drawn.rhat.argmax() != 3
    assert found.worst_rhat == drawn.rhat[3]
    assert f"worst {drawn.names[3]} = {found.worst_rhat:.4f}" in str(found)


@pytest.mark.parametrize("count", [None, 4])
def test_superchains_of_a_file_decide(count: int | None, tmp_path: Any) -> None:
    """Chains belong to superchains by their numbers, of those that are there too; one draw of each may be enough."""
    draws = make_draws(MODEL, SamplerSettings(chains=1024, draws=1, superchains=count))
    found = batchnuts.check(arviz.from_netcdf(str(save(to_datasets(draws, MODEL), tmp_path / "a.nc"))))
    assert found.diagnostics.superchains == (count or 16)
    assert found.ok, found
    assert found.min_ess == 1024
    assert found.worst_rhat == found.diagnostics.nested.max() < found.diagnostics.limit
    begun = np.arange(1024) >= 24
    cut = replace(
        draws, begun=begun, interrupted=True, position=draws.position + (np.arange(1024) // 4 % 4)[:, None, None]
    )
    found = batchnuts.check(result_of(cut))
    assert found.diagnostics.chains == 1000
    assert (found.diagnostics.converged is False) is (count is None)
    assert any("(nested R-hat above " in line for line in found.advice) is (count is None)
