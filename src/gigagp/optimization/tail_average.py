"""The mean of an ascent's iterates, kept up only where they are touched."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class TailAverage:
    """Mean of the arrays since some step.

    Steps on samples end in a cloud about the optimum, whose width is that of the rate; their mean is in its middle
    (Polyak and Juditsky 1992, https://doi.org/10.1137/0330046). An entry that no step touches stays as it is, so its
    sum is brought up only when it is touched, or at the end.

    Parameters
    ----------
    arrays : dict of str to Tensor
        Of the same length, moved in place.
    names : iterable of str
        Those that the mean is taken of.
    step : int
        The last step that does not count.
    """

    def __init__(self, arrays: dict[str, Tensor], names: Iterable[str], step: int) -> None:
        self._arrays = {name: arrays[name] for name in names}
        self.first = step
        self._sums = {name: torch.zeros_like(array) for name, array in self._arrays.items()}
        some = next(iter(arrays.values()))
        #: steps since the first that the sums of an entry include
        self._included = torch.zeros(len(some), dtype=torch.int32, device=some.device)

    def hold(self, index: Tensor, step: int) -> None:
        """Take in what some entries have been up to a step: they are about to move."""
        since = step - self.first
        times = since - self._included[index]
        for name, array in self._arrays.items():
            values = array[index]
            self._sums[name][index] += values * times.to(values).reshape(-1, *[1] * (values.ndim - 1))
        self._included[index] = since

    def settle(self, step: int) -> None:
        """Put the means up to a step into the arrays."""
        if step <= self.first:
            return
        for index in torch.arange(len(self._included), device=self._included.device).split(2**20):
            self.hold(index, step)
        for name, array in self._arrays.items():
            array.copy_(self._sums[name] / (step - self.first))

    def state(self) -> dict[str, Tensor]:
        """Return everything."""
        return {"first": torch.tensor(self.first), "included": self._included, **self._sums}

    def take_over(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state`."""
        self.first = int(state["first"])
        self._included.copy_(state["included"])
        for name, total in self._sums.items():
            total.copy_(state[name])
