"""From the units of a table to those of the standardized problem, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

#: The unit of a hyperparameter: that of an input, the square of the target's, that square over the square of an
#: input's (variances of slopes) or over its cube (by which the variance of a slope grows), or none.
Unit = Literal["input", "target", "slope", "bend", "none"]


@dataclass(frozen=True)
class Units:
    """The standardized problem: inputs ``(x - centre) / scale``, covariances over ``variance``.

    ``centre`` and ``scale``, shape (d,), are in the units of the inputs, and ``variance`` in squared units of the
    target. It is 1 for several targets: each has its own scale, and variances are shares of it.
    """

    centre: Tensor
    scale: Tensor
    variance: float

    @property
    def of_factors(self) -> Units:
        """The same for the other factors of a product: one variance of a product has a unit, the others have none."""
        return replace(self, variance=1.0)

    def factor(self, unit: Unit, columns: list[int], *, ard: bool) -> Tensor:
        """Return the factor from a standardized value to the data's own units, shape () or one for each value."""
        lengths = self.scale[columns]
        if not ard:  # the geometric mean; the kernel's `input_weights` hold the rest of each input's scale
            lengths = lengths.log().mean(0, keepdim=True).exp()
        if unit == "input":
            return lengths
        if unit in ("slope", "bend"):
            return self.variance / lengths ** (2 if unit == "slope" else 3)
        return torch.tensor(self.variance if unit == "target" else 1.0, dtype=torch.float64)
