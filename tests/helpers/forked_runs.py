"""Runs of the command line, and scripts, in processes of their own, which begin with its imports done.

A server imports what a run imports, and forks for each run, which saves it a second or two, and a script of TensorFlow
five. The server has one thread of Python's and no device, so a forked process goes on as one from the shell that has
come so far.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `program` does: it would start threads when it is imported

from batchnuts import sample

if TYPE_CHECKING:
    from batchnuts.mcmc.storage.progress import Progress

HELPERS = Path(__file__).parent
OF_RUNS = (
    "forked_runs",
    "url_files",
    "jax",
    "h5netcdf",
    "xarray",
    "zarr",
    "batchnuts.cli.config",
    "batchnuts.autobatch.backends.jax.backend",
    "batchnuts.mcmc.run.sampling",
    "batchnuts.cli.resume",
    "batchnuts.mcmc.run.lengthen",
    "batchnuts.mcmc.output.datasets",
    "batchnuts.mcmc.output.streaming",
    "batchnuts.mcmc.output.summarizing",
    "batchnuts.progress.views",
    "batchnuts.report",
)
OF_SCRIPTS = (*OF_RUNS, "arviz")
OF_TENSORFLOW = (*OF_SCRIPTS, "tensorflow", "tensorflow_probability", "batchnuts.autobatch.backends.tensorflow.backend")
"""What servers import."""

THREADS = {"jemalloc_bg_thd"}
"""Of a server, besides its main one: that of pyarrow's allocator, which a forked process begins again."""

_numbers = count()


@dataclass
class ForkedRun:
    """A run under way, in the manner of `subprocess.Popen`."""

    process: BaseProcess
    said: Path
    """Without ending: of its standard output and standard error."""

    @property
    def returncode(self) -> int | None:
        """None while it runs; -n if signal n ended it."""
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it printed."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"no end after {timeout} s"
        out, err = (self.said.with_suffix(ending).read_text() for ending in (".out", ".err"))
        return out, err


def start(arguments: Iterable[str], cwd: Path) -> ForkedRun:
    """`python -m batchnuts.sample arguments` in this folder."""
    return _started(_sample, list(arguments), cwd)


def start_and_end_while_drawing(arguments: Iterable[str], cwd: Path) -> ForkedRun:
    """The same with SIGTERM at the first report of draws, however fast they are made."""
    return _started(_sample_ended_while_drawing, list(arguments), cwd)


def run(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The same to its end, which has this exit code and is no error of ours."""
    done = _ended(start(arguments, cwd), arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


def run_script(name: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`python name` in this folder, to its end."""
    preloaded = OF_TENSORFLOW if "import tensorflow" in (cwd / name).read_text(encoding="utf-8") else OF_SCRIPTS
    return _ended(_started(_script, [name], cwd, preloaded), [name])


@functools.cache
def _server(preloaded: tuple[str, ...]) -> forkserver.ForkServer:
    server = forkserver.ForkServer()
    server.set_forkserver_preload(list(preloaded))
    return server


def _started(
    program: Callable[[], None], arguments: list[str], cwd: Path, preloaded: tuple[str, ...] = OF_RUNS
) -> ForkedRun:
    said = cwd / f".said-{next(_numbers)}"
    server = _server(preloaded)
    places = os.pathsep.join([str(HELPERS), str(HELPERS.parents[1])])
    with mock.patch.dict(os.environ, PYTHONPATH=places, CUDA_VISIBLE_DEVICES="-1", COLUMNS="120"):
        server.ensure_running()
    process = multiprocessing.get_context("forkserver").Process(target=_forked, args=(program, arguments, cwd, said))
    with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):  # of this server
        process.start()
    return ForkedRun(process, said)


def _ended(forked: ForkedRun, arguments: Iterable[str]) -> subprocess.CompletedProcess[str]:
    out, err = forked.communicate(600)
    assert forked.returncode is not None
    return subprocess.CompletedProcess(list(arguments), forked.returncode, out, err)


def _forked(program: Callable[[], None], arguments: list[str], cwd: Path, said: Path) -> None:
    """All that the forked process does."""
    os.chdir(cwd)
    sys.path.insert(0, "")  # as `python -m` has it
    for descriptor, ending in ((1, ".out"), (2, ".err")):
        file = os.open(said.with_suffix(ending), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    server = os.getppid()
    threads = (path for path in Path(f"/proc/{server}/task").iterdir() if path.name != str(server))
    names = {(path / "comm").read_text().strip() for path in threads}
    assert names <= THREADS, f"the server has threads, which are lost in forks: {names}"
    os.fsync = lambda descriptor: None  # as in conftest.py
    sys.argv[1:] = arguments
    program()


def _sample() -> None:
    sys.argv[0] = "batchnuts.sample"
    sample.program()


def _sample_ended_while_drawing() -> None:
    from batchnuts.progress.views import LimitedView

    shown = LimitedView.__call__

    def ended(view: LimitedView, progress: Progress) -> None:
        shown(view, progress)
        if progress.phase == "sampling" and 0 < progress.done < progress.total:
            LimitedView.__call__ = shown  # type: ignore[method-assign]
            signal.raise_signal(signal.SIGTERM)

    LimitedView.__call__ = ended  # type: ignore[method-assign]
    _sample()


def _script() -> None:
    sys.argv[:] = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
