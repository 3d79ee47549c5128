"""Runs that end by themselves: the same draws as a longer run, as many of each chain, however threads run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chain_runs import slice_for
from mcmc_models import gaussian

from batchnuts.mcmc.model.declarations import positive, real
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.statistics.convergence import convergence
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.settings.schema import SettingsError

MODEL = gaussian(3)
FIXED = {"chains": 4, "warmup": 0, "draws": 24, "step_size": 0.6, "backend": "numpy", "max_tree_depth": 1, "seed": 11}
POINTS = (10, 14, 18, 24)


def run(progress: Any = None, **settings: Any) -> Draws:
    return run_chains(MODEL, *split_settings(FIXED | settings), progress)


@pytest.fixture(scope="module")
def whole() -> Draws:
    return run()


def sizes(draws: Draws, n: int) -> np.ndarray:
    """Bulk ESS of each coefficient, of the first n draws."""
    return convergence(draws.position[:, :n], ["ess_bulk"])["ess_bulk"]


@pytest.fixture(scope="module")
def enough(whole: Draws) -> float:
    """A bulk ESS that all coefficients have at 14 or 18 draws, and not all at 10."""
    found = [sizes(whole, n).min() for n in POINTS]
    assert max(found[1:3]) > found[0]
    return float(max(found[1:3]))


@pytest.fixture(scope="module")
def ended(enough: float) -> Draws:
    return run(until={"ess_bulk": enough})


def test_it_ends_at_the_first_interim_analysis_where_the_conditions_hold(
    whole: Draws, ended: Draws, enough: float
) -> None:
    """With exactly these draws of each chain, which are the first ones of the run without conditions."""
    n = next(n for n in POINTS if sizes(whole, n).min() >= enough)
    assert n in (14, 18)
    assert not ended.interrupted
    np.testing.assert_array_equal(ended.done, np.full(4, n))
    assert ended.position.shape == (4, n, 3)
    np.testing.assert_array_equal(ended.position, whole.position[:, :n])
    for name, array in ended.stats.items():
        np.testing.assert_array_equal(array, whole.stats[name][:, :n], err_msg=name)
    assert ended.ended == f"all sampled parameters have bulk ESS >= {enough:g} after {n} draws of each chain"


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_lanes": 3, "expert": {"shards": 2}},
        {"chunk_lanes": 2, "expert": {"shards": 1}},
        {"expert": {"executor": "stackless"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("seconds", [1e-6, 0.5])
def test_threads_and_slices_change_nothing(
    ended: Draws, enough: float, settings: dict[str, Any], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_for(seconds, monkeypatch)
    again = run(until={"ess_bulk": enough}, **settings)
    assert again.complete == ended.complete
    assert again.ended == ended.ended
    np.testing.assert_allclose(again.position, ended.position, rtol=1e-9)


def test_progress_says_what_is_known_of_the_conditions(enough: float) -> None:
    seen: list[Progress] = []
    run(seen.append, until={"ess_bulk": enough, "rhat": 50.0}, chunk_lanes=2, expert={"shards": 1})
    reports = [progress for progress in seen if progress.phase == "sampling"]
    assert {tuple(one.name for one in progress.until) for progress in reports} == {("ess_bulk", "rhat")}
    assert all(np.isnan(one.found) for one in reports[0].until)
    assert all(one.met for one in reports[-1].until)
    assert reports[-1].until[0].found >= reports[-1].until[0].wanted == enough
    assert (reports[-1].remaining, reports[-1].missing) == (0.0, ())
    assert reports[-1].total == 4 * 24


def test_the_file_has_these_draws_and_says_why(ended: Draws) -> None:
    groups = to_datasets(ended, MODEL)
    assert groups["posterior"].sizes["draw"] == groups["sample_stats"].sizes["draw"] == ended.complete
    assert "unfinished" not in groups
    attributes = groups["posterior"].attrs
    assert attributes["sampling_ended"] == ended.ended
    assert (attributes["interrupted"], attributes["draws_complete"], attributes["draws_requested"]) == (
        0, ended.complete, 24,
    )  # fmt: skip


def test_named_parameters_alone_decide(whole: Draws, enough: float) -> None:
    best = int(sizes(whole, 10).argmax())
    name = MODEL.element_names()[best]
    size = float(sizes(whole, 10)[best]) * 0.999
    named = run(until={"ess_bulk": size, "parameters": [name]})
    assert named.ended == f"{name} has bulk ESS >= {size:g} after 10 draws of each chain"
    with pytest.raises(
        SettingsError, match=r"sampler.until.parameters: found 'y', which is not a parameter of the model"
    ):
        run(until={"ess_bulk": 100, "parameters": ["y"]})
    with pytest.raises(SettingsError, match=r"sampler.until.rhat: found 1.01 with one chain; R-hat compares chains"):
        run(until={"rhat": 1.01}, chains=1)


def test_the_limit_on_gradients(whole: Draws) -> None:
    """At the first interim analysis at which the draws took as many, whatever chains have done beyond it."""
    spent = whole.stats["n_steps"].sum(axis=0).cumsum()
    found = run(until={"gradients": float(spent[11])})
    assert found.complete == 14, "the first interim analysis with 12 draws or more"
    assert found.ended.startswith(f"the draws took {spent[13]:.4g} gradients (limit ")


def test_the_limit_on_seconds(whole: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)
    found = run(until={"seconds": 1e-6})
    assert 1 <= found.complete < 24
    assert found.ended.startswith("sampling took ")
    np.testing.assert_array_equal(found.position, whole.position[:, : found.complete])


def test_conditions_that_never_hold_end_at_the_maximum(whole: Draws) -> None:
    found = run(until={"ess_bulk": 1e6})
    np.testing.assert_array_equal(found.position, whole.position)
    assert found.ended.startswith("all 24 draws of each chain were made (sampler.draws); bulk ESS of ")
    assert whole.ended == ""


def test_an_interruption_leaves_what_was_drawn(whole: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)

    def press(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.done > 4 * 5:
            raise KeyboardInterrupt

    cut = run(press, until={"ess_bulk": 1e6})
    assert cut.interrupted
    for chain, done in enumerate(cut.done):
        np.testing.assert_array_equal(cut.position[chain, :done], whole.position[chain, :done])


def test_natural_parameters_decide() -> None:
    """Of a model with supports, the values that are reported."""

    def density(values: Any) -> Any:
        return -0.5 * values["mu"] ** 2 - values["tau"]

    made = Model.from_function(density, variables={"mu": real(), "tau": positive()}, dtype="float64")
    settings = split_settings(FIXED | {"until": {"ess_tail": 20, "parameters": ["tau"]}})
    found = run_chains(made, *settings)
    tau = made.elements(found.position)[:, :, 1:]
    assert (tau > 0).all()
    assert (convergence(tau, ["ess_tail"])["ess_tail"] >= 20).all() or found.complete == 24
