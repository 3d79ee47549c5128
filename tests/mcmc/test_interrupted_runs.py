"""Runs that end early, by a signal or by an error: what they have drawn is kept, and said to be what it is."""

from __future__ import annotations

import signal
from collections.abc import Callable

import numpy as np
import pytest
from chain_runs import slice_for
from small_runs import FIXED, MODEL, assert_same, run

from batchnuts import sample_chains
from batchnuts.mcmc.output import datasets
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.settings.schema import SettingsError


def interrupting(phase: str, share: float) -> Callable[[Progress], None]:
    """A progress callback that presses Ctrl-C once the phase has come so far."""

    def callback(progress: Progress) -> None:
        if progress.phase == phase and progress.done >= share * progress.total:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_interrupted_while_drawing(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drawn is kept, and is what an uninterrupted run draws first."""
    slice_for(1e-6, monkeypatch)
    settings = {"draws": 16, "expert": {"executor": executor}, "chains": 5}
    cut = run(progress=interrupting("sampling", 0.3), **settings)
    whole = run(**settings)
    assert cut.interrupted
    assert 0 < cut.done.sum() < 5 * 16
    if executor == "virtual_machine":
        assert len(set(cut.done)) > 1, "chains are out of step"
    for chain, done in enumerate(cut.done):
        assert_same(cut, whole, slice(chain, chain + 1), slice(0, done))


def test_interrupted_draws_are_saved_as_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)
    cut = run(progress=interrupting("sampling", 0.4), draws=8)
    groups = to_datasets(cut, MODEL)
    assert groups["posterior"].attrs["interrupted"] == 1
    assert groups["posterior"].sizes["draw"] == cut.done.min()
    assert np.isfinite(groups["posterior"]["x"].values).all()
    further = groups["unfinished"]["x"].values
    assert np.isfinite(further).all(axis=2).sum() == cut.done.sum() - 4 * cut.done.min()


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
@pytest.mark.parametrize(("phase", "share"), [("compile", 0.0), ("warmup", 0.0), ("warmup", 0.9)])
def test_interrupted_before_the_first_draw(
    phase: str, share: float, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the warmup is passed off as draws."""
    slice_for(1e-6, monkeypatch)
    cut = run(progress=interrupting(phase, share), warmup=20, draws=3, expert={"executor": executor}, max_tree_depth=4)
    assert cut.interrupted
    np.testing.assert_array_equal(cut.done, np.zeros(4))
    assert cut.position.shape == (4, 3, 3)


def test_interrupted_at_the_first_report_of_sampling_after_a_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)
    settings = {"warmup": 20, "draws": 8, "max_tree_depth": 3}
    cut = run(progress=interrupting("sampling", 0.0), **settings)
    whole = run(**settings)
    assert cut.done.max() <= 8
    for chain, done in enumerate(cut.done):
        assert_same(cut, whole, slice(chain, chain + 1), slice(0, done))


def test_a_signal_ends_the_draws_in_order_however_often_it_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From Python too: what was drawn is given out, what is printed on stderr, and the handlers are put back."""
    slice_for(1e-6, monkeypatch)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)

    def burst(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.done >= 0.3 * progress.total:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
                signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        result = sample_chains(MODEL, progress=burst, **FIXED | {"draws": 8})
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    attributes = result["posterior"].attrs
    assert attributes["interrupted"] == 1
    assert 0 < attributes["draws_made"] < 4 * 8
    printed = capsys.readouterr().err
    assert "batchnuts: ended by SIGTERM; keeping the draws." in printed
    assert "press again to quit and lose them" in printed
    assert "ended by SIGTERM; " in printed.splitlines()[-1]
    assert f"{attributes['draws_complete']} of 8 draws of each of 4 chains" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_with_the_draws_where_that_is_asked_for(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a program ends in time, with what there is."""
    slice_for(1e-6, monkeypatch)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)

    def press(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.done >= 0.3 * progress.total:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt) as caught:
        sample_chains(MODEL, progress=press, signals="raise", **FIXED | {"draws": 8})
    name = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    assert str(caught.value).startswith(f"{name}; ")
    assert str(caught.value).endswith("in this exception's attribute `result`")
    assert caught.value.signal == number
    attributes = caught.value.result["posterior"].attrs
    assert attributes["interrupted"] == 1
    assert f"{attributes['draws_complete']} of 8 draws of each of 4 chains" in str(caught.value)


def test_what_is_asked_for_at_a_signal_is_one_of_two() -> None:
    with pytest.raises(SettingsError, match="signals: found 'ignore'; expected 'keep' or 'raise'"):
        sample_chains(MODEL, signals="ignore", **FIXED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["compile", "warmup"])
def test_a_signal_before_the_first_draw_is_a_keyboard_interrupt(
    phase: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing that a caller could use, but for the signal's name."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)

    def press(progress: Progress) -> None:
        if progress.phase == phase:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt) as caught:
        sample_chains(MODEL, progress=press, **FIXED | {"warmup": 20})
    assert ("SIGTERM" in str(caught.value)) == (number == signal.SIGTERM)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_what_goes_wrong_while_drawing_loses_no_draw(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)

    def fail(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.done >= 0.4 * progress.total:
            raise ZeroDivisionError("in a callback")

    with pytest.raises(ZeroDivisionError, match="in a callback") as caught:
        sample_chains(MODEL, progress=fail, **FIXED | {"draws": 8, "expert": {"executor": executor}})
    assert caught.value.__context__ is None, "nothing of ours stands above it in a traceback"
    assert "attribute `result`" in caught.value.__notes__[0]
    kept = caught.value.result["posterior"]
    assert kept.attrs["draws_made"] >= 0.4 * 4 * 8
    assert kept.attrs["interrupted"] == 1


def test_an_error_is_not_lost_where_its_draws_cannot_be_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)

    def fail(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.done:
            raise ZeroDivisionError("in a callback")

    def without_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(datasets, "to_datasets", without_memory)
    with pytest.raises(MemoryError) as caught:
        sample_chains(MODEL, progress=fail, **FIXED | {"draws": 8})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
