"""The command line: print what the compiler makes of a function, and run small programs.

    python -m batchnuts.autobatch dump module:function --after lower --types int64 float32[3]
    python -m batchnuts.autobatch explain path/to/file.py:function --types int64
    python -m batchnuts.autobatch demo fibonacci 6 7 8 9

Exit codes: 0 done; 1 the program failed while it ran; 2 the command line, or the function it names, is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from batchnuts.autobatch.api import BatchedFunction
from batchnuts.autobatch.backends.registry import BACKENDS, get_backend
from batchnuts.autobatch.demos import DEMOS, Demo
from batchnuts.autobatch.engines.registry import AUTO, preferred_backend
from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import TensorType
from batchnuts.autobatch.run_options import EXECUTORS
from batchnuts.autobatch.scheduling.policies import POLICIES
from batchnuts.process.quiet import import_tensorflow

PROGRAM = "python -m batchnuts.autobatch"
MODES = ("xla", "graph", "eager")


class UsageError(Exception):
    """A mistake in the command line; the message is one line."""


class _Parser(argparse.ArgumentParser):
    """Prints one line on stderr for a mistake, which says where help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    options = _parser().parse_args(argv)
    try:
        command: Callable[[argparse.Namespace], str] = options.command
        print(command(options), end="")
    except (UsageError, BatchnutsError) as error:
        print(f"{PROGRAM} {options.name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) or options.name != "demo" else 1
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _start(backend: str, mode: str = "xla") -> None:
    """Import TensorFlow, if it will be needed, without the notes that it writes to stderr meanwhile."""
    if (preferred_backend(mode) if backend == AUTO else backend) == "tensorflow":
        import_tensorflow()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM, description="See what the compiler makes of a batched function, and run small programs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    dump = commands.add_parser(
        "dump",
        help="print a function's program after a pass of the compiler",
        description="Print a function's program after a pass of the compiler.",
    )
    dump.add_argument("--after", metavar="PASS", help="the pass; without it the last one, which is what runs")
    explain = commands.add_parser(
        "explain",
        help="print a function's source with its blocks, variables and what each pass did",
        description="Print a function's source with its blocks, where each variable lives, and what each pass did.",
    )
    for command, name, run in ((dump, "dump", _dump), (explain, "explain", _explain)):
        command.add_argument(
            "function",
            metavar="MODULE:FUNCTION",
            help="a function decorated with @batch: package.module:f, or path/to/file.py:f",
        )
        command.add_argument(
            "--types",
            nargs="*",
            default=[],
            metavar="TYPE",
            help="one lane's type of each parameter: int64, 'float32[3]', 'tuple(int64, bool)' (quote the brackets)",
        )
        command.add_argument(
            "--backend",
            choices=(AUTO, *BACKENDS),
            default=AUTO,
            help="array library whose type rules are used (default auto; numpy starts faster, but cannot trace: "
            "it does not see which inputs an op ignores or passes through, so some programs come out longer)",
        )
        command.set_defaults(command=run, name=name)
    demo = commands.add_parser(
        "demo",
        help="run a small program and print its result, its program text and its profile",
        description="Run a small program and print its result, its program text and its profile.",
        epilog="programs:\n" + "".join(f"  {name:12}{_first_line(d)}\n" for name, d in DEMOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("program", metavar="NAME", help=f"one of {', '.join(DEMOS)}")
    demo.add_argument(
        "lanes", nargs="*", metavar="LANE", help="the arguments of one lane each, separated by commas: 6, or 2,3"
    )
    demo.add_argument("--backend", choices=(AUTO, *BACKENDS), default=AUTO, help="default auto")
    demo.add_argument("--mode", choices=MODES, default="xla", help="how it is run (default xla)")
    demo.add_argument("--executor", choices=EXECUTORS, default="virtual_machine", help="default virtual_machine")
    demo.add_argument("--schedule", choices=POLICIES, default="auto", help="which block runs next (default auto)")
    demo.set_defaults(command=_demo, name="demo")
    return parser


def _first_line(demo: Demo) -> str:
    return (demo.function.python_function.__doc__ or "").splitlines()[0]


# ---- dump and explain ---------------------------------------------------------------------------------------------


def _dump(options: argparse.Namespace) -> str:
    passes = load_function(options.function, options.backend).passes(*options.types, backend=options.backend)
    after = [*passes][-1] if options.after is None else options.after
    if after not in passes:
        raise UsageError(f"there is no pass {after!r}; the passes are {', '.join(passes)}")
    return show_program(passes[after])


def _explain(options: argparse.Namespace) -> str:
    return load_function(options.function, options.backend).explain(*options.types, backend=options.backend)


def load_function(target: str, backend: str) -> BatchedFunction:
    """The batched function that `package.module:name` or `path/to/file.py:name` means, with its backend started.

    Raises UsageError if there is none.
    """
    origin, colon, name = target.rpartition(":")
    if not (origin and colon and name):
        raise UsageError(f"found {target!r}, expected module:function or path/to/file.py:function")
    value: Any = _load_file(Path(origin)) if origin.endswith(".py") else _load_module(origin)
    for part in name.split("."):
        if not hasattr(value, part):
            batched = sorted(n for n, v in vars(value).items() if isinstance(v, BatchedFunction))
            available = (
                f"its batched functions are {', '.join(batched)}"
                if batched
                else "it has no function decorated with @batch"
            )
            raise UsageError(f"{origin} has no {part!r}; {available}")
        value = getattr(value, part)
    if not isinstance(value, BatchedFunction):
        raise UsageError(
            f"{name} of {origin} is a {type(value).__name__}, expected a function decorated with @autobatch.batch"
        )
    _start(backend)
    return value


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))  # as `python path` would
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    _importing(str(path), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def _load_module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    except ValueError as error:  # of "__main__", or an empty part
        raise UsageError(f"{name!r} is not a module name ({error})") from None
    if spec is None:
        raise UsageError(f"there is no module {name!r}; give a file as path/to/file.py:function")
    return _importing(name, lambda: importlib.import_module(name))


def _importing(origin: str, load: Callable[[], Any]) -> Any:
    """The result of `load`; what the user's own code raises becomes one line with its place."""
    try:
        return load()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())
        line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else place.lineno
        file = error.filename if isinstance(error, SyntaxError) else place.filename
        raise UsageError(f"importing {origin} failed at {file}:{line}: {type(error).__name__}: {message}") from None


