"""Posteriors of all packaged models, and of the Inference Gym, against truths or runs of an independent sampler.

    python -m batchnuts.experiments.posteriors --config posteriors.yaml

The exit code is 1 if a posterior is not right; summary.md says which, and why.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchnuts.autobatch import BatchnutsError
from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.posterior_checks.moments import STATISTICS
from batchnuts.experiments.posterior_checks.results import PosteriorResults
from batchnuts.experiments.posterior_checks.summary import POSTERIORS, comparisons_csv, runs_table

QUESTION = """\
Are the posteriors right that batchnuts draws with its defaults? Every packaged model is sampled as its config says, and
targets of the Inference Gym, where it is installed. The mean and the standard deviation of every element of every
parameter are compared with the truth where it is known or published, else with a long run of NumPyro's NUTS on the same
model, written in NumPyro, in a process of its own."""

_SHOWN = 12.0
"""|z| beyond this are drawn at the edge."""


class NotRight(BatchnutsError):
    """Some posterior is not what it should be, or could not be compared."""


def pictures(results: PosteriorResults) -> Mapping[str, Any]:
    """All z of means and of standard deviations, a line of points for each run of ours, and the bound."""
    judged = [compared for compared in results.judged if compared.comparisons]
    if not judged:
        return {}
    return {"posteriors": _picture(results)}


@plots.styled
def _picture(results: PosteriorResults) -> Any:
    config = results.config
    problems = [name for name in config.problems if any(compared.problem == name for compared in results.judged)]
    curves = list(dict.fromkeys(compared.curve for compared in results.judged))
    figure, axes = plots.new_figure(
        len(STATISTICS), "z of every parameter against its reference", 1.2 + 0.3 * len(problems)
    )
    for statistic, place in zip(STATISTICS, axes, strict=True):
        for number, curve in enumerate(curves):
            x, y = [], []
            for compared in results.judged:
                if compared.curve == curve:
                    scores = [comparison.z for comparison in compared.comparisons if comparison.statistic == statistic]
                    x += [max(-_SHOWN, min(_SHOWN, z)) for z in scores]
                    y += [problems.index(compared.problem) + 0.4 * (number / len(curves) - 0.25)] * len(scores)
            label = config.curves[curve].label
            place.plot(x, y, "|", color=f"C{number}", markersize=5, alpha=0.6, label=label)
        for side in (-1, 1):
            place.axvline(side * results.bound, color="0.4", linewidth=0.8, linestyle="--")
        place.set_xlim(-_SHOWN - 0.5, _SHOWN + 0.5)
        place.set_xlabel(f"z; dashed: the bound, {results.bound:.2f}")
        place.set_title({"mean": "means", "sd": "standard deviations"}[statistic], loc="left")
    plots.name_rows(axes, [config.problems[name].label for name in problems], "posterior")
    axes[0].legend(loc="upper left", bbox_to_anchor=(0.0, -0.1), borderaxespad=0.0)
    return figure


def judge(results: PosteriorResults, folder: Path) -> None:
    """Raise NotRight if a posterior is not right."""
    config = results.config
    if results.failures:
        lines = [
            f"  {config.problems[verdict.compared.problem].label}, {config.curves[verdict.compared.curve].label}: "
            f"{'; '.join(verdict.reasons)}"
            for verdict in results.failures
        ]
        count = f"{len(lines)} of {len(results.verdicts)} posteriors are not right"
        raise NotRight("\n".join([f"{count}; all of it is in {folder / 'summary.md'}:", *lines]))


EXPERIMENT = Experiment(
    POSTERIORS,
    "posteriors",
    "Posteriors against truths and references",
    QUESTION,
    pictures,
    runs_table,
    {"comparisons.csv": comparisons_csv},
    judge=judge,
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
