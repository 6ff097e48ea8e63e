"""Progress of long work: what is known of it, what is shown of it, and where."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import gigagp
from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import InvalidInputError
from gigagp.runtime.interruption import interruptible
from gigagp.runtime.progress import (
    Approach,
    Meter,
    NoProgress,
    NotebookProgress,
    PlainProgress,
    RichProgress,
    Tracker,
    choice,
    current,
    displays,
    meter_for,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def rows(n=60, d=2):
    random = np.random.default_rng(0)
    X = random.normal(size=(n, d))
    return X, np.sin(X).sum(1) + 0.1 * random.normal(size=n)


# Where something is shown ---------------------------------------------------------------------------------------------


def test_verbose_picks_the_meter(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    own = NoProgress()
    assert meter_for(own) is own
    assert type(meter_for(0)) is type(meter_for(False)) is NoProgress
    assert type(meter_for(1, Terminal())) is type(meter_for(True, Terminal())) is RichProgress
    assert type(meter_for("auto", Terminal())) is RichProgress
    assert type(meter_for(1, io.StringIO())) is PlainProgress
    assert type(meter_for("auto", io.StringIO())) is NoProgress
    assert type(meter_for(2, Terminal())) is PlainProgress
    closed = io.StringIO()
    closed.close()
    assert type(meter_for("auto", closed)) is NoProgress
    monkeypatch.setenv("TERM", "dumb")
    assert type(meter_for(1, Terminal())) is PlainProgress


@pytest.mark.parametrize("verbose", [-1, "yes", None, 1.5])
def test_other_values_are_refused(verbose):
    with pytest.raises(InvalidInputError, match="verbose of GPRegressor must be 0"):
        meter_for(verbose)


def test_nothing_is_shown_at_zero(capsys):
    with meter_for(0) as meter:
        meter.phase("learning", 3)
        meter.step(objective=1.0)
        meter.within(0.5)
    assert capsys.readouterr() == ("", "")


def test_short_work_is_not_shown_by_default(terminal, clock):
    for patience, shows in ((10.0, False), (0.0, True)):
        with RichProgress(terminal, patience=patience, clock=clock) as meter:
            meter.phase("learning", 2)
            meter.step()
            clock.now += 9.0
            meter.step()
        assert bool(terminal.getvalue()) == shows


def test_a_forecast_of_long_work_shows_it_at_once(terminal, clock):
    with RichProgress(terminal, patience=10.0, clock=clock) as meter:
        meter.phase("learning", 2)
        meter.expect(300.0)
        assert "learning" in terminal.getvalue()


def test_other_threads_and_processes_show_no_bar(terminal):
    found = []
    thread = threading.Thread(target=lambda: found.append((meter_for("auto"), meter_for(1))))
    thread.start()
    thread.join()
    assert [type(one) for one in found[0]] == [NoProgress, PlainProgress]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("backend", "n_jobs"), [("threading", 2), ("loky", 2), ("threading", 1)])
def test_cross_validation_in_parallel_prints_nothing(backend, n_jobs):
    """Two folds at a time on a terminal show neither bars nor lines, and one at a time does."""
    code = (
        "import numpy as np, joblib\n"
        "from sklearn.model_selection import cross_val_score\n"
        "from gigagp import GPRegressor\n"
        "class OnTerminal(GPRegressor):\n"
        "    def fit(self, X, y):\n"
        "        import gigagp.runtime.progress.choice as choice\n"
        "        choice.PATIENCE, choice._is_terminal = 0.0, lambda stream: True\n"
        "        return super().fit(X, y)\n"
        "if __name__ == '__main__':\n"
        "    X = np.random.default_rng(0).normal(size=(30, 1))\n"
        f"    with joblib.parallel_backend({backend!r}):\n"
        f"        cross_val_score(OnTerminal(optimizer=None), X, X[:, 0], cv=2, n_jobs={n_jobs})\n"
    )
    if backend == "threading":
        # joblib leaves its threads to the end of the interpreter, which one that still frees tensors would abort
        code += (
            "    import threading\n"
            "    for thread in threading.enumerate():\n"
            "        if thread is not threading.main_thread():\n"
            "            thread.join(60)\n"
        )
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1]), "TERM": "xterm"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == ""
    assert bool(result.stderr) == (n_jobs == 1)


def test_fits_one_after_the_other_share_no_state(terminal, monkeypatch):
    monkeypatch.setattr(choice, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)  # not in a fixture, since pytest replaces it again
    X, y = rows()
    cross_val_score(GPRegressor(optimizer=None), X, y, cv=3)
    assert plain(terminal).count("fit of 40 rows: done in") == 3
    assert RichProgress._shown is None
    assert type(current()) is NoProgress


def test_meters_can_be_cloned_after_a_fit(terminal):
    X, y = rows()
    fitted = GPRegressor(optimizer=None, verbose=RichProgress(Terminal())).fit(X, y)
    clone(fitted).set_params(verbose=0).fit(X, y)


def plain(stream):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


# What is known --------------------------------------------------------------------------------------------------------


def test_the_time_left_is_that_of_the_steps_left_and_of_what_follows(clock):
    tracker = Tracker(clock=clock)
    tracker.phase("learning", 9, "gradient", then=1.0)
    assert tracker.words() == "learning, 0 of 9 gradients"
    for _ in range(3):
        clock.now += 20.0
        tracker.reached()
    assert tracker.time_left() == (pytest.approx(20.0 * 7), False)
    assert tracker.words() == "learning, 3 of 9 gradients, about 2 min left"
    clock.now += 15.0
    assert tracker.time_left()[0] == pytest.approx(20.0 * 7 - 15)  # it falls between steps
    tracker.within(0.5)  # the present step takes 30 s
    assert tracker.time_left()[0] == pytest.approx(20.0 * 6 + 15)


def test_an_estimated_number_of_steps_says_so(clock):
    tracker = Tracker(clock=clock)
    tracker.phase("learning", None, "gradient", then=0.0)
    way = Approach(1e-3)
    for k in range(4):
        clock.now += 10.0
        tracker.reached()
        tracker.towards(way.share(0.1**k))
    assert tracker.words() == "learning, 4 of about 4 gradients, a few seconds left"


def test_a_cap_gives_an_upper_bound_and_a_plan_between(clock):
    tracker = Tracker(clock=clock)
    tracker.phase("learning", None, "gradient", most=3, then=1.0)
    clock.now = 30.0
    tracker.reached()
    assert tracker.time_left() == (90.0, True)
    assert tracker.words() == "learning, 1 of at most 3 gradients, at most 2 min left"
    tracker.expect(40.0)
    assert tracker.time_left() == (40.0, True)
    tracker.expect(1.0)  # too short: the last solve takes as long as a gradient
    assert tracker.time_left() == (30.0, False)


def test_a_late_forecast_is_not_relied_on(clock):
    tracker = Tracker(clock=clock)
    tracker.phase("learning")
    tracker.expect(100.0)
    assert tracker.words() == "learning, about 2 min left"
    clock.now = 55.0
    assert tracker.words() == "learning"
    clock.now = 200.0
    assert tracker.words() == "learning"


def test_what_follows_is_remembered_when_it_begins(clock):
    tracker = Tracker(clock=clock)
    tracker.phase("learning", 1, "gradient", then=1.0)
    clock.now = 60.0
    tracker.reached()
    tracker.phase("last solve", 1, then=0.0)
    assert tracker.words() == "last solve, about 1 min left"
    clock.now = 70.0
    tracker.within(0.25)
    assert tracker.words() == "last solve, 25 %, about 30 s left"


def test_a_time_budget_caps_the_time_left(clock, monkeypatch):
    monkeypatch.setattr(time, "monotonic", clock)
    tracker = Tracker(clock=clock)
    with interruptible(50.0):
        tracker.phase("learning", 100, then=0.0)
        clock.now = 10.0
        tracker.reached()
        assert tracker.time_left()[0] == 40.0
        clock.now = 60.0
        assert tracker.time_left()[0] == 0.0


def test_parts_of_a_step_know_the_whole(clock):
    tracker = Tracker(clock=clock)
    tracker.phase("averaging kernels", 4, "kernel", then=0.0)
    with tracker.inside():
        tracker.phase("learning", 5, "gradient", then=0.0)
        clock.now = 2.0
        tracker.reached()
        assert tracker.time_left()[0] == pytest.approx(8.0 + 3 * 10.0)
        clock.now = 10.0
    tracker.reached()
    with tracker.inside():
        tracker.phase("learning", None, "gradient")
        clock.now = 14.0
        assert tracker.time_left()[0] == pytest.approx(6.0 + 2 * 10.0)
        assert tracker.words() == "averaging kernels, 1 of 4 kernels: learning, about 30 s left"
        clock.now = 100.0
        assert tracker.time_left()[0] == pytest.approx(20.0)
    assert tracker.words().startswith("averaging kernels, 1 of 4 kernels")


_shares = st.floats(allow_nan=True, allow_infinity=True)
_reports = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, 1e6)),
    st.tuples(st.just("phase"), st.none() | st.integers(0, 10**9), st.none() | st.floats(0, 5), st.none() | st.just(3)),
    st.tuples(st.just("reached"), st.none() | st.integers(0, 10**9)),
    st.tuples(st.sampled_from(["within", "towards", "expect"]), _shares),
    st.tuples(st.just("inside")),
    st.tuples(st.just("outside")),
)


@given(reports=st.lists(_reports, max_size=40))
@settings(max_examples=300, deadline=None, database=None)  # a checkout may be read-only
def test_no_report_makes_the_time_left_absurd(reports):
    """The time left is None, or finite and not negative; the share of the bar never falls, and is below one."""
    clock = Clock()
    tracker, opened, last = Tracker(clock=clock), [], 0.0
    for name, *arguments in reports:
        if name == "wait":
            clock.now += arguments[0]
        elif name == "phase":
            total, then, most = arguments
            tracker.phase("learning", total, "step", most, then)
        elif name == "inside":
            opened.append(tracker.inside())
            opened[-1].__enter__()
        elif name == "outside" and opened:
            opened.pop().__exit__(None, None, None)
        elif name != "outside":
            getattr(tracker, name)(*arguments)
        left, _ = tracker.time_left()
        assert left is None or 0 <= left < math.inf
        share = tracker.fraction()
        assert share is None or last <= share < 1
        last = share or last
        assert "nan" not in tracker.words()
        assert "-" not in tracker.words()
    assert tracker.summary().startswith("fit: done in ")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (123.0, "2 min 3 s"), (7230.0, "2 h")],
)
def test_durations_are_spoken(seconds, words, clock):
    tracker = Tracker(clock=clock)
    clock.now = seconds
    assert tracker.summary() == f"fit: done in {words}"


def test_the_way_to_a_goal_is_logarithmic_and_never_goes_back():
    way = Approach(1.0)
    assert [way.share(value) for value in (100.0, 10.0, 50.0, 1.0)] == pytest.approx([0.0, 0.5, 0.5, 1.0])
    stuck = Approach(1.0)
    assert [stuck.share(value) for value in (math.nan, math.inf, 5.0, 7.0, 0.0)] == [0.0] * 5


# What is shown --------------------------------------------------------------------------------------------------------


def test_lines_of_a_log_come_at_growing_intervals(clock):
    stream = io.StringIO()
    with PlainProgress(stream, clock=clock, job="fit of 9 rows") as meter:
        meter.phase("learning", 3600, then=0.0)
        for _ in range(3600):
            clock.now += 1.0
            meter.step()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "fit of 9 rows, 10 s: learning, 10 of 3,600 steps, about 1 h left"
    assert lines[-1] == "fit of 9 rows: done in 1 h (learning 1 h with 3,600 steps)"
    seconds = [int(re.search(r"(\d[\d,]*) of", line)[1].replace(",", "")) for line in lines[:-1]]
    gaps = np.diff(seconds)
    assert gaps[:5].tolist() == [10] * 5
    assert len(lines) < 60
    assert (np.diff(gaps) >= 0).all()


@pytest.mark.parametrize("kind", [PlainProgress, RichProgress])
def test_a_long_product_that_reports_nothing_is_shown(kind, terminal, monkeypatch):
    monkeypatch.setattr(displays, "_FIRST_LINES", 0.05)
    with kind(terminal, patience=0.05) as meter:
        meter.phase("learning")
        deadline = time.monotonic() + 20.0
        while "learning" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "learning" in plain(terminal)
    assert "done in" in plain(terminal)
    assert meter._timer is None


def test_a_line_for_every_step_has_its_quantities(clock):
    stream = io.StringIO()
    with PlainProgress(stream, clock=clock, every_step=True) as meter:
        meter.phase("learning", 2)
        clock.now = 2.0
        meter.step(objective=-123.456789, relative_residual=0.00812345, note=None)
        meter.reached(2)
    first, second, last = stream.getvalue().splitlines()
    assert first == "fit, 2.0 s: learning, 1 of 2 steps; objective -123.5, relative residual 0.008123"
    assert second == "fit, 2.0 s: learning, 2 of 2 steps"
    assert last == "fit: done in 2.0 s (learning 2.0 s with 2 steps)"


def test_one_bar_for_all_phases_leaves_one_line(terminal, clock):
    with RichProgress(terminal, clock=clock) as meter:
        for title in ("choosing a start", "learning", "last solve"):
            meter.phase(title, 2, then=0.0)
            meter.step()
            clock.now += 30.0
            meter._live.refresh()
    shown = plain(terminal)
    for title in ("choosing a start", "learning", "last solve"):
        assert f"{title}, 1 of 2 steps" in shown
    assert shown.count("\n") == 1 + shown.count("\r\n")
    assert shown.splitlines()[-1].endswith("with 1 step)")
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize(("error", "words"), [(ValueError, "failed after"), (KeyboardInterrupt, "stopped after")])
def test_work_that_fails_closes_the_bar_and_says_where(terminal, clock, error, words):
    before = sys.stderr

    def work():
        with RichProgress(terminal, clock=clock) as meter:
            meter.phase("learning")
            meter.step()
            clock.now = 12.0
            raise error

    with pytest.raises(error):
        work()
    assert plain(terminal).splitlines()[-1].strip() == f"fit: {words} 12 s, in the phase: learning"
    assert RichProgress._shown is None
    assert type(current()) is NoProgress
    assert sys.stderr is before  # it was redirected


def test_a_failed_fit_closes_the_bar(terminal, monkeypatch):
    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(sys, "stderr", terminal)
    X, y = rows()
    with pytest.raises(RuntimeError):
        GPRegressor(optimizer=optimization.Minimiser(fail), inference=inference.Exact(), verbose=1).fit(X, y)
    assert "failed after" in plain(terminal)
    assert RichProgress._shown is None


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
    assert bool(stream.getvalue()) == shows


def test_a_notebook_updates_one_output(monkeypatch, clock):
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(("update", data))

    def display(data, raw, display_id):
        shown.append(("display", data))
        return Handle()

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    assert type(meter_for("auto")) is NotebookProgress
    with NotebookProgress(clock=clock, job="fit <b>") as meter:
        meter.phase("learning", 40, then=0.0)
        for _ in range(40):
            clock.now += 0.25
            meter.step()
    assert [name for name, _ in shown] == ["display"] + ["update"] * (len(shown) - 1)
    assert len(shown) == 1 + 20 + 1
    assert "about 20 s" not in shown[-1][1]["text/plain"]
    assert shown[-1][1]["text/plain"] == "fit <b>: done in 10 s (learning 10 s with 40 steps)"
    assert "&lt;b&gt;" in shown[-1][1]["text/html"]
    assert any("<progress value=" in data["text/html"] for _, data in shown)
    package.get_ipython = lambda: types.SimpleNamespace()  # IPython in a terminal
    assert type(meter_for("auto", io.StringIO())) is NoProgress


# Fits -----------------------------------------------------------------------------------------------------------------


class Recorder(Meter):
    """A meter of a user's own, with nothing but what the interface requires."""

    def __init__(self):
        self.seen = []

    def start(self, total, title):
        self.seen.append(title)

    def step(self, **fields):
        self.seen.append(len(fields))

    def close(self):
        self.seen.append("closed")


