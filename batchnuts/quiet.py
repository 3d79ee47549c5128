"""TensorFlow imported without its start-up lines, and its log at run time kept to what ends the process.

TensorFlow's errors reach us as exceptions. What its C++ parts write to stderr besides is noise to somebody who samples
a model: processor features, missing GPUs, caches that do not fit. Whoever wants it sets TF_CPP_MIN_LOG_LEVEL (0 to 3).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LEVEL = "TF_CPP_MIN_LOG_LEVEL"

_FILTER = r"""
import os, re, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
noise = re.compile(  # the names of C++ files tell such lines from a log that the user's program writes meanwhile
    rb"WARNING: All log messages before absl::InitializeLog|To enable the following instructions: "
    rb"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+\.(cc|cu|h):\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] \S+\.(cc|cu|h):\d+\] "
)
for line in sys.stdin.buffer:
    if not noise.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def import_tensorflow() -> None:
    """Import it, with no word on stderr but Python's and those of a crash; to be called before the first use of it.

    A log level that the user has set is respected, and nothing is left out then; nor of a TensorFlow that the user has
    imported.
    """
    if "tensorflow" in sys.modules:
        return
    if LEVEL in os.environ:
        import tensorflow

        return
    os.environ[LEVEL] = "3"
    with _filtered_stderr():
        import tensorflow  # noqa: F401


@contextmanager
def _filtered_stderr() -> Iterator[None]:
    """Let what is written to file descriptor 2 pass through a process of its own, which outlives a crash of this one.

    The log level is not heeded before the libraries are loaded, so that these lines are dropped on their way.
    """
    if not os.path.basename(sys.executable or "").startswith("python"):  # of a program that has Python within
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _FILTER]
    try:
        real = os.dup(2)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError:  # stderr is closed, or no process can be had
        yield
        return
    assert process.stdin is not None
    try:
        _flush()
        os.dup2(process.stdin.fileno(), 2)
        process.stdin.close()  # descriptor 2 is the one end of it now
        yield
    finally:
        _flush()
        os.dup2(real, 2)
        os.close(real)
        with suppress(subprocess.TimeoutExpired):  # if a process that was started meanwhile holds on to the pipe
            process.wait(timeout=5)


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
