"""TensorFlow imported without its start-up lines, and its log at run time reduced to fatal messages.

TensorFlow's errors reach us as exceptions. Other messages of its C++ parts on stderr are noise for users: processor
features, missing GPUs, caches that do not fit. Set TF_CPP_MIN_LOG_LEVEL (0 to 3) to see them; a 1 counts only where JAX
is not imported earlier, which sets it to that itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

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
    """Import it, with no messages on stderr except Python's and those of a crash; before its first use.

    A log level that the user has set is respected; then nothing is suppressed, nor where the user has imported it.
    """
    if "tensorflow" in sys.modules:
        return
    with quiet_imports():
        import tensorflow  # noqa: F401


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Within, code of the user may import TensorFlow, and its messages are left out as by `import_tensorflow`."""
    level = os.environ.get(LEVEL)
    of_jax = level == "1" and "jax" in sys.modules
    if "tensorflow" in sys.modules or not (level is None or of_jax):
        yield
        return
    os.environ[LEVEL] = "3"
    try:
        with ExitStack() as filtered, _at_import_of("tensorflow", lambda: filtered.enter_context(_filtered_stderr())):
            yield
    finally:
        if "tensorflow" not in sys.modules:
            os.environ.pop(LEVEL, None)
            if level is not None:
                os.environ[LEVEL] = level


@contextmanager
def _at_import_of(package: str, act: Callable[[], None]) -> Iterator[None]:
    """Within, `act` is called before a package is imported: a filter takes a process, which few runs need."""

    class Finder:
        acted = False

        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
            if name == package and not cls.acted:
                cls.acted = True
                act()

    sys.meta_path.insert(0, Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(Finder)


@contextmanager
def without_jax() -> Iterator[None]:
    """Within, an import of JAX fails, unless it is loaded already.

    TensorFlow imports it where it is installed, which takes most of a second, for the sake of TensorFlow Lite.
    """
    if "jax" in sys.modules:
        yield
        return
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["jax"]


@contextmanager
def _filtered_stderr() -> Iterator[None]:
    """Pass everything written to file descriptor 2 through a separate process, which outlives a crash of this one.

    The log level has no effect before the libraries are loaded, so such lines are filtered out here.
    """
    if not os.path.basename(sys.executable or "").startswith("python"):  # of a program that has Python within
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _FILTER]
    try:
        real = os.dup(2)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError:  # stderr is closed, or no process can be started
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
