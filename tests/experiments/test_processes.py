"""A process that answers requests: its answers, the reasons why there is none, and how it ends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from batchnuts.experiments.harness.processes import Missing, NoAnswer, Process

ANSWERING = """
import os, subprocess, sys, time
from batchnuts.experiments.harness.processes import Unavailable, serve

def echo(given):
    return given

def print_everywhere(text):
    print(text, "by Python")
    print(text, "without its end", end="")
    os.write(1, f"{text} by C\\n".encode())
    subprocess.run(["echo", text, "by a child"])
    print(text, "on standard error", file=sys.stderr)
    return text

def read(_):
    return sys.stdin.read()

def refuse(reason):
    raise Unavailable(reason)

def fail(reason):
    raise ValueError(reason)

def answer_what_cannot_be_sent(_):
    return lambda: None

def leave(code):
    os._exit(code)

def leave_half_an_answer(_):
    os.write(int(sys.argv[-1]), (1000).to_bytes(4, "big") + b"half")
    os._exit(0)

def leave_a_child(code):
    if os.fork() == 0:
        time.sleep(300)
    os._exit(code)

def start_a_child(_):
    return subprocess.Popen(["sleep", "300"]).pid

def sleep(seconds):
    time.sleep(seconds)

def reply(request):
    name, given = request
    return globals()[name](given)

if __name__ == "__main__":
    serve(reply)
"""

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "answering.py").write_text(ANSWERING)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("a"))
        yield lambda timeout=60.0: stack.enter_context(Process("answering", "a heading", log, timeout, environment))


def ends(pid: int) -> bool:
    """Whether a process is gone soon; one that nobody waited for yet counts."""
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_what_it_prints_goes_to_the_log_and_not_among_the_answers(start: Start, tmp_path: Path) -> None:
    process = start()
    for text in ("first", "second"):
        assert process.ask(("print_everywhere", text)) == text
    assert process.ask(("echo", "third")) == "third"
    process.end()
    log = (tmp_path / "log").read_text()
    assert log.startswith("\n--- a heading\n")
    for text in ("first", "second"):
        for what in ("by Python", "by C", "by a child", "on standard error"):
            assert f"{text} {what}\n" in log
    assert "first without its end" in log


def test_what_it_reads_from_standard_input_is_nothing(start: Start) -> None:
    process = start()
    assert process.ask(("read", None)) == ""
    assert process.ask(("echo", 1)) == 1


def test_objects_come_back_as_they_were(start: Start) -> None:
    given = {"array": np.arange(100_000.0), "none": None, "text": "line\nline", "infinite": math.inf}
    found = start().ask(("echo", given))
    np.testing.assert_array_equal(found.pop("array"), given.pop("array"))
    assert found == given


def test_reasons_are_reported_and_it_goes_on(start: Start, tmp_path: Path) -> None:
    process = start()
    with pytest.raises(Missing, match=r"^pip install it$"):
        process.ask(("refuse", "pip install it"))
    for request, reason in (
        (("fail", "of no use"), r"^ValueError: of no use$"),
        (("answer_what_cannot_be_sent", None), "pickle|local object"),
        (("nothing of that name", None), "KeyError"),
    ):
        with pytest.raises(NoAnswer, match=reason) as caught:
            process.ask(request)
        assert not caught.value.lost
    assert process.ask(("echo", 1)) == 1
    assert "Traceback" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (("leave", 7), r"^its process ended with code 7; see workers\.log$"),
        (("leave_half_an_answer", None), "its process ended with code 0"),
        (("leave_a_child", 3), "its process ended with code 3"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_lost_process_is_reported_long_before_the_timeout(request_: object, reason: str, start: Start) -> None:
    process = start()
    began = time.monotonic()
    with pytest.raises(NoAnswer, match=reason) as caught:
        process.ask(request_)
    assert caught.value.lost
    assert time.monotonic() - began < 30
    with pytest.raises(NoAnswer):
        process.ask(("echo", 1))


def test_a_process_that_takes_too_long_is_reported(start: Start) -> None:
    process = start()
    assert process.ask(("echo", 1)) == 1
    process.timeout = 0.2
    with pytest.raises(NoAnswer, match=r"^no answer within 0\.2 s \(measurement\.timeout\)$") as caught:
        process.ask(("sleep", 300))
    assert caught.value.lost


def test_ending_it_ends_what_it_started(start: Start) -> None:
    process = start()
    child = process.ask(("start_a_child", None))
    assert psutil.pid_exists(child)
    process.end()
    process.end()
    assert ends(child)


def test_it_ends_with_what_it_started_when_its_client_is_gone(start: Start) -> None:
    process = start()
    child = process.ask(("start_a_child", None))
    process.connection.send(("sleep", 300))
    process.connection.close()
    assert process.process.wait(timeout=60) == -9
    assert ends(child)


def test_one_thread_may_end_it_while_another_waits_for_its_answer(start: Start) -> None:
    process = start()
    assert process.ask(("echo", 1)) == 1
    reasons: list[str] = []

    def wait() -> None:
        try:
            process.ask(("sleep", 300))
        except NoAnswer as error:
            reasons.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    process.end()
    waiting.join(timeout=30)
    assert reasons == ["its process ended with code -9; see workers.log"]
