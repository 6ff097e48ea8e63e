"""From the units of a table to those of the standardized problem, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

#: What a hyperparameter is measured in: an input's units, the squares of the target's, those squares over the squares
#: of an input's (variances of slopes), or nothing.
Unit = Literal["input", "target", "slope", "none"]


@dataclass(frozen=True)
class Units:
    """The standardized problem: inputs ``(x - centre) / scale``, covariances over ``variance``.

    Attributes
    ----------
    centre, scale : Tensor of shape (d,)
        float64; in units of the inputs.
    variance : float
        In squared units of the target. 1 for several targets: each is scaled apart, and variances are shares of its.
    """

    centre: Tensor
    scale: Tensor
    variance: float

    @property
    def of_factors(self) -> Units:
        """The same for kernels that multiply another: one of a product's variances has a unit, the others have none."""
        return replace(self, variance=1.0)

    def factor(self, unit: Unit, columns: list[int], *, ard: bool) -> Tensor:
        """Return what a standardized number is to be multiplied with, shape () or one for each value of an input."""
        lengths = self.scale[columns]
        if not ard:  # the geometric mean; what is left of each input's own scale is the kernel's `input_weights`
            lengths = lengths.log().mean(0, keepdim=True).exp()
        if unit == "input":
            return lengths
        if unit == "slope":
            return self.variance / lengths.square()
        return torch.tensor(self.variance if unit == "target" else 1.0, dtype=torch.float64)