class Shares(PlainProgress):
    """What is reported within steps."""

    def __init__(self):
        super().__init__(io.StringIO())
        self.shares, self.titles, self.counts = [], [], []

    def phase(self, title, *args, **kwargs):
        self.titles.append(title)
        super().phase(title, *args, **kwargs)

    def reached(self, done, **fields):
        self.counts.append(done)
        super().reached(done, **fields)

    def within(self, share):
        self.shares.append((self.titles[-1], share))
        super().within(share)


def test_a_meter_of_ones_own_needs_three_methods():
    X, y = rows()
    meter = Recorder()
    GPRegressor(kernels.Matern(nu=1.5), verbose=meter).fit(X, y)
    assert [one for one in meter.seen if isinstance(one, str)] == [
        "learning",
        "learning",
        "preparing predictions",
        "closed",
    ]


def test_long_solves_move_within_a_step():
    X, y = rows(300)
    meter, solver = Shares(), solvers.ConjugateGradients(tolerance=1e-6, preconditioner=None)
    method = inference.Iterative(solver=solver, gradient=gradients.Pathwise(4), n_samples=4)
    GPRegressor(inference=method, optimizer=optimization.Adam(steps=2), verbose=meter).fit(X, y)
    for title in ("learning", "last solve"):
        found = [share for name, share in meter.shares if name == title]
        assert len(found) > 2
        assert all(0 <= share <= 1 for share in found)
        assert max(found) > 0.5


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["choose", "average"])
def test_kernels_are_tried_in_one_phase(rule):
    X, y = rows(40)
    meter = Shares()
    GPRegressor(kernel=rule, inference=inference.Exact(), verbose=meter).fit(X, y)
    assert meter.titles[0] == {"choose": "choosing a kernel", "average": "averaging kernels"}[rule]
    assert f"{meter.titles[0]} " in meter._stream.getvalue().splitlines()[-1]


