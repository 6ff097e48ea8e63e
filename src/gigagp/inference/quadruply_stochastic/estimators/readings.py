"""Lower bounds of an expected log-likelihood from sampled basis functions (Evans and Nair 2020, Theorem 3).

With weights ``w ~ N(mu, C C')`` the latent value at a row is ``N(phi mu, phi C C' phi')``. Its mean and its spread are
estimated from sampled functions. Since log g is concave, an argument that is *linear* in the sampled quantities makes
the expectation a lower bound (Jensen). The paper multiplies the standard normal variable by an estimate of the variance
where it means the standard deviation (eq. 5 and Theorem 3). There are three ways to read it:

``"sqrt"``
    The root of an unbiased, non-negative estimate of the variance. It adds next to no error at any number of functions,
    and none for a Gaussian likelihood. It is not a certain bound: ``v -> E log g(a + z sqrt(v))`` can be convex.
``"linear"``
    The norm of an unbiased estimate of the vector ``C' phi``. The latent value is then linear in the sample, so this is
    a certain bound. It inflates the spread by the root of the number of functions over the number of sampled functions.
``"as_printed"``
    The estimate of the variance itself, to reproduce the paper. It is a bound of the printed right-hand side, not of
    the likelihood.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import Origin, apart_products
from gigagp.model.likelihoods import NODES, Likelihood

#: A reading of Theorem 3.
BoundForm = Literal["sqrt", "linear", "as_printed"]


def latent_functions(features: Tensor, vectors: Tensor, sample: BasisSample, origin: Origin | None = None) -> Tensor:
    """Return unbiased estimates of ``phi v`` for vectors v of weights, shape (rows, q)."""
    apart = apart_products(features, vectors, origin, sample.linear)
    return apart if origin is None else origin.fitted + apart


def latent_spread(
    features: Tensor,
    log_scale: Tensor,
    columns: Tensor,
    sample: BasisSample,
    form: BoundForm,
    origin: Origin | None = None,
) -> Tensor:
    """Return the factor of the standard normal variable in the latent value, shape (rows,).

    ``log_scale`` (w,) has the logarithms of the root's diagonal, and ``columns`` (w, k) the touched part of the dense
    columns that the step sees, diagonal included. ``origin`` has dense columns whose functions are known.
    """
    k, weights = sample.n_head, sample.linear[sample.n_head :]
    dense = latent_functions(features, columns, sample.for_columns(), origin)
    of_columns = 1.0 if sample.columns is None else sample.columns.weight
    if form == "linear":
        entries = features[:, k:] * (weights * log_scale[k:].exp()).to(features)
        squared = entries.square().sum(1)
        of_columns **= 2
    else:
        squared = features[:, k:].square() @ (weights * (2 * log_scale[k:]).exp()).to(features)
    squared = squared + of_columns * dense.square().sum(1)
    if form == "as_printed":
        return squared
    # The root's slope at zero is infinite. No variance that matters is as small as this.
    return squared.clamp_min(torch.finfo(squared.dtype).tiny ** 0.5).sqrt()


def expected_log_likelihood(
    likelihood: Likelihood,
    targets: Tensor,
    latent: Tensor,
    spread: Tensor,
    noise: Tensor,
    factor: float,
    nodes: int = NODES,
) -> Tensor:
    """Return the estimate of the expected log-likelihood of all rows, a scalar.

    ``spread`` and ``noise`` have the shape (rows,). ``factor`` is the number of all rows over that of the sampled ones.
    """
    found = likelihood.expected_log_density(targets, latent, spread[:, None], noise[:, None], nodes)
    return factor * found.sum()


def divergence_from_parts(
    mean_part: Tensor, root_part: Tensor, log_determinant: Tensor, log_precision: Tensor, n_basis: int
) -> Tensor:
    """Return the divergence from the prior, ``[mu'S mu + tr(S Sigma) - log|Sigma| - log|S| - m] / 2``.

    The arguments are its terms in that order, each for all targets.
    """
    return 0.5 * (mean_part + root_part - log_determinant - log_precision - n_basis)
