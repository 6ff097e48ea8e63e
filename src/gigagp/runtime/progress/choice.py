"""Choose the meter that an argument ``verbose`` asks for, given where the work runs."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from typing import Annotated, Literal, TextIO

from gigagp.runtime.processes import is_first
from gigagp.runtime.progress.displays import NotebookProgress, PlainProgress, RichProgress
from gigagp.runtime.progress.meter import Nested
from gigagp.runtime.run import Meter, NoProgress, current_run
from gigagp.settings.fields import CountOrZero, Words, checked

#: Seconds that work has to take before ``"auto"`` shows it.
PATIENCE = 10.0

#: Values of an estimator's ``verbose``.
Verbosity = Annotated[
    bool | CountOrZero | Literal["auto"] | Meter,
    Words(
        '0 (nothing), 1 (a bar, or lines in a log), 2 (a line for every step), "auto" (a bar on a terminal or in a '
        "notebook, for what takes more than ten seconds) or a Meter"
    ),
]


def meter_for(verbose: Verbosity, stream: TextIO | None = None, *, job: str = "fit") -> Meter:
    """Return the meter for an estimator's ``verbose``: a `Meter` unchanged, or one that shows the work on a stream.

    0 shows nothing; 1 a bar on a terminal, an output in a notebook, and elsewhere lines at growing intervals; 2 or more
    a line for every step. ``"auto"`` shows the bar or the output once the work has taken ten seconds or is expected to,
    and nothing elsewhere, so that tests and pipelines stay silent. ``job`` is what the line at the end calls the work.

    Of the processes of a distributed fit, only the first shows anything. Inside of other work that is shown, such as
    `gigagp.compare`, the work is a part of that. Bars are shown in the main thread of the main process only; other
    threads and processes write lines, or nothing for ``"auto"``.
    """
    verbose = checked(verbose, Verbosity, "verbose", "GPRegressor")
    if isinstance(verbose, Meter):
        return verbose
    if verbose == 0 or not is_first():
        return NoProgress()
    if current_run().meters:
        outer = current_run().meter
        return NoProgress() if isinstance(outer, NoProgress) else Nested(outer)
    if verbose != "auto" and verbose >= 2:
        return PlainProgress(stream, job=job, every_step=True)
    patience = PATIENCE if verbose == "auto" else 0.0
    if _is_main():
        if stream is None and _in_notebook():
            return NotebookProgress(job=job, patience=patience)
        if _is_terminal(sys.stderr if stream is None else stream):
            return RichProgress(stream, job=job, patience=patience)
    return NoProgress() if verbose == "auto" else PlainProgress(stream, job=job)


def meter_for_command(job: str) -> Meter | Literal["auto"]:
    """Return the ``verbose`` of a command: ``"auto"`` on a terminal, and elsewhere the same with lines of a log."""
    return "auto" if _is_terminal(sys.stderr) else PlainProgress(job=job, patience=PATIENCE)


def _is_main() -> bool:
    """Whether this is the main thread of a process that is not a worker of another Python process."""
    return threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is None


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream, None if it is closed, is a terminal on which lines can be written again."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # it has been closed
        return False


def _in_notebook() -> bool:
    """Whether the work runs in a cell of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
