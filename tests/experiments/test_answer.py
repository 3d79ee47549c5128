"""The time to an answer: its config, the search for enough draws, the judge, claims, the summary of made-up rows."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from inspect import signature
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_posteriors import SMALL

from batchnuts.autobatch import BatchnutsError
from batchnuts.cli.config import load_config
from batchnuts.experiments import answer
from batchnuts.experiments.harness.experiment import summary
from batchnuts.experiments.harness.processes import Unavailable
from batchnuts.experiments.harness.task import Attempt, row_of
from batchnuts.experiments.posterior_checks.model_inputs import inputs_of
from batchnuts.experiments.time_to_answer.commands import CommandFailed, run_timed, users_environment
from batchnuts.experiments.time_to_answer.config import AnswerConfig, asking_for, load_answer
from batchnuts.experiments.time_to_answer.judging import judge
from batchnuts.experiments.time_to_answer.registry import REGISTRY
from batchnuts.experiments.time_to_answer.results import AnswerResults
from batchnuts.experiments.time_to_answer.runs import SCRIPTS, Caches, check_available, stan_program_of, starts_of
from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request, write_request
from batchnuts.experiments.time_to_answer.scripts.stan_programs import MODELS as STAN_MODELS
from batchnuts.experiments.time_to_answer.search import (
    NotReached,
    OverLimit,
    Tried,
    first_draws,
    next_draws,
    search,
)
from batchnuts.experiments.time_to_answer.task import Measurement
from batchnuts.models import REGISTRY as PACKAGED
from batchnuts.models import build
from batchnuts.settings.yaml import ConfigError

CONFIG = """
problems:
  gauss: {label: Gaussian, config: correlated_gaussian.yaml, settings: {model: {dimension: 2}}}
  schools: {label: eight schools, config: eight_schools.yaml, options: {numpyro: {chains: 3}}}
run: {goals: [400, 4000], first_starts: [400], settings: {sampler: {seed: 7}}}
curves:
  ours: {label: ours, sampler: batchnuts}
  numpyro: {label: NumPyro, sampler: numpyro}
  nutpie: {label: nutpie, sampler: nutpie}
measurement: {limit: 60}
claims:
  fastest: {says: fastest on half, source: issue, figure: fastest, goal: 4000, curve: ours, at_least: 0.5}
  ratio: {says: at most twice, source: issue, figure: times_fastest, goal: 4000, curve: ours, at_most: 2}
  schools: {says: in 4 s, source: issue, figure: seconds, problem: schools, goal: 400, curve: ours, at_most: 4}
output: {folder: out}
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def load(text: str = CONFIG, *overrides: str, quick: bool = False) -> AnswerConfig:
        Path("my.yaml").write_text(text)
        return load_answer("my.yaml", overrides, quick=quick)

    return load


# --- its config


@pytest.mark.parametrize("quick", [False, True])
def test_the_packaged_config_is_valid_and_can_be_read_again(quick: bool, load: Any) -> None:
    config = load_answer("answer.yaml", quick=quick)
    assert load(config.to_yaml()).to_yaml() == config.to_yaml()
    assert config.output.folder == "results/answer" + ("-quick" if quick else "")
    assert len(config.problems) >= (2 if quick else 10)


def test_the_config_of_the_page_is_valid(load: Any) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "answer.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert [point[:2] for point in load(text.replace("mine.yaml", "radon.yaml")).points()] == [("ours", "mine")] * 2


def test_points_and_tasks(load: Any) -> None:
    config = load()
    assert [point[1:] for point in config.points()][::3] == [
        ("gauss", 400), ("gauss", 4000), ("schools", 400), ("schools", 4000)
    ]  # fmt: skip
    ours = config.task("ours", "gauss", 400)
    small, large = (config.task("numpyro", "schools", goal) for goal in (400, 4000))
    assert "sampler.seed=7" in ours.overrides
    assert "sampler" in ours.problem
    assert "sampler" not in small.problem
    assert small.options["chains"] == 3
    assert small.options["target_acceptance"] == 0.95  # as the config of eight schools has it
    assert small.first_start
    assert not large.first_start
    # what does not get to the small goal is not asked for the large one, and both have the caches of one user
    assert (small.line, small.caches) == (large.line, large.caches)
    assert small.fingerprint() != large.fingerprint()
    assert config.task("numpyro", "schools", 400).line != config.task("nutpie", "schools", 400).line
    first, last = (config.task("ours", "gauss", goal) for goal in (400, 4000))
    assert (first.line, first.caches) == (last.line, last.caches)


