"""Where a fit starts: weights near their optimum, at the posterior of some rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.trend import estimate_trend
from gigagp.inference.quadruply_stochastic.bases import Basis, InducingBasis
from gigagp.inference.quadruply_stochastic.estimators.sampling import sample_indices
from gigagp.inference.quadruply_stochastic.expectation import warn_of_missed
from gigagp.inference.quadruply_stochastic.latent import best_latent, curved_solve, learned_basis
from gigagp.inference.quadruply_stochastic.options import WeightOptions, WeightProblem
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.model.model import Model
from gigagp.products.dense import cholesky
from gigagp.runtime.memory import require

#: Rows that the start of the diagonal is computed from, the entries of their features beyond which there are fewer
#: rows, and the fewest rows.
_START_ROWS, _START_ENTRIES, _LEAST_ROWS = 64, 2**26, 8
#: Most rows for a Gaussian likelihood, most rows for the others, which take Newton steps, and most multiplications,
#: ``rows^2 m``.
_ROWS, _LATENT_ROWS, _WORK = 4096, 2000, 2**41
#: Most rows that the mean's coefficients are computed from where weights start at zero.
_TREND_ROWS = 1000
#: Square float64 arrays of that size that are alive at once, and the share of the memory budget that they may take.
_SQUARES, _SHARE = 6, 8
#: Functions in a block of a pass over all of them.
_WIDTH = 4096
#: Rows that the lengths of the dense columns are computed from.
_LENGTH_ROWS = 1024
#: Added to the covariance of the first weights, as a share of their prior's, because it is a difference.
_JITTER = 1e-10


def starts_known(options: WeightOptions) -> bool:
    """Whether weights start at the posterior of some rows, rather than at zero.

    Inducing points whose prior term is sampled start there only with an anchor, which knows that term exactly. Their
    functions are nearly dependent, so their weights at a posterior are large and of both signs, and a sample of them
    says nothing about the prior term.
    """
    known = options.anchor or options.sampled_functions >= options.n_functions
    return options.start_rows != 0 and (not options.has_dense_prior or known)


@torch.no_grad()
def unit_of_dependent_weights(basis: Basis, X: Tensor) -> float:
    """Return the size of independent weights whose function has the prior variance, in conditional prior deviations.

    It is 1 with a diagonal prior. Inducing points that lie close to each other have nearly the same functions: weights
    of the size that ``1 / S_ii`` suggests would move the function by many standard deviations. A few of the training
    rows ``X`` are used.
    """
    rows = sample_indices(len(X), min(_START_ROWS, len(X)), torch.Generator().manual_seed(basis.size))
    X = X[rows]
    squares = sum(
        float((basis.columns(X, index).double().square() / basis.prior_diagonal(index)).sum())
        for index in basis.blocks(_WIDTH, X.device)
    )
    return (float(basis.kernel.diagonal(X).double().sum()) / squares) ** 0.5


@torch.no_grad()
def start_weights(problem: WeightProblem, basis: Basis, model: Model) -> tuple[Weights, Subset | None]:
    """Return weights at the posterior of some rows, and these rows, or weights with a mean of zero, and None.

    The diagonal of the root is near its optimum, which Proposition 1 gives for a few rows.
    """
    table, options = problem.table, problem.options
    m, like, k = basis.size, table.X, options.n_columns or 0
    generator = torch.Generator().manual_seed(basis.size)
    count = min(_START_ROWS, max(_START_ENTRIES // m, _LEAST_ROWS), table.n_rows)
    rows = sample_indices(table.n_rows, count, generator).to(like.device)
    X = like[rows]
    noise = float(model.noise_of_rows(rows, X).mean())
    curvature = problem.likelihood.start_curvature(table.Y, noise) * problem.n_rows / len(rows)
    gram = torch.cat([basis.columns(X, index).double().square().sum(0) for index in basis.blocks(_WIDTH, like.device)])
    prior = torch.cat([basis.prior_diagonal(index) for index in basis.blocks(_WIDTH, like.device)])
    if options.learns_precision:
        # the prior variance of the function is then the kernel's own
        prior = torch.full_like(prior, float(gram.sum()) / len(rows) / float(model.kernel.diagonal(X).mean()))
    weights = Weights(
        like.new_zeros(m, table.n_targets),
        (-0.5 * (curvature * gram + prior).log()).to(like),
        like.new_zeros(m, min(k, m)) if k else None,
        prior.log().to(like) if options.learns_precision else None,
    )
    if not starts_known(options):
        return weights, None
    if basis.has_diagonal_prior:
        return weights, _start_functions(problem, basis, model, prior, generator, weights)
    return weights, _start_points(problem, basis, model, generator, weights)


# The posterior of some rows -------------------------------------------------------------------------------------------


class Subset(NamedTuple):
    """Rows whose posterior is known: the covariance of f there is ``(G^-1 + W)^-1``."""

    rows: Tensor
    #: diagonal of W, of their log-likelihood, float64
    curvature: Tensor
    #: the best coefficients of the mean's basis for these rows, shape (p, t)
    coefficients: Tensor

    def covariance(self, problem: WeightProblem, model: Model) -> RowsCovariance:
        """Return the covariance that the rows leave at a model; curvatures of a Gaussian follow the model's noise."""
        X, curvature = problem.table.X[self.rows], self.curvature
        if problem.is_gaussian:
            curvature = 1 / model.noise_of_rows(self.rows, X).detach().double()
        return RowsCovariance(model.kernel, X, curvature)


