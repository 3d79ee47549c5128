"""The check of posteriors: its config, its z, what it calls right, and the NumPyro models it compares with."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tiny_posteriors import CONFIG, SMALL

from batchnuts.autobatch import BatchnutsError
from batchnuts.bridges.inference_gym import OFFLINE
from batchnuts.cli.config import build_model, load_config
from batchnuts.experiments import posteriors
from batchnuts.experiments.harness.experiment import main
from batchnuts.experiments.harness.processes import Unavailable
from batchnuts.experiments.harness.rows import RowsFile
from batchnuts.experiments.harness.task import Attempt, Preparation, row_of
from batchnuts.experiments.posterior_checks import ours
from batchnuts.experiments.posterior_checks.config import PosteriorsConfig, load_posteriors
from batchnuts.experiments.posterior_checks.lines import lines_of_function, lines_of_model
from batchnuts.experiments.posterior_checks.model_inputs import inputs_of
from batchnuts.experiments.posterior_checks.moments import (
    Moment,
    Moments,
    MomentsError,
    compare,
    decode,
    encode,
    summarize,
    transformed,
)
from batchnuts.experiments.posterior_checks.registry import NumpyroOptions
from batchnuts.experiments.posterior_checks.results import PosteriorResults
from batchnuts.experiments.posterior_checks.sampling import figures_of, prepare
from batchnuts.experiments.posterior_checks.task import Measurement, Run, Sampling, Task
from batchnuts.experiments.posterior_checks.truths import known_moments
from batchnuts.models import REGISTRY, build
from batchnuts.settings.yaml import ConfigError

needs_numpyro = pytest.mark.skipif(importlib.util.find_spec("numpyro") is None, reason="NumPyro is not installed")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def load(text: str = CONFIG, *overrides: str, quick: bool = False) -> PosteriorsConfig:
        Path("my.yaml").write_text(text)
        return load_posteriors("my.yaml", overrides, quick=quick)

    return load


# --- its config


@pytest.mark.parametrize("quick", [False, True])
def test_the_packaged_config_is_valid_and_can_be_read_again(quick: bool, load: Any) -> None:
    config = load_posteriors("posteriors.yaml", quick=quick)
    assert load(config.to_yaml()).to_yaml() == config.to_yaml()
    assert config.output.folder == "results/posteriors" + ("-quick" if quick else "")
    models = [config.configs[name].model for name in config.problems]
    assert {model.name for model in models if hasattr(model, "name")} == set(REGISTRY) or quick
    assert {model.inference_gym for model in models if not hasattr(model, "name")} <= set(OFFLINE)


def test_settings_reach_the_sampler_they_are_for(load: Any) -> None:
    config = load()
    ours = config.task("ours", "gauss", 4)
    assert (ours.chains, ours.warmup, ours.draws) == (4, 50, 20)
    assert ours.problem["model"]["dimension"] == 2
    assert "execution.backend=jax" in ours.overrides
    theirs = config.task("numpyro", "schools", 3)
    assert (theirs.chains, theirs.warmup, theirs.draws) == (3, 40, 30)
    assert [point[:2] for point in config.points()] == [
        ("ours", "gauss"), ("numpyro", "gauss"), ("ours", "schools"), ("numpyro", "schools")
    ]  # fmt: skip


def test_what_our_sampler_is_told_does_not_make_another_task_of_the_reference(load: Any) -> None:
    config, more = load(), load(CONFIG, "run.settings.sampler.draws=25")
    assert config.task("numpyro", "schools", 3) == more.task("numpyro", "schools", 3)
    assert config.task("ours", "schools", 4) != more.task("ours", "schools", 4)
    other = load(CONFIG, "problems.schools.settings={model: {parametrization: centered}}")
    assert config.task("numpyro", "schools", 3) != other.task("numpyro", "schools", 3)


def test_the_config_of_the_page_is_valid(load: Any) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "posteriors.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    config = load(text.replace("mine.yaml", "radon.yaml"))
    assert [point[:2] for point in config.points()] == [("jax", "mine"), ("tensorflow", "mine")]


BAD = [
    ("problems.gauss.reference=known_", "problems.gauss.reference: found 'known_'; did you mean 'known'?"),
    ("problems.gauss.reference=their", "problems.gauss.reference: found 'their'; expected one of ours, numpyro, known"),
    (
        "problems.gauss.config=gauss.yaml",
        "problems.gauss.config: gauss.yaml with its settings: --config gauss.yaml: ",
    ),
    ("problems.gauss.settings.sampler.draw=3", "sampler.draw: unknown key; did you mean 'draws'?"),
    (
        "problems.gauss.settings.sampler={chains: auto, until: {ess_bulk: 400}}",
        "sampler.chains: found auto; expected a number, since every measurement has one",
    ),
    ("problems.gauss.transforms.x=exp", "problems.gauss.transforms.x: found 'exp'"),
    ("problems.gauss.curves=[ours, other]", "problems.gauss.curves.1: found 'other'"),
    ("problems.schools.curves=[ours]", "problems.schools.curves: found ['ours']; expected 'numpyro' among them"),
    ("problems.schools.options.numpyro.draw=3", "problems.schools.options.numpyro.draw: unknown key; did you mean"),
    ("problems.schools.options.stan={}", "problems.schools.options.stan: found 'stan'"),
    ("curves.ours.sampler=stan", "sampler: found 'stan'; expected one of batchnuts, numpyro"),
    ("curves.numpyro.options.chains=1", "curves.numpyro.options.chains: found 1"),
    ("verdict.alpha=0", "verdict.alpha: found 0"),
    ("verdicts={}", "verdicts: unknown section; did you mean 'verdict'?"),
]


@pytest.mark.parametrize(("override", "message"), BAD)
def test_mistakes_are_named_with_their_place(override: str, message: str, load: Any) -> None:
    with pytest.raises(ConfigError) as error:
        load(CONFIG, override)
    assert message in str(error.value)


# --- z


def test_z_of_right_draws_is_a_standard_normal_number() -> None:
    rng = np.random.default_rng(0)
    expected = {"x": Moment.exact(np.full(60, 1.0), np.full(60, 2.0))}
    found, _ = summarize({"x": rng.normal(1.0, 2.0, (4, 200, 60))})
    z = np.array([one.z for one in compare(found, expected)])
    assert len(z) == 120
    assert stats.kstest(z, "norm").pvalue > 0.01
    # and of two runs with errors of their own
    other, _ = summarize({"x": rng.normal(1.0, 2.0, (4, 100, 60))})
    assert stats.kstest([one.z for one in compare(found, other)], "norm").pvalue > 0.01


@pytest.mark.parametrize(("statistic", "mean", "sd"), [("mean", 5.0, 0.0), ("sd", 0.0, 5.0)])
def test_a_moment_that_is_off_by_five_errors_is_found(statistic: str, mean: float, sd: float) -> None:
    found, _ = summarize({"x": np.random.default_rng(1).normal(size=(8, 500))})
    off = {"x": Moment.exact(found["x"].mean - mean * found["x"].mcse_mean, found["x"].sd - sd * found["x"].mcse_sd)}
    beyond = [one for one in compare(found, off) if abs(one.z) > 4.5]
    assert [(one.element, one.statistic) for one in beyond] == [("x", statistic)]
    assert beyond[0].z == pytest.approx(5.0, abs=1e-6)


def test_moments_survive_the_file() -> None:
    found, _ = summarize({"x": np.random.default_rng(2).normal(3.0, 1.0, (4, 50, 2, 3)), "mu": np.ones((4, 50))})
    again = decode(encode(found))
    assert again["x"].mean.shape == (2, 3)
    for one, other in zip(compare(found, again), compare(again, again), strict=True):
        assert abs(one.z) < 0.01
        assert other.z == 0
    assert np.isnan(again["mu"].mcse_mean)  # it never moved
    with pytest.raises(MomentsError, match="not JSON of moments"):
        decode("[1]")


def test_constants_have_no_z_unless_they_differ() -> None:
    one, other = (summarize({"c": np.full((4, 20), value)})[0] for value in (1.0, 2.0))
    assert compare(one, one) == []
    assert [abs(each.z) for each in compare(one, other)] == [np.inf, 0.0]
    assert compare(one, {"c": Moment.exact(np.nan, np.nan)}) == []  # not known


def test_parameters_must_be_the_same() -> None:
    found, _ = summarize({"x": np.random.default_rng(0).normal(size=(2, 10, 3))})
    with pytest.raises(MomentsError, match="the reference has the parameter 'y'; found only x"):
        compare(found, {"y": Moment.exact(0, 1)})
    with pytest.raises(MomentsError, match=r"x: found the shape \(3,\); the reference's is \(\)"):
        compare(found, {"x": Moment.exact(0, 1)})
    with pytest.raises(MomentsError, match="transforms: there is no parameter 'z'; expected one of x"):
        transformed({"x": np.ones((2, 4))}, {"z": "log"})


def test_logarithms_are_named_as_such() -> None:
    found = transformed({"x": -np.full((2, 4), np.e), "y": np.ones((2, 4))}, {"x": "log"})
    np.testing.assert_allclose(found["log(x)"], 1.0)
    assert set(found) == {"log(x)", "y"}


def test_the_largest_rhat_and_the_smallest_ess_are_each_of_their_own_element() -> None:
    rng = np.random.default_rng(3)
    of_unlike_scales = rng.normal(size=(4, 500)) * np.array([1.0, 1.0, 1.0, 5.0])[:, None]
    slow = np.repeat(rng.normal(size=(4, 50)), 10, axis=1)
    task = load_posteriors("posteriors.yaml").task("batchnuts", "gaussian", 64)
    run = Run({"x": np.stack([of_unlike_scales, slow], axis=2)}, 0, 1.0, 1.0)
    figures = figures_of(Sampling(lambda seed: run, None), task, 0)
    assert (figures["rhat_of"], figures["ess_of"]) == ("x[0]", "x[1]")
    assert figures["rhat"] > 1.1
    assert figures["ess"] < 500


@pytest.mark.slow
def test_what_is_not_compared_is_not_computed_and_its_names_do_no_harm() -> None:
    """The Gaussian process names axes of its predictions, which are left out."""
    changes = ["model.points=9", "sampler.chains=2", "sampler.warmup=8", "sampler.draws=4", "execution.cache=null"]
    config = load_config("gaussian_process.yaml", [*changes, "execution.backend=jax", "sampler.max_tree_depth=2"])
    model = build_model(config.model)
    assert "f" in model.dims
    task = load_posteriors("posteriors.yaml").task("batchnuts", "gaussian_process", 64)
    draws = ours.prepare(task, config, model).run(0).draws
    assert {name: array.shape for name, array in draws.items()} == dict.fromkeys(
        ("length", "amplitude", "noise"), (2, 4)
    )


# --- targets of a library


def test_a_target_whose_library_is_not_installed_is_skipped_by_name(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure; nothing is built for its truth."""
    monkeypatch.setattr("batchnuts.bridges.inference_gym.installed_version", lambda package: None)
    monkeypatch.setattr("batchnuts.experiments.posterior_checks.sampling.import_first", lambda config: None)
    banana = "problems.gauss={label: banana, config: inference_gym.yaml, reference: known, curves: [ours]}"
    config = load(CONFIG, banana, "problems.schools=null", "problems.gauss.settings.model.inference_gym=Banana")
    task = config.task("ours", "gauss", 4)
    with pytest.raises(Unavailable, match=re.escape("inference_gym is not installed: pip install 'batchnuts[gym]'")):
        prepare(task)
    absent = row_of(Measurement, task, Attempt("missing", 0, 0, "here", "2026", note="inference_gym is not installed"))
    found = PosteriorResults(config, [absent])
    assert found.failures == []
    said = posteriors.POSTERIORS.claims(found)
    assert "(1 of 1 are skipped)" in said
    assert "skipped: missing: inference_gym is not installed" in said


