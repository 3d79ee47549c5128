"""The command line: `python -m batchnuts.sample --config logreg.yaml [key.path=value ...]`.

Exit codes: 0 done, 1 the run failed, 2 the command line or the config is wrong, or names an output that cannot be
written or a data file that is missing; 130 interrupted by Ctrl-C, 143 by
SIGTERM, 129 by SIGHUP.
Slow imports come after signals are handled, TensorFlow and ArviZ after everything that can be checked without them.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchnuts.cli.after_run import keep_for_reports, write_report
from batchnuts.cli.ending import Ending, open_closed_streams
from batchnuts.process.signals import StopSignals, say

FEWER_COLLECTIONS = (50_000, 20, 100)
"""Thresholds of Python's garbage collector. Imports and traces make a million objects that stay; by its own thresholds
it goes through them again and again, which takes a tenth of a short run (decisions/0034-programs-on-disk.md)."""

OWN_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment variables, unless the user has set them. JAX factors matrices with SciPy's OpenBLAS, which gives each of
many small ones to all cores and waits for them busily, while our threads have the cores: ten times the time for the
packaged Gaussian process. OpenBLAS reads it when it is loaded, with NumPy."""

if TYPE_CHECKING:
    from batchnuts.cli.config import RunConfig
    from batchnuts.files.groups import AnyGroup
    from batchnuts.files.saving import Write
    from batchnuts.files.url import OutputLocation
    from batchnuts.mcmc.checkpoint.saved_run import SavedRun
    from batchnuts.mcmc.run.lengthen import EndedRun
    from batchnuts.progress.views import View


def program() -> None:
    """The process's command line: `main`, and then its end."""
    open_closed_streams()
    gc.set_threshold(*FEWER_COLLECTIONS)
    for name, value in OWN_THREADS.items():
        os.environ.setdefault(name, value)
    stop = StopSignals("saving the draws")
    with stop:
        code = main(stop=stop)
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        if stop.first is not None:
            os._exit(code)  # without waiting for unneeded compilation that is still running
    sys.exit(code)


def main(argv: Sequence[str] | None = None, stop: StopSignals | None = None) -> int:
    """Run the command line with `argv` (default: the process's arguments) and give back the exit code."""
    ending = Ending()
    with nullcontext(stop) if stop is not None else StopSignals("saving the draws") as stop:
        try:
            code = _main(argv, stop, ending)
        except KeyboardInterrupt:
            lost = "the draws were given up" if stop.holding else "nothing was drawn yet"
            ending.say(f"{stop.name}; {lost} and {ending.untouched}.")
            code = stop.exit_code
        except Exception as error:
            # An import that is interrupted may raise anything.
            if stop.first is None or stop.holding:
                ending.content["reason"] = f"{type(error).__name__}: {error}"
                ending.write(1)
                raise
            ending.say(f"{stop.name}; nothing was drawn yet and {ending.untouched}.")
            code = stop.exit_code
        ending.write(code)
        return code


def _main(argv: Sequence[str] | None, stop: StopSignals, ending: Ending) -> int:
    from batchnuts.cli.arguments import parsed

    arguments, further = parsed(argv)
    if not arguments.json:
        return _refused_or_run(arguments, stop, ending, further)
    from batchnuts.progress.json_lines import JsonLines

    ending.lines = JsonLines(sys.stdout)
    with redirect_stdout(sys.stderr):  # what a model's code prints
        return _refused_or_run(arguments, stop, ending, further)


