"""Configs for the posteriors of posteriordb, made of a clone of it: Stan programs with published reference draws.

    git clone https://github.com/stan-dev/posteriordb
    python -m batchnuts.experiments.posteriordb posteriordb --folder of_posteriordb
    python -m batchnuts.experiments.posteriors --config of_posteriordb/posteriors.yaml
    python -m batchnuts.experiments.answer --config of_posteriordb/answer.yaml

The first experiment compares moments with those of the reference draws, the second one seconds with stanli's. Exit
codes: 0 the configs are written, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.posterior_checks.moments import encode, summarize
from batchnuts.mcmc.statistics.rhat_noise import RHAT_LIMIT
from batchnuts.process.signals import say
from batchnuts.settings.yaml import to_yaml

GOAL = 4_000
"""Effective draws."""

DATABASE = "posterior_database"
"""The folder of a clone."""


@dataclass(frozen=True)
class Posterior:
    """One with reference draws."""

    name: str
    program: str
    """The text of the Stan program."""
    data: str
    """Stan's JSON."""
    draws: Mapping[str, NDArray[np.float64]]
    """Reference draws [chains, draws, *shape] by variable."""


def entries_of(clone: Path) -> dict[str, dict[str, Any]]:
    """What a clone says of its posteriors with reference draws, by name."""
    files = sorted((clone / DATABASE / "posteriors").glob("*.json"))
    entries = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {entry["name"]: entry for entry in entries if entry.get("reference_posterior_name")}


def read_posterior(clone: Path, entry: Mapping[str, Any]) -> Posterior:
    """One of them. Raises OSError where a file lacks."""
    folder, reference = clone / DATABASE, entry["reference_posterior_name"]
    return Posterior(
        name=entry["name"],
        program=(folder / "models/stan" / f"{entry['model_name']}.stan").read_text(encoding="utf-8"),
        data=_unzipped(folder / "data/data" / f"{entry['data_name']}.json.zip"),
        draws=_variables(json.loads(_unzipped(folder / "reference_posteriors/draws/draws" / f"{reference}.json.zip"))),
    )


def _unzipped(file: Path) -> str:
    """The text of the one file in an archive."""
    with zipfile.ZipFile(io.BytesIO(file.read_bytes())) as archive:
        (name,) = archive.namelist()
        return archive.read(name).decode("utf-8")


def _variables(chains: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, NDArray[np.float64]]:
    """Draws by chain and element, `theta[2,1]`, as arrays by variable."""
    elements: dict[str, dict[tuple[int, ...], NDArray[np.float64]]] = {}
    for element in chains[0]:
        name, _, indices = element.partition("[")
        index = tuple(int(number) - 1 for number in re.findall(r"\d+", indices))
        elements.setdefault(name, {})[index] = np.array([chain[element] for chain in chains], np.float64)
    variables = {}
    for name, by_index in elements.items():
        shape = tuple(np.max(list(by_index), axis=0) + 1) if () not in by_index else ()
        array = np.empty((*next(iter(by_index.values())).shape, *shape))
        for index, values in by_index.items():
            place: tuple[Any, ...] = (..., *index)
            array[place] = values
        variables[name] = array
    return variables


def write_configs(posteriors: Sequence[Posterior], folder: Path) -> None:
    """Write programs, data, moments and configs into a folder, which is made. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    problems: dict[str, dict[str, Any]] = {}
    for posterior in posteriors:
        program, data, moments, config = (
            (folder / f"{posterior.name}{suffix}").absolute() for suffix in (".stan", ".json", ".moments.json", ".yaml")
        )
        program.write_text(posterior.program, encoding="utf-8")
        data.write_text(posterior.data, encoding="utf-8")
        moments.write_text(encode(summarize(posterior.draws)[0]), encoding="utf-8")
        run = {
            "model": {"stan": str(program), "data": str(data)},
            "sampler": {"chains": 16, "draws": 10_000, "until": {"ess_bulk": GOAL, "rhat": RHAT_LIMIT}},
            "output": {"variables": sorted(posterior.draws), "groups": []},
        }
        config.write_text(to_yaml(run), encoding="utf-8")
        problems[re.sub(r"\W", "_", posterior.name)] = {
            "label": posterior.name, "config": str(config), "reference": "known", "moments": str(moments)
        }  # fmt: skip
    checks = {
        "problems": problems,
        "run": {"settings": {"sampler": {"target_acceptance": 0.95}}},
        "curves": {"batchnuts": {"label": "batchnuts", "sampler": "batchnuts", "options": {"backend": "auto"}}},
        "measurement": {"seed": 0, "timeout": 900},
        "verdict": {"alpha": 0.01, "rhat": 1.01, "divergences": 0.001},
        "output": {"folder": "results/posteriors_of_posteriordb"},
    }
    (folder / "posteriors.yaml").write_text(to_yaml(checks), encoding="utf-8")
    times = {
        "problems": {name: {key: problem[key] for key in ("label", "config")} for name, problem in problems.items()},
        "run": {
            "goals": [GOAL],
            "first_starts": [],
            # all variables: the parameters, which are judged, may be others than those with reference draws
            "settings": {"sampler": {"chains": "auto", "draws": 100_000}, "output": {"variables": None}},
        },
        "curves": {
            "batchnuts": {"label": "batchnuts", "sampler": "batchnuts"},
            "stanli": {"label": "stanli", "sampler": "stanli", "options": {"chains": 4}},
        },
        "measurement": {"seed": 0, "repetitions": 1, "limit": 90},
        "claims": {
            "faster_on_30_of_46": {
                "says": "faster than stanli on at least 30 of the 46", "source": "our own target", "figure": "fastest",
                "curve": "batchnuts", "goal": GOAL, "at_least": round(30 / 46, 4),
            }
        },
        "output": {"folder": "results/answer_of_posteriordb"},
    }  # fmt: skip
    (folder / "answer.yaml").write_text(to_yaml(times), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the configs that the command line asks for; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m batchnuts.experiments.posteriordb",
        description="Write configs for the posteriors of posteriordb that have reference draws.",
    )
    parser.add_argument("clone", type=Path, help="a clone of https://github.com/stan-dev/posteriordb")
    parser.add_argument("--folder", type=Path, default=Path("of_posteriordb"), help="where they are written")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these posteriors (default: all)")
    arguments = parser.parse_args(argv)
    try:
        entries = entries_of(arguments.clone)
    except (OSError, KeyError, ValueError) as error:
        parser.error(f"{arguments.clone} is not a clone of posteriordb, or is damaged ({error})")
    if not entries:
        parser.error(f"{arguments.clone} is not a clone of posteriordb: it has no posterior with reference draws")
    if unknown := sorted(set(arguments.only or ()) - set(entries)):
        parser.error(f"--only: there is no posterior {unknown[0]!r}; expected some of {', '.join(entries)}")
    posteriors = []
    for name in arguments.only or entries:
        try:
            posteriors.append(read_posterior(arguments.clone, entries[name]))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            say(f"{name} is left out: {error}.")
    if not posteriors:
        parser.error(f"no posterior of {arguments.clone} can be read")
    write_configs(posteriors, arguments.folder)
    print(f"{len(posteriors)} posteriors: {arguments.folder / 'posteriors.yaml'}, {arguments.folder / 'answer.yaml'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