# ---- demo -----------------------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> str:
    name = options.program
    if name not in DEMOS:
        raise UsageError(f"there is no program {name!r}; there are {', '.join(DEMOS)}")
    demo = DEMOS[name]
    lanes = [_lane(text, name, demo) for text in options.lanes] or list(demo.lanes)
    inputs = [np.array(column, demo.dtype) for column in zip(*lanes)]
    _start(options.backend, options.mode)
    run_options = {name: getattr(options, name) for name in ("executor", "backend", "mode", "schedule")}
    lanes_alone = options.executor in ("unbatched", "reference")
    results, *profiles = (
        [demo.function.run(*inputs, **run_options)]
        if lanes_alone
        else demo.function.run(*inputs, **run_options, profile=True)
    )
    parts = [_first_line(demo)]
    parts.append("\n".join(f"{name}({', '.join(map(str, lane))}) = {r}" for lane, r in zip(lanes, results)))
    types = tuple(TensorType(demo.dtype) for _ in inputs)
    backend = preferred_backend(options.mode) if options.backend == AUTO else options.backend
    compiled = demo.function.compiled(types, get_backend(backend, options.mode))
    program = compiled.lowered if options.executor == "virtual_machine" else compiled.with_calls
    return "\n\n".join([*parts, show_program(program).rstrip("\n"), *map(str, profiles)]) + "\n"


def _lane(text: str, name: str, demo: Demo) -> tuple[float, ...]:
    """One lane's arguments from the command line."""
    parameters = list(inspect.signature(demo.function.python_function).parameters)
    number = int if demo.dtype == "int64" else float
    words = text.split(",")
    try:
        if len(words) == len(parameters):
            return tuple(map(number, words))
    except ValueError:
        pass
    wanted = ",".join(parameters)
    kind = "whole numbers" if number is int else "numbers"
    raise UsageError(f"found lane {text!r}, expected {kind} for {wanted} of {name}, as in {_example(demo)}")


def _example(demo: Demo) -> str:
    return " ".join(",".join(map(str, lane)) for lane in demo.lanes)


if __name__ == "__main__":
    sys.exit(main())
