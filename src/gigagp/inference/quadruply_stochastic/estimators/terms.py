"""Unbiased estimators of the evidence lower bound of a Gaussian likelihood (Evans and Nair 2020, arXiv:2006.03015).

The bound is ``-(L_mu + L_Sigma + L_const) / 2`` (eq. 2). Every function below is one of the three terms on sampled rows
and sampled basis functions: with all rows, and weights that are all one, it is that term itself. Rows are sampled once;
the two sets of weights of a `BasisSample`, and the weights of columns, are the three samples of basis functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample

#: The prior precision: its diagonal on the touched functions, or a function of two vectors of weights on them,
#: ``(a, b) -> a' S b`` column by column, for a dense one.
Prior = Tensor | Callable[[Tensor, Tensor], Tensor]


class Origin(NamedTuple):
    """Vectors of weights whose functions are known at the rows: what is sampled is the difference from them.

    Attributes
    ----------
    vectors : Tensor of shape (w, q)
        The touched part of the weights.
    fitted : Tensor of shape (rows, q)
        Their functions.
    features : Tensor of shape (rows, w) or None
        The touched basis functions at the hyperparameters that the functions were computed with; None: these are those
        of now, which no derivative is taken by.
    images : Tensor of shape (w, q) or None
        With a dense prior precision S, the touched part of its product with the vectors.
    squares : Tensor of shape (q,) or None
        The vectors' ``v' S v``.
    """

    vectors: Tensor
    fitted: Tensor
    features: Tensor | None = None
    images: Tensor | None = None
    squares: Tensor | None = None


class SampledRows(NamedTuple):
    """What the sampled rows say.

    Attributes
    ----------
    features : Tensor of shape (rows, w)
        The touched functions at the rows.
    targets : Tensor of shape (rows, t)
    noise : Tensor of shape (rows,)
        Noise variances.
    factor : float
        All rows over the sampled ones.
    """

    features: Tensor
    targets: Tensor
    noise: Tensor
    factor: float

    @property
    def weights(self) -> Tensor:
        """Weights that turn a sum over the sampled rows into one over all rows, divided by the noise."""
        return self.factor / self.noise


def weighted_products(features: Tensor, vectors: Tensor, *weights: Tensor) -> Tensor:
    """Return ``features @ (w * vectors)`` for some weights w of functions side by side, from one matrix product."""
    return features @ torch.cat([one[:, None] * vectors for one in weights], 1).to(features)


def apart_products(features: Tensor, vectors: Tensor, origin: Origin | None, *weights: Tensor) -> Tensor:
    """Return `weighted_products` less those of an origin: what the functions of vectors are apart from its."""
    if origin is None:
        return weighted_products(features, vectors, *weights)
    if origin.features is None:
        return weighted_products(features, vectors - origin.vectors, *weights)
    known = weighted_products(origin.features, origin.vectors, *weights)
    return weighted_products(features, vectors, *weights) - known


def both_products(
    features: Tensor, vectors: Tensor, sample: BasisSample, origin: Origin | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``features @ (left * vectors)`` and the same with right, less those of an origin."""
    found = apart_products(features, vectors, origin, sample.left, sample.right)
    return found[:, : vectors.shape[1]], found[:, vectors.shape[1] :]


def prior_term(vectors: Tensor, sample: BasisSample, prior: Prior, origin: Origin | None = None) -> Tensor:
    """Return estimates of ``v' S v`` for every column, shape (columns,).

    A diagonal S is a single sum: the mean of both samples serves it (the generic form, with two, has many times its
    variance). Of a dense one only what is not known of an origin a needs both: ``a'Sa + 2 (v - a)'Sa +
    (v - a)'S(v - a)``.
    """
    if isinstance(prior, Tensor):
        return (sample.linear * prior) @ vectors.square()
    if origin is None:
        return prior(sample.left[:, None] * vectors, sample.right[:, None] * vectors)
    assert origin.images is not None
    assert origin.squares is not None
    apart = vectors - origin.vectors
    known = origin.squares + 2 * (sample.linear[:, None] * origin.images * apart).sum(0)
    return known + prior(sample.left[:, None] * apart, sample.right[:, None] * apart)


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

    With an origin the rows' targets are to be what its function leaves of them, here and in `constant_term`.

    Parameters
    ----------
    rows : SampledRows
    mean : Tensor of shape (w, t)
        The touched part of the variational mean.
    sample : BasisSample
    prior : Tensor of shape (w,) or callable
    origin : Origin or None
        What the targets are the residuals of.
    symmetric : bool
        False: the linear part from the first sample alone, as printed. True: from both, which has less variance: with
        the squares of the targets it makes a product of two independent residuals.
    """
    first, second = both_products(rows.features, mean, sample, origin)
    linear = 0.5 * (first + second) if symmetric else first
    per_row = (first * second - 2 * rows.targets * linear).sum(1)
    return (rows.weights * per_row).sum() + prior_term(mean, sample, prior, origin).sum()


def column_terms(
    rows: SampledRows, columns: Tensor, sample: BasisSample, prior: Prior, *, origin: Origin | None = None
) -> Tensor:
    """Return, for each column c of the root, an estimate of ``c' (Phi' N^-1 Phi + S) c`` (Theorem 2 without logarithm).

    Parameters
    ----------
    rows : SampledRows
    columns : Tensor of shape (w, k)
        The touched part of k columns of the root C.
    sample : BasisSample
    prior : Tensor or callable
    origin : Origin or None
        Columns whose functions are known.

    Returns
    -------
    Tensor of shape (k,)
        Weight it with the sample of columns (all ones where every column is there) after ``- 2 log c_rr``.
    """
    first, second = both_products(rows.features, columns, sample, origin)
    if origin is not None:
        first, second = origin.fitted + first, origin.fitted + second
    return rows.weights @ (first * second) + prior_term(columns, sample, prior, origin)


def diagonal_terms(rows: SampledRows, log_scale: Tensor, prior_diagonal: Tensor) -> Tensor:
    """Return the same for columns of a single entry c on the diagonal: one sum over rows, nothing of the basis.

    Parameters
    ----------
    rows : SampledRows
        With the features of these columns.
    log_scale : Tensor of shape (w,)
        log c.
    prior_diagonal : Tensor of shape (w,)

    Returns
    -------
    Tensor of shape (w,)
        ``c^2 (phi' N^-1 phi + s) - 2 log c``.
    """
    gram = rows.weights @ rows.features.square()
    return (2 * log_scale).exp() * (gram + prior_diagonal) - 2 * log_scale


def constant_term(rows: SampledRows, log_precision: Tensor | None, sample: BasisSample, n_basis: int) -> Tensor:
    """Return an unbiased estimate of ``L_const`` (Proposition 2), for all targets.

    Parameters
    ----------
    rows : SampledRows
    log_precision : Tensor of shape (w,) or None
        Logarithms of the diagonal of S; None: a dense S, which does not change and whose determinant is left out.
    sample : BasisSample
    n_basis : int
    """
    t = rows.targets.shape[1]
    per_row = t * (2 * math.pi * rows.noise).log() + rows.targets.square().sum(1) / rows.noise
    determinant = 0.0 if log_precision is None else (sample.linear * log_precision).sum()
    return rows.factor * per_row.sum() - t * (determinant + n_basis)
