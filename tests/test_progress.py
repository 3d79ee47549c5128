import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from batchnuts.mcmc.draws import Progress
from batchnuts.progress import ProgressView, SafeConsole, default_view, plain_line, remaining, short

STEPS = [
    Progress("compile", 0, 0, 0.1),
    Progress("warmup", 0, 76_800, 0.1),
    Progress("warmup", 76_800, 76_800, 10.0, 5_000_000, 0.91, 12),
    Progress("sampling", 25_600, 51_200, 4.0, 1_000_000, 0.93, 3),
    Progress("sampling", 51_200, 51_200, 8.0, 2_000_000, 0.93, 3),
]


def shown(**options):
    console = Console(file=io.StringIO(), **options)
    with ProgressView(console) as view:
        for step in STEPS:
            view(step)
    return console.file.getvalue()


def test_elsewhere_than_on_a_terminal_there_are_a_few_plain_lines():
    lines = shown(force_terminal=False, width=40).splitlines()
    assert lines[0] == "compile  0 s"
    last = "6.4k draws/s  250k useful gradients/s in sampling  utilization 0.93  3 divergences"
    assert lines[-1] == f"sampling 100%  {last}  8 s"
    assert lines[3].endswith("  4 s, 0:00:04 left")
    assert len(lines) == 5
    assert not any("\x1b" in line for line in lines)


def test_bar_on_a_terminal_is_whole_at_any_usual_width():
    wide = shown(force_terminal=True, width=160, color_system=None)
    assert "250k useful gradients/s in sampling  utilization 0.93  3 divergences" in wide
    assert "0:00:00 left" in wide
    narrow = shown(force_terminal=True, width=80, color_system=None)
    assert "sampling 100% 6.4k draws/s 250k grad/s util 0.93 3 div" in narrow
    assert "warmup   100% 7.68k trans/s 500k grad/s util 0.91 12 div" in narrow
    assert "-0:00:00" in narrow


def test_the_time_left_is_that_of_the_phase():
    assert [remaining(step) for step in STEPS] == [None, None, 0.0, 4.0, 0.0]
    assert plain_line(Progress("warmup", 100, 7300, 50.0)).endswith("  50 s, 1:00:00 left")


def test_what_a_run_until_enough_is_known_still_misses():
    missing = ("ess_bulk 231/400", "ess_tail 99/400", "rhat 1.0231/1.0123")
    step = Progress("sampling", 25_600, 51_200, 4.0, 1_000_000, 0.93, 3, missing)
    all_of_it = "until: ess_bulk 231/400, ess_tail 99/400, rhat 1.0231/1.0123"
    assert f"utilization 0.93  3 divergences  {all_of_it}  4 s" in plain_line(step)
    for width, text in ((160, f"6.4k draws/s  3 divergences  {all_of_it}"), (80, "3 div until: ess_bulk 231/400")):
        console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        with ProgressView(console) as view:
            view(step)
        assert text in console.file.getvalue()


class Gone(io.StringIO):
    """A terminal that closed, a pipe without a reader, a full disk."""

    def write(self, _):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_that_nobody_can_read_does_not_end_the_run(terminal):
    with ProgressView(SafeConsole(file=Gone(), force_terminal=terminal, width=80)) as view:
        for step in STEPS:
            view(step)


class Shell:
    kernel = True


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, data, raw):
        assert raw
        self.shown[-1] = data["text/plain"]


def test_in_a_notebook_each_phase_has_a_line_that_is_replaced(monkeypatch):
    lines = []

    def display(data, raw, display_id):
        assert raw
        assert display_id
        lines.append(data["text/plain"])
        return Handle(lines)

    module = SimpleNamespace(get_ipython=Shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    with default_view(None) as view:
        for step in STEPS:
            view(step)
    assert [line.split()[0] for line in lines] == ["compile", "warmup", "sampling"]
    assert lines[-1].startswith("sampling 100%")


def test_by_default_there_is_progress_where_somebody_sees_it(monkeypatch, capsys):
    """In a pipe, as here, only if it is asked for; in a terminal unless it is declined."""
    for asked, terminal, seen in [(None, False, False), (True, False, True), (None, True, True), (False, True, False)]:
        monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
        with default_view(asked) as view:
            assert (view is not None) == seen
            if view is not None:
                view(STEPS[1])
        assert bool(capsys.readouterr().err) == seen


def test_short_numbers():
    assert [short(n) for n in (0, 9.5, 950, 1234, 45_600_000)] == ["0", "9.5", "950", "1.23k", "45.6M"]
