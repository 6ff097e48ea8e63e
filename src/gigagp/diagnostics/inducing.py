"""Distances of inducing points from the data, and predictions at inducing points (Wenger et al. 2024, S5.1)."""

from __future__ import annotations

import torch

from gigagp.inference.contract.posterior import Posterior
from gigagp.kernels import Kernel, StationaryKernel


def inducing_distance(kernel: Kernel, Z: torch.Tensor, X: torch.Tensor) -> float:
    """Return the mean distance of inducing points to the nearest row, in lengthscales (eq. S24).

    Points far from all rows carry no information about them; in many dimensions inducing points tend to end there.

    Parameters
    ----------
    kernel : Kernel
        Its first stationary part defines the lengthscales; without such a part, distances are not scaled.
    Z : Tensor of shape (m, d)
        Inducing points.
    X : Tensor of shape (n, d)
        Inputs of the rows.
    """
    bound = kernel.bind(X.shape[1])
    leaf = next((leaf for leaf in bound.leaves() if isinstance(leaf, StationaryKernel)), None)
    points, rows = (values if leaf is None else leaf.scale(values) for values in (Z.double(), X.double()))
    exact = "donot_use_mm_for_euclid_dist"  # norms and products would lose the digits of rows far from zero
    nearest = [torch.cdist(block, rows, compute_mode=exact).min(1).values for block in points.split(256)]
    return float(torch.cat(nearest).mean())


def latent_share(posterior: Posterior, X: torch.Tensor) -> float:
    """Return the mean share of the latent variance in the predictive variance (eq. S25).

    At the inducing points of a sparse model, it tends to zero where the data leave much undetermined, because the model
    then attributes this to noise.

    Parameters
    ----------
    posterior : Posterior
        Must have one noise variance.
    X : Tensor of shape (m, d)
        Inputs in the posterior's units.
    """
    variance = posterior.mean_and_variance(X)[1]
    return float((variance / (variance + posterior.model.noise_at(X))).mean())
