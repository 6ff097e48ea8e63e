"""Progress of long work: the present phase, how far it is, and about how much time is left.

Library code reports to a `Meter` and never prints; the caller decides what is shown (`meter_for`).

::

    with meter_for(verbose, job="fit of 8,000 rows") as meter:
        meter.phase("learning", 9, unit="gradient")
        for ...:
            meter.step(objective=-123.4)
        meter.phase("last solve", 1)
        ...

While the block runs, `current` returns the meter, so that a solve deep inside can say how far it is.
"""

from gigagp.runtime.progress.choice import Verbosity, meter_for, meter_for_command
from gigagp.runtime.progress.displays import NotebookProgress, PlainProgress, RichProgress
from gigagp.runtime.progress.meter import Approach, current
from gigagp.runtime.progress.tracker import Tracker
from gigagp.runtime.run import Meter, NoProgress

__all__ = [
    "Approach",
    "Meter",
    "NoProgress",
    "NotebookProgress",
    "PlainProgress",
    "RichProgress",
    "Tracker",
    "Verbosity",
    "current",
    "meter_for",
    "meter_for_command",
]