# --- verdicts


def row(task: Task, moments: Moments, **changes: Any) -> Measurement:
    figures = {
        "seconds": 2.0, "compile_seconds": 1.0, "divergences": 0, "rhat": 1.001, "rhat_of": "x[0]", "ess": 900.0,
        "ess_of": "x[1]", "lines": 3, "moments": encode(moments), "load": 0.5,
    }  # fmt: skip
    attempt = Attempt("ok", 0, 0, "here", "2026-01-01T00:00:00", Preparation(0.1), {**figures, **changes})
    return row_of(Measurement, task, attempt)


def right(shape: tuple[int, ...] = (), mean: float = 0.0, error: float = 0.01) -> Moment:
    return Moment(*(np.full(shape, value) for value in (mean, 1.0, error, error)))


def results(config: PosteriorsConfig, schools: Moments, **changes: Any) -> PosteriorResults:
    """Of runs in which all is right, but for what is given for the schools."""
    truth = known_moments(config.configs["gauss"].model, build(config.configs["gauss"].model))
    assert truth is not None
    gauss = {"x": replace(truth["x"], mcse_mean=np.full(2, 0.01), mcse_sd=np.full(2, 0.01))}
    rows = [
        row(config.task("ours", "gauss", 4), gauss),
        row(config.task("numpyro", "gauss", 3), gauss),
        row(config.task("ours", "schools", 4), schools, **changes),
        row(config.task("numpyro", "schools", 3), {"mu": right(), "theta": right((8,))}),
    ]
    return PosteriorResults(config, rows)


