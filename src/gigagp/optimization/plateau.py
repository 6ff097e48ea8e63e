"""When a noisy ascent gains nothing more: the learning rate falls, and at the smallest it ends."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: What the rate is multiplied by when nothing is gained.
_FALL = 0.4
#: Estimates at one rate before the first comparison of their halves, and the most.
_FEWEST, _MOST = 400, 3200
#: Standard errors that decide.
_ERRORS = 2.0


class Plateau:
    """Compare the two halves of what has been estimated at one learning rate, each time that there are twice as many.

    Where the later half is higher by less than what matters, its error included, or where twice as many estimates show
    no gain beyond the error (then the noise of the steps themselves is what is left, and a smaller rate makes that
    smaller), the rate falls and the comparison starts anew. One pair of halves that cannot tell decides nothing: a
    noisy objective is looked at longer and not stopped by its noise.

    Parameters
    ----------
    final_share : float
        Share of the largest rate below which the ascent ends.
    matters : float
        Gain of the objective between the halves that is worth going on for.

    Attributes
    ----------
    share : float
        Of the largest rate.
    """

    def __init__(self, final_share: float, matters: float) -> None:
        self.final_share, self.matters = final_share, matters
        self.share = 1.0
        self._values: list[float] = []
        self._due = _FEWEST

    @property
    def ended(self) -> bool:
        """Whether nothing was gained at the smallest rate."""
        return self.share < self.final_share

    @property
    def fresh(self) -> bool:
        """Whether nothing has been estimated at this rate."""
        return not self._values

    def add(self, value: float) -> None:
        """Take in an estimate of the objective."""
        self._values.append(value)
        if len(self._values) < self._due:
            return
        values = torch.tensor(self._values, dtype=torch.float64)
        # what a new rate or a start has to settle is in the first quarter
        first, second = values[len(values) // 4 :].chunk(2)
        gain = float(second.mean() - first.mean())
        error = math.sqrt(float(first.var() / len(first) + second.var() / len(second)))
        small = gain + _ERRORS * error < self.matters or gain < -_ERRORS * error
        hidden = len(values) > _FEWEST and gain < _ERRORS * error
        if small or hidden or len(values) >= _MOST:
            self.share *= _FALL
            self._values, self._due = [], _FEWEST
        else:
            self._due *= 2

    def state(self) -> Tensor:
        """Return everything as numbers."""
        return torch.tensor([self.share, self._due, *self._values], dtype=torch.float64)

    def take_over(self, state: Tensor) -> None:
        """Go on from a `state`."""
        self.share, due, *self._values = state.tolist()
        self._due = int(due)
