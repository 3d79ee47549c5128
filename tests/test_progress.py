"""What is shown of a run: bars, lines, notebooks, JSON; and what is kept of it: speeds and history."""

import io
import itertools
import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from batchnuts.cli.resume import TYPES
from batchnuts.files.trees import pack, unpack
from batchnuts.mcmc.run.pace import POINTS, Pace
from batchnuts.mcmc.settings.until import Condition
from batchnuts.mcmc.stopping.stopping_rule import Decision
from batchnuts.mcmc.storage.history import LIMIT, HistoryKeeper, Row
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.progress import views
from batchnuts.progress.choice import default_view
from batchnuts.progress.json_lines import JsonLines
from batchnuts.progress.terminal import BarsView, SafeConsole, wrapped
from batchnuts.progress.views import LinesView, NotebookView, phase
from batchnuts.progress.words import details, left, plain_line, short

UNTIL = (
    Condition("ess_bulk", 231.4, 400.0),
    Condition("ess_tail", 700.0, 400.0, met=True),
    Condition("rhat", 1.0231, 1.0123),
)
DISAGREE = ("the step size still changes by 20%", "the mean of all chains still moves, by 0.3 standard deviations")
WARMUP = Progress("warmup", 76_800, 0, 10.0, 5_000_000, 0.91, 12, 256, 200, 310, (301, 400), missing=DISAGREE)
SAMPLING = Progress("sampling", 25_600, 51_200, 4.0, 1_000_000, 0.93, 1, 256, 80, 105, remaining=6.0)
STEPS = [
    Progress("start", 0, 1, 0.0),
    Progress("start", 1, 1, 2.0),
    Progress("compile", 0, 1, 0.0),
    Progress("compile", 1, 1, 3.0),
    WARMUP,
    SAMPLING,
    Progress("sampling", 51_200, 51_200, 8.0, 2_000_000, 0.93, 3, 256, 200, 200, remaining=0.0),
    Progress("saving", 0, 1, 0.0),
    Progress("saving", 1, 1, 0.2),
    Progress("diagnostics", 1, 1, 1.2),
]


@pytest.fixture
def clock(monkeypatch):
    """A clock of views that stands still until it is moved: clock.now += 1."""
    time = SimpleNamespace(now=100.0)
    monkeypatch.setattr(views.time, "monotonic", lambda: time.now)
    return time


def lines(*steps):
    found = []
    with LinesView(found.append) as view:
        for step in steps:
            view(step)
    return found


def test_a_warmup_of_fixed_length_goes_on_without_a_reason():
    assert "continuing:" in plain_line(WARMUP)
    assert "continuing:" not in plain_line(replace(WARMUP, total=2 * WARMUP.done))


def test_a_log_has_a_few_plain_lines():
    assert lines(*STEPS) == [
        "start  2 s",
        "compile  0 s",
        "compile  3 s",
        "warmup  slowest chain 200, median 310 transitions  window 301-400  7.68k transitions/s  500k useful "
        f"gradients/s  utilization 0.91  12 divergences (normal while adapting)  continuing: {DISAGREE[0]};  "
        f"{DISAGREE[1]}  10 s",
        "sampling 50%  slowest chain 80, median 105 of 200 draws  6.4k draws/s  250k useful gradients/s  "
        "utilization 0.93  1 divergence  4 s, 0:00:06 left",
        "sampling 100%  200 of 200 draws of each chain  6.4k draws/s  250k useful gradients/s  utilization 0.93  "
        "3 divergences  8 s, 0:00:00 left",
        "diagnostics  1 s",
    ]


def test_until_is_shown_with_what_holds_already_and_an_estimate():
    found = plain_line(Progress("sampling", 1, 9, 4.0, chains=3, remaining=3600.4, until=UNTIL))
    assert found.endswith(
        "  until ess_bulk 231/400,  ess_tail 700/400 ok,  rhat 1.0231/1.0123  4 s, about 1:00:00 left"
    )
    assert str(Condition("ess_bulk", float("nan"), 400.0)) == "ess_bulk ?/400"
    assert str(Condition("persistence", 0.31, 0.1)) == "persistence 0.31/0.10"
    assert left(Progress("sampling", 1, 9, 4.0, remaining=5.0), since=7.0) == "0:00:00 left"


