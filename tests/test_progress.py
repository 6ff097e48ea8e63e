from __future__ import annotations

import io

import pytest

from gigagp.errors import InvalidInputError
from gigagp.progress import NoProgress, PlainProgress, RichProgress, meter_for


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_verbose_picks_the_meter():
    own = NoProgress()
    assert meter_for(own) is own
    assert type(meter_for(0)) is type(meter_for(False)) is NoProgress
    assert type(meter_for(1, Terminal())) is type(meter_for(True, Terminal())) is RichProgress
    assert type(meter_for(1, io.StringIO())) is PlainProgress
    assert type(meter_for(2, Terminal())) is PlainProgress


@pytest.mark.parametrize("verbose", [-1, "yes", None, 1.5])
def test_other_values_are_refused(verbose):
    with pytest.raises(InvalidInputError, match="verbose of GPRegressor must be 0"):
        meter_for(verbose)


def test_nothing_is_shown_at_zero(capsys):
    with meter_for(0) as meter:
        meter.start(3, "fit")
        meter.step(objective=1.0)
    assert capsys.readouterr() == ("", "")


def test_plain_lines_say_what_matters():
    stream, clock = io.StringIO(), Clock()
    with PlainProgress(stream, every=0.0, clock=clock) as meter:
        meter.start(4, "fit")
        clock.now = 2.0
        meter.step(objective=-123.456789, relative_residual=0.00812345, note=None)
        clock.now = 4.0
        meter.step()
    first, second = stream.getvalue().splitlines()
    assert first == "fit 1/4  objective -123.5  relative residual 0.008123  2.0 s  about 6 s left"
    assert second == "fit 2/4  4.0 s  about 4 s left"


def test_plain_lines_are_thinned_but_the_last_is_kept():
    stream, clock = io.StringIO(), Clock()
    with PlainProgress(stream, every=1.0, clock=clock) as meter:
        meter.start(None, "solve")
        for step in range(25):
            clock.now = 0.1 * step
            meter.step(step=step)
        meter.start(2, "predict")  # closes the first phase
        meter.step()
        meter.step()
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1", "11", "21", "25", "1/2", "2/2"]


def test_a_bar_on_a_terminal_shows_step_and_fields(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with RichProgress(stream) as meter:
        meter.start(2, "fit")
        meter.step(residual=0.25)
        meter.step(residual=0.125)
    shown = stream.getvalue()
    assert "fit" in shown
    assert "residual 0.125" in shown
    assert "2/2" in shown


@pytest.mark.parametrize(("kind", "shows"), [(PlainProgress, True), (RichProgress, True), (NoProgress, False)])
def test_any_order_of_calls_is_fine(kind, shows):
    stream = io.StringIO()
    meter = kind(stream) if shows else kind()
    meter.close()
    meter.step(residual=1)
    meter.close()
    meter.start(1, "again")
    meter.step()
    meter.step()  # more steps than announced
    meter.close()
    meter.close()
    assert ("again" in stream.getvalue()) == shows
