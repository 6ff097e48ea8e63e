"""Where a fit of the weights starts: the basis, and numbers near to the optimum of the diagonal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gigagp.bases import Basis, FourierBasis, GridEigenfunctions, InducingBasis, RadialBasis, ReorderedBasis
from gigagp.bases.inducing import random_points
from gigagp.bases.reordered import most_informed
from gigagp.dense import cholesky
from gigagp.inference.quadruply_stochastic.latent import best_latent
from gigagp.inference.quadruply_stochastic.sampling import sample_indices
from gigagp.inference.quadruply_stochastic.settings import QuadruplyStochastic
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Gaussian
from gigagp.memory import require
from gigagp.model import Model

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Rows that the start of the diagonal looks at, and the entries beyond which they become fewer, but not fewer than
#: these.
_START_ROWS, _START_ENTRIES, _LEAST_ROWS = 64, 2**26, 8
#: Functions that are looked at together where all of them are.
_WIDTH = 4096
#: Most rows whose posterior the mean starts from, the most for other than Gaussian likelihoods, which take Newton's
#: steps, and the most multiplications, ``rows^2 m``.
_SUBSET_ROWS, _LATENT_ROWS, _SUBSET_WORK = 4096, 2000, 2**41
#: Square arrays of that size, float64, that are alive at once, and the share of the memory budget that they may take.
_SUBSET_SQUARES, _SUBSET_SHARE = 6, 8
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


def starts_known(settings: QuadruplyStochastic) -> bool:
    """Whether the weights' mean starts at the posterior of some rows, and not at zero.

    Inducing points start at zero: functions that are nearly dependent have large weights of both signs at a posterior,
    and their prior term has more noise in a sample than ascent from zero has to remove.
    """
    return settings.start_rows != 0 and (settings.basis != "inducing" or settings.learns_precision)


@torch.no_grad()
def start_weights(objective: QuadruplyStochasticObjective, model: Model) -> Weights:
    """Return weights with the mean of some rows' posterior, and a diagonal near its optimum (Prop. 1 with a few)."""
    basis, table, settings = objective.basis, objective.table, objective.settings
    m, like = basis.size, table.X
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
    weights = Weights(_start_mean(objective, model, prior), (-0.5 * (curvature * gram + prior).log()).to(like))
    if settings.n_columns:
        weights.columns = like.new_zeros(m, min(settings.n_columns, m))
    if settings.learns_precision:
        weights.log_precision = prior.log().to(like)
    return weights


def _start_mean(objective: QuadruplyStochasticObjective, model: Model, prior: Tensor) -> Tensor:
    """Return the weights' posterior mean for random rows: ``S^-1 Phi' alpha`` with alpha from ``G = Phi S^-1 Phi'``.

    At a small noise the kernel's own matrix in the place of G is not good enough: alpha is large then, and G's
    difference, one over the root of m, counts. ``prior`` is the diagonal of S.
    """
    basis, settings, table = objective.basis, objective.settings, objective.table
    mean = table.X.new_zeros(basis.size, table.n_targets)
    gaussian = isinstance(objective.likelihood, Gaussian)
    most = settings.start_rows
    if most is None:
        most = min(_SUBSET_ROWS if gaussian else _LATENT_ROWS, math.isqrt(_SUBSET_WORK // basis.size))
        most = min(most, math.isqrt(table.budget // (8 * _SUBSET_SQUARES * _SUBSET_SHARE)))
    count = min(most, table.n_rows) if starts_known(settings) else 0
    if not count:
        return mean
    require(8 * _SUBSET_SQUARES * count**2, table.budget, f"The posterior of {count:,} rows", "Use fewer start_rows.")
    generator = torch.Generator().manual_seed(basis.size)
    rows = sample_indices(table.n_rows, count, generator).to(mean.device)
    X = table.X[rows]
    noise, targets = objective.noise(model, rows, X).double(), objective.targets[rows].double()
    covariance = torch.zeros(count, count, dtype=torch.float64, device=mean.device)
    for index in basis.blocks(_WIDTH, mean.device):
        features = basis.columns(X, index)
        covariance += (features / prior[index].to(features)) @ features.T
    if gaussian:
        covariance.diagonal().add_(noise)
        alpha = torch.cholesky_solve(targets, cholesky(covariance, "the covariance of the rows of the start"))
    else:
        nodes = settings.quadrature_nodes
        alpha = best_latent(covariance, noise, targets, objective.likelihood, nodes).alpha
    for index in basis.blocks(_WIDTH, mean.device):
        mean[index] = basis.columns(X, index).T @ alpha.to(mean) / prior[index, None].to(mean)
    return mean
