"""Whole runs: counts of draws, reproducibility, settings, structure and progress.

Most run under NumPy, where nothing is compiled; the executors' agreement is a matter of tests/mcmc/test_nuts.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chain_runs import slice_for
from mcmc_models import gaussian
from small_runs import FIXED, MODEL, assert_same, run

from batchnuts import sample_chains
from batchnuts.autobatch import BatchedFunction, StackOverflowError, ops
from batchnuts.mcmc.execution.program_cache import check_disk_cache
from batchnuts.mcmc.kernel.sample_statistics import STATISTIC_NAMES
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.settings.schema import SettingsError


@pytest.fixture(scope="module")
def plain() -> Draws:
    return run()


def test_a_disk_cache_that_cannot_be_written_is_reported(capsys: Any, monkeypatch: Any) -> None:
    with pytest.raises(SettingsError, match=r"execution\.cache: found '/proc/x', where .* \(/proc cannot be written"):
        run(cache="/proc/x")
    monkeypatch.setenv("BATCHNUTS_CACHE", "/proc/y")
    run(draws=1)
    said = capsys.readouterr().err
    assert said.startswith("batchnuts: warning: compiled programs cannot be cached (/proc cannot be written: ")
    assert "set BATCHNUTS_CACHE to a folder" in said
    run(draws=1)
    assert capsys.readouterr().err == "", "it is said once"
    check_disk_cache("/proc/z", goes_on=True)
    assert "compiled programs cannot be cached" in capsys.readouterr().err


def test_a_cluster_that_a_run_is_not_given_is_refused() -> None:
    """`run_chains` is told where chains run; without that it does not run them here in silence."""
    settings = split_settings({"chains": 4, "draws": 2, "warmup": 0, "cluster": "local", "backend": "numpy"})
    with pytest.raises(SettingsError, match=r"execution.cluster: found one where chains run in this process"):
        run_chains(gaussian(), *settings)


def test_every_chain_has_the_draws_asked_for(plain: Draws) -> None:
    assert plain.position.shape == (4, 9, 3)
    np.testing.assert_array_equal(plain.done, np.full(4, 9))
    assert not plain.interrupted
    assert set(plain.stats) == set(STATISTIC_NAMES)
    assert all(array.shape == (4, 9) for array in plain.stats.values())
    flat = plain.position.reshape(36, 3)
    assert len(np.unique(flat, axis=0)) > 30
    assert np.isfinite(flat).all()


def test_the_statistics_fit_the_draws(plain: Draws) -> None:
    precision = np.linalg.inv(MODEL.constant_data["true_covariance"][1])
    np.testing.assert_allclose(
        plain.stats["lp"], -0.5 * np.einsum("cdi,ij,cdj->cd", plain.position, precision, plain.position), rtol=1e-10
    )
    assert (plain.stats["energy"] > -plain.stats["lp"]).all()  # the kinetic part is positive
    assert (plain.stats["step_size"] == np.float64(np.exp(np.log(0.8)))).all()
    depth, steps = plain.stats["tree_depth"], plain.stats["n_steps"]
    assert ((2**depth - 1 <= steps) & (steps < 2 ** (depth + 1))).all()
    assert ((plain.stats["acceptance_rate"] > 0) & (plain.stats["acceptance_rate"] <= 1)).all()
    assert (np.abs(plain.stats["energy_error"]) <= np.abs(plain.stats["max_energy_error"])).all()
    assert (np.abs(plain.stats["index_in_trajectory"]) <= steps).all()
    assert plain.stats["index_in_trajectory"].min() < 0 < plain.stats["index_in_trajectory"].max()
    moved = plain.stats["index_in_trajectory"] != 0
    np.testing.assert_array_equal(moved[:, 1:], (np.diff(plain.position, axis=1) != 0).any(axis=2))
    assert plain.useful_gradients == steps.sum()
    assert 0 < plain.utilization <= 1
    assert set(plain.timings) == {"compile", "warmup", "sampling"}


def test_the_same_seed_gives_the_same_draws_and_another_others(plain: Draws) -> None:
    assert_same(run(), plain)
    assert not np.isin(run(seed=8, draws=3).position, plain.position).any()


def test_the_same_seed_gives_the_same_draws_after_a_warmup() -> None:
    options = {"warmup": 21, "step_size": None, "draws": 3, "max_tree_depth": 4}
    one, other = run(**options), run(**options)
    assert_same(one, other)
    np.testing.assert_array_equal(one.metric.inverse_mass, other.metric.inverse_mass)


@pytest.mark.parametrize(
    "how", [{}, {"expert": {"schedule": "earliest"}}, {"expert": {"executor": "stackless"}}], ids=str
)
def test_a_chain_does_not_depend_on_the_others(plain: Draws, how: dict[str, Any]) -> None:
    """Chain 0 alone, and chains 0 to 3 among seven, draw what they draw among four."""
    few = {"draws": 3, **how}
    assert_same(run(chains=1, **few), plain, slice(0, 1), slice(0, 3))
    many = run(chains=7, **few)
    assert_same(replace(many, position=many.position[:4], stats={k: v[:4] for k, v in many.stats.items()}),
                plain, slice(None), slice(0, 3))  # fmt: skip


def test_chains_differ_from_each_other(plain: Draws) -> None:
    assert len(np.unique(plain.position[:, 0], axis=0)) == 4
    assert len(np.unique(np.diff(plain.stats["energy"], axis=1))) == 4 * 8


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless", "unbatched"])
def test_fewer_draws_are_a_prefix_of_more(plain: Draws, executor: str) -> None:
    fewer = run(draws=1 if executor == "unbatched" else 7, expert={"executor": executor})
    for name in ("tree_depth", "n_steps"):
        np.testing.assert_array_equal(fewer.stats[name], plain.stats[name][:, : fewer.complete])
    np.testing.assert_allclose(fewer.position, plain.position[:, : fewer.complete], rtol=1e-9)


def test_slices_do_not_change_the_results(plain: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)
    seen: list[Progress] = []
    assert_same(run(progress=seen.append), plain)
    assert len([p for p in seen if p.phase == "sampling"]) > 10


def test_one_draw_of_one_chain() -> None:
    draws = run(chains=1, draws=1)
    assert draws.position.shape == (1, 1, 3)
    assert draws.complete == 1


def test_no_warmup_still_finds_a_step_size_unless_it_is_given() -> None:
    steps = run(draws=1, step_size=None).stats["step_size"]
    assert len(np.unique(steps)) == 1
    assert 0.05 < steps[0, 0] < 8


def test_a_fixed_step_size_survives_the_warmup() -> None:
    draws = run(warmup=25, draws=2, max_tree_depth=4)
    np.testing.assert_allclose(draws.stats["step_size"], 0.8, rtol=1e-12)
    assert (draws.metric.inverse_mass != 1).all()


def test_several_leapfrogs_a_leaf() -> None:
    draws = run(leapfrogs_per_leaf=4, step_size=0.15)
    steps = draws.stats["n_steps"]
    assert (steps % 4 == 0).all()
    assert (steps > 0).all()
    depth = draws.stats["tree_depth"]
    assert ((2**depth - 1 <= steps // 4) & (steps // 4 < 2 ** (depth + 1))).all()
    assert draws.useful_gradients == steps.sum()


def test_the_tree_depth_is_bounded_and_marked() -> None:
    stats = run(max_tree_depth=2, step_size=0.05).stats
    assert stats["tree_depth"].max() == 2
    assert stats["n_steps"].max() == 3
    np.testing.assert_array_equal(stats["reached_max_treedepth"], stats["tree_depth"] == 2)


def test_the_warmup_may_have_another_tree_depth() -> None:
    """A warmup whose depth is bounded by its own setting ends where one bounded by the common setting does."""
    options = {"warmup": 21, "step_size": 0.05, "draws": 1, "metric": "unit", "divergences": True}
    mixed, shallow = run(max_tree_depth=4, max_tree_depth_warmup=2, **options), run(max_tree_depth=2, **options)
    assert mixed.stats["tree_depth"].max() > 2
    assert shallow.stats["tree_depth"].max() <= 2
    assert mixed.start is not None
    assert shallow.start is not None
    np.testing.assert_array_equal(mixed.start, shallow.start)


@pytest.mark.parametrize("how", [{}, {"expert": {"executor": "stackless"}}], ids=str)
def test_the_places_of_divergences_are_given_on_request(how: dict[str, Any]) -> None:
    wild = {"step_size": 3.0, "draws": 6, "divergence_threshold": 5.0, **how}
    plain, asked = run(**wild), run(divergences=True, **wild)
    assert_same(plain, asked)
    assert plain.last_position is None
    assert "divergences" not in to_datasets(plain, MODEL)
    group = to_datasets(asked, MODEL)["divergences"]
    chains, draws = group["chain"].values, group["draw"].values
    np.testing.assert_array_equal(np.stack([chains, draws]), np.nonzero(plain.stats["diverging"]))
    assert len(chains) > 1
    assert (draws > 0).any()
    assert asked.start is not None
    starts = np.concatenate([asked.start[:, None], asked.position[:, :-1]], axis=1)[chains, draws]
    (name,) = group.data_vars
    points = group[name]
    assert points.dims[:2] == ("divergence", "point")
    np.testing.assert_array_equal(points.sel(point="start").values.reshape(starts.shape), starts)
    # the density there explains the energy, but for the kinetic energy at the start
    precision = np.linalg.inv(MODEL.constant_data["true_covariance"][1])
    ends = points.sel(point="end").values.reshape(starts.shape)
    lost = 0.5 * (np.einsum("di,ij,dj->d", ends, precision, ends) - np.einsum("di,ij,dj->d", starts, precision, starts))
    energy = plain.stats["max_energy_error"][chains, draws]
    assert (energy > 5.0).all()
    assert (lost <= energy + 15).all()
    assert (ends != starts).all()


def test_divergences_are_marked_and_counted() -> None:
    seen: list[Progress] = []
    stats = run(step_size=3.0, draws=6, divergence_threshold=5.0, progress=seen.append).stats
    assert stats["diverging"].sum() > 0
    assert seen[-1].divergences == stats["diverging"].sum()
    assert not (stats["diverging"] & stats["reached_max_treedepth"]).any()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_models_dtype_is_kept(dtype: str) -> None:
    draws = run(gaussian(3, covariance="diagonal", dtype=dtype), draws=2)
    assert draws.position.dtype == dtype
    assert draws.stats["lp"].dtype == dtype


def structured_density(parts: dict[str, Any]) -> Any:
    scale = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")
    return -0.5 * (parts["mu"] - 100.0) ** 2 - 0.5 * ops.sum((parts["theta"] / scale) ** 2)


def test_a_model_of_a_dict() -> None:
    model = Model.from_function(structured_density, variables={"mu": [], "theta": [2, 3]})
    result = sample_chains(model, chains=3, warmup=30, draws=4, backend="numpy", max_tree_depth=5)
    posterior = result["posterior"]
    assert posterior["mu"].dims == ("chain", "draw")
    assert posterior["theta"].dims == ("chain", "draw", "theta_dim_0", "theta_dim_1")
    assert posterior["theta"].shape == (3, 4, 2, 3)
    assert abs(float(posterior["mu"].mean()) - 100) < 4


# ---- progress ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_progress_is_monotone_and_its_phases_come_in_order(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(0.02, monkeypatch)
    seen: list[Progress] = []
    draws = run(
        warmup=22, draws=6, step_size=None, expert={"executor": executor}, progress=seen.append, max_tree_depth=4
    )
    phases = list(dict.fromkeys(p.phase for p in seen))
    assert phases == ["compile", "warmup", "sampling"]
    assert [p.phase for p in seen] == sorted((p.phase for p in seen), key=phases.index)
    for phase, total in (("compile", 1), ("warmup", 4 * 22), ("sampling", 4 * 6)):
        parts = [p for p in seen if p.phase == phase]
        assert {p.total for p in parts} == {total}
        assert parts[-1].done == total
        for name in ("done", "elapsed", "useful_gradients", "divergences", "slowest", "median"):
            values = [getattr(p, name) for p in parts]
            assert values == sorted(values), (phase, name)
        assert all(0 <= p.utilization <= 1 for p in parts)
        assert all(p.slowest <= p.median <= p.each for p in parts)
        if phase != "compile":
            assert (parts[-1].slowest, parts[-1].each, parts[-1].remaining) == (total // 4, total // 4, 0.0)
        assert all((p.window is not None) == (phase == "warmup") for p in parts)
    assert seen[-1].useful_gradients == draws.stats["n_steps"].sum()
    assert draws.history is not None
    columns = draws.history.columns
    assert list(dict.fromkeys(columns["phase"])) == phases
    assert (np.diff(columns["seconds"]) >= 0).all()
    for phase in phases:
        rows = columns["phase"] == phase
        for name in ("transitions", "useful_gradients", "executed_gradients", "divergences"):
            assert (np.diff(columns[name][rows]) >= 0).all()
        assert (columns["useful_gradients"] <= columns["executed_gradients"])[rows].all()
    assert columns["transitions"][rows][-1] == 4 * 6
    assert columns["useful_gradients"][rows][-1] == seen[-1].useful_gradients


# ---- stack depth -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_a_stack_too_shallow_is_reported(executor: str) -> None:
    with pytest.raises(StackOverflowError, match=r"recursed too deep in 'build_subtree': .* 2 .*max_stack_depth"):
        run(step_size=0.05, max_stack_depth=2, expert={"executor": executor})


def test_a_stack_just_deep_enough_gives_the_same(plain: Draws) -> None:
    deepest = int(plain.stats["tree_depth"].max())
    assert_same(run(max_stack_depth=deepest + 2), plain)


# ---- the object that is given out --------------------------------------------------------------------------------


def test_sample_chains_gives_what_the_command_line_saves(plain: Draws) -> None:
    result = sample_chains(MODEL, **FIXED)
    groups = to_datasets(plain, MODEL)
    found = {name.strip("/") for name in _groups(result)} - {""}
    assert found == set(groups) == {"posterior", "sample_stats", "constant_data", "adaptation", "progress"}
    for name, dataset in groups.items():
        if name == "progress":  # when it was, and not what was drawn
            continue
        for variable in dataset.variables:
            np.testing.assert_array_equal(result[name][variable].values, dataset[variable].values)
            assert result[name][variable].dims == dataset[variable].dims
    assert set(result["sample_stats"].data_vars) == set(STATISTIC_NAMES)
    attributes = result["posterior"].attrs
    assert attributes["inference_library"] == "batchnuts"
    assert attributes["seed"] == 7
    assert json.loads(attributes["config"])["sampler"]["step_size"] == 0.8


def _groups(result: Any) -> list[str]:
    groups = result.groups
    return list(groups() if callable(groups) else groups)


@pytest.mark.parametrize(("asked", "used"), [("auto", "earliest"), ("drain", "drain")])
def test_the_first_step_size_is_found_by_the_shortest_program(
    asked: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a schedule is asked for: one that repeats a block compiles it again each time."""
    schedules: list[str] = []
    as_written = BatchedFunction.run

    def noting(self: BatchedFunction, *inputs: Any, **options: Any) -> Any:
        if self.python_function.__name__ == "first_step_size":
            schedules.append(options["schedule"])
        return as_written(self, *inputs, **options)

    monkeypatch.setattr(BatchedFunction, "run", noting)
    run(step_size=None, draws=1, expert={"schedule": asked})
    assert schedules == [used]