def test_every_task_of_the_packaged_config_finds_its_config_as_it_was(load: Any, tmp_path: Path) -> None:
    config = load_answer("answer.yaml")
    tasks = [config.task(*point) for point in config.points()]
    asked = {
        task.goal: task.run_config(asking_for(task.goal)).sampler.until.ess_bulk
        for task in tasks
        if config.curves["batchnuts"].sampler == task.sampler
    }
    assert asked == {goal: float(goal) for goal in config.run.goals}
    mine = tmp_path / "mine.yaml"
    mine.write_text("model: {name: eight_schools}")
    task = replace(tasks[0], config=str(mine))
    with pytest.raises(BatchnutsError, match=r"mine\.yaml was changed while the experiment ran"):
        task.run_config(asking_for(task.goal))


BAD = [
    ("run.goals=[400, 40]", "goals: found [400, 40]; expected increasing integers"),
    ("run.first_starts=[500]", "first_starts: found 500; expected some of the goals, [400, 4000]"),
    ("curves.ours.sampler=numpiro", "found 'numpiro'; did you mean 'numpyro'?"),
    ("curves.numpyro.options.chains=1", "curves.numpyro.options.chains: found 1"),
    ("problems.gauss.curves=[theirs]", "problems.gauss.curves.0: found 'theirs'"),
    ("problems.gauss.settings.sampler.draw=3", "sampler.draw: unknown key; did you mean 'draws'?"),
    ("problems.schools.options.stan={}", "problems.schools.options.stan: found 'stan'"),
    ("claims.fastest.curve=numpyro", "claims.fastest.curve: found 'numpyro'"),
    ("claims.fastest.goal=40", "claims.fastest.goal: found 40; expected one of [400, 4000]"),
    ("claims.fastest.start=first", "claims.fastest.start: found first; expected second, or the goal 4000"),
    ("claims.schools.problem=null", "problem: found None; expected one for seconds"),
    ("claims.ratio.at_least=1", "found none or both of at_least and at_most"),
    ("measurement.limit=0", "measurement.limit: found 0"),
]


@pytest.mark.parametrize(("override", "message"), BAD)
def test_mistakes_are_named_with_their_place(override: str, message: str, load: Any) -> None:
    with pytest.raises(ConfigError) as error:
        load(CONFIG, override)
    assert message in str(error.value)


# --- the search for enough draws


def sampler(ess_per_draw: float, limit: int = 10**9, rhat: float = 1.0, enough_for_rhat: int = 0) -> Any:
    """Effective draws in proportion to draws, and a run of more than `limit` of them takes too long."""

    def run(draws: int) -> Tried:
        if draws > limit:
            raise OverLimit("not done after 60 s (measurement.limit)")
        ess = ess_per_draw * draws
        good = draws >= enough_for_rhat
        return Tried(draws, 1.0, ess, rhat if good else 1.05, good and ess >= 400)

    return run


def test_draws_are_doubled_until_there_are_enough() -> None:
    assert [one.draws for one in search(sampler(2.0), 250, 400)] == [250]
    assert [one.draws for one in search(sampler(1.0), 250, 400)] == [250, 500]
    # 500, 1,000 and 2,000 would certainly be too few
    assert [one.draws for one in search(sampler(0.1), 250, 400)] == [250, 4000]
    # enough effective draws, and R-hat is not small yet
    assert [one.draws for one in search(sampler(2.0, enough_for_rhat=900), 250, 400)] == [250, 500, 1000]
    assert (first_draws(250, 4, 400), first_draws(250, 4, 4000), first_draws(250, 16, 4000)) == (250, 1000, 250)


def test_what_is_skipped_would_have_been_too_few() -> None:
    rng = np.random.default_rng(0)
    for ess in 10 ** rng.uniform(-1, 4, 200):
        draws = next_draws(Tried(100, 1.0, float(ess), 1.0, reached=False), 4000)
        factor = draws / 100
        assert factor in [2.0**power for power in range(1, 20)]
        assert factor == 2 or ess * factor / 2 < 0.8 * 4000
    assert next_draws(Tried(100, 1.0, math.nan, 1.0, reached=False), 4000) == 200


