"""One run as a user starts it: a command, timed from its start to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from batchnuts.autobatch import BatchnutsError
from batchnuts.experiments.time_to_answer.search import OverLimit

_TAIL = 300
"""Characters of the last line that a command printed that are repeated where it fails."""


class CommandFailed(BatchnutsError):
    """A command ended with an exit code other than 0."""


def run_timed(command: Sequence[str], environment: Mapping[str, str], limit: float, output: Path) -> float:
    """Seconds that a command took. What it prints goes to the file `output`.

    It stays in the session of this process, so that whoever ends that ends both. Raises OverLimit after `limit`
    seconds, when it and all that it started are ended, and CommandFailed.
    """
    with output.open("w", encoding="utf-8") as stream:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=dict(environment)
        )
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired as error:
            _end(process)
            raise OverLimit(f"not done after {limit:g} s (measurement.limit)") from error
        seconds = time.perf_counter() - began
    if code != 0:
        printed = output.read_text(encoding="utf-8", errors="replace").strip()
        sys.stdout.write(printed + "\n")
        last = printed.rpartition("\n")[2].strip()
        raise CommandFailed(f"it ended with code {code}: {last[:_TAIL]}")
    return seconds


def _end(process: subprocess.Popen[bytes]) -> None:
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in started:
        if child.is_running():
            child.kill()
    process.wait()


def users_environment(folder: Path) -> dict[str, str]:
    """The environment of a command that a user starts: this process's, with what samplers compile kept in a folder.

    JAX keeps nothing unless it is told to, and only what took a second to compile; here it keeps all. Python keeps the
    bytecode of what it imports, as for users, where this process does not write it: installed packages have theirs from
    pip, and a clone has not.
    """
    path = str(folder.absolute())
    variables = {
        "XDG_CACHE_HOME": path,  # httpstan
        "BATCHNUTS_CACHE": f"{path}/batchnuts",
        "JAX_COMPILATION_CACHE_DIR": f"{path}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTENSOR_FLAGS": f"base_compiledir={path}/pytensor",
        "NUMBA_CACHE_DIR": f"{path}/numba",
    }
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | variables
