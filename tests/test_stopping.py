"""Signals at every stage: what they end, what is answered, and that handlers are put back."""

import signal
import threading
from types import SimpleNamespace

import pytest

from batchnuts.process import signals as stopping
from batchnuts.process.signals import SIGNALS, StopSignals


@pytest.fixture
def defaults():
    """As a fresh process has them; put back afterwards."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    for number in before:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Clock:
    """What the time is, as far as `stopping` is told."""

    now = 1000.0

    def pass_without_signals(self):
        self.now += stopping.TIME_TO_READ
        signal.raise_signal(signal.SIGALRM)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes when it is told to; the system's own alarm does not ring meanwhile."""
    made = Clock()
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(stopping, "TIME_TO_READ", 60.0)
    return made


@pytest.mark.usefixtures("defaults")
class TestStopSignals:
    @pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
    def test_without_draws_it_ends_at_once(self, number, code):
        with StopSignals() as stop, pytest.raises(KeyboardInterrupt) as caught:
            signal.raise_signal(getattr(signal, number))
        assert stop.exit_code == code
        assert str(caught.value) == ("" if number == "SIGINT" else f"ended by {number}")
        assert (number in stop.name) == (number != "SIGINT")

    @pytest.mark.parametrize("numbers", [("SIGINT",) * 5, ("SIGTERM", "SIGHUP", "SIGTERM"), ("SIGHUP", "SIGINT")])
    def test_with_draws_a_burst_loses_nothing(self, numbers, capsys, monkeypatch):
        monkeypatch.setattr(stopping, "TIME_TO_READ", 3600.0)
        with StopSignals("saving the draws") as stop:
            stop.hold()
            for number in numbers:
                signal.raise_signal(getattr(signal, number))
            with pytest.raises(KeyboardInterrupt):
                stop.check()
        assert stop.count == len(numbers)
        assert stop.exit_code == 128 + getattr(signal, numbers[0])
        printed = capsys.readouterr().err.splitlines()
        assert printed[0].endswith("; saving the draws.")
        assert printed[1:] == ["batchnuts: saving the draws; press again to quit and lose them."][: len(numbers) - 1]

    def test_who_presses_again_after_the_warning_gives_up(self, clock):
        with StopSignals() as stop:
            stop.hold()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            clock.pass_without_signals()
            clock.now += 0.2
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert stop.holding
            stop.release()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0

    @pytest.mark.parametrize("apart", [0.03, 0.9])
    @pytest.mark.parametrize("own_clock", [True, False])
    def test_a_burst_loses_nothing_however_long_it_lasts(self, apart, own_clock, clock, capsys):
        """Sixty signals, over a minute; the next one after a pause is an answer (or warned of once more)."""
        if not own_clock:
            signal.signal(signal.SIGALRM, lambda *_: None)
        with StopSignals() as stop:
            stop.hold()
            for _ in range(60):
                signal.raise_signal(signal.SIGINT)
                clock.now += apart
            assert stop.count == 60
            assert capsys.readouterr().err.count("press again") == 1
            clock.pass_without_signals()
            clock.now += 0.2
            if not own_clock:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                clock.now += stopping.TIME_TO_READ
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    def test_a_signal_that_was_handled_before_the_clocks_starts_it_again(self, clock):
        with StopSignals() as stop:
            stop.hold()
            signal.raise_signal(signal.SIGINT)
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
                clock.now += 0.5
                signal.raise_signal(signal.SIGALRM)  # set by the one before
                clock.now += 0.5
            signal.raise_signal(signal.SIGINT)
            assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= stopping.TIME_TO_READ

    @pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
    def test_the_last_of_a_burst_is_no_answer_though_its_handler_runs_late(self, number, clock):
        """As when a long write keeps the interpreter busy: the clock's handler and it run at the same moment."""
        with StopSignals() as stop:
            stop.hold()
            signal.raise_signal(getattr(signal, number))
            signal.raise_signal(getattr(signal, number))
            clock.now += 7.0
            for one in (signal.SIGALRM, getattr(signal, number), signal.SIGALRM, getattr(signal, number)):
                signal.raise_signal(one)
            assert stop.count == 4

    def test_a_clock_of_others_is_left_alone(self, clock, capsys):
        """Without it, whoever may have read the warning gets it again, and gives up with the next signal."""
        seen = []
        before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        try:
            with StopSignals() as stop:
                stop.hold()
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                clock.pass_without_signals()
                signal.raise_signal(signal.SIGINT)
                clock.now += stopping.TIME_TO_READ
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert seen == [1]
        assert capsys.readouterr().err.count("press again") == 2

    def test_handlers_are_put_back_and_those_of_others_left_alone(self):
        def own(*_):
            pass

        signal.signal(signal.SIGTERM, own)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
        with StopSignals() as stop:
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with StopSignals() as inner, pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert (stop.count, inner.count) == (1, 0)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_other_threads_have_none(self):
        seen = []

        def work():
            with StopSignals():
                seen.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [signal.SIG_DFL]

    def test_a_stderr_that_is_gone_does_not_matter(self, monkeypatch):
        class Gone:
            def write(self, _):
                raise OSError(5, "Input/output error")

        for gone in (Gone(), None):
            monkeypatch.setattr("sys.stderr", gone)
            with StopSignals() as stop:
                stop.hold()
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGHUP)
            assert stop.count == 2
