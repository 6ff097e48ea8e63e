"""Unbiased estimators of the evidence lower bound of a Gaussian likelihood (Evans and Nair 2020, arXiv:2006.03015).

The bound is ``-(L_mu + L_Sigma + L_const) / 2`` (eq. 2). Every function below estimates one of the three terms from
sampled rows and sampled basis functions. With all rows and all weights equal to one it returns the term itself. Rows
are sampled once. The three samples of basis functions are the two sets of weights of a `BasisSample` and its columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample

#: The prior precision S of the touched functions: its diagonal, or for a dense S the function ``(a, b) -> a' S b`` of
#: two matrices of weights, column by column.
Prior = Tensor | Callable[[Tensor, Tensor], Tensor]


class Origin(NamedTuple):
    """Vectors of weights whose functions are known at the rows, so that only the difference from them is sampled."""

    #: the touched part of the weights, shape (w, q)
    vectors: Tensor
    #: their functions at the rows, shape (rows, q)
    fitted: Tensor
    #: the touched basis functions at the hyperparameters that ``fitted`` was computed with, shape (rows, w); None: the
    #: hyperparameters have not changed since, and no derivative by them is taken
    features: Tensor | None = None
    #: with a dense prior precision S, the touched part of its product with the vectors, shape (w, q)
    images: Tensor | None = None
    #: ``v' S v`` of every vector
    squares: Tensor | None = None


class SampledRows(NamedTuple):
    """The rows that a step has sampled."""

    #: the touched functions at the rows, shape (rows, w)
    features: Tensor
    #: shape (rows, t)
    targets: Tensor
    #: noise variances
    noise: Tensor
    #: all rows over the sampled ones
    factor: float

    @property
    def weights(self) -> Tensor:
        """Weights, noise included, that turn a sum over the sampled rows into an estimate of that over all rows."""
        return self.factor / self.noise


def weighted(weights: Tensor, vectors: Tensor) -> Tensor:
    """Return vectors (w, q) times weights of the functions, shape (w,), or (w, q) with weights for every vector."""
    return (weights[:, None] if weights.ndim == 1 else weights) * vectors


def weighted_products(features: Tensor, vectors: Tensor, *weights: Tensor) -> Tensor:
    """Return ``features @ (w * vectors)`` for several weights w of the functions, side by side, from one product."""
    return features @ torch.cat([weighted(one, vectors) for one in weights], 1).to(features)


def apart_products(features: Tensor, vectors: Tensor, origin: Origin | None, *weights: Tensor) -> Tensor:
    """Return `weighted_products` of the vectors less those of an origin."""
    if origin is None:
        return weighted_products(features, vectors, *weights)
    if origin.features is None:
        return weighted_products(features, vectors - origin.vectors, *weights)
    known = weighted_products(origin.features, origin.vectors, *weights)
    return weighted_products(features, vectors, *weights) - known


def both_products(
    features: Tensor, vectors: Tensor, sample: BasisSample, origin: Origin | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``features @ (left * vectors)`` and ``features @ (right * vectors)``, less those of an origin."""
    found = apart_products(features, vectors, origin, sample.left, sample.right)
    return found[:, : vectors.shape[1]], found[:, vectors.shape[1] :]


def prior_term(vectors: Tensor, sample: BasisSample, prior: Prior, origin: Origin | None = None) -> Tensor:
    """Return estimates of ``v' S v`` for every column, shape (columns,).

    With a diagonal S this is a single sum, and the mean of both samples estimates it. The general form, a product of
    two samples, would have many times the variance. With a dense S and an origin a, only the last term of ``a'Sa +
    2 (v - a)'Sa + (v - a)'S(v - a)`` needs both samples.
    """
    if isinstance(prior, Tensor):
        if sample.linear.ndim == 1:
            return (sample.linear * prior) @ vectors.square()
        return prior @ (sample.linear * vectors.square())
    if origin is None:
        return prior(weighted(sample.left, vectors), weighted(sample.right, vectors))
    assert origin.images is not None
    assert origin.squares is not None
    apart = vectors - origin.vectors
    known = origin.squares + 2 * (weighted(sample.linear, origin.images) * apart).sum(0)
    return known + prior(weighted(sample.left, apart), weighted(sample.right, apart))


def mean_term(
    rows: SampledRows,
    mean: Tensor,
    sample: BasisSample,
    prior: Prior,
    *,
    origin: Origin | None = None,
    symmetric: bool = True,
) -> Tensor:
    """Return an unbiased estimate of ``L_mu`` (Theorem 1), summed over targets.

    With an origin, the targets of ``rows`` must be the residuals of its function, here and in `constant_term`.
    ``symmetric=False`` takes the linear part from the first sample alone, as printed. From both samples it has less
    variance, because together with the squared targets it makes a product of two independent residuals.
    """
    first, second = both_products(rows.features, mean, sample, origin)
    linear = 0.5 * (first + second) if symmetric else first
    per_row = (first * second - 2 * rows.targets * linear).sum(1)
    return (rows.weights * per_row).sum() + prior_term(mean, sample, prior, origin).sum()


def column_terms(
    rows: SampledRows, columns: Tensor, sample: BasisSample, prior: Prior, *, origin: Origin | None = None
) -> Tensor:
    """Return, for each column c of the root, an estimate of ``c' (Phi' N^-1 Phi + S) c`` (Theorem 2 without logarithm).

    ``sample`` is as the columns see it (`BasisSample.for_columns`). The caller subtracts ``2 log c_rr`` and sums over
    the columns with `BasisSample.sum_of_columns`.
    """
    first, second = both_products(rows.features, columns, sample, origin)
    if origin is not None:
        first, second = origin.fitted + first, origin.fitted + second
    return rows.weights @ (first * second) + prior_term(columns, sample, prior, origin)


def diagonal_terms(rows: SampledRows, log_scale: Tensor, prior_diagonal: Tensor) -> Tensor:
    """Return ``c^2 (phi' N^-1 phi + s) - 2 log c`` for columns with a single entry c, on the diagonal, shape (w,).

    These need no sample of the basis. ``rows`` has the features of the functions of these columns alone.
    """
    gram = rows.weights @ rows.features.square()
    return (2 * log_scale).exp() * (gram + prior_diagonal) - 2 * log_scale


def constant_term(rows: SampledRows, log_precision: Tensor | None, sample: BasisSample, n_basis: int) -> Tensor:
    """Return an unbiased estimate of ``L_const`` (Proposition 2), for all targets.

    ``log_precision`` (w,) has the logarithms of the diagonal of S. None stands for a dense S, which does not change, so
    that its determinant is left out.
    """
    t = rows.targets.shape[1]
    per_row = t * (2 * math.pi * rows.noise).log() + rows.targets.square().sum(1) / rows.noise
    determinant = 0.0 if log_precision is None else (sample.linear * log_precision).sum()
    return rows.factor * per_row.sum() - t * (determinant + n_basis)
