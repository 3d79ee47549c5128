"""Configs for posteriordb's posteriors, from a clone that a test writes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stan_models import SCHOOLS, SCHOOLS_DATA

from batchnuts.experiments import posteriordb
from batchnuts.experiments.posterior_checks.config import load_posteriors
from batchnuts.experiments.posterior_checks.moments import decode
from batchnuts.experiments.time_to_answer.config import load_answer
from batchnuts.experiments.time_to_answer.runs import check_available, stan_program_of


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """One posterior with reference draws, and one without."""
    database = tmp_path / "clone" / "posterior_database"
    generator = np.random.default_rng(0)
    names = ["mu", *(f"theta[{i},{j}]" for i in range(1, 3) for j in range(1, 4))]
    draws = [{name: list(generator.normal(k, 1, 50)) for k, name in enumerate(names)} for _ in range(4)]
    texts = {
        "models/stan/schools.stan": SCHOOLS,
        "posteriors/a.json": json.dumps(
            {"name": "a-s", "model_name": "schools", "data_name": "d", "reference_posterior_name": "r"}
        ),
        "posteriors/b.json": json.dumps({"name": "b", "model_name": "schools", "data_name": "d"}),
    }
    for name, text in texts.items():
        (database / name).parent.mkdir(parents=True, exist_ok=True)
        (database / name).write_text(text)
    for name, content in {"data/data/d": SCHOOLS_DATA, "reference_posteriors/draws/draws/r": draws}.items():
        (database / name).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(database / f"{name}.json.zip", "w") as archive:
            archive.writestr(f"{Path(name).name}.json", json.dumps(content))
    return tmp_path / "clone"


def test_both_experiments_read_what_is_written(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stanli")
    monkeypatch.chdir(tmp_path)
    assert posteriordb.main([str(clone)]) == 0
    posteriors = load_posteriors("of_posteriordb/posteriors.yaml")
    assert {name: problem.label for name, problem in posteriors.problems.items()} == {"a_s": "a-s"}
    moments = decode(Path(posteriors.problems["a_s"].moments or "").read_text())
    assert {name: moment.mean.shape for name, moment in moments.items()} == {"mu": (), "theta": (2, 3)}
    np.testing.assert_allclose(moments["theta"].mean, [[1, 2, 3], [4, 5, 6]], atol=0.3)
    assert ((moments["theta"].mcse_mean > 0.03) & (moments["theta"].mcse_mean < 0.2)).all()
    (point,) = posteriors.points()
    assert "execution.backend=auto" in posteriors.task(*point).overrides
    answer = load_answer("of_posteriordb/answer.yaml")
    assert [(curve, goal) for curve, _, goal in answer.points()] == [("batchnuts", 4000), ("stanli", 4000)]
    assert answer.configs["a_s"].output.variables is None, "parameters are judged, which may have no reference draws"
    task = answer.task("stanli", "a_s", 4000)
    check_available(task, "", is_stan_program=stan_program_of(answer.configs["a_s"]) is not None)


def test_what_a_clone_lacks_is_left_out(clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(clone.parent)
    posteriors = clone / "posterior_database/posteriors"
    (posteriors / "c.json").write_text(
        (posteriors / "a.json").read_text().replace('"a-s"', '"c"').replace('"d"', '"e"')
    )
    assert posteriordb.main(["clone"]) == 0
    printed = capsys.readouterr()
    assert "c is left out: " in printed.err
    assert printed.out.startswith("1 posteriors")
    with pytest.raises(SystemExit):
        posteriordb.main(["clone", "--only", "c"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["elsewhere"], "is not a clone of posteriordb"),
        (["clone", "--only", "c"], "there is no posterior 'c'; expected some of a-s"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(clone.parent)
    with pytest.raises(SystemExit) as ended:
        posteriordb.main(arguments)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
