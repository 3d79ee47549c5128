"""The samplers of other libraries: `pip install 'batchnuts[peers]'`. Stan needs a C++ compiler and takes a minute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
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

from batchnuts.experiments.samplers.task import MissingSampler

pytestmark = [
    pytest.mark.slow,
    # The peers' own imports and event loops; ours are checked in test_samplers.py.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:pkg_resources is deprecated:UserWarning"),
    # httpstan forks workers, which never use JAX; in experiments each sampler has its own process.
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:It is recommended to use web.AppKey:UserWarning"),
]
GAUSSIAN_64 = {**GAUSSIAN, "dtype": "float64"}
REGRESSION_64 = {**REGRESSION, "dtype": "float64"}


@pytest.fixture
def jax() -> Iterator[Any]:
    """JAX, whose precision is put back after the test."""
    module = pytest.importorskip("jax")
    before = module.config.jax_enable_x64
    yield module
    module.config.update("jax_enable_x64", before)


LONG = ("neal_funnel", "logistic_regression")
"""Problems for which Stan compiles for 25 s: run before a release."""


@pytest.mark.parametrize("options", [{**options, "dtype": "float64"} for options in PROBLEMS], ids=str)
def test_the_density_in_jax_is_the_models(options: dict[str, Any], jax: Any) -> None:
    from batchnuts.experiments.samplers.jax_densities import log_density

    jax.config.update("jax_enable_x64", True)
    problem = make_problem(options)
    positions = points(problem)
    values, gradients = jax.vmap(jax.value_and_grad(log_density(problem)))(positions)
    assert_density(np.asarray(values), np.asarray(gradients), problem, positions)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({**options, "dtype": "float64"}, marks=pytest.mark.release if options["name"] in LONG else ())
        for options in PROBLEMS
    ],
    ids=str,
)
def test_the_density_in_stan_is_the_models(options: dict[str, Any]) -> None:
    stan = pytest.importorskip("stan")
    from batchnuts.experiments.samplers.stan_programs import program

    problem = make_problem(options)
    positions = points(problem)
    source = program(problem)
    model = stan.build(source.code, source.data)
    values = np.array([model.log_prob(list(position)) for position in positions])
    gradients = np.array([model.grad_log_prob(list(position)) for position in positions])
    assert_density(values, gradients, problem, positions)


@pytest.mark.parametrize("options", [{**options, "dtype": "float64"} for options in PROBLEMS], ids=str)
def test_the_density_in_stanli_is_the_models(options: dict[str, Any]) -> None:
    stanli = pytest.importorskip("stanli")
    from batchnuts.experiments.samplers.stan_programs import program

    problem = make_problem(options)
    positions = points(problem)
    source = program(problem)
    model = stanli.Model(stan_code=source.code, data=source.data)
    values, gradients = zip(*(model.log_prob_grad(position) for position in positions), strict=True)
    assert_density(np.array(values), np.array(gradients), problem, positions)


@pytest.mark.parametrize("options", [{**options, "dtype": "float64"} for options in PROBLEMS], ids=str)
def test_the_density_in_numba_is_the_models(options: dict[str, Any]) -> None:
    pytest.importorskip("numba")
    from batchnuts.experiments.samplers.numba_densities import density

    problem = make_problem(options)
    target = density(problem)
    positions = points(problem)
    gradients = np.empty_like(positions)
    values = [target.function(*pair, target.data) for pair in zip(positions, gradients, strict=True)]
    assert_density(np.array(values), gradients, problem, positions)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize(
    ("sampler", "leapfrogs_per_leaf"),
    [("blackjax", 1), ("blackjax", 4), ("numpyro", 1), ("stan", 1), ("stanli", 1), ("nutpie", 1)],
)
def test_leapfrogs_of_full_trees(sampler: str, leapfrogs_per_leaf: int, chains: int, request: Any) -> None:
    _need(sampler, request)
    assert_full_trees(sampler, {}, leapfrogs_per_leaf, chains)


@pytest.mark.parametrize(
    ("sampler", "options", "leapfrogs_per_leaf", "dtype"),
    [
        ("blackjax", {}, 1, "float64"),
        ("blackjax", {}, 2, "float32"),
        ("blackjax", {"chunk_lanes": 4, "processes": 2}, 1, "float32"),
        ("numpyro", {}, 1, "float64"),
        ("numpyro", {}, 1, "float32"),
        ("stan", {}, 1, "float32"),
        ("stan", {"processes": 2}, 1, "float64"),
        ("stanli", {}, 1, "float32"),
        ("stanli", {"cores": 2}, 1, "float64"),
        ("nutpie", {}, 1, "float32"),
        ("nutpie", {"cores": 2}, 1, "float64"),
    ],
)
def test_moments(sampler: str, options: Any, leapfrogs_per_leaf: int, dtype: str, request: Any) -> None:
    _need(sampler, request)
    assert_moments(sampler, options, leapfrogs_per_leaf, dtype)


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("blackjax", {}),
        ("numpyro", {}),
        ("stan", {}),
        ("stanli", {}),
        ("stanli", {"cores": 2}),
        ("nutpie", {}),
        ("nutpie", {"cores": 2}),
    ],
)
def test_a_run_follows_from_its_seed_and_starts_where_it_must(sampler: str, options: Any, request: Any) -> None:
    """With a step too small to move, the draws are the starts; the same seed gives the same draws."""
    _need(sampler, request)
    task = make_task(sampler, options, step_size=1e-4, max_tree_depth=1, measure_ess=True)
    run = prepare(task)
    first, again, other = run(5)().draws, run(5)().draws, run(6)().draws
    assert first is not None
    assert other is not None
    np.testing.assert_array_equal(first, again)
    for draws, seed in ((first, 5), (other, 6)):
        starts = make_problem(GAUSSIAN).starts("typical", task.chains, seed)
        np.testing.assert_allclose(draws, np.repeat(starts[:, None], task.transitions, axis=1), atol=5e-3)
    assert len(np.unique(first)) == first.size


@pytest.mark.parametrize("sampler", ["blackjax", "numpyro"])
@pytest.mark.parametrize("chains", [1, 3])
def test_a_second_run_compiles_nothing(sampler: str, chains: int, request: Any) -> None:
    _need(sampler, request)
    import jax

    compiled: list[str] = []

    def listen(event: str, seconds: float, **others: Any) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    run = prepare(make_task(sampler, {}, chains=chains))
    run(1)()
    second = run(2)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        second()
        assert compiled == []
        jax.jit(lambda x: x * 3 + len(compiled))(1.0)
        assert compiled  # the listener hears
    finally:
        jax.monitoring.clear_event_listeners()


@pytest.mark.parametrize("sampler", ["blackjax", "numpyro"])
def test_a_missing_device_is_named(sampler: str, request: Any) -> None:
    _need(sampler, request)
    import jax

    try:
        jax.devices("gpu")
    except RuntimeError:
        with pytest.raises(MissingSampler, match="JAX sees no gpu"):
            prepare(make_task(sampler, {}, device="gpu"))
    else:
        pytest.skip("there is a GPU")


def test_stan_keeps_the_identity_and_the_step_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stan's own words after warmup; and a step size that it did not end at is refused."""
    stan = pytest.importorskip("stan")
    said: list[str] = []
    sample_of_model = stan.model.Model.sample

    def listen(self: Any, **arguments: Any) -> Any:
        fit = sample_of_model(self, **arguments)
        for line in fit.stan_outputs[0].decode().splitlines():
            message = json.loads(line)
            if message["topic"] == "sample" and isinstance(message["values"], list):
                said.extend(message["values"])
        return fit

    monkeypatch.setattr(stan.model.Model, "sample", listen)
    sample(make_task("stan", {}, chains=1))
    assert said[1:4] == ["Step size = 0.3", "Diagonal elements of inverse mass matrix:", "1, 1, 1"]
    from batchnuts.experiments.samplers import stan as ours

    monkeypatch.setattr(ours, "WARMUP_STEP_SIZE", 1.0)
    with pytest.raises(AssertionError, match=r"Stan's step size was .* asked 0.3"):
        sample(make_task("stan", {}, chains=1))