def test_a_posterior_that_is_right(load: Any) -> None:
    found = results(load(), {"mu": right(), "theta": right((8,))})
    assert found.failures == []
    assert found.bound == pytest.approx(stats.norm.isf(0.005 / (2 * 2 + 2 * 9)))
    assert "All posteriors are right" in posteriors.POSTERIORS.claims(found)


@pytest.mark.parametrize(
    ("schools", "changes", "reason"),
    [
        # 5 standard errors of both together
        (
            {"mu": right(mean=0.0708), "theta": right((8,))},
            {},
            r"1 of 18 \|z\| above 3.51, the largest mean of mu.* 5.0",
        ),
        ({"mu": right(), "theta": right((8,), 1.0)}, {}, r"8 of 18 \|z\| above 3.51, the largest mean of theta\[0\]"),
        ({"mu": right(mean=np.nan), "theta": right((8,))}, {}, r"1 of 18 \|z\| above"),
        ({"mu": right()}, {}, "the reference has the parameter 'theta'"),
        ({"mu": right(), "theta": right((8,))}, {"rhat": 1.01}, r"R-hat 1.0100 \(x\[0\]\), expected below 1.01"),
        ({"mu": right(), "theta": right((8,))}, {"rhat": float("nan")}, "R-hat not defined"),
        ({"mu": right(), "theta": right((8,))}, {"divergences": 1}, "1.25% of the draws diverged, expected 0.1% at"),
    ],
)
def test_a_posterior_that_is_not(schools: Moments, changes: dict[str, Any], reason: str, load: Any) -> None:
    found = results(load(), schools, **changes)
    (failure,) = found.failures
    assert (failure.compared.curve, failure.compared.problem) == ("ours", "schools")
    assert re.search(reason, "; ".join(failure.reasons)), failure.reasons
    said = "1 of 2 are **not compared**" if "reference" in reason else "1 of 2 posteriors are **not right**"
    assert said in posteriors.POSTERIORS.claims(found)


