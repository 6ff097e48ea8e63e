"""Meters that show something: a bar on a terminal, an output of a notebook that is updated, or lines of a log."""

from __future__ import annotations

import html
import importlib
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from gigagp.runtime.interruption import Interrupted
from gigagp.runtime.progress.tracker import Tracker, in_full
from gigagp.runtime.run import Meter

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

#: Least number of seconds between two lines of a log, and as a share of the time that has passed.
_FIRST_LINES, _LATER_LINES = 10.0, 0.1
#: Least number of seconds between two updates of a notebook's output.
_UPDATES = 0.5


class _Display(Meter):
    """What all displays share; the stream is by default standard error at the time of writing.

    Nothing is shown before ``patience`` seconds have passed, unless a forecast says that the work will take longer.
    Tests replace the clock, which returns the time in seconds.
    """

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _timer: threading.Timer | None = None

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        job: str = "fit",
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given, self._job, self._patience, self._clock = stream, job, patience, clock
        self._tracker: Tracker | None = None
        self._outcome = "done in"

    @property
    def tracker(self) -> Tracker:
        """The state of the work, which begins with the first report."""
        if self._tracker is None:
            self._tracker, self._outcome = Tracker(self._job, self._clock), "done in"
            self._begin()
        return self._tracker

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._given is None else self._given

    @property
    def _is_due(self) -> bool:
        """Whether the work takes long enough to be shown."""
        tracker = self.tracker
        return tracker.elapsed >= self._patience or tracker.foreseen >= self._patience

    def _begin(self) -> None:
        """Prepare for the first report."""
        return

    @abstractmethod
    def _show(self, fields: dict[str, object] | None = None) -> None:
        """Show the state; ``fields`` are those of a step that has just ended."""

    @abstractmethod
    def _finish(self, summary: str) -> None:
        """Show what happened, and release what is held."""

    def start(self, total: int | None, title: str) -> None:
        self.phase(title, total)

    def phase(self, title: str, total: int | None = None, **details: Any) -> None:
        self.tracker.phase(title, total, **details)
        self._show()

    def step(self, **fields: object) -> None:
        self.tracker.reached()
        self._show(fields)

    def reached(self, done: int, **fields: object) -> None:
        self.tracker.reached(done)
        self._show(fields)

    def within(self, share: float) -> None:
        self.tracker.within(share)
        self._show()

    def towards(self, share: float) -> None:
        self.tracker.towards(share)

    def expect(self, seconds: float) -> None:
        self.tracker.expect(seconds)
        self._show()

    def remark(self, words: str) -> None:
        self.tracker.remark(words)

    def inside(self) -> AbstractContextManager[None]:
        return self.tracker.inside()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            stopped = issubclass(kind, KeyboardInterrupt | Interrupted)
            self._outcome = "stopped after" if stopped else "failed after"
        super().__exit__(kind, error, trace)

    def close(self) -> None:
        """Say what happened, and release what is held; a later report begins anew."""
        with _Display._lock:
            tracker, self._tracker = self._tracker, None
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if tracker is not None:
            self._finish(tracker.summary(self._outcome))

    def _wake(self, seconds: float) -> None:
        """Show the state after this many seconds, because a single long product reports nothing."""
        self._timer = threading.Timer(seconds, self._woken)
        self._timer.daemon = True
        self._timer.start()

    def _woken(self) -> None:
        """Show what is due, in the timer's thread."""
        with _Display._lock:
            if self._tracker is not None:
                self._show()


class PlainProgress(_Display):
    """A meter that writes whole lines, for logs: one after ten seconds, and later ones at growing intervals.

    With ``every_step`` it writes a line for every step, with its quantities.
    """

    def __init__(self, stream: TextIO | None = None, *, every_step: bool = False, **details: Any) -> None:
        super().__init__(stream, **details)
        self._every_step = every_step

    def _begin(self) -> None:
        self._next, self._written = _FIRST_LINES, False
        self._wake(_FIRST_LINES)

    def _show(self, fields: dict[str, object] | None = None) -> None:
        with _Display._lock:
            tracker, elapsed = self.tracker, self.tracker.elapsed
            steps = self._every_step and fields is not None
            if not steps and (elapsed < self._next or not self._is_due):
                return
            self._next = elapsed + max(_FIRST_LINES, _LATER_LINES * elapsed)
            quantities = describe_fields(fields or {}) if steps else ""
            line = f"{tracker.job}, {in_full(elapsed)}: {tracker.words()}"
            self._write(f"{line}; {quantities}" if quantities else line)
            self._written = True

    def _woken(self) -> None:
        super()._woken()
        with _Display._lock:
            if self._tracker is not None:
                self._wake(max(self._next - self._tracker.elapsed, 1.0))

    def _finish(self, summary: str) -> None:
        if self._written or not self._patience:
            self._write(summary)

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")  # at once, so that lines of several processes do not mix
        self._stream.flush()


class RichProgress(_Display):
    """A meter that shows one bar on a terminal, and a line at the end. Requires ``rich``.

    Only one bar is shown at a time in a process; what begins beside it shows nothing.
    """

    #: the bar that is shown, if there is one
    _shown: ClassVar[RichProgress | None] = None
    _live: Live | None = None

    def _begin(self) -> None:
        if self._patience:
            self._wake(self._patience)

    def _show(self, fields: dict[str, object] | None = None) -> None:
        if self._live is None and self._is_due:
            self._open()

    def _open(self) -> None:
        with _Display._lock:
            if self._tracker is None or RichProgress._shown is not None:
                return
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            self._live = Live(
                console=console,
                transient=True,
                refresh_per_second=4,
                get_renderable=self._rendered,
                redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # not from a pipe to a terminal
            )
            self._live.start(refresh=True)
            RichProgress._shown = self

    def _rendered(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tracker = self._tracker
        if tracker is None:
            return Text()
        share = tracker.fraction()
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=16)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        bar = ProgressBar(1.0, share or 0.0, width=16, pulse=share is None, animation_time=self._clock())
        grid.add_row(bar, Text(in_full(tracker.elapsed)), Text(tracker.words()))
        return grid

    def _finish(self, summary: str) -> None:
        with _Display._lock:
            live, self._live = self._live, None
            if live is not None:
                RichProgress._shown = None
        if live is not None:
            live.stop()
            self._stream.write(f"{summary}\n")
            self._stream.flush()


class NotebookProgress(_Display):
    """A meter that updates one output of a notebook cell. It needs IPython, which runs the cell, and no widgets."""

    _handle: Any = None

    def _begin(self) -> None:
        self._handle, self._next = None, 0.0

    def _show(self, fields: dict[str, object] | None = None) -> None:
        tracker = self.tracker
        if tracker.elapsed < self._next or not self._is_due:
            return
        self._next = tracker.elapsed + _UPDATES
        words = f"{in_full(tracker.elapsed)}  {tracker.words()}"
        share = tracker.fraction()
        bar = "<progress></progress>" if share is None else f"<progress value='{share:.3f}' max='1'></progress>"
        self._update(words, f"{bar} {html.escape(words)}")

    def _finish(self, summary: str) -> None:
        if self._handle is not None or not self._patience:
            self._update(summary, html.escape(summary))

    def _update(self, words: str, marked: str) -> None:
        display = importlib.import_module("IPython.display").display
        data = {"text/plain": words, "text/html": f"<div style='font-family: monospace'>{marked}</div>"}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def describe_fields(fields: dict[str, object]) -> str:
    """Return the fields as ``name value`` pairs, with numbers to four digits and without None."""
    shown = []
    for name, value in fields.items():
        if value is None:
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        shown.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(shown)
