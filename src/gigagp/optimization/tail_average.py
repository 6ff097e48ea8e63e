"""The mean of an ascent's last iterates, updated only where steps touch them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class TailAverage:
    """The mean of arrays over all steps since a first one.

    Steps on samples end in a cloud about the optimum, as wide as the learning rate makes it, and their mean is at its
    centre (Polyak and Juditsky 1992, https://doi.org/10.1137/0330046). An entry that no step touches does not change,
    so its sum is updated only when a step touches it, and at the end.

    Parameters
    ----------
    arrays : dict of str to Tensor
        Of the same length, moved in place.
    names : iterable of str
        The arrays whose mean is taken.
    step : int
        The last step that does not count.
    """

    def __init__(self, arrays: dict[str, Tensor], names: Iterable[str], step: int) -> None:
        self._arrays = {name: arrays[name] for name in names}
        self.first = step
        self._sums = {name: torch.zeros_like(array) for name, array in self._arrays.items()}
        some = next(iter(arrays.values()))
        #: steps since the first that the sums include, for every entry
        self._included = torch.zeros(len(some), dtype=torch.int32, device=some.device)

    def hold(self, index: Tensor, step: int) -> None:
        """Add the values of some entries up to a step to their sums: the entries are about to move."""
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