def _refused_or_run(arguments: argparse.Namespace, stop: StopSignals, ending: Ending, further: int) -> int:
    from batchnuts.autobatch import BatchnutsError
    from batchnuts.cli.before_run import dry_run
    from batchnuts.cli.config import ConfigError, load_config
    from batchnuts.cli.output_path import OutputRefused, path_of_new_run
    from batchnuts.settings.schema import SettingsError

    try:
        if arguments.resume is not None:
            run = _output_of(arguments.resume)
            if further:
                return _lengthen(run, stop, ending, arguments, further)
            return _resume(run, stop, ending, arguments)
        config = load_config(arguments.config, arguments.overrides)
        if arguments.dry_run:
            return dry_run(config, force=arguments.force)
        if config.output.format != "auto":  # else it is known once the model is
            path_of_new_run(config, force=arguments.force)
        return _run(config, None, stop, ending, force=arguments.force, quiet=arguments.quiet)
    except (ConfigError, SettingsError) as error:
        ending.say(f"the config cannot be used.\n{error}")
        return 2
    except OutputRefused as error:
        ending.say(str(error))
        return 2
    except BatchnutsError as error:
        ending.say(str(error))
        return 1
    except SystemExit as error:  # of the user's code, or of a library, where nothing else has found it
        from batchnuts.mcmc.model.check_model import users_place

        ending.say(f"the run was ended by SystemExit: {error}{users_place(error)}; nothing of it may end the program.")
        return 1
    except MemoryError:
        ending.say(
            "the run does not fit into memory. Its largest arrays are chains x draws x dimension; lower "
            "sampler.chains or sampler.draws."
        )
        return 1


def _output_of(text: str) -> OutputLocation:
    """The absolute path of a run's output, or its URL."""
    from batchnuts.files.url import location_of

    location = location_of(text)
    return location.resolve() if isinstance(location, Path) else location


def _lengthen(
    location: OutputLocation, stop: StopSignals, ending: Ending, arguments: argparse.Namespace, further: int
) -> int:
    """Make a run longer that has ended: its output is replaced once it has all draws."""
    from batchnuts.cli.config import config_of
    from batchnuts.cli.output_path import checked_path
    from batchnuts.files.saving import OutputError
    from batchnuts.files.url import folder_of
    from batchnuts.mcmc.checkpoint.keeper import NAME
    from batchnuts.mcmc.run.lengthen import ended_run

    if (folder_of(location) / NAME).exists():
        raise OutputError(f"The run in {location} has not ended. Go on with --resume {location} first.")
    ended = ended_run(location, further)
    config = config_of(
        {**ended.saved.config, "output": ended.saved.config["output"] | {"path": str(location)}},
        Path(str(location)),
        arguments.overrides,
    )
    checked_path(config, location, force=True)
    ending.untouched = f"{location} stays as it was, with {ended.draws} draws of each chain"
    return _run(config, location, stop, ending, force=True, quiet=arguments.quiet, ended=ended)


def _resume(location: OutputLocation, stop: StopSignals, ending: Ending, arguments: argparse.Namespace) -> int:
    """Go on with the run whose output has this path."""
    from batchnuts.cli.config import config_of
    from batchnuts.cli.output_path import checked_path
    from batchnuts.cli.resume import saved_run_of
    from batchnuts.files.url import folder_of
    from batchnuts.mcmc.checkpoint.keeper import NAME, Keeper
    from batchnuts.mcmc.storage.stored_run import is_complete, is_interrupted
    from batchnuts.mcmc.storage.url_place import place_of

    saved = saved_run_of(location)
    if is_complete(location, saved.config):  # it was killed after it had written its output
        Keeper(folder_of(location), None, saved.config, saved).remove()
        ending.say("the run had ended; its output is complete.")
        ending.content["path"] = str(location)
        print(location, flush=True)
        return 0
    config = config_of(saved.config, folder_of(location) / NAME, arguments.overrides)
    # the draws that were saved when it was interrupted, or a store that had just been begun
    replaces = arguments.force or is_interrupted(location) or place_of(location).is_own()
    checked_path(config, location, force=replaces)
    if is_interrupted(location):
        ending.untouched = f"{location} stays as it was"
    return _run(config, location, stop, ending, force=replaces, quiet=arguments.quiet, saved=saved)