def test_a_search_that_ends_at_the_limit_says_what_was_tried() -> None:
    with pytest.raises(NotReached) as error:
        search(sampler(0.5, limit=600), 250, 400)
    assert str(error.value) == (
        "not reached: 250 gave ESS 125 and R-hat 1.050 in 1 s; 1,000: not done after 60 s (measurement.limit)"
    ).replace("1.050", "1.000")

    with pytest.raises(NotReached, match="not reached in 10 runs; the last: 128,000 gave"):
        search(sampler(1.0, enough_for_rhat=10**9), 250, 400)


# --- runs


def test_a_command_is_timed_ended_and_its_failure_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "printed.txt"
    assert 0 < run_timed([sys.executable, "-c", "print('done')"], {}, 60.0, output) < 60
    assert output.read_text() == "done\n"
    with pytest.raises(OverLimit, match=r"not done after 0\.2 s"):
        run_timed([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.2, output)
    with pytest.raises(CommandFailed, match=r"code 1: ValueError: no such thing$"):
        run_timed([sys.executable, "-c", "raise ValueError('no such thing')"], {}, 60.0, output)
    assert "no such thing" in capsys.readouterr().out


def test_commands_have_the_environment_of_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled goes to the folder, and bytecode is kept even where this process was told not to."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("OF_THE_USER", "kept")
    found = users_environment(tmp_path)
    assert found["OF_THE_USER"] == "kept"
    assert found["BATCHNUTS_CACHE"] == str(tmp_path / "batchnuts")
    assert "PYTHONDONTWRITEBYTECODE" not in found


def test_caches_know_what_they_are_warm_for(tmp_path: Path) -> None:
    every = Caches(tmp_path / "a", for_draws=False)
    by_draws = Caches(tmp_path / "b", for_draws=True)
    by_goal = Caches(tmp_path / "c", for_draws=False, for_goal=True)
    for caches in (every, by_draws, by_goal):
        caches.folder.mkdir()
        assert not caches.warm(100, 400)
        caches.ran(100, 400)
        assert caches.warm(100, 400)
    assert [caches.warm(200, 400) for caches in (every, by_draws, by_goal)] == [True, False, True]
    assert [caches.warm(100, 4000) for caches in (every, by_draws, by_goal)] == [True, True, False]
    by_draws.empty()
    assert not by_draws.warm(100, 400)
    kept = every.folder / "httpstan" / "models" / "one" / "fits"
    kept.mkdir(parents=True)
    every.forget_fits()
    assert not kept.exists()
    assert kept.parent.exists()


def test_a_request_crosses_to_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"y": np.arange(3.0), "parametrization": "2PL", "jitter": 1e-4}
    request = Request("item_response", {"chains": 4}, 100, 3, inputs, {"mu": np.ones(2)}, str(tmp_path / "draws.npz"))
    file = tmp_path / "request.json"
    write_request(file, request)
    monkeypatch.setattr(sys, "argv", ["script", str(file)])
    read = read_request()
    assert (read.model, read.options, read.draws, read.seed, read.output) == (
        request.model, request.options, request.draws, request.seed, request.output
    )  # fmt: skip
    np.testing.assert_array_equal(read.starts["mu"], request.starts["mu"])
    found = read.arguments(lambda y, parametrization: None)
    assert found["parametrization"] == "2PL"
    np.testing.assert_array_equal(found["y"], inputs["y"])
    read.save({"lambda": np.zeros((4, 5, 2))})
    read.report(7, warmup_counted=False)
    with np.load(read.output) as saved:
        assert saved["lambda"].shape == (4, 5, 2)
    assert json.loads((tmp_path / "draws.json").read_text())["gradients"] == 7


def test_the_judge_looks_at_the_parameters_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    draws = {"mu": rng.normal(size=(4, 500)), "x": rng.normal(size=(4, 500, 2, 2))}
    slow = np.repeat(rng.normal(size=(4, 50)), 10, axis=1)
    np.savez(tmp_path / "draws.npz", **draws, slow=slow)  # type: ignore[arg-type]
    good = judge(tmp_path / "draws.npz", ["mu", "x"])
    assert (good.chains, good.draws) == (4, 500)
    assert good.reached(1000)
    assert not good.reached(3000)
    bad = judge(tmp_path / "draws.npz", ["mu", "slow"])
    assert bad.ess_of == "slow"
    assert not bad.reached(400)
    with pytest.raises(KeyError):
        judge(tmp_path / "draws.npz", ["sigma"])