def test_where_until_decides_no_share_of_the_maximum_is_shown():
    """Twenty of at most 1,000 draws may be nearly all."""
    step = Progress("sampling", 60, 3000, 4.0, chains=3, slowest=20, median=20, until=UNTIL)
    assert "%" not in plain_line(step)
    assert "  20 of at most 1000 draws of each chain  " in plain_line(step)
    assert "%" not in without_controls(on_terminal(80, step)).splitlines()[0]
    assert "<progress></progress>" in views.as_html(step)
    over = replace(step, done=3000, slowest=1000, median=1000)
    assert plain_line(over).startswith("sampling 100%  1000 of 1000 draws of each chain  ")


def test_divergences_of_warmup_are_said_to_be_normal():
    assert "714 divergences (normal while adapting)" in plain_line(replace(WARMUP, divergences=714))
    assert "normal" not in plain_line(replace(WARMUP, divergences=0)) + plain_line(SAMPLING)


def test_between_two_lines_of_a_log_are_ten_seconds(clock):
    """The last report of a phase is shown, full or not, when the next one begins, or at the end."""

    def at(second, name="sampling"):
        clock.now = 100.0 + second
        return Progress(name, second, 100, float(second))

    found = []
    with LinesView(found.append) as view:
        for second in [*range(10), *range(10, 27)]:
            view(at(second))
        view(at(30, "saving"))
        view(at(32, "saving"))
    assert [line.split("  ")[-1] for line in found] == ["0 s", "10 s", "20 s", "26 s", "30 s", "32 s"]


def on_terminal(width, *steps):
    console = SafeConsole(
        file=io.StringIO(), force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"}
    )
    with BarsView(console) as view:
        for step in steps:
            view(step)
    return console.file.getvalue()


