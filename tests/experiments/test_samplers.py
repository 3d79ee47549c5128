"""The samplers that need nothing but TensorFlow, and what each says when it cannot do what is asked."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sampler_tasks import (
    GAUSSIAN,
    PROBLEMS,
    REGRESSION,
    assert_density,
    assert_full_trees,
    assert_moments,
    make_problem,
    make_task,
    points,
    prepare,
    sample,
)

from batchnuts.experiments.samplers import leapfrog_limit, ours, registry, tf_densities, tfp_unrolled
from batchnuts.experiments.samplers.problems import TARGETS, Problem
from batchnuts.experiments.samplers.sharding import chunks
from batchnuts.experiments.samplers.task import MissingSampler
from batchnuts.mcmc.execution.chunk_plan import divide
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.models import REGISTRY as MODELS

STACKLESS = {"executor": "stackless", "mode": "eager"}


@pytest.mark.parametrize("options", PROBLEMS, ids=str)
def test_the_density_that_tensorflow_differentiates_is_the_models(options: dict[str, Any]) -> None:
    problem = make_problem({**options, "dtype": "float64"})
    positions = points(problem)
    with tf.GradientTape() as tape:
        variable = tf.Variable(positions)
        values = tf_densities.log_density(problem)(variable)
    assert_density(values.numpy(), tape.gradient(values, variable).numpy(), problem, positions)


@pytest.mark.parametrize(
    ("sampler", "options", "leapfrogs_per_leaf"),
    [
        ("tfp_unrolled", {}, 1),
        ("tfp_unrolled", {"mode": "graph"}, 4),
        pytest.param("tfp_autobatched", {}, 4, marks=pytest.mark.slow),  # compiles for a quarter of a minute
        ("tfp_autobatched", STACKLESS, 2),
    ],
)
def test_leapfrogs_of_full_trees(sampler: str, options: dict[str, Any], leapfrogs_per_leaf: int) -> None:
    outcome = assert_full_trees(sampler, options, leapfrogs_per_leaf)
    assert outcome.executed_gradients is not None


@pytest.mark.parametrize("backend", ["native", "jax", "numpy"])
def test_options_of_ours_as_rows_have_them(backend: str) -> None:
    """With all their defaults, one that has no effect too."""
    options = registry.OursOptions.model_validate({"backend": backend})
    dumped = options.model_dump(exclude={"mode"} if backend == "numpy" else set())
    assert registry.OursOptions.model_validate(dumped).execution == options.execution


def test_the_reference_counts_leapfrogs_by_step() -> None:
    """Two trajectories a step: of four transitions it gives two sums."""
    outcome = sample(make_task("tfp_autobatched", {"trajectories_per_step": 2, **STACKLESS}))
    assert outcome.leapfrogs.shape == (3, 2)


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), STACKLESS])
def test_the_reference_executes_what_one_chain_needs(options: dict[str, Any]) -> None:
    """One chain alone wastes nothing: what the density counted is what the chain needed."""
    alone = sample(make_task("tfp_autobatched", options, chains=1, leapfrogs_per_leaf=2))
    assert alone.executed_gradients == alone.leapfrogs.sum() > 0


def test_the_reference_executes_more_than_its_longest_chain_needs() -> None:
    """Chains that must wait for each other: `leapfrogs_computed`, the reference's own figure, would fall short."""
    outcome = sample(make_task("tfp_autobatched", STACKLESS, chains=6))
    assert outcome.executed_gradients is not None
    assert outcome.executed_gradients > 6 * outcome.leapfrogs.max()


def test_lockstep_executes_what_the_longest_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count from the trajectories' lengths is that of a density which counts its own evaluations."""
    problem = make_problem(REGRESSION)
    density = tf_densities.log_density(problem)
    evaluations = tf.Variable(0, dtype="int64")

    def counted(position: Any) -> Any:
        evaluations.assign_add(1)
        return density(position)

    monkeypatch.setattr(tfp_unrolled, "log_density", lambda problem: counted)
    task = make_task(
        "tfp_unrolled", {"mode": "graph"}, problem=REGRESSION, step_size=0.05, chains=5, leapfrogs_per_leaf=2
    )
    run = tfp_unrolled.prepare(task, problem)(3)
    before = int(evaluations.numpy())
    outcome = run()
    assert outcome.executed_gradients == 5 * (int(evaluations.numpy()) - before)
    assert outcome.executed_gradients > outcome.leapfrogs.sum()
    assert len(np.unique(outcome.leapfrogs)) > 2


