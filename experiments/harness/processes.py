"""A process that answers requests: the client, and the server in the process.

Requests and answers are objects, sent as frames over a pair of sockets (`multiprocessing.connection`) that no other
code in the process uses: output of libraries, on standard output too, goes to the client's log. The process leads a
session of its own: Ctrl-C reaches the client alone, which then ends it with all that it started. When the client is
gone (its socket is closed), the process ends at once, even in the middle of an answer.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import TextIOWrapper
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Any, Literal, NoReturn, Self

from batchnuts.autobatch import BatchnutsError

Device = Literal["cpu", "gpu"]

Word = Literal["answer", "missing", "failed"]
Frame = tuple[Word, Any]
"""The reply to a request: the answer, or the reason why there is none."""

_LOOK_EVERY = 1.0
"""Seconds between two checks whether a silent process is still alive."""


class NoAnswer(Exception):
    """A process ended, did not answer in time or failed; the text says which."""

    def __init__(self, reason: str, *, lost: bool = True) -> None:
        """lost: the process answers no more requests."""
        super().__init__(reason)
        self.lost = lost


class Missing(Exception):
    """A process reports that a request cannot be fulfilled; the text is its reason."""


class Unavailable(BatchnutsError):
    """Raised in the answering process: a library is not installed, or cannot do what is asked. Becomes Missing."""


class Process:
    """The asking end; a context manager that ends the process, and all that it started."""

    def __init__(self, module: str, heading: str, log: IO[str], timeout: float, environment: Mapping[str, str]) -> None:
        """Start `python -m module`, which calls `serve`. heading: a line for the log; timeout: seconds per answer."""
        self.timeout = timeout
        log.write(f"\n--- {heading}\n")
        log.flush()
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.ended = False
        self.asking = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill it with all that it started: a compiler, Stan's processes. May be called again, and by any thread."""
        if self.ended:
            return
        self.ended = True
        with suppress(ProcessLookupError):  # none is left of its session
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with self.asking:  # a thread that waits for an answer now gets an error
            self.connection.close()

    def ask(self, request: Any) -> Any:
        """The answer to a request. Raises Missing, NoAnswer."""
        with self.asking:
            try:
                self.connection.send(request)
                word, answer = self._receive()
            except (EOFError, OSError) as error:
                raise NoAnswer(f"its process ended with code {self.process.wait()}; see workers.log") from error
        if word == "missing":
            raise Missing(answer)
        if word == "failed":
            raise NoAnswer(answer, lost=False)
        return answer

    def _receive(self) -> Frame:
        """The next frame. Raises EOFError or OSError where the process has ended, in the middle of one too."""
        until = time.monotonic() + self.timeout
        while not self.connection.poll(min(_LOOK_EVERY, max(until - time.monotonic(), 0.0))):
            # what it started may hold its socket open
            if self.process.poll() is not None and not self.connection.poll():
                raise EOFError
            if time.monotonic() >= until:
                raise NoAnswer(f"no answer within {self.timeout:g} s (measurement.timeout)")
        frame: Frame = self.connection.recv()
        return frame


def serve(reply: Callable[[Any], Any]) -> NoReturn:
    """The answering end: reply to each request, until the client closes the connection and so ends this process.

    The last argument of the command line is the socket's number. An exception of `reply` is sent as the reason why
    there is no answer.
    """
    connection = Connection(int(sys.argv[-1]))
    os.set_inheritable(connection.fileno(), False)
    if isinstance(sys.stdout, TextIOWrapper):  # it is a file, the log: whole lines, before this process is killed
        sys.stdout.reconfigure(line_buffering=True)
    requests: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    while True:
        request = requests.get()
        try:
            connection.send(("answer", reply(request)))
        except Unavailable as error:
            connection.send(("missing", str(error)))
        except Exception as error:
            traceback.print_exc()
            connection.send(("failed", f"{type(error).__name__}: {error}"))


def _listen(connection: Connection, requests: queue.Queue[Any]) -> None:
    """Pass requests on; when the client is gone, end this process and its children."""
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        pass
    except Exception:  # a request that cannot be read here
        traceback.print_exc()
    if os.getpgid(0) == os.getpid():  # as Process starts it
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def environment_for(device: Device, own: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a process that computes: quiet libraries, the device asked for, and its own."""
    if device == "cpu":
        choice = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    else:  # several processes share the GPU's memory, which each library would else take whole
        choice = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **choice, **own}
