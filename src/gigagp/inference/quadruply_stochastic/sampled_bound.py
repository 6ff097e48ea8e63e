"""The evidence lower bound on one sample of rows and functions, which a step of ascent climbs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.controls import Controls
from gigagp.inference.quadruply_stochastic.estimators.readings import (
    BoundForm,
    divergence_from_parts,
    expected_log_likelihood,
    latent_functions,
    latent_spread,
)
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import (
    Origin,
    Prior,
    SampledRows,
    column_terms,
    constant_term,
    diagonal_terms,
    mean_term,
    prior_term,
)
from gigagp.inference.quadruply_stochastic.weights import touched_root
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model


class Drawn(NamedTuple):
    """One sample of rows and functions, with everything that the bound on it needs.

    Attributes
    ----------
    rows : SampledRows
    sample : BasisSample
        Of w functions, and of s dense columns.
    basis : Basis
    diagonal : Tensor of shape (w,)
        Diagonal of the prior precision.
    mean, log_scale, columns : Tensor of shape (w, t), (w,), and (w, s) or None
        The touched entries of the weights' arrays; see `Weights`.
    of_mean, of_columns : Origin or None
        What the anchor knows of the mean and of the columns.
    """

    rows: SampledRows
    sample: BasisSample
    basis: Basis
    diagonal: Tensor
    mean: Tensor
    log_scale: Tensor
    columns: Tensor | None
    of_mean: Origin | None = None
    of_columns: Origin | None = None

    @property
    def n_targets(self) -> int:
        """Number of targets, t."""
        return self.mean.shape[1]

    @property
    def root(self) -> Tensor:
        """The touched part of the dense columns, shape (w, s), diagonal included."""
        seen = None if self.sample.columns is None else self.sample.columns.slice
        return touched_root(self.log_scale, self.columns, self.sample.index, seen)

    @property
    def log_scale_of_columns(self) -> Tensor:
        """The sum of the logarithms of the dense columns' diagonal entries, or its estimate."""
        return self.sample.sum_of_columns(self.log_scale[self.sample.places])

    def prior(self, sample: BasisSample) -> Prior:
        """Return the prior precision as the estimators take it."""
        if self.basis.has_diagonal_prior:
            return self.diagonal
        # weights that differ from column to column: a function counts where any of them does
        of_functions = (one if one.ndim == 1 else one.sum(1) for one in (sample.left, sample.right))
        left, right = (weights.nonzero()[:, 0] for weights in of_functions)
        block = self.basis.prior_block(sample.index[left], sample.index[right]).to(self.diagonal)
        return lambda a, b: (a[left] * (block @ b[right])).sum(0)

    def prior_of_mean(self) -> Tensor:
        """Return the estimate of the mean's prior term, all targets."""
        return prior_term(self.mean, self.sample, self.prior(self.sample), self.of_mean).sum()


def gaussian_bound(drawn: Drawn, controls: Controls, model: Model, *, of_root: bool) -> Tensor:
    """Return the estimate of eq. 2: Theorems 1 and 2 with control variates, and Proposition 2.

    Parameters
    ----------
    drawn : Drawn
    controls : Controls
    model : Model
    of_root : bool
        Whether the covariance of the weights is part of the estimate.
    """
    rows, sample, t, k = drawn.rows, drawn.sample, drawn.n_targets, drawn.sample.n_head
    if drawn.of_mean is not None:
        rows = rows._replace(targets=rows.targets - drawn.of_mean.fitted)
    of_mean = mean_term(rows, drawn.mean, sample, drawn.prior(sample), origin=drawn.of_mean)
    total = controls.mean(of_mean, model, drawn.mean, sample, drawn.of_mean)
    if of_root:
        tail = SampledRows(rows.features[:, k:], *rows[1:])
        spread = sample.linear[k:] @ diagonal_terms(tail, drawn.log_scale[k:], drawn.diagonal[k:])
        if k:
            root, seen = drawn.root, sample.for_columns()
            dense = seen.sum_of_columns(column_terms(rows, root, seen, drawn.prior(seen), origin=drawn.of_columns))
            dense = controls.columns(dense, model, root, seen, drawn.of_columns)
            spread = spread + dense - 2 * drawn.log_scale_of_columns
        total = total + t * spread
    # A dense prior does not change, so its determinant is left out.
    determinant = drawn.diagonal.log() if drawn.basis.has_diagonal_prior else None
    return -0.5 * (total + constant_term(rows, determinant, sample, drawn.basis.size))


def latent_bound(drawn: Drawn, likelihood: Likelihood, form: BoundForm, nodes: int) -> Tensor:
    """Return the estimate for a likelihood that is not Gaussian: Theorem 3, and a sampled divergence from the prior."""
    rows, sample, t, k = drawn.rows, drawn.sample, drawn.n_targets, drawn.sample.n_head
    root, log_scale = drawn.root, drawn.log_scale
    latent = latent_functions(rows.features, drawn.mean, sample, drawn.of_mean)
    spread = latent_spread(rows.features, log_scale, root, sample, form, drawn.of_columns)
    fit = expected_log_likelihood(likelihood, rows.targets, latent, spread, rows.noise, rows.factor, nodes)
    weights = sample.linear[k:]
    of_root = (weights * drawn.diagonal[k:] * (2 * log_scale[k:]).exp()).sum()
    if k:
        seen = sample.for_columns()
        of_root = of_root + seen.sum_of_columns(prior_term(root, seen, drawn.prior(seen), drawn.of_columns))
    log_determinant = 2 * (drawn.log_scale_of_columns + (weights * log_scale[k:]).sum())
    log_precision = drawn.mean.new_zeros(())
    if drawn.basis.has_diagonal_prior:
        log_precision = (sample.linear * drawn.diagonal.log()).sum()
    of_mean, m = drawn.prior_of_mean(), drawn.basis.size
    return fit - divergence_from_parts(of_mean, t * of_root, t * log_determinant, t * log_precision, t * m)


def bound_of_mean(drawn: Drawn, likelihood: Likelihood, spread: Tensor, of_covariance: float, nodes: int) -> Tensor:
    """Return the estimate under a known covariance of the latent function.

    Parameters
    ----------
    drawn : Drawn
    likelihood : Likelihood
    spread : Tensor of shape (rows,)
        Standard deviations of the latent values.
    of_covariance : float
        The covariance's part of the divergence from the prior, for one target.
    nodes : int
        Of the quadrature.
    """
    rows = drawn.rows
    latent = latent_functions(rows.features, drawn.mean, drawn.sample, drawn.of_mean)
    fit = expected_log_likelihood(likelihood, rows.targets, latent, spread, rows.noise, rows.factor, nodes)
    return fit - 0.5 * drawn.prior_of_mean() - drawn.n_targets * of_covariance