@pytest.mark.parametrize(
    ("sampler", "options", "leapfrogs_per_leaf", "dtype"),
    [
        ("tfp_unrolled", {}, 1, "float64"),
        ("tfp_unrolled", {"mode": "graph"}, 2, "float32"),
        pytest.param("tfp_autobatched", {"trajectories_per_step": 1}, 2, "float32", marks=pytest.mark.slow),
    ],
)
def test_moments(sampler: str, options: dict[str, Any], leapfrogs_per_leaf: int, dtype: str) -> None:
    assert_moments(sampler, options, leapfrogs_per_leaf, dtype)


def test_a_run_follows_from_its_seed() -> None:
    run = prepare(make_task("tfp_unrolled", {"mode": "graph"}, measure_ess=True))
    first, again, other = run(5)().draws, run(5)().draws, run(6)().draws
    assert first is not None
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_the_limit_takes_the_leapfrogs_it_says() -> None:
    task = make_task("leapfrog_limit", {"leapfrogs_per_transition": 6}, leapfrogs_per_leaf=3, transitions=2)
    outcome = sample(task)
    assert outcome.leapfrogs.tolist() == [[6, 6]] * 3
    assert outcome.executed_gradients == 36
    # twelve leapfrogs by hand
    problem = make_problem(GAUSSIAN)
    rng = np.random.default_rng(0)
    start, momentum = rng.standard_normal((2, 3, 3))
    position, precision, total = start, problem.data["precision"], np.zeros(3)
    for _ in range(12):
        momentum = momentum - 0.5 * task.step_size * position @ precision
        position = position + task.step_size * momentum
        momentum = momentum - 0.5 * task.step_size * position @ precision
        total -= 0.5 * np.sum(position @ precision * position, axis=1)
    compiled = leapfrog_limit.make_leapfrogs(make_problem({**GAUSSIAN, "dtype": "float64"}), task)
    start_momentum = np.random.default_rng(0).standard_normal((2, 3, 3))[1]
    ended, _, _, summed = compiled(tf.constant(start), tf.constant(start_momentum), tf.constant(-start @ precision))
    np.testing.assert_allclose(ended, position, rtol=1e-9)
    np.testing.assert_allclose(summed, total, rtol=1e-9)


def test_the_limit_in_batches_on_threads_ends_where_one_batch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[np.ndarray] = []
    make = leapfrog_limit.make_leapfrogs

    def noted(*arguments: Any) -> Any:
        compiled = make(*arguments)

        def run(*arrays: Any) -> Any:
            results = compiled(*arrays)
            ends.append(results[0].numpy())
            return results

        return run

    monkeypatch.setattr(leapfrog_limit, "make_leapfrogs", noted)
    for options in ({}, {"chunk_lanes": 2, "shards": 2}):
        task = make_task("leapfrog_limit", {"leapfrogs_per_transition": 4, **options}, chains=6)
        outcome = leapfrog_limit.prepare(task, make_problem({**GAUSSIAN, "dtype": "float64"}))(3)()
        assert outcome.leapfrogs.shape == (6, task.transitions)
    whole, *parts = ends
    assert [len(part) for part in parts] == [2, 2, 2]
    order = sorted(parts, key=lambda part: int(np.argmin(np.abs(whole - part[0]).sum(axis=1))))  # threads may overtake
    np.testing.assert_allclose(np.concatenate(order), whole, rtol=1e-10)


def test_the_limit_keeps_the_log_density_alive() -> None:
    """Only the log-density needs a logarithm. XLA drops it, with its sum over rows, when nobody asks for it."""
    task = make_task("leapfrog_limit", {"leapfrogs_per_transition": 4}, problem=REGRESSION)
    compiled = leapfrog_limit.make_leapfrogs(make_problem(REGRESSION), task)
    arguments = [tf.zeros((3, 4))] * 3

    def logarithms(function: Any) -> int:
        text = function.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
        return text.count(" log(") + text.count(" log-plus-one(")

    assert logarithms(compiled) > 0
    assert logarithms(tf.function(lambda *arrays: compiled(*arrays)[0], jit_compile=True)) == 0


