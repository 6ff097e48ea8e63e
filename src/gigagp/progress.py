"""Progress of long work. Library code takes a meter and never prints; the caller decides what is shown.

::

    with meter_for(verbose) as meter:
        meter.start(total=100, title="fit")
        for ...:
            meter.step(objective=-123.4, residual=0.008)

A meter can be started again for the next phase of the work, which closes the previous phase.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self, TextIO

from gigagp.fields import CountOrZero, Words, checked

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Meter(ABC):
    """Interface for reports of long work: `start`, then `step` after every step, then `close`. A context manager."""

    @abstractmethod
    def start(self, total: int | None, title: str) -> None:
        """Begin a phase of ``total`` steps (None: unknown) with the name ``title``."""

    @abstractmethod
    def step(self, **fields: object) -> None:
        """Report one completed step; ``fields`` are its quantities, such as ``objective`` or ``residual``."""

    @abstractmethod
    def close(self) -> None:
        """End the phase, if one is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


#: Values of an estimator's ``verbose``.
Verbosity = Annotated[
    bool | CountOrZero | Meter, Words("0 (nothing), 1 (a bar or plain lines), 2 (a line for every step) or a Meter")
]


class NoProgress(Meter):
    """A meter that shows nothing."""

    def start(self, total: int | None, title: str) -> None:
        """Do nothing."""

    def step(self, **fields: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainProgress(Meter):
    """A meter that writes plain lines, for log files and terminals without cursor control.

    Parameters
    ----------
    stream : text stream or None
        Destination of the lines; None: standard error at the time of writing.
    every : float, default 1.0
        Minimum number of seconds between two lines of one phase; 0 writes a line for every step. The last step of a
        phase is always written.
    clock : callable
        Returns the time in seconds; replaced in tests.
    """

    def __init__(
        self, stream: TextIO | None = None, *, every: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._open = False

    def start(self, total: int | None, title: str) -> None:
        """Begin a phase; nothing is written before its first step."""
        self.close()
        self._open, self._total, self._title = True, total, title
        self._done = 0
        self._began = self._clock()
        self._written_at = -float("inf")
        self._pending: str | None = None

    def step(self, **fields: object) -> None:
        """Count a step, and write its line if the previous line is old enough."""
        if not self._open:
            self.start(None, "step")
        self._done += 1
        now = self._clock()
        line = self._line(now, fields)
        if now - self._written_at >= self._every or self._done == self._total:
            self._write(line)
            self._written_at = now
            self._pending = None
        else:
            self._pending = line

    def close(self) -> None:
        """End the phase, and write its last step if that was held back."""
        if self._open and self._pending is not None:
            self._write(self._pending)
        self._open = False

    def _line(self, now: float, fields: dict[str, object]) -> str:
        elapsed = now - self._began
        of = "" if self._total is None else f"/{self._total}"
        parts = [f"{self._title} {self._done}{of}", describe_fields(fields), f"{elapsed:.1f} s"]
        if self._total is not None and 0 < self._done < self._total:
            parts.append(f"about {elapsed / self._done * (self._total - self._done):.0f} s left")
        return "  ".join(part for part in parts if part)

    def _write(self, line: str) -> None:
        stream = self._stream if self._stream is not None else sys.stderr
        stream.write(line + "\n")
        stream.flush()


class RichProgress(Meter):
    """A meter that shows a bar on a terminal, with the step, its fields and the time left. Requires ``rich``.

    Parameters
    ----------
    stream : text stream or None
        The terminal; None: standard error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def start(self, total: int | None, title: str) -> None:
        """Begin a phase with its own bar."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        self.close()
        console = Console(file=self._stream if self._stream is not None else sys.stderr)
        # The fields come last, take the remaining width, and are truncated if they exceed it.
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        note = TextColumn("{task.fields[note]}", markup=False, table_column=rest)
        name = TextColumn("{task.description}", markup=False)
        columns: list[ProgressColumn] = [name, MofNCompleteColumn(), TimeElapsedColumn(), note]
        if total is None:
            columns.insert(0, SpinnerColumn())
        else:
            columns[1:1] = [BarColumn(bar_width=12)]
            columns.insert(-1, TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, expand=True)
        self._task = self._progress.add_task(title, total=total, note="")
        self._progress.start()

    def step(self, **fields: object) -> None:
        """Advance the bar by one and show the fields beside it."""
        if self._progress is None or self._task is None:
            self.start(None, "step")
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, note=describe_fields(fields))

    def close(self) -> None:
        """Leave the bar in its final state and release the terminal."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = None


def describe_fields(fields: dict[str, object]) -> str:
    """Return the fields as ``name value`` pairs, with numbers to four digits and without None."""
    shown = []
    for name, value in fields.items():
        if value is None:
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        shown.append(f"{name.replace('_', ' ')} {text}")
    return "  ".join(shown)


def meter_for(verbose: Verbosity, stream: TextIO | None = None) -> Meter:
    """Return the meter for an estimator's ``verbose``.

    Parameters
    ----------
    verbose : int, bool or Meter
        0: nothing. 1: a bar on a terminal, plain lines elsewhere. 2 or more: a plain line for every step. A `Meter` is
        returned unchanged.
    stream : text stream or None
        Destination; None: standard error.

    Raises
    ------
    InvalidInputError
        If ``verbose`` is none of these.
    """
    verbose = checked(verbose, Verbosity, "verbose", "GPRegressor")
    if isinstance(verbose, Meter):
        return verbose
    if verbose == 0:
        return NoProgress()
    if verbose >= 2:
        return PlainProgress(stream, every=0.0)
    return RichProgress(stream) if (stream or sys.stderr).isatty() else PlainProgress(stream)
