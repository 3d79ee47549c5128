"""The end of a run of the command line: its draws are saved, diagnosed and shown.

After a signal, or an error while chains ran, what there is is saved, and marked as interrupted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from batchnuts.cli.config import named_again
from batchnuts.cli.ending import Ending
from batchnuts.cli.new_run import Prepared, Task
from batchnuts.files.groups import AnyGroup, datasets_of
from batchnuts.files.saving import NotSaved, OutputError, Write, root_attributes, save
from batchnuts.files.url import OutputLocation, folder_of
from batchnuts.mcmc.model.quantities import LeftOutError
from batchnuts.mcmc.output.datasets import to_groups
from batchnuts.mcmc.output.formats import OUTPUT_FORMATS
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.process.freed_memory import give_back_freed
from batchnuts.process.signals import StopSignals, say
from batchnuts.progress.views import View, phase

if TYPE_CHECKING:
    import xarray

    from batchnuts.mcmc.diagnostics.diagnose import Diagnostics


def finish(
    task: Task,
    prepared: Prepared,
    draws: Draws,
    failure: Exception | None,
    view: View,
    stop: StopSignals,
    ending: Ending,
) -> int:
    """Save the draws and show what they say; gives the exit code. Signals are held until they are saved.

    failure: what ended the chains early; it is raised again once the draws are saved.
    """
    location, keeper = prepared.location, prepared.keeper
    how_to_go_on = _how_to_go_on(prepared)
    ending.content["resume"] = str(location) if how_to_go_on else None
    if not draws.done.any():
        if prepared.stream is not None:
            prepared.stream.discard()
        stop.release()
        ending.say(f"{stop.name}; no draws were made yet, and {ending.untouched}.{how_to_go_on}")
        return stop.exit_code
    started = time.monotonic()
    try:
        groups = _saved(task, prepared, draws, bool(how_to_go_on), view, stop, ending)
    except _StoppedWhileSaving:
        ending.say(f"{stop.name}; what was written so far is in {location}, which is marked as interrupted.")
        return stop.exit_code
    saving = time.monotonic() - started
    give_back_freed()
    stop.release()
    if draws.interrupted:
        what = draws.what_there_is(prepared.config.output.content.draws)
        why = stop.name if failure is None else "the run failed"
        ending.say(f"{why}; saved in {location}, which is marked as interrupted: {what}.{how_to_go_on}")
    elif keeper is not None:
        keeper.remove()
        ending.content["resume"] = None
    if failure is not None:
        raise failure
    ending.content["reason"] = ending.content["reason"] or draws.ended
    try:
        _show(task, prepared, draws, groups, saving, view, stop, ending)
    except KeyboardInterrupt:
        lacking = root_attributes(groups).get("left_out")
        ending.say(f"the summary was {stop.name}; the draws are in {location}.{f' {lacking}' if lacking else ''}")
        return stop.exit_code
    except OSError as error:  # its reader is gone: a closed pipe or terminal
        from batchnuts.progress.json_lines import give_up

        say(f"the summary cannot be printed ({error.strerror or error}); the draws are in {location}.")
        give_up(sys.stdout)
    return stop.exit_code if draws.interrupted else 0


def _how_to_go_on(prepared: Prepared) -> str:
    """The sentence that says how, where there is a checkpoint; else nothing."""
    location, keeper = prepared.location, prepared.keeper
    if keeper is None or not keeper.exists():
        return ""
    folder_hint = "" if isinstance(location, Path) else f" in this folder, which has {folder_of(location).name}"
    cluster = prepared.config.resolved()["execution"]["cluster"]
    cluster_hint = "" if cluster is None else f" {named_again(cluster)}"
    return f" Continue with --resume {location}{cluster_hint}{folder_hint}."


class _StoppedWhileSaving(Exception):
    """A signal ended the writing of the rest of a store."""


def _saved(
    task: Task, prepared: Prepared, draws: Draws, can_go_on: bool, view: View, stop: StopSignals, ending: Ending
) -> Mapping[str, AnyGroup]:
    """The groups of the output, which is written."""
    location, config, stream = prepared.location, prepared.config, prepared.stream
    groups: Mapping[str, AnyGroup]
    with ExitStack() as shown:
        advance = shown.enter_context(phase(view, "saving"))
        if stream is not None:
            try:
                groups = stream.finish(draws, keep=draws.interrupted and can_go_on)
                if task.ended is not None:
                    from batchnuts.mcmc.run.lengthen import replace_store

                    groups = replace_store(task.ended)
            except KeyboardInterrupt:
                raise _StoppedWhileSaving from None
        else:
            between = unless_stopped(stop, advance)
            content = config.output.content
            groups = to_groups(draws, prepared.model, config.resolved(), content=content, between=between)
            if task.ended is not None:
                from batchnuts.mcmc.run.lengthen import joined

                groups = joined(task.ended, datasets_of(groups))
        if config.output.streams:
            ending.content["path"] = str(location)
        else:
            assert isinstance(location, Path), "a netCDF file is local"
            saved = _save(groups, location, task.force, config.output.write, before_asking=shown.close)
            ending.content["path"] = str(saved)
            if (write_beside := OUTPUT_FORMATS[config.output.format].write_beside) is not None:
                write_beside(groups, saved, task.force)
    prepared.stream = None
    return groups


def _show(
    task: Task,
    prepared: Prepared,
    draws: Draws,
    groups: Mapping[str, AnyGroup],
    saving: float,
    view: View,
    stop: StopSignals,
    ending: Ending,
) -> None:
    """Print what the run came to, and write the page about it. saving: the seconds that it took."""
    location, output = prepared.location, prepared.config.output
    diagnostics = None
    if task.quiet:
        print(location, flush=True)
    elif stop.count > draws.interrupted:
        raise KeyboardInterrupt  # pressed again, or while the file was written: the user does not want to wait
    elif ending.lines is not None:
        from batchnuts.report.run_file import verdict_at_end

        with phase(view, "diagnostics"):
            verdict, diagnostics = verdict_at_end(location, datasets_of(groups), len(draws.chains), draws.complete)
        ending.content |= {key: value for key, value in verdict.items() if key != "file"}
    else:
        from batchnuts.report import print_report

        diagnostics = print_report(draws, groups, location, saving, view, rows=output.summary_rows, kept=output.draws)
        sys.stdout.flush()
    if diagnostics is not None and output.draws and output.streams:
        keep_for_reports(diagnostics, location)
    if output.report:
        page = _write_report(datasets_of(groups), location, diagnostics, force=task.force)
        ending.content["report"] = str(page)
        if not task.quiet and ending.lines is None:
            print(f"Report: {page}", flush=True)


def unless_stopped(stop: StopSignals, advance: Callable[[float], None]) -> Callable[[float], None]:
    """Reports how much is computed of what the model makes of its draws; a signal from now on ends that alone."""
    stops_before = stop.count

    def between(share: float) -> None:
        advance(share)
        if stop.count > stops_before and share < 1:
            raise LeftOutError(f"Quantities computed from draws are left out: {stop.name} at {share:.0%}.")

    return between


def _save(
    groups: Mapping[str, AnyGroup], location: Path, force: bool, write: Write | None, before_asking: Callable[[], None]
) -> Path:
    """Save the draws, and give the file's path; if no folder can be written and stdin is a terminal, ask for another
    path."""
    try:
        return save(groups, location, force=force, write=write)
    except NotSaved as error:
        before_asking()
        while sys.stdin.isatty() and sys.stderr.isatty():
            say(
                f"{error} They are still in memory. Free some space and press Enter to try again, or type another path:"
            )
            answer = sys.stdin.readline()
            if not answer:
                break
            try:
                place = answer.strip() or location
                saved = save(groups, place, force=force and Path(place).expanduser() == location, write=write)
                say(f"the draws are in {saved}.")
                return saved
            except NotSaved as next_error:
                error = next_error
        raise


def keep_for_reports(diagnostics: Diagnostics, location: OutputLocation) -> None:
    """Put diagnostics into the store, for later reports, which do without them where they cannot be written."""
    from batchnuts.mcmc.diagnostics.kept_diagnostics import keep_diagnostics

    try:
        keep_diagnostics(location, diagnostics)
    except OutputError as error:
        say(f"warning: {error} A report will diagnose the draws again.")


def _write_report(
    groups: Mapping[str, xarray.Dataset], location: OutputLocation, diagnostics: Diagnostics | None, *, force: bool
) -> Path:
    """Write the page beside the draws, and give its path. diagnostics: those of the summary."""
    from batchnuts.report.page import page_path, write_page
    from batchnuts.report.run_file import run_of

    page = page_path(location)
    write_page(run_of(location, groups, diagnostics), page, force=force)
    return page
