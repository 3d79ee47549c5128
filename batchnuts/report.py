"""The output at the end of a run: the table, the verdict, speed, times, and where the draws are."""

from __future__ import annotations

import time
from pathlib import Path

from batchnuts.config import RunConfig
from batchnuts.mcmc.diagnostics import diagnose
from batchnuts.mcmc.draws import Draws
from batchnuts.mcmc.model import Model
from batchnuts.progress import SafeConsole, short

_PLAIN_WIDTH = 120  # of tables that do not go to a terminal


def print_report(draws: Draws, model: Model, config: RunConfig, target: Path, saving: float) -> None:
    """Print it on stdout. saving: seconds that it took to write the file `target`."""
    console = SafeConsole()
    if not console.is_terminal:
        console = SafeConsole(width=_PLAIN_WIDTH)
    timings = {**draws.timings, "saving": saving}
    if draws.complete:
        started = time.monotonic()
        found = diagnose(
            draws.rectangle(draws.position),
            model.coefficient_names(),
            draws.rectangle(draws.stats["diverging"]),
            draws.rectangle(draws.stats["reached_max_treedepth"]),
            draws.rectangle(draws.stats["lp"]),
        )
        timings["diagnostics"] = time.monotonic() - started
        console.print(found.table(config.output.summary_rows, narrow=console.width < 105))
        console.print(found.verdict(), highlight=False, markup=False, soft_wrap=True)
    seconds = draws.timings.get("warmup", 0.0) + draws.timings.get("sampling", 0.0)
    speed = f"{short(draws.useful_gradients / seconds)} useful gradients/s in warmup and sampling, " if seconds else ""
    served = f"; {draws.arrangement}" if draws.arrangement is not None else ""
    console.print(f"Speed: {speed}utilization {draws.utilization:.2f}{served}", highlight=False, soft_wrap=True)
    spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in timings.items())
    console.print(f"Time: {spent}", highlight=False, soft_wrap=True)
    console.print(f"Draws: {target}", highlight=False, markup=False, soft_wrap=True)
