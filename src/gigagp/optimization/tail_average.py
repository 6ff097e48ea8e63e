"""The mean of an ascent's last iterates, updated only where steps touch them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gigagp.optimization.sampled import Place


class TailAverage:
    """The mean of arrays over all steps since a first one.

    Steps on samples end in a cloud about the optimum, as wide as the learning rate makes it, and their mean is at its
    centre (Polyak and Juditsky 1992, https://doi.org/10.1137/0330046). The change of step s is missing from the s - 1
    iterates before it. The mean of N iterates is therefore the last one less ``sum_s (s - 1) change_s / N``, and that
    sum grows only where a step touches the arrays.

    Parameters
    ----------
    arrays : dict of str to Tensor
        Moved in place.
    names : iterable of str
        The arrays whose mean is taken.
    step : int
        The last step that does not count.
    """

    def __init__(self, arrays: dict[str, Tensor], names: Iterable[str], step: int) -> None:
        self._arrays = {name: arrays[name] for name in names}
        self.first = step
        #: what the last iterates lack, summed over all iterates
        self._missing = {name: torch.zeros_like(array) for name, array in self._arrays.items()}

    def add(self, name: str, place: Place, change: Tensor, step: int) -> None:
        """Follow a change of some entries of an array in a step."""
        missing = self._missing[name]
        place.write(missing, place.read(missing) + change * (step - 1 - self.first))

    def settle(self, step: int) -> None:
        """Put the means up to a step into the arrays, once: a run that is resumed after it has nothing left to do."""
        if step <= self.first:
            return
        for name, array in self._arrays.items():
            array -= self._missing[name] / (step - self.first)
            self._missing[name].zero_()

    def state(self) -> dict[str, Tensor]:
        """Return everything."""
        return {"first": torch.tensor(self.first), **self._missing}

    def take_over(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state`."""
        self.first = int(state["first"])
        for name, missing in self._missing.items():
            missing.copy_(state[name])