@pytest.mark.parametrize(
    ("sampler", "library", "package"),
    [("blackjax",) * 3, ("numpyro",) * 3, ("stan", "stan", "pystan"), ("stanli",) * 3, ("nutpie",) * 3],
)
def test_a_missing_library_is_named(sampler: str, library: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingSampler, match=rf"{sampler} needs {package}: pip install 'batchnuts\[peers\]'"):
        prepare(make_task(sampler, {}))


def test_ours_on_jax_says_that_jax_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "has_jax", lambda: False)
    with pytest.raises(MissingSampler, match=r"batchnuts with backend jax needs jax: pip install 'batchnuts\[jax\]'"):
        prepare(make_task("batchnuts", {"backend": "jax"}))


@pytest.mark.parametrize(
    ("sampler", "options", "others", "said"),
    [
        ("numpyro", {}, {"leapfrogs_per_leaf": 4}, "one leapfrog per leaf; leapfrogs_per_leaf is 4"),
        ("stan", {}, {"leapfrogs_per_leaf": 4}, "one leapfrog per leaf; leapfrogs_per_leaf is 4"),
        ("stan", {}, {"device": "gpu"}, "on the CPU only"),
        ("stanli", {}, {"leapfrogs_per_leaf": 4}, "one leapfrog per leaf; leapfrogs_per_leaf is 4"),
        ("stanli", {}, {"device": "gpu"}, "on the CPU only"),
        ("nutpie", {}, {"leapfrogs_per_leaf": 4}, "one leapfrog per leaf; leapfrogs_per_leaf is 4"),
        ("nutpie", {}, {"device": "gpu"}, "on the CPU only"),
        ("tfp_autobatched", {"executor": "stackless"}, {}, "set mode: eager"),
        ("tfp_autobatched", {}, {"measure_ess": True}, "set it to 1"),
        ("tfp_autobatched", {"trajectories_per_step": 3}, {}, "expected a divisor of transitions, which is 4"),
        ("leapfrog_limit", {}, {"leapfrogs_per_leaf": 3}, "expected a multiple of leapfrogs_per_leaf, which is 3"),
        ("leapfrog_limit", {}, {"measure_ess": True}, "no effective sample size"),
        ("leapfrog_limit", {"chunk_lanes": 3}, {"chains": 4}, "4 chains do not divide into chunks of 3"),
    ],
)
def test_what_cannot_be_is_refused(sampler: str, options: Any, others: Any, said: str) -> None:
    with pytest.raises(MissingSampler, match=said):
        prepare(make_task(sampler, options, **others))


@pytest.mark.parametrize("sampler", ["leapfrog_limit", "tfp_unrolled", "tfp_autobatched"])
def test_a_missing_device_is_named(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(MissingSampler, match="TensorFlow sees no gpu"):
        prepare(make_task(sampler, {}, device="gpu"))


@pytest.mark.parametrize("chains", [1, 4, 8, 32, 256, 1024])
@pytest.mark.parametrize("lanes", [64, 128, 256])
def test_peers_and_the_limit_are_sharded_as_ours_is(chains: int, lanes: int) -> None:
    divided = divide(chains, ExecutionSettings(backend="tensorflow", expert={"shards": 2}), lanes, cores=2, alone=1)
    found = chunks("blackjax", chains, lanes, 2)
    assert np.concatenate([np.arange(chains)[part] for part in found]).tolist() == list(range(chains))
    assert {len(range(chains)[part]) for part in found} == {divided.lanes}
    assert len(found) == divided.chunks


def test_chains_that_do_not_divide_are_refused() -> None:
    with pytest.raises(MissingSampler, match="blackjax: 5 chains do not divide into chunks of 2, which 2 workers"):
        chunks("blackjax", 5, 2, 2)


@pytest.mark.parametrize("name", TARGETS)
def test_any_target_goes_to_the_processes_of_a_sharded_sampler(name: str) -> None:
    """As its options: what is made from them may hold functions, which do not go."""
    problem = Problem(MODELS[name].options.model_validate({"name": name}))
    starts = problem.starts("typical", 4, 1)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(problem)).starts("typical", 4, 1), starts)
