"""When a noisy ascent stops gaining: its learning rate falls, and at the smallest rate the ascent ends."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Factor of the rate when nothing is gained.
_FALL = 0.4
#: Estimates at one rate before the first comparison of their halves, and most estimates at one rate.
_FEWEST, _MOST = 400, 3200
#: Standard errors of the gain that a decision allows for.
_ERRORS = 2.0


class Plateau:
    """Compare the two halves of the estimates at one learning rate, each time that their number has doubled.

    The rate falls, and the comparison starts again, in two cases. The later half is higher by less than what matters,
    even with the error added. Or a second comparison still shows no gain beyond the error: what remains is then the
    noise of the steps themselves, which a smaller rate reduces. One comparison within the error decides nothing, so a
    noisy objective gets more estimates and is not stopped by its noise. At most 3,200 are made at one rate.

    Parameters
    ----------
    final_share : float
        Share of the largest rate below which the ascent ends.
    matters : float
        Smallest gain of the objective between the halves that is worth more steps at this rate.

    Attributes
    ----------
    share : float
        The present rate as a share of the largest.
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
        """Add an estimate of the objective, and lower the rate where a comparison says so."""
        self._values.append(value)
        if len(self._values) < self._due:
            return
        values = torch.tensor(self._values, dtype=torch.float64)
        # The first quarter is left out: a start, or a new rate, takes some steps to settle.
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
        """Return everything as one vector, for a checkpoint."""
        return torch.tensor([self.share, self._due, *self._values], dtype=torch.float64)

    def take_over(self, state: Tensor) -> None:
        """Go on from a `state`."""
        self.share, due, *self._values = state.tolist()
        self._due = int(due)
