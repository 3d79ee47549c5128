"""Configs of experiments: packaged ones are whole, mistakes are named with their place, quick changes what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_experiment import CONFIG

from batchnuts.experiments.harness.reading import FOLDER
from batchnuts.experiments.samplers.config import load_experiment
from batchnuts.settings.yaml import ConfigError, packaged_configs

WITH_SAMPLERS = ["benchmark.yaml", "figure6.yaml", "figure7.yaml", "fsm.yaml", "scaling.yaml"]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def load(text: str = CONFIG, *overrides: str, quick: bool = False) -> Any:
        Path("my.yaml").write_text(text)
        return load_experiment("my.yaml", overrides, quick=quick)

    return load


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", WITH_SAMPLERS)
def test_packaged_configs_are_valid_and_can_be_read_again(name: str, quick: bool, load: Any) -> None:
    config = load_experiment(name, quick=quick)
    assert load(config.to_yaml()).resolved() == config.resolved()
    assert config.output.folder == f"results/{Path(name).stem}" + ("-quick" if quick else "")
    assert list(config.points())


def test_the_packaged_ones_are_these_and_those_of_other_subjects() -> None:
    assert packaged_configs(FOLDER) == sorted(
        [*WITH_SAMPLERS, "answer.yaml", "clusters.yaml", "pfor.yaml", "posteriors.yaml"]
    )


BAD = [
    ("runs: {}\n", "my.yaml:38: runs: unknown section; did you mean 'run'?"),
    ("run: {chain: [1]}\n", "run.chain: unknown key; did you mean 'chains'?"),
    ("run: {chains: [2, 1], transitions: 1}\n", "chains: found [2, 1]; expected increasing integers of at least 1"),
    ("run: {chains: [0], transitions: 1}\n", "chains: found [0]"),
    ("measurement: {repetition: 3}\n", "measurement.repetition: unknown key; did you mean 'repetitions'?"),
    (
        "measurement: {repetitions: 0}\n",
        "measurement.repetitions: found 0 (an integer); expected an integer of at least 1",
    ),
    ("problems: {}\n", "problems: found {}; expected a mapping of names to mappings"),
    ("problems: {a: {label: a, step_size: 1.0}}\n", "problems.a.model: found None"),
    ("problems: {a: {label: a, step_size: 1.0, model: {name: gauss}}}\n", "problems.a.model.name: found 'gauss'"),
    (
        "problems: {a: {label: a, step_size: 1.0, model: {name: radon}}}\n",
        "found 'radon'; expected one of correlated_g",
    ),
    ("curves: {a: {label: a, sampler: stann}}\n", "sampler: found 'stann'; did you mean 'stan'?"),
    ("curves: {a: {label: a, sampler: stan, options: {process: 2}}}\n", "curves.a.options.process: unknown key"),
    ("curves: {a: {label: a, sampler: stan, problems: [gaus]}}\n", "curves.a.problems.0: found 'gaus'"),
    ("curves: {a b: {label: a, sampler: stan}}\n", "found the name 'a b'"),
    ("curves: {a: 3}\n", "curves.a: found 3; expected a mapping"),
    (
        "claims: {a: {says: x, source: y, measure: rate, curve: three, at_least: 1.0}}\n",
        "claims.a.curve: found 'three'",
    ),
    ("claims: {a: {says: x, source: y, measure: rate, curve: one}}\n", "claims.a: found neither at_least nor at_most"),
    ("output: {}\n", "output.folder: this key is required"),
]


@pytest.mark.parametrize(("section", "message"), BAD)
def test_mistakes_are_named(section: str, message: str, load: Any) -> None:
    name = section.split(":")[0]
    kept = [part for part in split(CONFIG) if not part.startswith(f"{name}:")]
    with pytest.raises(ConfigError) as caught:
        load("\n" + "".join(kept) + section)
    assert message in str(caught.value)


def split(text: str) -> list[str]:
    """The sections of a config."""
    parts: list[str] = []
    for line in text.lstrip("\n").splitlines(keepends=True):
        if line.startswith((" ", "#")):
            parts[-1] += line
        else:
            parts.append(line)
    return parts


def test_unknown_keys_on_the_command_line_are_refused(load: Any) -> None:
    with pytest.raises(ConfigError, match=r"command line, run\.step=1: run\.step: unknown key"):
        load(CONFIG, "run.step=1")


def test_quick_changes_what_it_says_and_the_folder(load: Any) -> None:
    config = load(quick=True)
    assert [config.run.chains, config.curves["two"].chains, config.measurement.repetitions] == [[2], [2], 1]
    assert config.output.folder == "out-quick"
    assert load(CONFIG, "run.chains=[3]", quick=True).run.chains == [3]


def test_a_mistake_in_quick_has_its_line(load: Any) -> None:
    line = CONFIG.splitlines().index("  run.chains: [2]") + 1
    with pytest.raises(ConfigError, match=rf"my\.yaml:{line}: run\.chians: unknown key"):
        load(CONFIG.replace("  run.chains: [2]", "  run.chians: [2]"), quick=True)


def test_quick_without_its_section_is_refused(load: Any) -> None:
    with pytest.raises(ConfigError, match="--quick needs the section quick"):
        load("".join(split(CONFIG)[:-1]), quick=True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("curves.onee=null", "there is no curves.onee to leave out; did you mean 'one'?"),
        ("claims.nothing=null", "there is no claims.nothing to leave out; expected one of faster"),
        ("quick.run.chains=[3]", "the section quick is applied before the command line; set run.chains itself"),
        ("claims=false", "claims: found False; expected a mapping"),
        ("curves.one.options={backend: jax, mode: graph}", "curves.one.options.mode: found 'graph', which only Tensor"),
        ("curves.one={label: a, sampler: leapfrog_limit, options: {backend: jax}}", "curves.one.options.backend: unkn"),
        ("run.backend=numpy", "run.backend: found 'numpy'"),
        ("run.transitions=3", "run.transitions: found 3; expected at least 4, or run.measure_ess=false"),
        ("curves.one.problems=[]", "curves.one.problems: found []"),
        ("measurement.timeout=1e300", "measurement.timeout: found 1e+300"),
        ("claims.faster.at_most=1.0", "at_most: found 1; expected at_least (2) or more"),
        (
            "claims.faster={says: a, source: b, measure: rate, curve: one, over_chains: 2, at_least: 1.0}",
            "has no effect",
        ),
    ],
)
def test_what_would_do_nothing_is_refused(override: str, message: str, load: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load(CONFIG, override)
    assert message in str(caught.value)


def test_quick_refuses_to_leave_out_what_is_not_there(load: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"my\.yaml:\d+: quick\.curves\.three: there is no curves\.three to leave out"
    ):
        load(CONFIG + "  curves.three: null\n", quick=True)


def test_a_folder_may_end_in_a_slash(load: Any) -> None:
    assert load(CONFIG, "output.folder=out/", quick=True).output.folder == "out-quick"


def test_what_is_null_is_left_out(load: Any) -> None:
    config = load(CONFIG, "curves.two=null", "claims.faster=null")
    assert list(config.curves) == ["one"]
    assert not config.claims


def test_a_curve_overrides_the_run_and_a_task_knows_all_of_it(load: Any) -> None:
    config = load(CONFIG, "curves.two.transitions=7", "curves.two.leapfrogs_per_leaf=3")
    one, two = config.task("one", "gauss", 4), config.task("two", "gauss", 4)
    assert (one.transitions, two.transitions, two.leapfrogs_per_leaf) == (4, 7, 3)
    assert two.options["executor"] == "stackless"
    assert one.fingerprint() != two.fingerprint()
    assert one.fingerprint() == load().task("one", "gauss", 4).fingerprint()


def test_the_runs_backend_is_that_of_our_curves_that_name_none(load: Any) -> None:
    """A curve's own stays, and so does the task where nothing is said."""
    config = load(CONFIG, "run.backend=jax", "curves.one.options={}", "curves.three={label: a, sampler: stan}")
    assert [config.task(name, "gauss", 2).options.get("backend") for name in ("one", "two", "three")] == [
        "jax", "numpy", None,
    ]  # fmt: skip
    before, now = (load(CONFIG, "curves.one.options={}", *more) for more in ((), ("run.backend=tensorflow",)))
    assert before.task("one", "gauss", 2).fingerprint() == now.task("one", "gauss", 2).fingerprint()


def test_points_go_through_all_curves_of_a_size_before_the_next(load: Any) -> None:
    points = [(curve, chains) for curve, _, chains in load().points()]
    assert points == [("one", 1), ("one", 2), ("two", 2), ("one", 4), ("two", 4)]
