"""A process that answers questions over a pipe, one JSON object a line: the asking end, and the answering one.

The process leads a session of its own: Ctrl-C reaches the asker alone, which then ends it with all that it started.
When the asker is gone (the pipe is closed), the process ends at once, even in the middle of an answer. What libraries
print goes to standard error, which the asker keeps as a log.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Self

from batchnuts.autobatch import BatchnutsError

Message = dict[str, Any]


class NoAnswer(Exception):
    """A process ended, fell silent or failed; the text says which."""

    def __init__(self, reason: str, *, lost: bool = True) -> None:
        """lost: the process answers no more requests."""
        super().__init__(reason)
        self.lost = lost


class Missing(Exception):
    """A process says that what is asked for cannot be had; the text is its reason."""


class Unavailable(BatchnutsError):
    """Raised in the answering process: a library is not installed, or cannot do what is asked. Becomes Missing."""


class Process:
    """The asking end; a context manager that ends the process, and all that it started."""

    def __init__(self, module: str, heading: str, log: IO[str], timeout: float, environment: Mapping[str, str]) -> None:
        """Start `python -m module`, which calls `serve`. heading: a line for the log; timeout: seconds per answer."""
        self.timeout = timeout
        log.write(f"\n--- {heading}\n")
        log.flush()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )
        self.ended = False
        self.answers: queue.Queue[str] = queue.Queue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill it with all that it started: a compiler, Stan's processes. May be called again."""
        if self.ended:
            return
        self.ended = True
        with suppress(ProcessLookupError):  # none is left of its session
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a request it did not live to read
                pipe.close()

    def ask(self, request: Message) -> Message:
        """The answer to a request. Raises Missing, NoAnswer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=self.timeout)
        except BrokenPipeError:
            line = ""
        except queue.Empty as error:
            raise NoAnswer(f"no answer within {self.timeout:g} s (measurement.timeout)") from error
        if not line:
            raise NoAnswer(f"its process ended with code {self.process.wait()}; see workers.log")
        try:
            answer: Message = json.loads(line)
        except json.JSONDecodeError as error:
            raise NoAnswer("its process ended in the middle of an answer; see workers.log") from error
        if "missing" in answer:
            raise Missing(answer["missing"])
        if "failed" in answer:
            raise NoAnswer(answer["failed"], lost=False)
        return answer


def serve(reply: Callable[[Message], Message], *, go_on: bool = False) -> int:
    """The answering end: reply to each request until the asker closes the pipe; the process's exit code.

    An exception of `reply` is reported as {"missing": REASON} (Unavailable) or {"failed": REASON}, and ends this
    process; with `go_on` it does not.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library that prints must not disturb the answers
    # a process that a library forks closes sys.stdin, and would wait for ever while a thread here reads from it
    questions = os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(questions, requests), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            answer, code = reply(request), None
        except Unavailable as error:
            answer, code = {"missing": str(error)}, 0
        except Exception as error:
            traceback.print_exc()
            answer, code = {"failed": f"{type(error).__name__}: {error}"}, 1
        answers.write(json.dumps(answer) + "\n")
        if code is not None and not go_on:
            return code


def _listen(questions: Iterable[str], requests: queue.Queue[str]) -> None:
    """Pass requests on; at the end of them, end this process and its children."""
    for line in questions:
        requests.put(line)
    if os.getpgid(0) == os.getpid():  # as Process starts it
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def environment_for(device: str, own: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a process that computes: quiet libraries, the device asked for, and its own."""
    if device == "cpu":
        choice = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    else:  # several processes share the GPU's memory, which each library would else take whole
        choice = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **choice, **own}
