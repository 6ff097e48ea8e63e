"""Loops whose numbers the CPU looks at step by step, where a GPU may be some steps ahead."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from gigagp.solvers.base import on_cpu

#: Steps that a GPU takes in a row, and kernel entries of a step from which it takes so long, beyond one millisecond of
#: an H100, that waiting for each step costs little.
AHEAD, _LOOK_EACH_STEP = 12, 2**30
#: Share of the steps to the end, if residuals fall as they did, after which to look again.
_SHARE_OF_WAY = 0.75


class Ahead(ABC):
    """Base of loops whose numbers are looked at one step after the other.

    On the CPU, and where a step takes long, every step is looked at before the next one. A GPU would wait in each step
    for the decision to take another. It takes several in a row instead, whose numbers then arrive together. If the CPU
    decides to end between them, or needs the vectors, `settle` returns to the step that it has seen, from a copy and by
    the same steps again. So decisions, and what they lead to, do not depend on the device.

    Parameters
    ----------
    most : int
        Largest number of steps in a row; see `steps_ahead`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: deque[list[torch.Tensor]] = deque()
        self._seen = 0  # in the present row
        self._before: Any = None  # the row
        self._falls = deque[float](maxlen=AHEAD + 1)

    @abstractmethod
    def _take_step(self) -> list[torch.Tensor]:
        """Take a step and return its numbers, none of which is read."""

    @abstractmethod
    def _copy(self, steps: int) -> Any:
        """Return what `_return_to` needs to undo this many steps, which follow."""

    @abstractmethod
    def _return_to(self, copy: Any) -> None:
        """Return to the vectors of a copy, which may be taken over."""

    def _next_numbers(self, wanted: Callable[[], float], excess: float) -> list[torch.Tensor]:
        """Return the numbers of the next step, on the CPU.

        Parameters
        ----------
        wanted : callable
            Returns the number of steps after which something else than the residual may have to be looked at.
        excess : float
            The present residual over its tolerance. From how it falls follows when to look again.
        """
        self._falls.append(excess)
        if not self._taken:
            steps = 1 if self._most == 1 else max(int(min(self._most, _steps_to_look(self._falls), wanted())), 1)
            self._before, self._seen = self._copy(steps), 0
            found = [self._take_step() for _ in range(steps)]
            numbers = iter(on_cpu(*chain(*found)))
            self._taken.extend([next(numbers) for _ in one] for one in found)
        self._seen += 1
        return self._taken.popleft()

    def settle(self, *, undo: bool = False) -> None:
        """Make the vectors those of the step that has been seen last, or with ``undo`` of the one before it."""
        if self._taken or undo:
            self._return_to(self._before)
            for _ in range(self._seen - undo):
                self._take_step()
            self._taken.clear()
        self._before = None


def steps_ahead(device: torch.device, entries: float) -> int:
    """Return how many steps, each of so many kernel entries, a device takes in a row at most."""
    return AHEAD if device.type != "cpu" and entries <= _LOOK_EACH_STEP else 1


def _steps_to_look(falls: Sequence[float]) -> int:
    """Return after how many steps a residual may reach its tolerance, from the last ones over it."""
    known, now = len(falls) - 1, falls[-1]
    if not 1 < now < falls[0] < math.inf:
        return known
    return min(known, int(_SHARE_OF_WAY * math.log(now) / math.log(falls[0] / now) * known))
