"""What is known of a piece of work: its phases so far, how far the present one is, and the time that is left.

The time left comes from what has been measured: the mean time of a step, times the steps that are left, and of what is
known to follow. Before that, it is the forecast of a plan. A time budget caps it. Where nothing is known, nothing is
said.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from gigagp.runtime import interruption

#: Least seconds, share of a step or phase, and share of the rows that must have passed before a time is estimated.
_FEWEST_SECONDS, _LEAST_SHARE, _LEAST_ROWS = 1.0, 0.1, 0.01
#: Share of a forecast whose last seconds are not relied on: work mostly takes longer.
_LATE = 0.5
#: Seconds of a step from which on its share is shown.
_LONG_STEP = 2.0
#: Share of the whole time below which a phase is not mentioned at the end.
_MENTIONED = 0.05


class _Left(NamedTuple):
    """Bounds of the seconds that are left; they are equal where the number of steps is known or estimated."""

    least: float
    most: float


@dataclass
class _Phase:
    """A phase, see `Meter.phase`, and how far it is."""

    title: str
    total: int | None
    unit: str
    most: int | None
    then: float | None
    began: float
    step_began: float
    done: int = 0
    within: float = 0.0
    towards: float = 0.0

    def expected(self) -> tuple[float | None, str]:
        """Return the number of steps, None if it is unknown, and a word about it."""
        if self.total is not None:
            return max(self.total, self.done), ""
        if self.done and self.towards >= _LEAST_SHARE:
            found = math.ceil(self.done / self.towards)
            return (found if self.most is None else min(found, max(self.most, self.done))), "about "
        return (None, "") if self.most is None else (max(self.most, self.done), "at most ")

    def left(self, now: float) -> _Left | None:
        """Return the time until the end of this phase and of what follows; None where it is unknown."""
        expected, word = self.expected()
        knows_step = self.within >= _LEAST_SHARE
        if expected is None or self.then is None or not (self.done or knows_step):
            return None
        if now - self.began < _FEWEST_SECONDS or (self.unit == "row" and self.done < _LEAST_ROWS * expected):
            return None
        passed = max(now - self.step_began, 0.0)
        mean = (self.step_began - self.began) / self.done if self.done else passed / self.within
        step = passed / self.within - passed if knows_step else max(mean - passed, 0.0)
        ended = max(mean * self.then - passed, 0.0)
        most = step + mean * (expected - self.done - 1 + self.then) if self.done < expected else ended
        if word != "at most ":
            return _Left(most, most)
        return _Left(min(most, ended if self.done and not knows_step else step + mean * self.then), most)

    def words(self, now: float) -> str:
        """Return what is done and how much of it."""
        expected, word = self.expected()
        share = f"{100 * self.within:.0f} %" if self.within >= _LEAST_SHARE else ""
        if expected == 1:
            return f"{self.title}, {share}" if share and not self.done else self.title
        if expected is not None:
            found = f"{self.title}, {self.done:,} of {word}{expected:,.0f} {self.unit}s"
        elif self.done:
            found = f"{self.title}, {self.done:,} {self.unit}{'' if self.done == 1 else 's'}"
        else:
            found = self.title
        shows = share and expected is not None and now - self.step_began >= _LONG_STEP
        return f"{found} (the next: {share})" if shows else found


@dataclass
class _Level:
    """The phases of work, or of a step of the level above it."""

    began: float
    phase: _Phase | None = None
    #: seconds, steps and unit of the phases that have ended, by title
    ended: dict[str, tuple[float, int, str]] = field(default_factory=dict)

    def end_phase(self, now: float) -> None:
        if self.phase is not None:
            seconds, steps, _ = self.ended.get(self.phase.title, (0.0, 0, ""))
            counted = self.phase.done if self.phase.total != 1 else 0
            spent = seconds + max(now - self.phase.began, 0.0)
            self.ended[self.phase.title] = spent, steps + counted, self.phase.unit
            self.phase = None


class Tracker:
    """The state of a piece of work, such as a "fit of 8,000 rows". All methods may be called in any order."""

    def __init__(self, job: str = "fit", clock: Callable[[], float] = time.monotonic) -> None:
        self.job, self._clock = job, clock
        self._began = clock()
        self._levels = [_Level(self._began)]
        self._foreseen_end = self._reliable_until = math.nan
        self._deadline = math.inf
        self._fraction = 0.0
        self._remarks: list[str] = []

    # Reports ---------------------------------------------------------------------------------------------------------

    def phase(
        self,
        title: str,
        total: int | None = None,
        unit: str = "step",
        most: int | None = None,
        then: float | None = None,
    ) -> None:
        """Begin a phase; see `Meter.phase`."""
        now = self._note_deadline()
        level = self._levels[-1]
        if len(self._levels) == 1 and level.phase is not None and level.phase.done and level.phase.then:
            # What was to follow begins now.
            follows = level.phase.then * (level.phase.step_began - level.phase.began) / level.phase.done
            self._foresee(follows)
        level.end_phase(now)
        level.phase = _Phase(title, total, unit, most, then, now, now)

    def reached(self, done: int | None = None) -> None:
        """Count a step, or set the number of steps."""
        now, phase = self._note_deadline(), self._present()
        phase.step_began = now
        phase.done = phase.done + 1 if done is None else done
        phase.within = 0.0

    def within(self, share: float) -> None:
        """Note the share of the present step that is done; it never falls."""
        self._note_deadline()
        phase = self._present()
        if 0 <= share <= 1:
            phase.within = max(phase.within, min(share, 0.99))

    def towards(self, share: float) -> None:
        """Note the share of the phase that is done."""
        if 0 <= share <= 1:
            self._present().towards = share

    def expect(self, seconds: float) -> None:
        """Note a forecast of the seconds that are left."""
        if 0 <= seconds < math.inf:
            self._foresee(seconds)

    def _foresee(self, seconds: float) -> None:
        self._reliable_until = self._clock() + (1 - _LATE) * seconds
        self._foreseen_end = self._clock() + seconds

    def remark(self, words: str) -> None:
        """Note something to say at the end."""
        self._remarks.append(words)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Take phases for parts of the present step during a block."""
        depth = len(self._levels)
        self._levels.append(_Level(self._clock()))
        try:
            yield
        finally:
            del self._levels[depth:]

    def _present(self) -> _Phase:
        level = self._levels[-1]
        if level.phase is None:
            now = self._clock()
            level.phase = _Phase("working", None, "step", None, None, now, now)
        return level.phase

    def _note_deadline(self) -> float:
        now = self._clock()
        self._deadline = now + interruption.seconds_left()
        return now

    # What is known ---------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return max(self._clock() - self._began, 0.0)

    @property
    def foreseen(self) -> float:
        """Seconds of the whole work by the last forecast; NaN without one."""
        return self._foreseen_end - self._began

    def time_left(self) -> tuple[float | None, bool]:
        """Return the seconds that are left, and whether this is an upper bound; None where nothing is known."""
        now = self._clock()
        found, plan = self._of_levels(list(self._levels), now), self._foreseen_end - now
        if found is not None:  # a plan knows more than bounds do
            left = min(max(plan, found.least), found.most) if plan > 0 else found.most
        elif now < self._reliable_until:
            left = plan
        else:
            return None, False
        return max(min(left, self._deadline - now), 0.0), found is not None and left > found.least

    def _of_levels(self, levels: list[_Level], now: float) -> _Left | None:
        """Return the time that is left of a level, from that of the level inside of its present step."""
        first = levels[0]
        if first.phase is None or len(levels) == 1:
            return None if first.phase is None else first.phase.left(now)
        inner, phase, part = self._of_levels(levels[1:], now), first.phase, now - levels[1].began
        expected, _ = phase.expected()
        if expected is None or phase.then is None or (inner is None and not phase.done):
            return None
        mean = max(levels[1].began - phase.began, 0.0) / max(phase.done, 1)
        if inner is None:
            inner = _Left(*(max(mean - part, 0.0),) * 2)
        after = max(expected - phase.done - 1, 0.0) + phase.then
        return _Left(*(one + (mean if phase.done else part + one) * after for one in inner))

    def fraction(self) -> float | None:
        """Return the share of the whole time that has passed, which never falls; None where nothing is known."""
        left, _ = self.time_left()
        if left is not None and self.elapsed > 0:
            self._fraction = max(self._fraction, min(self.elapsed / (self.elapsed + left), 0.99))
        return self._fraction or None

    def words(self) -> str:
        """Return the present phases, how far they are, and the time that is left, in words."""
        now = self._clock()
        phases = [level.phase.words(now) for level in list(self._levels) if level.phase is not None]
        left, bound = self.time_left()
        return ": ".join(phases) + ("" if left is None else f", {_of_time_left(left, bound)}")

    def summary(self, outcome: str = "done in") -> str:
        """Return what happened, and how long it took."""
        now, level = self._clock(), self._levels[0]
        title = "" if level.phase is None else level.phase.title
        level.end_phase(now)
        elapsed = self.elapsed
        found = f"{self.job}: {outcome} {in_full(elapsed)}"
        if title and outcome != "done in":
            return f"{found}, in the phase: {title}"
        parts = []
        for name, (seconds, steps, unit) in level.ended.items():
            if seconds >= _MENTIONED * elapsed and (steps or len(level.ended) > 1):
                count = f" with {steps:,} {unit}{'' if steps == 1 else 's'}" if steps else ""
                parts.append(f"{name} {in_full(seconds)}{count}")
        return "; ".join([found + (f" ({', '.join(parts)})" if parts else ""), *self._remarks])


def in_full(seconds: float) -> str:
    """Return a duration such as ``"0.4 s"``, ``"12 s"``, ``"2 min 3 s"`` or ``"1 h 5 min"``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def _of_time_left(seconds: float, bound: bool) -> str:
    """Return an estimate in words, rounded to what it is good for."""
    if seconds < 10:
        return "a few seconds left"
    word = "at most" if bound else "about"
    if seconds < 55:
        return f"{word} {10 * round(seconds / 10)} s left"
    minutes = max(round(seconds / 60), 1)
    if minutes < 10:
        return f"{word} {minutes} min left"
    return f"{word} {in_full(300 * round(seconds / 300) if seconds < 7200 else 600 * round(seconds / 600))} left"