def test_stanli_keeps_the_identity_and_the_step_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stanli says of itself; and a step size that adapts is refused."""
    stanli = pytest.importorskip("stanli")
    fits: list[Any] = []
    sample_of_model = stanli.Model.sample

    def listen(self: Any, **arguments: Any) -> Any:
        fits.append(sample_of_model(self, **arguments))
        return fits[-1]

    monkeypatch.setattr(stanli.Model, "sample", listen)
    sample(make_task("stanli", {}))
    (fit,) = fits
    assert (fit.metric, fit.inv_metric) == ("unit_e", [None] * 3)
    assert fit.step_size.tolist() == [0.3] * 3

    def adapt(self: Any, **arguments: Any) -> Any:
        return sample_of_model(self, **{**arguments, "adapt_engaged": True, "warmup": 5})

    monkeypatch.setattr(stanli.Model, "sample", adapt)
    with pytest.raises(AssertionError, match=r"stanli's step size was .* asked 0.3"):
        sample(make_task("stanli", {}))


def test_nutpie_keeps_the_identity_and_the_step_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nutpie says of itself is what was asked; a metric made of gradients, or another step size, is refused."""
    pytest.importorskip("nutpie")
    from batchnuts.experiments.samplers import nutpie_numba as ours

    said: list[tuple[str, np.ndarray, float]] = []
    check = ours._check

    def listen(what: str, found: np.ndarray, asked: float) -> None:
        said.append((what, found, asked))
        check(what, found, asked)

    monkeypatch.setattr(ours, "_check", listen)
    task = make_task("nutpie", {})
    prepare(task)(1)()
    assert [(what, found.shape, asked) for what, found, asked in said] == [
        ("step size", (3, 4), 0.3),
        ("inverse metric", (3, 4, 3), 1.0),
        ("step size", (3, 4), 0.3),
    ]
    with pytest.raises(AssertionError, match=r"nutpie's step size was 0.3 to 0.3, asked 0.4"):
        check("step size", said[0][1], 0.4)
    monkeypatch.setattr(ours, "begin", lambda memory, starts: None)
    with pytest.raises(AssertionError, match=r"nutpie's inverse metric was .* asked 1"):
        prepare(task)