def without_controls(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_bars_are_whole_at_any_width(width):
    """Every phrase is there, in lines that fit; those of a wide terminal are fewer."""
    steps = [WARMUP, SAMPLING, replace(SAMPLING, done=51_200, until=UNTIL)]
    shown = without_controls(on_terminal(width, *steps))
    rows = shown.splitlines()
    assert max(map(len, rows)) <= width
    words = " ".join(shown.split())
    for step in steps:
        for phrase in details(step):
            assert phrase in words, phrase
    if width >= 60:
        assert "sampling     50% ━" in shown
        assert "0:00:06 left" in shown
        assert any("sampling    100% ━" in row and "about" not in row for row in rows), "it has ended"
    last = rows[max(n for n, row in enumerate(rows) if row.startswith("sampling")) :]
    assert len(last) <= {20: 99, 60: 5, 80: 4, 120: 3, 200: 3}[width] + 1


def test_bars_of_phases_that_ended_stay_above(clock):
    """But not those of the command line that took less than a second."""
    shown = without_controls(on_terminal(80, *STEPS))
    last = [shown.rindex(name) for name in ("compile", "warmup", "sampling", "diagnostics")]
    assert last == sorted(last)
    assert "continuing:" in shown
    assert "continuing:" not in shown[shown.rindex("warmup      ") :]
    assert wrapped(["one", "two", "a phrase of some words"], 10) == ["one  two", "a phrase", "of some", "words"]


def test_a_phase_reports_its_beginning_and_its_end(clock):
    seen = []
    with phase(SimpleView(seen), "saving"):
        clock.now += 2.5
    assert seen == [Progress("saving", 0, 1, 0.0), Progress("saving", 1, 1, 2.5)]
    with pytest.raises(KeyError), phase(SimpleView(seen), "start"):
        raise KeyError
    assert seen[2:] == [Progress("start", 0, 1, 0.0)]


def test_a_phase_without_transitions_may_know_how_much_is_done(clock):
    seen = []
    with phase(SimpleView(seen), "saving") as advance:
        clock.now += 30
        advance(0.25)
        advance(1.0)
    assert [plain_line(one) for one in seen] == ["saving  0 s", "saving 25%  30 s, 0:01:30 left", "saving  30 s"]


class SimpleView:
    def __init__(self, seen):
        self.seen = seen

    def __enter__(self):
        return self.seen.append

    def __exit__(self, *error):
        return None


class Gone(io.StringIO):
    """A terminal that closed, a pipe without a reader, a full disk."""

    def write(self, _):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("kind", ["bars", "lines", "json"])
def test_progress_that_nobody_can_read_does_not_end_the_run(kind):
    console = SafeConsole(file=Gone(), force_terminal=kind == "bars", width=80, _environ={"TERM": "xterm"})
    view = {"bars": BarsView(console), "lines": LinesView(console.print), "json": JsonLines(Gone())}[kind]
    for _ in range(2):
        with view:
            for step in STEPS:
                view(step)


# ---- for programs ----------------------------------------------------------------------------------------------------

NUMBER, MAYBE = (int, float), (int, float, type(None))
KEYS = {
    "event": str, "phase": str, "done": int, "total": (int, type(None)), "chains": (int, type(None)),
    "each": (int, type(None)), "slowest": int, "median": int, "window": (list, type(None)), "seconds": NUMBER,
    "draws_per_second": MAYBE, "gradients": int, "gradients_per_second": MAYBE, "utilization": MAYBE,
    "divergences": int, "eta_seconds": MAYBE, "missing": list, "until": dict,
}  # fmt: skip


def json_of(*steps):
    stream = io.StringIO()
    with JsonLines(stream) as view:
        for step in steps:
            view(step)
    return [json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()]


def test_every_line_has_the_same_keys_and_types():
    found = json_of(*STEPS, replace(SAMPLING, until=(*UNTIL, Condition("rhat", float("nan"), 1.01))))
    for line in found:
        assert list(line) == list(KEYS)
        assert all(isinstance(line[key], kind) for key, kind in KEYS.items()), line
        assert line["event"] == "progress"
    assert [line["phase"] for line in found[:4]] == ["start", "start", "compile", "compile"]
    warmup, sampling = found[4], found[5]
    assert (warmup["total"], warmup["each"], warmup["window"]) == (None, None, [301, 400])
    assert warmup["missing"] == list(DISAGREE)
    assert (sampling["done"], sampling["total"], sampling["each"]) == (25_600, 51_200, 200)
    assert (sampling["draws_per_second"], sampling["gradients_per_second"]) == (6400, 250_000)
    assert sampling["eta_seconds"] == 6.0
    assert found[-1]["until"]["ess_tail"] == {"found": 700.0, "wanted": 400.0, "met": True}
    assert found[-1]["until"]["rhat"] == {"found": None, "wanted": 1.01, "met": False}


def test_there_are_at_most_four_lines_a_second(clock):
    """Whatever the number of reports; the last one of a phase is there."""
    stream = io.StringIO()
    with JsonLines(stream) as view:
        for number in range(2001):
            clock.now += 0.005
            view(Progress("sampling", number, 4000, number / 200))
    found = [json.loads(line)["done"] for line in stream.getvalue().splitlines()]
    assert 38 <= len(found) <= 42
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 2000)


# ---- notebooks -------------------------------------------------------------------------------------------------------


class Shell:
    kernel = True


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, data, raw):
        assert raw
        self.shown[-1] = data