def rows_of_covariance(problem: WeightProblem, generator: torch.Generator) -> Tensor:
    """Return the rows that a covariance is given, as many as settings and memory allow: all of a small table."""
    return sample_indices(problem.n_rows, _count(problem, 1), generator).sort().values.to(problem.table.X.device)


def _count(problem: WeightProblem, work: int) -> int:
    """Return how many rows the start uses: as many as settings, memory and ``work`` (``rows^2 work``) allow."""
    table, most = problem.table, problem.options.start_rows
    if most is None:
        most = min(_ROWS if problem.is_gaussian else _LATENT_ROWS, math.isqrt(_WORK // work))
        most = min(most, math.isqrt(table.budget // (8 * _SQUARES * _SHARE)))
    count = min(most, table.n_rows)
    require(8 * _SQUARES * count**2, table.budget, f"The posterior of {count:,} rows", "Use fewer start_rows.")
    return count


@torch.no_grad()
def trend_subset(problem: WeightProblem, model: Model, generator: torch.Generator, start: Subset | None) -> Subset:
    """Return the rows that the mean's coefficients come from: those of the start, or more where these are too few.

    All other rows would need weights that are not learned yet. The coefficients' variance is that of these rows alone,
    so it accounts for the rows that are left out.
    """
    table = problem.table
    most = min(_TREND_ROWS, math.isqrt(table.budget // (8 * _SQUARES * _SHARE)), table.n_rows)
    if start is not None and len(start.rows) >= most:
        return start
    rows = sample_indices(table.n_rows, most, generator).to(table.X.device)
    X = table.X[rows].double()
    return _dual(problem, model, rows, model.kernel.block(X, X))[1]


def _dual(problem: WeightProblem, model: Model, rows: Tensor, gram: Tensor) -> tuple[Tensor, Subset]:
    """Return alpha (r, t), for which f is ``G alpha`` beside the trend, and the rows with their curvatures."""
    table, likelihood = problem.table, problem.likelihood
    X, targets = table.X[rows], table.Y[rows].double()
    basis = learned_basis(table, likelihood)[rows]
    noise = model.noise_of_rows(rows, X).double()
    if problem.is_gaussian:
        solved = curved_solve(gram, 1 / noise, torch.cat([targets, basis], 1))
        of_targets, of_basis = solved[:, : targets.shape[1]], solved[:, targets.shape[1] :]
        coefficients = estimate_trend(basis, targets, of_basis).coefficients
        return of_targets - of_basis @ coefficients, Subset(rows, 1 / noise, coefficients)
    best = best_latent(gram, basis, noise, targets, likelihood, problem.options.quadrature_nodes)
    warn_of_missed(best.missed, targets.numel())  # the mean's coefficients and the covariance stay as they are here
    return best.alpha, Subset(rows, best.curvature, best.coefficients)


def _start_points(
    problem: WeightProblem, basis: Basis, model: Model, generator: torch.Generator, weights: Weights
) -> Subset:
    """Put the mean at the posterior of rows that are points: their weights are alpha, and the others stay zero.

    Dense columns stay as they are, because theirs would need the inverse of all of S.
    """
    count = min(_count(problem, 1), basis.size)
    some = sample_indices(basis.size, count, generator).to(weights.mean.device)
    assert isinstance(basis, InducingBasis)
    rows = _rows_at(problem.table.X, basis.points[some])
    alpha, subset = _dual(problem, model, rows, basis.prior_block(some, some))
    weights.mean[some] = alpha.to(weights.mean)
    return subset


def _rows_at(X: Tensor, points: Tensor) -> Tensor:
    """Return the first row at each of some points that are rows."""
    n = len(X)
    distinct, place = torch.unique(torch.cat([X, points]), dim=0, return_inverse=True)
    first = place.new_full((len(distinct),), n)
    first = first.scatter_reduce(0, place[:n], torch.arange(n, device=X.device), "amin")
    return first[place[n:]]


def _start_functions(
    problem: WeightProblem, basis: Basis, model: Model, prior: Tensor, generator: torch.Generator, weights: Weights
) -> Subset:
    """Put the mean at ``S^-1 Phi' alpha`` with alpha from ``G = Phi S^-1 Phi'``, and dense columns likewise.

    The kernel's own matrix is no substitute for G where the noise is small: alpha is large then, and the matrix differs
    from G by about one over the root of m.
    """
    table = problem.table
    count = _count(problem, basis.size)
    rows = sample_indices(table.n_rows, count, generator).to(prior.device)
    X = table.X[rows]
    gram = torch.zeros(count, count, dtype=torch.float64, device=prior.device)
    for index in basis.blocks(_WIDTH, prior.device):
        features = basis.columns(X, index)
        gram += (features / prior[index].to(features)) @ features.T
    alpha, subset = _dual(problem, model, rows, gram)
    for index in basis.blocks(_WIDTH, prior.device):
        weights.mean[index] = _back(basis, X, index, prior, alpha)
    if weights.columns is None:
        return subset
    # for the columns, each of these rows counts as many times as there are rows for it
    _start_columns(basis, X, gram, subset.curvature * (problem.n_rows / count), prior, weights)
    if count < table.n_rows:
        others = sample_indices(table.n_rows, min(_LENGTH_ROWS, table.n_rows), generator).to(prior.device)
        at_others = subset.curvature.mean().expand(len(others))
        if problem.is_gaussian:
            at_others = 1 / model.noise_of_rows(others, table.X[others]).double()
        _adjust_lengths(basis, table.X[others], at_others * (problem.n_rows / len(others)), prior, weights)
    return subset


def _back(basis: Basis, X: Tensor, index: Tensor, prior: Tensor, values: Tensor) -> Tensor:
    """Return ``S^-1 Phi' values`` at some functions."""
    return basis.columns(X, index).T @ values.to(X) / prior[index, None].to(X)


def _start_columns(basis: Basis, X: Tensor, gram: Tensor, curvature: Tensor, prior: Tensor, weights: Weights) -> None:
    """Put dense columns at those of the posterior of rows with these curvatures: the first columns of Sigma's factor.

    ``Sigma = S^-1 - S^-1 Phi' (G + W^-1)^-1 Phi S^-1``. Its first columns, times the inverse of a factor of their first
    rows, are the first columns of its factor.
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
    """Scale dense columns to their best lengths, ``c' (Phi' W Phi + S) c = 1``, by rows that the start has not seen.

    A column whose function vanishes at the rows of the start does not vanish quite at other rows. O(rows m k).
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
