"""Where inducing points lie, and what a model says there (Wenger et al. 2024, section S5.1)."""

from __future__ import annotations

import torch

from gigagp.inference.posterior import Posterior
from gigagp.kernels import Kernel, StationaryKernel


def inducing_distance(kernel: Kernel, Z: torch.Tensor, X: torch.Tensor) -> float:
    """Return the mean distance of inducing points to the nearest row, in lengthscales (eq. S24).

    Points far from all data say nothing about them; in many dimensions that is where they tend to go.

    Parameters
    ----------
    kernel : Kernel
        Its first stationary part sets the lengthscales; without one distances are plain.
    Z : Tensor of shape (m, d)
    X : Tensor of shape (n, d)
    """
    bound = kernel.bind(X.shape[1])
    leaf = next((leaf for leaf in bound.leaves() if isinstance(leaf, StationaryKernel)), None)
    points, rows = (values if leaf is None else leaf.scale(values) for values in (Z.double(), X.double()))
    nearest = [torch.cdist(block, rows).min(1).values for block in points.split(256)]
    return float(torch.cat(nearest).mean())


def latent_share(posterior: Posterior, X: torch.Tensor) -> float:
    """Return the mean share of the latent variance in the predictive one (eq. S25).

    At the inducing points of a sparse model it goes to zero where the data leave much open, which then counts as noise.

    Parameters
    ----------
    posterior : Posterior
        With one noise variance.
    X : Tensor of shape (m, d)
        In the posterior's units.
    """
    variance = posterior.mean_and_variance(X)[1]
    return float((variance / (variance + posterior.model.noise_at(X))).mean())
