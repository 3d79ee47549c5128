"""Small tasks for the samplers of experiments, and facts that hold for every one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from moments import assert_expectations

from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import REGISTRY
from batchnuts.experiments.samplers.task import Outcome, Prepared, Task
from batchnuts.models import REGISTRY as MODELS
from batchnuts.models.correlated_gaussian import CorrelatedGaussianOptions, covariance_matrix

GAUSSIAN = {"name": "correlated_gaussian", "dimension": 3, "covariance": "ar1", "correlation": 0.5}
INDEPENDENT = {"name": "correlated_gaussian", "dimension": 3, "covariance": "diagonal", "condition_number": 10.0}
REGRESSION = {"name": "logistic_regression", "rows": 50, "columns": 4}
FUNNEL = {"name": "neal_funnel", "dimension": 5}
SCHOOLS = {"name": "eight_schools"}
CENTERED = {"name": "eight_schools", "parametrization": "centered"}
PROBLEMS = [GAUSSIAN, INDEPENDENT, REGRESSION, FUNNEL, SCHOOLS, CENTERED]


def make_problem(options: dict[str, Any]) -> Problem:
    return Problem(MODELS[options["name"]].options.model_validate(options))


def make_task(sampler: str, options: dict[str, Any], **others: Any) -> Task:
    defaults: dict[str, Any] = {
        "problem": GAUSSIAN,
        "chains": 3,
        "transitions": 4,
        "step_size": 0.3,
        "max_tree_depth": 6,
        "leapfrogs_per_leaf": 1,
        "start": "typical",
        "device": "cpu",
        "measure_ess": False,
    }
    return Task(sampler=sampler, options=options, **{**defaults, **others})


def prepare(task: Task) -> Prepared:
    return REGISTRY[task.sampler].load().prepare(task, make_problem(task.problem))


def sample(task: Task, seed: int = 1) -> Outcome:
    return prepare(task)(seed)()


def assert_full_trees(sampler: str, options: dict[str, Any], leapfrogs_per_leaf: int, chains: int = 3) -> Outcome:
    """With a tiny step no trajectory turns, so each is a full tree of 2**depth - 1 leaves after the first point."""
    task = make_task(
        sampler, options, step_size=1e-3, max_tree_depth=3, leapfrogs_per_leaf=leapfrogs_per_leaf, chains=chains
    )
    outcome = sample(task)
    total = leapfrogs_per_leaf * 7
    assert outcome.leapfrogs.sum(axis=1).tolist() == [task.transitions * total] * chains
    if outcome.leapfrogs.shape[1] == task.transitions:
        assert set(outcome.leapfrogs.flat) == {total}
    assert np.issubdtype(outcome.leapfrogs.dtype, np.integer)
    assert outcome.executed_gradients in (None, chains * task.transitions * total)
    assert outcome.draws is None
    return outcome


def assert_moments(sampler: str, options: dict[str, Any], leapfrogs_per_leaf: int = 1, dtype: str = "float32") -> None:
    """Means and products of the draws are those of the Gaussian, and the draws are the asked ones."""
    problem = {**GAUSSIAN, "dtype": dtype}
    task = make_task(
        sampler,
        options,
        problem=problem,
        chains=16,
        transitions=300,
        leapfrogs_per_leaf=leapfrogs_per_leaf,
        measure_ess=True,
    )
    outcome = sample(task)
    assert outcome.draws is not None
    assert outcome.draws.shape == (16, 300, 3)
    assert outcome.draws.dtype == ("float64" if sampler in ("stan", "stanli", "nutpie") else dtype)
    assert outcome.leapfrogs.shape == (16, 300)
    assert (outcome.leapfrogs % leapfrogs_per_leaf == 0).all()
    rows, columns = np.triu_indices(3)
    products = outcome.draws[..., rows] * outcome.draws[..., columns]
    covariance = covariance_matrix(CorrelatedGaussianOptions.model_validate(problem))
    expected = np.concatenate([np.zeros(3), covariance[rows, columns]])
    assert_expectations(np.concatenate([outcome.draws, products], axis=2), expected, largest_error=0.1)


def assert_density(values: np.ndarray, gradients: np.ndarray, problem: Problem, positions: np.ndarray) -> None:
    """Log-densities [points] (up to a constant) and gradients [points, dimension] are those of the problem's model."""
    points = tf.Variable(positions)
    with tf.GradientTape() as tape:
        found = tf.stack([problem.model.flat_log_density(points[k]) for k in range(len(positions))])
    expected, expected_gradients = found.numpy(), tf.convert_to_tensor(tape.gradient(found, points)).numpy()
    np.testing.assert_allclose(np.diff(values), np.diff(expected), rtol=1e-9)
    np.testing.assert_allclose(gradients, expected_gradients, rtol=1e-9, atol=1e-12)


def points(problem: Problem) -> np.ndarray:
    return problem.starts("wide", 5, 7) / 5
