"""The posterior of some rows, where ascent of the weights starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gigagp.bases import Basis, InducingBasis, ReorderedBasis
from gigagp.dense import cholesky
from gigagp.inference.quadruply_stochastic.latent import best_latent, curved_solve, learned_basis
from gigagp.inference.quadruply_stochastic.sampling import sample_indices
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.inference.trend import estimate_trend
from gigagp.likelihoods import Gaussian
from gigagp.memory import require
from gigagp.model import Model

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Most rows, the most for other than Gaussian likelihoods, which take Newton's steps, and the most multiplications,
#: ``rows^2 m``.
_ROWS, _LATENT_ROWS, _WORK = 4096, 2000, 2**41
#: Most rows that say what the mean's coefficients are, where weights start at zero.
_TREND_ROWS = 1000
#: Square arrays of that size, float64, that are alive at once, and the share of the memory budget that they may take.
_SQUARES, _SHARE = 6, 8
#: Functions that are looked at together.
_WIDTH = 4096
#: Rows that say how long the dense columns are.
_LENGTH_ROWS = 1024
#: What is added to the covariance of the first weights, as a share of their prior's: it is a difference.
_JITTER = 1e-10


class Subset(NamedTuple):
    """Rows whose posterior is known.

    Attributes
    ----------
    rows : Tensor of shape (r,), int64
    curvature : Tensor of shape (r,)
        Of their log-likelihood, float64: the covariance of f there is ``(G^-1 + W)^-1``.
    coefficients : Tensor of shape (p, t)
        Of the mean's basis: the best ones for these rows.
    """

    rows: Tensor
    curvature: Tensor
    coefficients: Tensor


@torch.no_grad()
def start_at_posterior(
    objective: QuadruplyStochasticObjective, model: Model, prior: Tensor, generator: torch.Generator, weights: Weights
) -> Subset:
    """Put mean and dense columns where random rows have them, in place, and return the rows.

    Parameters
    ----------
    objective : QuadruplyStochasticObjective
    model : Model
    prior : Tensor of shape (m,)
        Diagonal of S, float64.
    generator : torch.Generator
        Draws the rows.
    weights : Weights

    Raises
    ------
    MemoryBudgetError
        If more rows were asked for than fit.
    """
    if objective.basis.has_diagonal_prior:
        return _start_functions(objective, model, prior, generator, weights)
    return _start_points(objective, model, generator, weights)


def _count(objective: QuadruplyStochasticObjective, work: int) -> int:
    """Return of how many rows the posterior is: as many as settings, memory and ``work`` (``rows^2 work``) allow."""
    settings, table = objective.settings, objective.table
    most = settings.start_rows
    if most is None:
        gaussian = isinstance(objective.likelihood, Gaussian)
        most = min(_ROWS if gaussian else _LATENT_ROWS, math.isqrt(_WORK // work))
        most = min(most, math.isqrt(table.budget // (8 * _SQUARES * _SHARE)))
    count = min(most, table.n_rows)
    require(8 * _SQUARES * count**2, table.budget, f"The posterior of {count:,} rows", "Use fewer start_rows.")
    return count


@torch.no_grad()
def trend_subset(
    objective: QuadruplyStochasticObjective, model: Model, generator: torch.Generator, start: Subset | None
) -> Subset:
    """Return the rows that the mean's coefficients come from: those of the start, or more where these are too few."""
    table = objective.table
    most = min(_TREND_ROWS, math.isqrt(table.budget // (8 * _SQUARES * _SHARE)), table.n_rows)
    if start is not None and len(start.rows) >= most:
        return start
    rows = sample_indices(table.n_rows, most, generator).to(table.X.device)
    X = table.X[rows].double()
    return _dual(objective, model, rows, model.kernel.block(X, X))[1]


def _dual(objective: QuadruplyStochasticObjective, model: Model, rows: Tensor, gram: Tensor) -> tuple[Tensor, Subset]:
    """Return alpha, (rows, t), with which f is ``G alpha`` beside the trend, and what else is known of the rows."""
    table, likelihood = objective.table, objective.likelihood
    X, targets = table.X[rows], table.Y[rows].double()
    basis = learned_basis(table, likelihood)[rows]
    noise = objective.noise(model, rows, X).double()
    if isinstance(likelihood, Gaussian):
        solved = curved_solve(gram, 1 / noise, torch.cat([targets, basis], 1))
        of_targets, of_basis = solved[:, : targets.shape[1]], solved[:, targets.shape[1] :]
        coefficients = estimate_trend(basis, targets, of_basis).coefficients
        return of_targets - of_basis @ coefficients, Subset(rows, 1 / noise, coefficients)
    best = best_latent(gram, basis, noise, targets, likelihood, objective.settings.quadrature_nodes)
    return best.alpha, Subset(rows, best.curvature, best.coefficients)


# Inducing points -----------------------------------------------------------------------------------------------------


def _start_points(
    objective: QuadruplyStochasticObjective, model: Model, generator: torch.Generator, weights: Weights
) -> Subset:
    """Put the mean where some of the points have it, as rows: their weights are alpha, the others have none.

    Dense columns stay: theirs would need the inverse of all of S.
    """
    basis = objective.basis
    count = min(_count(objective, 1), basis.size)
    some = sample_indices(basis.size, count, generator).to(weights.mean.device)
    rows = _rows_at(objective.table.X, _points(basis, some))
    alpha, subset = _dual(objective, model, rows, basis.prior_block(some, some))
    weights.mean[some] = alpha.to(weights.mean)
    return subset


def _points(basis: Basis, index: Tensor) -> Tensor:
    if isinstance(basis, ReorderedBasis):
        return _points(basis.basis, basis.original(index))
    assert isinstance(basis, InducingBasis)
    return basis.points[index]


def _rows_at(X: Tensor, points: Tensor) -> Tensor:
    """Return the first row at each of some points that are rows."""
    n = len(X)
    distinct, place = torch.unique(torch.cat([X, points]), dim=0, return_inverse=True)
    first = place.new_full((len(distinct),), n)
    first = first.scatter_reduce(0, place[:n], torch.arange(n, device=X.device), "amin")
    return first[place[n:]]


# Functions with independent weights ----------------------------------------------------------------------------------


def _start_functions(
    objective: QuadruplyStochasticObjective, model: Model, prior: Tensor, generator: torch.Generator, weights: Weights
) -> Subset:
    """Put the mean at ``S^-1 Phi' alpha`` with alpha from ``G = Phi S^-1 Phi'``, and dense columns likewise.

    At a small noise the kernel's own matrix in the place of G is not good enough: alpha is large then, and G's
    difference, one over the root of m, counts.
    """
    basis, table = objective.basis, objective.table
    count = _count(objective, basis.size)
    rows = sample_indices(table.n_rows, count, generator).to(prior.device)
    X = table.X[rows]
    gram = torch.zeros(count, count, dtype=torch.float64, device=prior.device)
    for index in basis.blocks(_WIDTH, prior.device):
        features = basis.columns(X, index)
        gram += (features / prior[index].to(features)) @ features.T
    alpha, subset = _dual(objective, model, rows, gram)
    for index in basis.blocks(_WIDTH, prior.device):
        weights.mean[index] = _back(basis, X, index, prior, alpha)
    if weights.columns is None:
        return subset
    # for the columns, each of the rows stands for as many as it was drawn from
    _start_columns(basis, X, gram, subset.curvature * (objective.n_rows / count), prior, weights)
    if count < table.n_rows:
        others = sample_indices(table.n_rows, min(_LENGTH_ROWS, table.n_rows), generator).to(prior.device)
        at_others = subset.curvature.mean().expand(len(others))
        if isinstance(objective.likelihood, Gaussian):
            at_others = 1 / objective.noise(model, others, table.X[others]).double()
        _adjust_lengths(basis, table.X[others], at_others * (objective.n_rows / len(others)), prior, weights)
    return subset


def _back(basis: Basis, X: Tensor, index: Tensor, prior: Tensor, values: Tensor) -> Tensor:
    """Return ``S^-1 Phi' values`` at some functions."""
    return basis.columns(X, index).T @ values.to(X) / prior[index, None].to(X)


def _start_columns(basis: Basis, X: Tensor, gram: Tensor, curvature: Tensor, prior: Tensor, weights: Weights) -> None:
    """Put dense columns where rows with these curvatures have them: the first ones of a factor of Sigma.

    ``Sigma = S^-1 - S^-1 Phi' (G + W^-1)^-1 Phi S^-1``; its first columns, times the inverse of a factor of their first
    rows, are those of its factor.
    """
    assert weights.columns is not None
    head = torch.arange(weights.n_columns, device=prior.device)
    scaled = basis.columns(X, head).double() / prior[head]
    solved = curved_solve(gram, curvature, scaled)
    of_head = torch.diag((1 + _JITTER) / prior[head]) - scaled.T @ solved
    factor = cholesky(of_head, "the covariance of the first weights")
    beta = -torch.linalg.solve_triangular(factor, solved.T, upper=False).T
    for index in basis.blocks(_WIDTH, prior.device):
        weights.columns[index] = _back(basis, X, index, prior, beta)
    weights.columns[head] = factor.tril(-1).to(X)
    weights.log_scale[head] = factor.diagonal().log().to(X)


def _adjust_lengths(basis: Basis, X: Tensor, curvature: Tensor, prior: Tensor, weights: Weights) -> None:
    """Make dense columns as long as is best, ``c' (Phi' W Phi + S) c = 1``, which rows that they have not seen decide.

    A column that has vanished at the rows of the start is not quite nothing at others. O(rows m k).
    """
    functions = X.new_zeros(len(X), weights.n_columns, dtype=torch.float64)
    squares = functions.new_zeros(weights.n_columns)
    for index in basis.blocks(_WIDTH, X.device):
        root = weights.root_rows(index)
        functions += (basis.columns(X, index) @ root).double()
        squares += prior[index] @ root.double().square()
    lengths = (curvature @ functions.square() + squares).sqrt()
    assert weights.columns is not None
    weights.columns /= lengths.to(weights.columns)
    weights.log_scale[: weights.n_columns] -= lengths.log().to(weights.log_scale)
