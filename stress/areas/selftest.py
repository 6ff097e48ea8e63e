"""Cases with every possible outcome, which test the harness itself; they are not part of a run."""

from __future__ import annotations

import os
import time

from stress.draw import Draw
from stress.outcome import REFUSED, RIGHT, Lost, Wrong


def run(draw: Draw) -> str:
    """End with the outcome that the number of the case selects."""
    if draw.case == 0:
        return RIGHT
    if draw.case == 1:
        return REFUSED
    if draw.case == 2:
        raise Wrong("a planted: wrong answer")
    if draw.case == 3:
        raise KeyError("a traceback")
    if draw.case == 4:
        time.sleep(60)
    if draw.case == 5:
        raise Lost("a planted: loss")
    if draw.case == 6:
        os.abort()
    return RIGHT
