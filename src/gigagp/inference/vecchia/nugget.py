"""The independent part of latent values, without which smooth kernels have no inverse in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.neighbours.predictor import LocalPredictor

#: Shares of the prior variance, from the least that float64 allows. Rounding changes predictions by its ratio to the
#: nugget, and the nugget itself by its product with the information of a target: at 1e-11 smooth kernels lose digits to
#: the first, and at 1e-9 Matern kernels to the second. A larger one is taken where weights of the least are so
#: large that the errors of the approximation show, which happens beyond the rows of smooth kernels.
NUGGETS = (1e-10, 1e-8, 1e-6, 1e-4)
#: Prior variance of predictions, over the kernel's, above which weights are too large, and above which they are wrong.
TOO_MUCH, FAR_TOO_MUCH = 2.0, 4.0
#: Pairs of rows that `points_around` makes points of.
_PAIRS = 64


def points_around(X: Tensor) -> Tensor:
    """Return points between random pairs of rows (n, d) and beyond them, shape (128, d) for 64 rows or more."""
    generator = torch.Generator().manual_seed(8)
    one, other = (X[torch.randperm(len(X), generator=generator)[:_PAIRS].to(X.device)].double() for _ in range(2))
    return torch.cat([0.5 * (one + other), 2 * one - other])


def variance_ratio(kernel: Kernel, predictor: LocalPredictor, prior_root: Tensor, X: Tensor) -> float:
    """Return the largest prior variance that predictions at points X have, over that of the kernel.

    With as many neighbours as rows it is one, and with fewer about one. Above, the weights of a point multiply the
    difference between the covariance of the factor and that of the kernel.

    Parameters
    ----------
    kernel : Kernel
    predictor : LocalPredictor
    prior_root : Tensor of shape (n, r)
        Of the prior covariance that the factor has: exact, or draws.
    X : Tensor of shape (q, d)
    """
    spread, left = predictor.predict(X, prior_root)
    own = kernel.diagonal(X)
    ratio = (left + spread.square().sum(1)) / own
    return float(ratio[own > 0].max()) if bool((own > 0).any()) else 1.0