def _run(
    config: RunConfig,
    location: OutputLocation | None,
    stop: StopSignals,
    ending: Ending,
    *,
    force: bool,
    quiet: bool,
    saved: SavedRun | None = None,
    ended: EndedRun | None = None,
) -> int:
    """Make a run and save it. location: where the draws go; None: as the config says.

    saved: a checkpoint to go on from. ended: a run that is made longer.
    """
    from batchnuts.cli.before_run import decided, forecast_of
    from batchnuts.cli.config import build_model, named_again
    from batchnuts.cli.first_imports import import_first
    from batchnuts.cli.output_path import path_of_new_run, require_space
    from batchnuts.files.groups import datasets_of
    from batchnuts.files.saving import root_attributes, short_bytes
    from batchnuts.mcmc.output.datasets import to_groups
    from batchnuts.mcmc.output.streaming import ZarrRun
    from batchnuts.mcmc.output.summarizing import SummaryRun
    from batchnuts.mcmc.storage.draws import Progress, RunFailed
    from batchnuts.process.freed_memory import give_back_freed
    from batchnuts.process.memory import available_memory
    from batchnuts.progress.views import phase

    view = _view(ending, quiet)
    with phase(view, "start"):
        import_first(config)
        if "tensorflow" not in sys.modules:  # whose objects, out of the collector's sight, would hold the user's
            # The last collection of the process goes through the user's objects, which may be open files, but not
            # through those of libraries, which takes a tenth of a short run.
            gc.freeze()
        begun_in = Path.cwd()
        model = build_model(config.model)
        config = decided(config.from_folder(begun_in), model)
        if location is None:
            location = path_of_new_run(config, force=force, begun_in=begun_in)
        expected = forecast_of(config, model)
        require_space(location, expected.file_at_least, config)
        if expected.peak > (free := available_memory()):
            say(
                f"warning: the run takes about {short_bytes(expected.peak)} of memory, and {short_bytes(free)} are "
                "available now. End other programs, or lower sampler.draws."
            )
        from batchnuts.cluster.execution import execution_of
        from batchnuts.files.url import folder_of
        from batchnuts.mcmc.checkpoint.keeper import BLOCKS, Keeper
        from batchnuts.mcmc.run.sampling import run_chains

        keeper = None
        if config.output.checkpoint_seconds is not None and ended is None:
            keeper = Keeper(folder_of(location), config.output.checkpoint_seconds, config.resolved(), saved)
        stop.check()  # an import may have swallowed what the signal raised
        content = config.output.content
        stream: ZarrRun | SummaryRun | None = None
        if config.output.streams:
            place, earlier = (location, 0) if ended is None else (ended.further, ended.draws)
            kind = ZarrRun
            if config.execution.cluster is not None:
                from batchnuts.cluster.direct import DirectZarrRun as kind
            stream = kind(
                place, model, content, config.resolved(), replace=force, resumed=saved is not None, earlier=earlier
            )
        elif not content.draws:
            blocks = folder_of(location) / BLOCKS
            stream = SummaryRun(blocks, model, content, config.resolved(), resumed=saved is not None)
    failure: Exception | None = None
    with view as progress:
        if progress is not None:
            progress(Progress("compile", 0, 1, 0.0))
        try:
            with _warnings_reported():
                draws = run_chains(
                    model,
                    config.sampler,
                    config.execution,
                    progress,
                    stop,
                    content=content,
                    stream=stream,
                    keeper=keeper,
                    ended=None if ended is None else ended.saved,
                    where=execution_of,
                )
        except RunFailed as failed:
            failure, draws = failed.cause, failed.draws
        except Exception:
            if stream is not None:
                stream.close()
            raise
    stop.hold()
    folder_hint = "" if isinstance(location, Path) else f" in this folder, which has {folder_of(location).name}"
    cluster = config.resolved()["execution"]["cluster"]
    cluster_hint = "" if cluster is None else f" {named_again(cluster)}"
    how_to_go_on = (
        f" Go on with --resume {location}{cluster_hint}{folder_hint}." if keeper is not None and keeper.exists() else ""
    )
    ending.content["resume"] = str(location) if how_to_go_on else None
    if not draws.done.any():
        if stream is not None:
            stream.discard()
        stop.release()
        ending.say(f"{stop.name}; nothing was drawn yet and {ending.untouched}.{how_to_go_on}")
        return stop.exit_code
    started = time.monotonic()
    groups: Mapping[str, AnyGroup]
    with ExitStack() as shown:
        advance = shown.enter_context(phase(view, "saving"))
        if stream is not None:
            try:
                groups = stream.finish(draws, keep=draws.interrupted and bool(how_to_go_on))
                if ended is not None:
                    from batchnuts.mcmc.run.lengthen import replace_store

                    groups = replace_store(ended)
            except KeyboardInterrupt:
                ending.say(f"{stop.name}; what was written before is in {location}, which is marked as interrupted.")
                return stop.exit_code
        else:
            groups = to_groups(draws, model, config.resolved(), content=content, between=_unless_stopped(stop, advance))
            if ended is not None:
                from batchnuts.mcmc.run.lengthen import joined

                groups = joined(ended, datasets_of(groups))
        if config.output.streams:
            ending.content["path"] = str(location)
        else:
            assert isinstance(location, Path), "a netCDF file is local"
            ending.content["path"] = str(_save(groups, location, force, config.output.write, before_asking=shown.close))
    saving = time.monotonic() - started
    stream = None
    give_back_freed()
    stop.release()
    if draws.interrupted:
        why, saved_draws = stop.name if failure is None else "the run failed", draws.what_there_is(content.draws)
        ending.say(f"{why}; saved in {location}, which is marked as interrupted: {saved_draws}.{how_to_go_on}")
    elif keeper is not None:
        keeper.remove()
        ending.content["resume"] = None
    if failure is not None:
        raise failure
    ending.content["reason"] = ending.content["reason"] or draws.ended
    diagnostics = None
    try:
        if quiet:
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

            diagnostics = print_report(
                draws,
                groups,
                location,
                saving,
                view,
                rows=config.output.summary_rows,
                kept=config.output.draws,
            )
            sys.stdout.flush()
        if diagnostics is not None and config.output.draws and config.output.streams:
            keep_for_reports(diagnostics, location)
        if config.output.report:
            page = write_report(datasets_of(groups), location, diagnostics, force=force)
            ending.content["report"] = str(page)
            if not quiet and ending.lines is None:
                print(f"Report: {page}", flush=True)
    except KeyboardInterrupt:
        lacking = root_attributes(groups).get("left_out")
        ending.say(f"the summary was {stop.name}; the draws are in {location}.{f' {lacking}' if lacking else ''}")
        return stop.exit_code
    except OSError as error:  # its reader is gone: a closed pipe or terminal
        from batchnuts.progress.json_lines import give_up

        say(f"the summary cannot be printed ({error.strerror or error}); the draws are in {location}.")
        give_up(sys.stdout)
    return stop.exit_code if draws.interrupted else 0