def test_nutpie_makes_a_run_of_one_transition() -> None:
    """Which is the one that it calls warmup."""
    pytest.importorskip("nutpie")
    outcome = sample(make_task("nutpie", {}, transitions=1, measure_ess=True))
    assert outcome.leapfrogs.shape == (3, 1)
    assert outcome.draws is not None
    assert outcome.draws.shape == (3, 1, 3)


def test_stan_samples_again_what_it_could_read_back() -> None:
    """httpstan keeps the fit of a seed; each run must make its own."""
    pytest.importorskip("stan")
    import httpstan.cache
    import httpstan.models

    from batchnuts.experiments.samplers.stan_programs import program

    task = make_task("stan", {}, chains=1)
    name = httpstan.models.calculate_model_name(program(make_problem(GAUSSIAN)).code)
    run = prepare(task)
    written = []
    for one in (run(5), run(5)):
        one()
        (fit,) = httpstan.cache.fit_path(f"{name}/fits/any").parent.iterdir()
        written.append((fit.name, fit.stat().st_mtime_ns))
    (first, then), (again, later) = written
    assert first == again
    assert then < later


@pytest.mark.parametrize("sampler", ["stan", "stanli"])
def test_stan_is_quiet(sampler: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(sampler)
    sample(make_task(sampler, {}, chains=1))
    assert capfd.readouterr() == ("", "")


def _need(sampler: str, request: pytest.FixtureRequest) -> None:
    """Skip where the library is missing; for those on JAX, put its precision back afterwards."""
    pytest.importorskip(sampler)
    if sampler not in ("stan", "stanli", "nutpie"):
        request.getfixturevalue("jax")