def test_what_is_not_written_for_a_sampler_is_missing(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(CONFIG, "curves.stan={label: Stan, sampler: stan}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    check_available(config.task("stan", "schools", 400), "hidden_markov")
    with pytest.raises(Unavailable, match="nutpie has no version of hidden_markov"):
        check_available(config.task("nutpie", "schools", 400), "hidden_markov")
    with pytest.raises(Unavailable, match="PyStan has no version of "):
        check_available(config.task("stan", "schools", 400), "")  # a user's own model
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="needs stan, which is not installed"):
        check_available(config.task("stan", "schools", 400), "eight_schools")
    assert REGISTRY["stan"].models == REGISTRY["stanli"].models == tuple(STAN_MODELS)
    assert set(STAN_MODELS) == set(PACKAGED)


def differences_of_densities(options: dict[str, Any]) -> list[float]:
    """Our log-density less Stan's, of the parameters, at five positions: without the Jacobians of Stan's
    transformations, which are the density of the program whose model block is empty."""
    import stanli

    settings = PACKAGED[options["name"]].options(**options, dtype="float64")
    model, program = build(settings), STAN_MODELS[options["name"]]
    inputs = inputs_of(settings, model)
    code, data = program(**{name: inputs[name] for name in signature(program).parameters})
    whole = stanli.Model(stan_code=code, data=data)
    jacobians = stanli.Model(stan_code=code[: code.rindex("model {")] + "model {}", data=data)
    differences = []
    for seed in range(5):
        position = model.initial_positions(np.random.default_rng(seed), 1)[0]
        values = model.constrain(position)
        free = whole.unconstrain(values)  # with the same names and shapes
        theirs = whole.log_prob_grad(free)[0] - jacobians.log_prob_grad(free)[0]
        differences.append(float(model.log_density(values if model.structured else position)) - theirs)
    return differences


@pytest.fixture(scope="module")
def fresh_process() -> Any:
    """Without TensorFlow's and XLA's libraries, in which stanli's code has ended a process."""
    pytest.importorskip("stanli")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


@pytest.mark.parametrize("options", SMALL, ids=json.dumps)
def test_stans_program_has_our_density(options: dict[str, Any], fresh_process: Any) -> None:
    """Up to a constant."""
    differences = fresh_process.submit(differences_of_densities, options).result()
    assert np.ptp(differences) < 1e-8, differences


def test_a_stanli_script_saves_all_that_ours_does(tmp_path: Path) -> None:
    """With its own starts, under the names and shapes of our parameters."""
    pytest.importorskip("stanli")
    settings = PACKAGED["lotka_volterra"].options()
    model = build(settings)
    output = tmp_path / "draws.npz"
    options = {"chains": 2, "warmup": 20, "target_acceptance": 0.8}
    inputs = inputs_of(settings, model)
    write_request(
        tmp_path / "request.json",
        Request("lotka_volterra", options, 10, 3, inputs, starts_of(model, 3), str(output)),
    )
    command = [sys.executable, "-m", f"{SCRIPTS}.stanli_script", str(tmp_path / "request.json")]
    run_timed(command, users_environment(tmp_path / "caches"), 60.0, tmp_path / "printed.txt")
    assert "ESS_bulk" in (tmp_path / "printed.txt").read_text()
    with np.load(output) as saved:
        assert {name: array.shape[2:] for name, array in saved.items()} == {
            variable.name: variable.shape for variable in model.variables
        }
        assert {array.shape[:2] for array in saved.values()} == {(2, 10)}
    report = json.loads((tmp_path / "draws.json").read_text())
    assert report["gradients"] >= 20
    assert not report["warmup_counted"]


def test_a_stanli_script_runs_a_users_program(tmp_path: Path) -> None:
    """With data of its own, and a parameter for a file that the judge reads."""
    pytest.importorskip("stanli")
    output, program, data = (tmp_path / name for name in ("draws.npz", "coin.stan", "coin.json"))
    program.write_text("data { int n; } parameters { real<lower=0, upper=1> p; } model { n ~ binomial(10, p); }")
    data.write_text('{"n": 3}')
    config = tmp_path / "coin.yaml"
    config.write_text(f"model: {{stan: {program}, data: {data}}}")
    options = {"chains": 2, "warmup": 50, "target_acceptance": 0.8}
    files = stan_program_of(load_config(str(config)))
    write_request(tmp_path / "request.json", Request("", options, 100, 3, {}, {}, str(output), files))
    command = [sys.executable, "-m", f"{SCRIPTS}.stanli_script", str(tmp_path / "request.json")]
    run_timed(command, users_environment(tmp_path / "caches"), 60.0, tmp_path / "printed.txt")
    assert judge(output, ["p"]).ess > 20
    with np.load(output) as saved:
        assert saved["p"].mean() == pytest.approx(4 / 12, abs=0.1)


@pytest.mark.slow
def test_pymc_has_the_models_that_the_registry_names() -> None:
    pytest.importorskip("pymc")
    from batchnuts.experiments.time_to_answer.scripts.pymc_models import MODELS

    assert REGISTRY["nutpie"].models == REGISTRY["walnutpie"].models == tuple(MODELS)


# --- what is said of them


def made_up(config: AnswerConfig, times: dict[tuple[str, str, int], float | None]) -> AnswerResults:
    """A row for each point: its seconds, or none: it did not get there."""
    rows: list[Measurement] = []
    for point, seconds in times.items():
        task = config.task(*point)
        attempt = Attempt(
            "ok" if seconds else "failed", 0, 0, "here", "2026-11-25", note="" if seconds else "not reached"
        )
        if seconds:
            figures = {
                "seconds": seconds, "first_seconds": 2 * seconds, "chains": 4, "draws": 500, "warmup": 400, "runs": 1,
                "ess": float(point[2]), "ess_of": "tau", "rhat": 1.002, "rhat_limit": 1.01, "gradients": 12345.0,
                "warmup_counted": False, "load": 0.5,
            }  # fmt: skip
            attempt = replace(attempt, figures=figures)
        rows.append(row_of(Measurement, task, attempt))
    return AnswerResults(config, rows)


def test_claims_of_made_up_times(load: Any, tmp_path: Path) -> None:
    config = load()
    times: dict[tuple[str, str, int], float | None] = {
        ("ours", "gauss", 400): 5.0, ("numpyro", "gauss", 400): 10.0, ("nutpie", "gauss", 400): 4.0,
        ("ours", "gauss", 4000): 6.0, ("numpyro", "gauss", 4000): 12.0, ("nutpie", "gauss", 4000): None,
        ("ours", "schools", 400): 4.5, ("numpyro", "schools", 400): 10.0,
        ("ours", "schools", 4000): 9.0, ("numpyro", "schools", 4000): 3.0,
    }  # fmt: skip
    results = made_up(config, times)
    fastest, ratio, schools = results.verdicts()
    assert (fastest.word, fastest.words) == ("holds", "1 of 2")
    assert (ratio.word, ratio.words) == ("does not hold", "3.00, on eight schools")
    assert (schools.word, schools.words) == ("does not hold", "4.5 s")
    found = results.ratio("ours", "gauss", 4000)
    assert found is not None
    assert found.value == 0.5

    (tmp_path / "environment.json").write_text("{}")
    text = summary(answer.EXPERIMENT, results, tmp_path)
    assert "| Gaussian | **6.0** | 12.0 | not reached | 0.50 |" in text
    assert "| eight schools | 4.5 | 10.0 | - | 0.45 |" in text.replace("**4.5**", "4.5")
    assert "| Gaussian | NumPyro | 400 | 10.0 | 20.0 | 4 x (400 + 500) | 1 | 400 (tau) | 1.0020 (< 1.0100) |" in text
    assert "| ≥ 12,300 | - |" in text
    assert "| nutpie | Gaussian | 4,000 | failed: not reached |" in text
    assert set(answer.pictures(results)) == {"answer"}


def test_where_ours_does_not_get_there_no_claim_holds(load: Any) -> None:
    config = load()
    results = made_up(config, {
        ("ours", "schools", 400): None, ("ours", "gauss", 4000): None, ("numpyro", "gauss", 4000): 12.0,
    })  # fmt: skip
    assert [verdict.word for verdict in results.verdicts()] == ["does not hold"] * 3
    assert results.verdicts()[1].words == "only a peer got there, on Gaussian"
    assert [verdict.word for verdict in made_up(config, {}).verdicts()] == ["not measured"] * 3


def test_where_only_ours_gets_there_it_is_the_fastest(load: Any) -> None:
    results = made_up(load(), {("ours", "gauss", 4000): 60.0, ("numpyro", "gauss", 4000): None})
    assert [verdict.word for verdict in results.verdicts()] == ["holds", "not measured", "not measured"]
