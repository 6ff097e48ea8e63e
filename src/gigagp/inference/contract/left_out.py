"""The distribution of each row given all others, at the hyperparameters of all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.model.likelihoods import StudentT
from gigagp.model.model import Model
from gigagp.neighbours.folds import Fold

#: Least precision, so that a row that nothing is known about has a finite variance.
_LEAST = 1e-300
#: Least precision of a latent value that is left out, over that of the prior: a mean may be open.
_LEAST_SHARE = 1e-8


class LeftOut(NamedTuple):
    """Rows as they are predicted from all others, noise included, float64, in the units of the model."""

    mean: Tensor  # (n, t)
    variance: Tensor  # for all targets, (n,)
    log_density: Tensor  # of the rows, (n, t)
    relative_error: Tensor  # standard errors of the variances, relative; 0 where nothing is estimated, (n,)

    @classmethod
    def of(cls, Y: Tensor, solutions: Tensor, precision: Tensor, standard_error: Tensor | None = None) -> LeftOut:
        """Return them from a row of the inverse of H (Rasmussen and Williams 2006, eqs. 5.10 to 5.12).

        ``solutions`` are ``P Y``, shape (n, t), and ``precision`` is the diagonal of P, shape (n,), perhaps with a
        standard error of its estimate, where P is ``H^-1`` minus its part in the span of the mean's basis. The
        coefficients of the mean are then those of the other rows.
        """
        precision = precision.double().clamp_min(_LEAST)
        residuals = solutions.double() / precision[:, None]
        misfit = solutions.double() * residuals
        density = 0.5 * (precision.log()[:, None] - misfit - math.log(2 * math.pi))
        error = torch.zeros_like(precision) if standard_error is None else standard_error.double() / precision
        return cls(Y.double() - residuals, 1 / precision, density, error)

    @classmethod
    def in_folds(cls, Y: Tensor, solutions: Tensor, precision: Tensor, folds: Sequence[Fold]) -> LeftOut:
        """Return the scored rows of all folds, one fold after the other, each given all rows but those of its fold.

        ``precision`` is all of P, shape (n, n). Rows of one fold say nothing of each other, so that predictions go
        farther than from a row to the next. Where the others do not determine them, their variances are infinite.
        """
        residuals, variances = [], []
        for rows, n_scored in folds:
            factor, failed = torch.linalg.cholesky_ex(precision[rows][:, rows])
            if int(failed):
                residuals.append(torch.zeros_like(Y[:n_scored], dtype=torch.float64))
                variances.append(torch.full_like(precision[0, :n_scored], math.inf))
            else:
                residuals.append(torch.cholesky_solve(solutions[rows].double(), factor)[:n_scored])
                variances.append(torch.cholesky_inverse(factor).diagonal()[:n_scored])
        residual, variance = torch.cat(residuals), torch.cat(variances)
        targets = Y[torch.cat([one.scored for one in folds])].double()
        density = -0.5 * ((2 * math.pi * variance).log()[:, None] + residual.square() / variance[:, None])
        return cls(targets - residual, variance, density, torch.zeros_like(variance))

    def of_student(self, Y: Tensor, model: Model) -> LeftOut:
        """Return them for Student-t noise of the rows with targets (n, 1), in place of Gaussian noise at their weights.

        The weights of the other rows are those of the fit. Without Student-t noise nothing changes.
        """
        student = model.student
        if student is None:
            return self
        latent = (self.variance - model.noise_variance.to(self.variance)).clamp_min(0)
        noise = torch.full_like(latent, student.variance)
        likelihood, Y = StudentT(student.df), Y.double()
        density = likelihood.predictive_log_density(Y, self.mean, latent.sqrt()[:, None], noise[:, None])
        variance = latent + noise
        return LeftOut(self.mean, variance, density, self.relative_error * self.variance / variance)


def without_own_terms(
    mean: Tensor, variance: Tensor, slope: Tensor, curvature: Tensor, prior_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return latent means (n, t) and variances (n,) without the rows' own terms, where these count as Gaussian.

    A row has entered with the slope (n, t) and the curvature (n,) of its log density at the mean (n, t) (Rasmussen and
    Williams 2006, section 5.4.2, with pseudo-observations in the place of targets).
    """
    precision = torch.maximum(1 / variance - curvature, _LEAST_SHARE / prior_variance)
    return mean - slope / precision[:, None], 1 / precision


def without_trend(precision: Tensor, basis_solutions: Tensor, coefficient_root: Tensor) -> Tensor:
    """Return the diagonal of ``H^-1`` minus that of its part in the span of the mean's basis, float64."""
    if not coefficient_root.shape[0]:
        return precision.double()
    return precision.double() - (basis_solutions.double() @ coefficient_root.double()).square().sum(1)
