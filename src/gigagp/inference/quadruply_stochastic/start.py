"""Where a fit of the weights starts: the basis, and numbers near to the optimum of the diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gigagp.bases import Basis, FourierBasis, GridEigenfunctions, InducingBasis, RadialBasis, ReorderedBasis
from gigagp.bases.inducing import random_points
from gigagp.bases.reordered import most_informed
from gigagp.inference.quadruply_stochastic.sampling import sample_indices
from gigagp.inference.quadruply_stochastic.settings import QuadruplyStochastic
from gigagp.inference.quadruply_stochastic.subset_posterior import Subset, start_at_posterior
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.inference.table import TrainingTable
from gigagp.memory import require
from gigagp.model import Model

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Rows that the start of the diagonal looks at, and the entries beyond which they become fewer, but not fewer than
#: these.
_START_ROWS, _START_ENTRIES, _LEAST_ROWS = 64, 2**26, 8
#: Functions that are looked at together where all of them are.
_WIDTH = 4096
#: Copies of the parameters: themselves, two averages of Adam, the best state, the anchor, the sums of the last steps.
_COPIES = 6
#: Arrays of the size of a step's features that are alive at once.
_STEP_COPIES = 5
#: Where all functions are used at once: arrays of their features, and square ones.
_WHOLE_FEATURES, _WHOLE_SQUARES = 6, 6


def require_weights(settings: QuadruplyStochastic, table: TrainingTable) -> None:
    """Raise `MemoryBudgetError` where so many weights or so large a step do not fit, before anything is allocated."""
    k, m = settings.n_columns or 0, settings.n_functions
    numbers = table.n_targets + 1 + k + settings.learns_precision
    itemsize = table.X.element_size()
    touched = min(2 * settings.sampled_functions + k, m)
    rows = min(settings.sampled_rows, table.n_rows) + min(settings.n_support, table.n_rows)
    needed = itemsize * (_COPIES * numbers * m + _STEP_COPIES * touched * rows)
    if settings.has_dense_prior:
        needed += 8 * _STEP_COPIES * min(settings.sampled_functions, m) ** 2
    remedy = "Use a smaller n_basis, n_columns, basis_batch or row_batch, or raise memory_budget."
    require(needed, table.budget, f"Inference with {m:,} basis functions", remedy)


def whole_bytes(settings: QuadruplyStochastic, table: TrainingTable) -> int:
    """Return the bytes of a step on all rows and functions: features with their derivatives, and square matrices."""
    m = settings.n_functions
    return 8 * (_WHOLE_FEATURES * table.n_rows * m + _WHOLE_SQUARES * m**2)


def make_basis(settings: QuadruplyStochastic, model: Model, table: TrainingTable, generator: torch.Generator) -> Basis:
    """Return the basis at a model's hyperparameters."""
    basis = _plain_basis(settings, model, table, generator)
    if settings.order == "given" or not settings.n_columns:
        return basis
    return ReorderedBasis(basis, most_informed(basis, table.X, min(settings.n_columns, basis.size), generator))


def _plain_basis(
    settings: QuadruplyStochastic, model: Model, table: TrainingTable, generator: torch.Generator
) -> Basis:
    kernel, most = model.kernel, settings.n_functions
    if settings.learns_precision:
        return RadialBasis(kernel, random_points(table.X, most, generator))
    if settings.basis == "inducing":
        return InducingBasis(kernel, random_points(table.X, most, generator))
    if settings.basis == "grid":
        return GridEigenfunctions.leading(kernel, table.X, most)
    return FourierBasis.fitting(kernel, most, int(torch.randint(2**62, (), generator=generator)))


def starts_known(objective: QuadruplyStochasticObjective) -> bool:
    """Whether weights start at the posterior of some rows, and not at zero.

    Inducing points whose prior term is sampled do where an anchor knows the term: functions that are nearly dependent
    have large weights of both signs at a posterior, and a sample of them would say nothing of it.
    """
    settings = objective.settings
    known = objective.has_anchors or settings.sampled_functions >= settings.n_functions
    return settings.start_rows != 0 and (not settings.has_dense_prior or known)


@torch.no_grad()
def unit_of_dependent_weights(objective: QuadruplyStochasticObjective) -> float:
    """Return the size of independent weights whose function has the prior variance, in conditional prior deviations.

    With a diagonal prior that is 1. Inducing points that lie close have functions that are nearly the same, and weights
    of the size that ``1 / S_ii`` suggests move it by many standard deviations.
    """
    basis, table = objective.basis, objective.table
    X = table.X[sample_indices(table.n_rows, min(_START_ROWS, table.n_rows), torch.Generator().manual_seed(basis.size))]
    squares = sum(
        float((basis.columns(X, index).double().square() / basis.prior_diagonal(index)).sum())
        for index in basis.blocks(_WIDTH, X.device)
    )
    return (float(basis.kernel.diagonal(X).double().sum()) / squares) ** 0.5


@torch.no_grad()
def start_weights(objective: QuadruplyStochasticObjective, model: Model) -> tuple[Weights, Subset | None]:
    """Return weights at some rows' posterior, a diagonal near its optimum (Prop. 1 with a few rows), and the rows."""
    basis, table, settings = objective.basis, objective.table, objective.settings
    m, like, k = basis.size, table.X, settings.n_columns or 0
    generator = torch.Generator().manual_seed(basis.size)
    count = min(_START_ROWS, max(_START_ENTRIES // m, _LEAST_ROWS), table.n_rows)
    rows = sample_indices(table.n_rows, count, generator).to(like.device)
    X = like[rows]
    noise = float(objective.noise(model, rows, X).mean())
    curvature = objective.likelihood.start_curvature(objective.targets, noise) * objective.n_rows / len(rows)
    gram = torch.cat([basis.columns(X, index).double().square().sum(0) for index in basis.blocks(_WIDTH, like.device)])
    prior = torch.cat([basis.prior_diagonal(index) for index in basis.blocks(_WIDTH, like.device)])
    if settings.learns_precision:
        # the prior variance of the function is then the kernel's own
        prior = torch.full_like(prior, float(gram.sum()) / len(rows) / float(model.kernel.diagonal(X).mean()))
    weights = Weights(like.new_zeros(m, table.n_targets), (-0.5 * (curvature * gram + prior).log()).to(like))
    if k:
        weights.columns = like.new_zeros(m, min(k, m))
    if settings.learns_precision:
        weights.log_precision = prior.log().to(like)
    known = starts_known(objective)
    return weights, start_at_posterior(objective, model, prior, generator, weights) if known else None
