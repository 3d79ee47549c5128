"""What is wrong with a user's density is said, with its cause and its remedy, before anything is compiled."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from densities import good, run, solving, starts_of

from batchnuts.api.sampling import sample_chains
from batchnuts.autobatch import AssertionWarning, ops
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.settings.schema import SettingsError


def constant(q: Any) -> Any:
    return tf.constant(1.0)


def rounded(q: Any) -> Any:
    return -tf.reduce_sum(tf.cast(tf.cast(q, tf.int32), tf.float32))


def vector(q: Any) -> Any:
    return -0.5 * q * q


def one_long(q: Any) -> Any:
    return -0.5 * tf.reduce_sum(q * q, keepdims=True)


def with_another(q: Any) -> Any:
    return -tf.reduce_sum(q * q), 1.0


def in_a_list(q: Any) -> Any:
    return [-ops.sum(q * q)]


def by_name(q: Any) -> Any:
    return {"lp": -ops.sum(q * q), "other": q}


def numpy_number(q: Any) -> Any:
    return -0.5 * np.sum(q.numpy() ** 2)


def python_number(q: Any) -> Any:
    return 0.0


def mixed(q: Any) -> Any:
    return -tf.reduce_sum(q * tf.constant(np.ones(3)))


def cast_up(q: Any) -> Any:
    return -tf.reduce_sum(tf.cast(q, tf.float64) ** 2)


def counted(q: Any) -> Any:
    return tf.reduce_sum(tf.cast(q, tf.int32))


def wrong_shape(q: Any) -> Any:
    return -tf.reduce_sum(tf.linalg.matvec(tf.ones([2, 4]), q))


def users_mistake(q: Any) -> Any:
    raise KeyError("sigma")


@pytest.mark.parametrize(
    ("log_density", "cause", "remedy"),
    [
        (vector, r"returned shape \(3,\); expected a scalar", "Sum over observations"),
        (one_long, r"returned shape \(1,\); expected a scalar", "Sum over observations"),
        (with_another, "returned a tuple of 2; expected a scalar tensor alone", "the model's function generated"),
        (in_a_list, "returned a list of 1; expected a scalar tensor alone", "the model's function generated"),
        (by_name, "returned a dict of 2; expected a scalar tensor alone", "the model's function generated"),
        (constant, "has no gradient", "through differentiable TensorFlow operations"),
        (rounded, "has no gradient", "through differentiable TensorFlow operations"),
        (numpy_number, "returned float32|returned float64", "Write it with operations of TensorFlow, of JAX"),
        (python_number, "returned float; expected a scalar tensor", "Write it with operations of TensorFlow, of JAX"),
        (mixed, "float32.*failed with InvalidArgumentError.*double", "float32"),
        (cast_up, "of dtype float32, returned float64", "Convert data and constants to float32, or declare"),
        (counted, "of dtype float32, returned int32", "Convert data and constants to float32."),
        (wrong_shape, "of 3 numbers.*failed with InvalidArgumentError", "3 numbers"),
        (users_mistake, "failed with KeyError: 'sigma'", "given one chain's position"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_density_that_cannot_be_sampled(log_density: Callable[[Any], Any], cause: str, remedy: str) -> None:
    with pytest.raises(ModelError) as caught:
        run(Model.from_function(log_density, dimension=3))
    message = str(caught.value)
    assert f"Model {log_density.__name__!r}" in message
    assert re.search(cause, message, re.DOTALL), message
    assert remedy in message
    assert "\n\n" not in message.strip()


def test_a_python_branch_on_values_is_reported_with_the_remedy_first() -> None:
    def branches(q: Any) -> Any:
        return good(q) if q[0] > 0 else 2.0 * good(q)

    with pytest.raises(
        ModelError, match=r"at .*test_check_model.py:\d+. TensorFlow traces it.*tf.where.*said: Operator"
    ):
        run_chains(Model.from_function(branches, dimension=2), SamplerSettings(chains=2, draws=1), ExecutionSettings())


def prints(q: Any) -> Any:
    tf.print(q[0])
    return good(q)


def grows(q: Any) -> Any:
    return good(q) + tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=()).write(0, q[0]).read(0)


@pytest.mark.parametrize(
    ("density", "reason", "advice"),
    [(prints, "has effects of its own", "Leave it out of the density."), (grows, "no lists that grow", "largest size")],
    ids=["prints", "grows"],
)
def test_what_pfor_refuses_is_reported_with_its_own_reason_and_advice(density: Any, reason: str, advice: str) -> None:
    with pytest.raises(ModelError) as caught:
        starts_of(Model.from_function(density, dimension=2), 2, execution=ExecutionSettings())
    message = str(caught.value)
    assert re.search(
        rf"not for many at {re.escape(__file__)}:\d+: pfor cannot convert op .*{reason}.*{advice}", message
    )
    assert "TensorFlow said" not in message
    assert "tf.where" not in message
    assert "sequential" not in message


def bounded(limit: float) -> Model:
    def log_density(q: Any) -> Any:
        tf.debugging.assert_less(q[0], limit, message="too large")  # of the bound
        return good(q)

    return Model.from_function(log_density, dimension=2, name="bounded")


def finite_only(limit: float) -> Model:
    def log_density(q: Any) -> Any:
        return good(tf.debugging.check_numerics(tf.where(q < limit, q, np.nan), "too large"))  # of the bound

    return Model.from_function(log_density, dimension=2, name="bounded")


def twin_bounded(limit: float) -> Model:
    def by_hand(q: Any) -> Any:
        tf.debugging.assert_less(q[:, 0], limit, message="too large")  # of the bound
        return -0.5 * tf.reduce_sum(q * q, axis=1), -q

    return Model(name="bounded", log_density=good, dimension=2, batched_value_and_gradient=by_hand)


def ending_runs() -> list[Any]:
    """Each kind at the start, and some later; a graph of the whole sampler takes seconds, so the rest is slow."""
    default = {("warmup", bounded, "eager"), ("sampling", twin_bounded, "graph")}
    return [
        pytest.param(when, make, mode, marks=() if at_start or (when, make, mode) in default else pytest.mark.slow)
        for when in ("the start of ", "warmup", "sampling")
        for make in (bounded, finite_only, twin_bounded)
        for mode in ("graph", "eager")
        if mode == "graph" or (make is bounded and when != "sampling")
        for at_start in (when == "the start of ",)
    ]


@pytest.mark.parametrize(("when", "make", "mode"), ending_runs())
def test_an_assertion_that_ends_a_run_is_reported_in_one_paragraph(when: str, make: Any, mode: str) -> None:
    limit = {"the start of ": 0.5, "warmup": 2.0, "sampling": 2.5}[when]
    warmup = {"warmup": 0, "step_size": 0.5} if when == "sampling" else {"warmup": 50}
    with pytest.raises(ModelError) as caught:
        sample_chains(make(limit), chains=4, draws=300, expert={"mode": mode}, seed=3, max_tree_depth=4, **warmup)
    message = str(caught.value)
    assert "\n" not in message
    assert "too large" in message
    assert "bounded" in message
    assert f"{__file__}:" in message
    assert {int(line) for line in re.findall(rf"{re.escape(__file__)}:(\d+)", message)} <= marked("of the bound")
    assert f"({when}" in message or f"({'the search for a first step size'}" in message
    if when == "the start of " and make is not twin_bounded:
        (chain,) = re.findall(r"the start of chain (\d)", message)
        starts = np.random.default_rng(3).uniform(-2, 2, (4, 2))
        assert starts[int(chain), 0] > limit or make is finite_only
    if when == "sampling":
        assert caught.value.result["posterior"].attrs["draws_made"] > 0


def test_a_matrix_that_is_singular_later_is_reported_in_one_paragraph() -> None:
    with pytest.raises(
        ModelError, match=r"its log-density failed \((warmup|the search.*)\): a matrix is singular"
    ) as caught:
        sample_chains(solving(2.0), chains=4, draws=200, expert={"mode": "eager"}, seed=6)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("Normal", r"give Model.from_function `distribution.log_prob` .*`lambda p: distribution.log_prob\(\*\*p\)`"),
        ("JointDistributionNamed", r"give Model.from_function `lambda p: distribution.log_prob\(\*\*p\)` with"),
        (
            "JointDistributionSequential",
            r'`lambda p: distribution.log_prob\(\[p\["a"\], p\["b"\]\]\)` with `variables=',
        ),
    ],
)
def test_for_a_distribution_in_place_of_a_density_or_a_model_the_error_says_how_to_wrap_it(
    kind: str, advice: str
) -> None:
    distribution = type(kind, (), {"log_prob": lambda self, **parts: parts})()
    with pytest.raises(ModelError, match=f"expected a function. A distribution has one: .*{advice}"):
        Model.from_function(distribution, variables={"mu": []})
    with pytest.raises(ModelError, match=f"sample_chains takes a Model, found {kind}.*{advice}") as caught:
        sample_chains(distribution)
    assert "\n" not in str(caught.value)
    assert ("**p" in str(caught.value)) == ("Sequential" not in kind)


def twin(function: Callable[[Any], Any]) -> Model:
    return Model(name="twin", log_density=good, dimension=3, batched_value_and_gradient=function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda q: (-0.5 * tf.reduce_sum(q * q, 1), -q[:, :2]),
            r"returned shapes \(3,\) and \(3, 2\); expected \(3,\) and",
        ),
        (
            lambda q: (-0.5 * tf.reduce_sum(q * q), -q),
            r"returned shapes \(\) and \(3, 3\); expected \(3,\) and \(3, 3\)",
        ),
        (
            lambda q: (-0.5 * tf.reduce_sum(tf.cast(q, tf.float64) ** 2, 1), -tf.cast(q, tf.float64)),
            "returned float64 and float64; expected float32",
        ),
    ],
    ids=["gradient", "value", "dtype"],
)
def test_a_hand_batched_twin_that_does_not_fit(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run(twin(function))


@pytest.mark.parametrize(
    "function",
    [lambda q: -0.5 * tf.reduce_sum(q * q, 1), lambda q: None, lambda q: (-0.5 * tf.reduce_sum(q * q, 1), None)],
    ids=["no pair", "None", "no gradient"],
)
def test_a_hand_batched_twin_that_gives_no_pair(function: Callable[[Any], Any]) -> None:
    with pytest.raises(ModelError, match=r"twin.*batched_value_and_gradient.*Expected a pair"):
        run(twin(function))


def test_a_hand_batched_twin_that_raises() -> None:
    def raises(q: Any) -> Any:
        raise KeyError("sigma")

    with pytest.raises(ModelError, match=r"batched_value_and_gradient.*KeyError: 'sigma'"):
        run(twin(raises))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chains": 0}, "chains: found 0; expected auto, or an integer of at least 1"),
        ({"draws": -5}, "draws: found -5 .*expected an integer of at least 1"),
        ({"warmup": -1}, "warmup.transitions: found -1; expected auto, or an integer of at least 0"),
        ({"step_size": 0.0}, "step_size: found 0.0 .*at least 1e-30"),
        ({"step_size": float("nan")}, "step_size: found nan"),
        ({"chians": 3}, "chians: unknown setting; did you mean 'chains'"),
        ({"max_tree_depth": 0}, "max_tree_depth: found 0"),
        ({"expert": {"executor": "stackles"}}, "did you mean 'stackless'"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        sample_chains(Model.from_function(good, dimension=2), **settings)


def test_a_good_density_passes() -> None:
    assert run(Model.from_function(good, dimension=3)).position.shape == (4, 2, 3)


def asserts(q: Any) -> Any:
    tf.debugging.assert_less(q[0], 50.0)  # first
    q = tf.debugging.check_numerics(q, "q")  # second

    def inner() -> Any:
        tf.Assert(q[1] < 50.0, [q[1]])  # third
        return good(q)

    return tf.cond(q[0] < 40.0, inner, lambda: good(q))


def asserting_twin(q: Any) -> Any:
    tf.debugging.assert_less(q[:, 0], 50.0)  # of the twin
    return -0.5 * tf.reduce_sum(q * q, axis=1), -q


def marked(kinds: str) -> set[int]:
    """Numbers of the lines of this file that end with a comment of one of these kinds."""
    lines = Path(__file__).read_text().splitlines()
    return {i for i, line in enumerate(lines, 1) if re.search(rf"# ({kinds})$", line)}


@pytest.mark.parametrize("by_hand", [False, True])
def test_assertions_that_xla_leaves_out_are_reported_by_line(by_hand: bool) -> None:
    """In graph mode they are evaluated, and nothing is said."""
    model = Model(
        name="asserts",
        log_density=good if by_hand else asserts,
        dimension=2,
        batched_value_and_gradient=asserting_twin if by_hand else None,
    )
    for mode in ("graph", "xla"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            starts_of(model, 2, execution=ExecutionSettings(expert={"mode": mode}))  # type: ignore[arg-type]
            starts_of(model, 3, execution=ExecutionSettings(expert={"mode": mode}))  # type: ignore[arg-type]
        places = [(w.filename, w.lineno) for w in caught]
        assert set(places) == (
            {(__file__, k) for k in marked("of the twin" if by_hand else "first|second|third")}
            if mode == "xla"
            else set()
        )
        assert len(places) == len(set(places)), "each once"
        assert all(issubclass(w.category, AssertionWarning) and "tf.where" in str(w.message) for w in caught)
    with pytest.warns(AssertionWarning), pytest.raises(KeyboardInterrupt):
        sample_chains(model, chains=1, draws=1, warmup=0, progress=interrupting)


def interrupting(progress: Any) -> None:
    raise KeyboardInterrupt


def test_an_ordinary_density_has_no_assertions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        starts_of(Model.from_function(good, dimension=2), 2, execution=ExecutionSettings())


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(ModelError, match="takes a Model, found function"):
        sample_chains(lambda q: q)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="expected names with their shapes"):
        Model.from_function(lambda q: q, variables={"mu": 3})  # type: ignore[dict-item]
    model = Model.from_function(lambda q: -tf.reduce_sum(q * q), dimension=1)
    with pytest.raises(SettingsError, match="progress"):
        sample_chains(model, progress="yes")  # type: ignore[arg-type]
