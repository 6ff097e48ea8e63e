"""A fit's rows, their likelihood, and the settings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.options import WeightOptions
from gigagp.model.likelihoods import Gaussian, Likelihood


@dataclass(frozen=True, eq=False)
class WeightProblem:
    """The parts of a fit that do not change."""

    options: WeightOptions
    #: the rows that are held: all of them, or a sample of a larger table
    table: TrainingTable
    likelihood: Likelihood
    #: all rows that are fitted, held or not
    n_rows: int

    @property
    def is_gaussian(self) -> bool:
        """Whether the likelihood is Gaussian, so that exact solves take the place of searches."""
        return isinstance(self.likelihood, Gaussian)

    @property
    def no_trend(self) -> Tensor:
        """Coefficients of the mean's basis that are zero, shape (p, t)."""
        basis = self.table.basis
        return basis.new_zeros(basis.shape[1], self.table.n_targets, dtype=torch.float64)

    @property
    def has_trend(self) -> bool:
        """Whether the mean's basis has coefficients to be inferred; those of labels and counts stay zero."""
        return self.likelihood.has_noise and self.table.basis.shape[1] > 0

    def centred(self, coefficients: Tensor) -> Tensor:
        """Return the targets of the held rows less a trend with coefficients (p, t); labels and counts stay."""
        table = self.table
        if not self.likelihood.has_noise:
            return table.Y
        return (table.Y.double() - table.basis.double() @ coefficients).to(table.Y)