def test_in_a_notebook_each_phase_has_a_display_that_is_updated(monkeypatch):
    shown = []

    def display(data, raw, display_id):
        assert raw
        assert display_id
        shown.append(data)
        return Handle(shown)

    module = SimpleNamespace(get_ipython=Shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    with default_view(None) as view:
        assert isinstance(view, NotebookView)
        for step in STEPS:
            view(step)
    assert [data["text/plain"].split()[0] for data in shown] == list(dict.fromkeys(step.phase for step in STEPS))
    assert shown[3]["text/plain"].startswith("sampling 100%")
    assert '<progress value="51200" max="51200"></progress> 100%' in shown[3]["text/html"]
    assert "<progress></progress>" in shown[2]["text/html"]


def test_by_default_there_is_progress_where_somebody_sees_it(monkeypatch, capsys):
    """In a pipe, as here, only if it is asked for; in a terminal unless it is declined."""
    for asked, terminal, seen in [(None, False, False), (True, False, True), (None, True, True), (False, True, False)]:
        monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
        with default_view(asked) as view:
            assert (view is not None) == seen
            if view is not None:
                view(SAMPLING)
        assert bool(capsys.readouterr().err) == seen


@pytest.mark.parametrize(("term", "bars"), [("xterm", True), ("dumb", False)])
def test_a_terminal_that_cannot_replace_lines_gets_a_log(monkeypatch, capsys, term, bars):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", term)
    with default_view(None) as view:
        assert isinstance(view, BarsView if bars else LinesView)
        view(SAMPLING)
    assert ("\x1b" in capsys.readouterr().err) == bars


def test_short_numbers():
    assert [short(n) for n in (0, 9.5, 950, 1234, 45_600_000)] == ["0", "9.5", "950", "1.23k", "45.6M"]


# ---- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(1, 0, 1), (2, 300, 400), (2, 5000, 20_000), (2, 40_000, 3)], ids=str)
def test_a_history_is_bounded_and_keeps_the_ends_of_phases(counts):
    rows = [
        Row(name, float(number), number, 7 * number, 9 * number, 0)
        for name, count in zip(("compile", "warmup", "sampling"), counts, strict=True)
        for number in range(count)
    ]
    keeper = HistoryKeeper()
    for row in rows:
        keeper.add(row)
        assert len(keeper.rows) + (keeper.latest is not None) <= LIMIT
    columns = keeper.history().columns
    kept = [Row(*values) for values in zip(*(columns[name].tolist() for name in Row._fields), strict=True)]
    assert set(kept) <= set(rows)
    ends = [
        row
        for n, row in enumerate(rows)
        if not 0 < n < len(rows) - 1 or len({r.phase for r in rows[n - 1 : n + 2]}) > 1
    ]
    assert set(ends) <= set(kept)
    assert [row.phase for row in kept] == sorted(
        (row.phase for row in kept), key=["compile", "warmup", "sampling"].index
    )
    assert len(kept) >= min(len(rows), LIMIT // 2 - 4)
    gaps = {b.transitions - a.transitions for a, b in itertools.pairwise(kept) if a.phase == b.phase}
    assert max(gaps, default=1) <= max(4 * len(rows) / LIMIT, 1), "about as dense everywhere"


def test_the_time_left_is_that_of_the_slowest_chain_by_its_recent_speed():
    pace = Pace()
    assert pace.seconds_to(10) is None
    for second in range(1, 101):
        pace.note(float(second), second if second <= 50 else 50 + 4 * (second - 50))
        assert len(pace.points) <= POINTS
    assert pace.seconds_to(450) == pytest.approx(50.0, rel=0.05)
    assert pace.seconds_to(100) == 0.0
    slow = Pace()
    slow.note(1.0, 0)
    assert slow.seconds_to(10) is None
    slow.note(4.0, 2)
    slow.note(10.0, 2)
    assert slow.seconds_to(10) == pytest.approx(40.0)


def test_a_resumed_run_goes_on_with_its_history():
    """What a checkpoint has of it is plain data."""
    keeper = HistoryKeeper()
    for number in range(700):
        keeper.add(Row("warmup", float(number), number, number, number, 0))
    arrays = {}
    again = unpack(json.loads(json.dumps(pack(keeper, arrays))), arrays, TYPES)
    assert again == keeper
    assert (again.seconds, arrays) == (699.0, {})
    decision = Decision(None, 1, "", UNTIL, 7.0)
    assert unpack(json.loads(json.dumps(pack(decision, arrays))), arrays, TYPES) == decision
