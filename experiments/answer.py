"""Seconds from a command to an answer: batchnuts and its peers, until their draws are worth what is asked for.

python -m batchnuts.experiments.answer --config answer.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.time_to_answer.results import AnswerResults
from batchnuts.experiments.time_to_answer.summary import ANSWERS, times_tables

QUESTION = """\
How long does a user wait for numbers to trust? From the start of a process until draws are saved and diagnostics
printed, for draws whose smallest bulk ESS over all parameters is as large as asked for, with R-hat below 1.01. Every
sampler is used as its documentation recommends, on the same posteriors."""


def pictures(results: AnswerResults) -> Mapping[str, Any]:
    """For each goal, seconds of all samplers on all posteriors."""
    goals = [
        goal
        for goal in results.config.run.goals
        if any(
            results.runs_of(curve, problem, goal) for curve, problem, size in results.config.points() if size == goal
        )
    ]
    return {"answer": _picture(results, goals)} if goals else {}


@plots.styled
def _picture(results: AnswerResults, goals: list[int]) -> Any:
    from matplotlib import ticker

    config = results.config
    problems = list(config.problems)
    figure, axes = plots.new_figure(
        len(goals), "seconds from the command to the answer, second start", 1.6 + 0.3 * len(problems)
    )
    for goal, place in zip(goals, axes, strict=True):
        for number, (name, curve) in enumerate(config.curves.items()):
            measured = [(index, results.seconds(name, problem, goal)) for index, problem in enumerate(problems)]
            points = [(value, index) for index, value in measured if value is not None]
            style = {"color": f"C{number}", "markersize": 5 if curve.ours else 4}
            if points:
                x, y = [value.value for value, _ in points], [index for _, index in points]
                place.plot(x, y, "o" if curve.ours else "D", label=curve.label, alpha=0.8, **style)
                place.hlines(y, [v.low for v, _ in points], [v.high for v, _ in points], color=f"C{number}", alpha=0.5)
        place.set_xscale("log")
        place.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        place.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        place.minorticks_off()
        place.set_xlabel("seconds")
        place.set_title(f"{goal:,} effective draws", loc="left")
    plots.name_rows(axes, [config.problems[name].label for name in problems], "posterior")
    axes[0].legend(loc="upper left", bbox_to_anchor=(0.0, -0.12), borderaxespad=0.0, ncols=2)
    return figure


EXPERIMENT = Experiment(ANSWERS, "answer", "Time to an answer", QUESTION, pictures, times_tables)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