def test_without_a_reference_nothing_is_right(load: Any) -> None:
    config = load()
    found = results(config, {"mu": right(), "theta": right((8,))})
    lost = PosteriorResults(config, found.rows[:3])
    assert [verdict.reasons for verdict in lost.failures] == [("no reference: theirs has no run (not measured yet)",)]
    message = "Install it with pip install 'batchnuts[peers]'."
    task = config.task("numpyro", "schools", 3)
    absent = row_of(Measurement, task, Attempt("missing", 0, 0, "here", "2026", note=message))
    without = PosteriorResults(config, [*found.rows[:3], absent])
    assert [verdict.reasons for verdict in without.failures] == [
        (f"no reference: theirs has no run (missing: {message})",)
    ]
    unsettled = PosteriorResults(config, [*found.rows[:3], replace(found.rows[3], rhat=1.02)])
    assert [verdict.reasons for verdict in unsettled.failures] == [("no reference: R-hat of theirs is 1.0200 (x[0])",)]
    assert len(PosteriorResults(config, []).failures) == 2


def test_a_failure_is_an_exit_code_and_a_row_is_not_measured_again(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load()
    Path("out").mkdir()
    found = results(config, {"mu": right(mean=1.0), "theta": right((8,))})
    file = RowsFile(Path("out/measurements.csv"), Measurement)
    for each in found.rows:
        file.append(each)
    assert file.read() == list(found.rows)
    # all rows are there: no process is started
    monkeypatch.setattr("batchnuts.experiments.harness.measuring.Worker", None)
    assert main(posteriors.EXPERIMENT, ["--config", "my.yaml"]) == 1
    message = capsys.readouterr().err
    assert "1 of 2 posteriors are not right" in message
    assert "schools, ours: 1 of 18 |z| above" in message
    assert {path.name for path in Path("out").iterdir()} >= {"summary.md", "posteriors.png", "comparisons.csv"}
    lines = Path("out/comparisons.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 2 * 2 + 18
    assert main(posteriors.EXPERIMENT, ["--config", "my.yaml", "problems.schools=null"]) == 0


def test_a_config_that_changes_meanwhile_is_not_sampled_as_what_it_was(load: Any) -> None:
    Path("mine.yaml").write_text("model: {name: eight_schools}")
    task = load(CONFIG, "problems.schools.config=mine.yaml").task("ours", "schools", 4)
    Path("mine.yaml").write_text("model: {name: radon}")
    with pytest.raises(BatchnutsError, match=r"mine\.yaml was changed while the experiment ran"):
        prepare(task)


# --- lines, NumPyro's models


def test_lines_are_those_of_code() -> None:
    def counted(x: int) -> int:
        """Not this.

        Nor this.
        """
        # nor this
        y = [
            x,
            x + 1,  # but these
        ]

        return sum(y)

    assert lines_of_function(counted) == 6
    radon = build(REGISTRY["radon"].options(name="radon"))
    # density 3, means 2, intercepts 2, log_likelihood 2, generated 1, five variables
    assert lines_of_model(radon) == 15


def test_without_numpyro_its_absence_is_named(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    from batchnuts.experiments.posterior_checks import numpyro_nuts
    from batchnuts.experiments.posterior_checks.task import MissingLibrary

    config = load()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    task = config.task("numpyro", "gauss", 3)
    NumpyroOptions.model_validate(task.options)
    with pytest.raises(MissingLibrary, match=re.escape("pip install 'batchnuts[peers]'")):
        numpyro_nuts.prepare(task, config.configs["gauss"], build(config.configs["gauss"].model))


@needs_numpyro
@pytest.mark.slow
def test_a_model_that_is_not_written_in_numpyro_is_named(load: Any) -> None:
    Path("not_numpyro.yaml").write_text("model: {target: 'not_numpyro:density', dimension: 2}")
    Path("not_numpyro.py").write_text("def density(q):\n    return -0.5 * q[0] ** 2 - 0.5 * q[1] ** 2")
    task = load(CONFIG, "problems.schools={label: not_numpyro, config: not_numpyro.yaml}").task("numpyro", "schools", 3)
    with pytest.raises(Unavailable, match=r"not_numpyro\.yaml has a model that is not written in NumPyro"):
        prepare(task)


@needs_numpyro
@pytest.mark.slow
@pytest.mark.parametrize("options", SMALL, ids=json.dumps)
def test_numpyros_model_has_our_density(options: dict[str, Any]) -> None:
    """Up to a constant: of the parameters, and of the unconstrained numbers where both have the same."""
    import jax
    from numpyro.infer.util import log_density, potential_energy, unconstrain_fn

    from batchnuts.experiments.posterior_checks.numpyro_models import MODELS, arguments

    with jax.enable_x64(True):
        settings = REGISTRY[options["name"]].options(**options, dtype="float64")
        model, function = build(settings), MODELS[options["name"]]
        data = arguments(function, inputs_of(settings, model))
        natural, unconstrained = [], []
        for seed in range(5):
            position = model.initial_positions(np.random.default_rng(seed), 1)[0]
            values = {name: np.asarray(value) for name, value in model.constrain(position).items()}
            ours = float(model.log_density(values if model.structured else position))
            natural.append(ours - float(log_density(function, (), data, values)[0]))
            if options["name"] != "hidden_markov":  # of simplexes there are many parametrizations
                free = unconstrain_fn(function, (), data, values)
                theirs = -float(potential_energy(function, (), data, free))
                unconstrained.append(float(model.flat_log_density(position)) - theirs)
        assert np.ptp(natural) < 1e-8, natural
        if unconstrained:
            assert np.ptp(unconstrained) < 1e-8, unconstrained


def test_every_packaged_model_is_compared() -> None:
    assert {options["name"] for options in SMALL} == set(REGISTRY)


@needs_numpyro
@pytest.mark.slow
def test_both_samplers_run_and_agree(load: Any, capfd: pytest.CaptureFixture[str]) -> None:
    load()
    enough = [
        "run.settings.sampler={chains: 32, warmup: 200, draws: 200}",
        "curves.numpyro.options={chains: 16, warmup: 300, draws: 400, target_acceptance: 0.95}",
        "problems.schools.options=null", "verdict.divergences=0.01",
    ]  # fmt: skip
    command = ["--config", "my.yaml", "output.folder=out", *(key for key in enough if "options=null" not in key)]
    assert main(posteriors.EXPERIMENT, [*command, "problems.schools.options={}"]) == 0, capfd.readouterr().err
    rows = RowsFile(Path("out/measurements.csv"), Measurement).read()
    assert [each.status for each in rows] == ["ok"] * 4
    assert {each.sampler: each.lines for each in rows} == {"batchnuts": rows[2].lines, "numpyro": 7}
    before = Path("out/measurements.csv").read_text()
    assert main(posteriors.EXPERIMENT, [*command, "problems.schools.options={}"]) == 0
    assert Path("out/measurements.csv").read_text() == before
