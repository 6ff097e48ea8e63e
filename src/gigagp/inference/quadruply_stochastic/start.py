"""Where a fit starts: the basis, and weights near their optimum."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.bases import (
    Basis,
    FourierBasis,
    GridEigenfunctions,
    InducingBasis,
    RadialBasis,
    ReorderedBasis,
)
from gigagp.inference.quadruply_stochastic.bases.inducing import random_points
from gigagp.inference.quadruply_stochastic.bases.reordered import most_informed
from gigagp.inference.quadruply_stochastic.estimators.sampling import sample_indices
from gigagp.inference.quadruply_stochastic.options import WeightOptions
from gigagp.inference.quadruply_stochastic.problem import WeightProblem
from gigagp.inference.quadruply_stochastic.subset_posterior import Subset, start_at_posterior
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.model.model import Model

#: Rows that the start of the diagonal is computed from, the entries of their features beyond which there are fewer
#: rows, and the fewest rows.
_START_ROWS, _START_ENTRIES, _LEAST_ROWS = 64, 2**26, 8
#: Functions in a block of a pass over all of them.
_WIDTH = 4096


def make_basis(options: WeightOptions, model: Model, table: TrainingTable, generator: torch.Generator) -> Basis:
    """Return the basis at a model's hyperparameters."""
    basis = _plain_basis(options, model, table, generator)
    if options.order == "given" or not options.n_columns:
        return basis
    return ReorderedBasis(basis, most_informed(basis, table.X, min(options.n_columns, basis.size), generator))


def _plain_basis(options: WeightOptions, model: Model, table: TrainingTable, generator: torch.Generator) -> Basis:
    kernel, most = model.kernel, options.n_functions
    if options.learns_precision:
        return RadialBasis(kernel, random_points(table.X, most, generator))
    if options.basis == "inducing":
        return InducingBasis(kernel, random_points(table.X, most, generator))
    if options.basis == "grid":
        return GridEigenfunctions.leading(kernel, table.X, most)
    return FourierBasis.fitting(kernel, most, int(torch.randint(2**62, (), generator=generator)))


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
    of the size that ``1 / S_ii`` suggests would move the function by many standard deviations.

    Parameters
    ----------
    basis : Basis
    X : Tensor of shape (n, d)
        Training rows; a few of them are used.
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
    """Return weights at the posterior of some rows, and these rows; otherwise weights with a mean of zero, and None.

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
    weights = Weights(like.new_zeros(m, table.n_targets), (-0.5 * (curvature * gram + prior).log()).to(like))
    if k:
        weights.columns = like.new_zeros(m, min(k, m))
    if options.learns_precision:
        weights.log_precision = prior.log().to(like)
    if not starts_known(options):
        return weights, None
    return weights, start_at_posterior(problem, basis, model, prior, generator, weights)