def _view(ending: Ending, quiet: bool) -> View:
    """The view in which progress is shown."""
    if quiet:
        return nullcontext()
    if ending.lines is not None:
        return ending.lines
    from batchnuts.progress.choice import view_on_stderr

    return view_on_stderr(own_descriptor=True)


@contextmanager
def _warnings_reported() -> Iterator[None]:
    """Print warnings about a model as lines of ours."""
    from batchnuts.autobatch import AssertionWarning

    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, AssertionWarning):
                say(f"warning: {message}")
            else:
                shown(message, category, *place, **options)

        warnings.showwarning = show
        yield


def _unless_stopped(stop: StopSignals, advance: Callable[[float], None]) -> Callable[[float], None]:
    """Reports how much is computed of what the model makes of its draws; a signal from now on ends that alone."""
    from batchnuts.mcmc.model.quantities import LeftOutError

    stops_before = stop.count

    def between(share: float) -> None:
        advance(share)
        if stop.count > stops_before and share < 1:
            raise LeftOutError(f"What is computed from draws is left out: {stop.name} when {share:.0%} of it was done.")

    return between


def _save(
    groups: Mapping[str, AnyGroup], location: Path, force: bool, write: Write | None, before_asking: Callable[[], None]
) -> Path:
    """Save the draws, and give the file's path; if no folder can be written and stdin is a terminal, ask for another
    path."""
    from batchnuts.files.saving import NotSaved, save

    try:
        return save(groups, location, force=force, write=write)
    except NotSaved as error:
        before_asking()
        while sys.stdin.isatty() and sys.stderr.isatty():
            say(f"{error} They are still in memory. Make room and press Enter to try again, or type another path:")
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


if __name__ == "__main__":
    program()
