"""From the arguments of the command line to its exit code: which run is made, and what ends it.

arguments -> config, or what there is of a run (resume.py) -> draws (new_run.py) -> output (finish.py)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING

from batchnuts.cli.ending import Ending
from batchnuts.process.signals import StopSignals

if TYPE_CHECKING:
    from batchnuts.cli.new_run import Task


def main(argv: Sequence[str] | None = None, stop: StopSignals | None = None) -> int:
    """Run the command line with `argv` (default: the process's arguments) and give back the exit code."""
    ending = Ending()
    with nullcontext(stop) if stop is not None else StopSignals("saving the draws") as stop:
        try:
            code = _main(argv, stop, ending)
        except KeyboardInterrupt:
            lost = "the draws were discarded" if stop.holding else "no draws were made yet"
            ending.say(f"{stop.name}; {lost}, and {ending.untouched}.")
            code = stop.exit_code
        except Exception as error:
            # An import that is interrupted may raise anything.
            if stop.first is None or stop.holding:
                ending.content["reason"] = f"{type(error).__name__}: {error}"
                ending.write(1)
                raise
            ending.say(f"{stop.name}; no draws were made yet, and {ending.untouched}.")
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
    from batchnuts.cli.config import ConfigError, load_config
    from batchnuts.cli.dry_run import dry_run
    from batchnuts.cli.many_fits import is_store, make_many, resumed_config
    from batchnuts.cli.new_run import Task
    from batchnuts.cli.output_path import OutputRefused, path_of_new_run
    from batchnuts.settings.schema import SettingsError

    try:
        if arguments.resume is not None and is_store(arguments.resume):
            config = resumed_config(arguments.resume, arguments.overrides, further)
            return make_many(config, ending, stop, force=False, quiet=arguments.quiet, resume=True)
        if arguments.resume is not None:
            from batchnuts.cli.resume import lengthen, resume

            task = lengthen(arguments, ending, further) if further else resume(arguments, ending)
            return 0 if task is None else _make_run(task, stop, ending)
        config = load_config(arguments.config, arguments.overrides)
        if arguments.dry_run:
            return dry_run(config, force=arguments.force)
        if config.many is not None:
            return make_many(config, ending, stop, force=arguments.force, quiet=arguments.quiet)
        if config.output.format != "auto":  # else it is known once the model is
            path_of_new_run(config, force=arguments.force)
        return _make_run(Task(config, arguments.force, arguments.quiet), stop, ending)
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

        ending.say(
            f"the run was ended by SystemExit: {error}{users_place(error)}; a model's code must not exit the program."
        )
        return 1
    except MemoryError:
        ending.say(
            "the run does not fit into memory. Its largest arrays are chains x draws x dimension; lower "
            "sampler.chains or sampler.draws."
        )
        return 1


def _make_run(task: Task, stop: StopSignals, ending: Ending) -> int:
    """Make a run and save it; gives the exit code."""
    from batchnuts.cli.new_run import draw, prepare, view_of

    view = view_of(ending, task.quiet)
    prepared = prepare(task, view, stop)
    draws, failure = draw(task, prepared, view, stop)
    stop.hold()  # from now on a signal gives up no draws
    from batchnuts.cli.finish import finish

    return finish(task, prepared, draws, failure, view, stop, ending)