def test_a_transform_is_a_phase():
    X, y = rows(80)
    meter = Shares()
    GPRegressor(kernels.Matern(nu=1.5), target_transform="yeo-johnson", inference=inference.Exact(), verbose=meter).fit(
        X, np.exp(y)
    )
    assert meter.titles[0] == "learning the transform"


def test_a_table_shows_rows_of_all_rows(tmp_path):
    X, y = rows(400)
    meter = Shares()
    GPRegressor(inference=inference.Grid(size=32), optimizer=None, verbose=meter).fit_table((X, y), chunk_rows=100)
    assert meter.titles[0] == "reading the table"
    assert meter.counts == [100, 200, 300, 400]


def test_compare_is_one_job_with_the_fits_inside(capsys):
    X, y = rows(60, 1)
    meter = PlainProgress(io.StringIO(), job="comparison")
    models = {name: GPRegressor(optimizer=None, verbose=1) for name in ("one", "two")}
    gigagp.compare(X, y, models, verbose=meter)
    assert meter._given.getvalue().startswith("comparison: done in")
    assert "2 models" in meter._given.getvalue()
    assert capsys.readouterr().err == ""


def test_the_bits_of_a_fit_do_not_depend_on_its_progress():
    X, y = rows(200)
    shown, silent = (
        GPRegressor(kernels.Matern(nu=1.5), inference=inference.Iterative(), verbose=verbose).fit(X, y)
        for verbose in (PlainProgress(io.StringIO(), every_step=True), 0)
    )
    assert np.array_equal(shown.predict(X), silent.predict(X))
