"""Sums over the rows of random features, and the derivatives of functions of these sums.

No array has n rows and m columns: the sums are accumulated over blocks of rows, and their derivatives take a second
pass. `gigagp.inference.contract.weight_space` computes the likelihood and the posterior from the sums. Rows that are
far fewer than the features are the exception: their covariance is the smaller matrix.

Rahimi and Recht 2007, https://papers.nips.cc/paper/3182; Potapczynski et al. 2021, section 2.2, arXiv:2102.06695.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gigagp.inference.contract.by_factor import SolvedByFactor
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.weight_space import RowSums
from gigagp.kernels.draws import FeatureDraw
from gigagp.kernels.features import count_columns
from gigagp.model.model import Model
from gigagp.optimization.objective import Evaluation
from gigagp.products.dense import cholesky
from gigagp.runtime import interruption
from gigagp.runtime.memory import require

#: Number of m x m float64 arrays alive at once: inner products, those of fewer features, a factor, an inverse,
#: derivatives and temporary arrays.
_SQUARES = 7
#: Numbers alive at once for each entry of a block of features, including those of autograd and a float64 copy.
_COPIES = 12
#: Largest number of rows in a block: enough for a matrix product at full speed.
_MOST_ROWS = 2048


def require_features(n_columns: int, table: TrainingTable) -> None:
    """Raise `MemoryBudgetError` if ``n_columns`` columns of features do not fit, before anything is allocated."""
    needed = _SQUARES * 8 * n_columns**2 + 8 * _COPIES * n_columns  # the smallest block is a single row
    remedy = "Use a smaller n_features of RandomFeatures, or raise memory_budget."
    require(needed, table.budget, f"Inference with {n_columns:,} columns of random features", remedy)


def row_blocks(n_rows: int, n_columns: int, budget: int) -> Iterator[slice]:
    """Iterate over slices of rows whose features fit into the budget that the square arrays leave."""
    left = budget - _SQUARES * 8 * n_columns**2
    rows = max(1, min(_MOST_ROWS, left // (8 * _COPIES * max(n_columns, 1))))
    for first in range(0, n_rows, rows):
        interruption.check()
        yield slice(first, min(first + rows, n_rows))


def sum_rows(model: Model, draw: FeatureDraw, table: TrainingTable) -> RowSums:
    """Return the sums over all rows of a table, computed in blocks that keep to its memory budget."""
    m, q = count_columns(model.kernel, draw), table.n_targets + table.basis.shape[1]
    require_features(m, table)
    like = table.X.new_zeros((), dtype=torch.float64)
    gram, cross, products, log_noise = (like.new_zeros(size) for size in ((m, m), (m, q), (q, q), ()))
    with torch.no_grad():
        for rows in row_blocks(table.n_rows, m, table.budget):
            features, noise = _evaluate(model, draw, table, rows)
            # Products are float64 for every dtype of the model, because their error is divided by the noise.
            noise, known = noise.double(), _known(table, rows)
            root = noise.rsqrt()[:, None]
            features, known = features.double().mul_(root), known * root
            gram.addmm_(features.T, features)
            cross.addmm_(features.T, known)
            products.addmm_(known.T, known)
            log_noise += noise.log().sum()
    return RowSums(gram, cross, products, log_noise)


def sums_of_known(model: Model, table: TrainingTable) -> tuple[Tensor, Tensor]:
    """Return the sums without features, `RowSums.products` and `RowSums.log_noise`."""
    noise = _noise(model, table, slice(None)).double()
    whitened = _known(table, slice(None)) * noise.rsqrt()[:, None]
    return whitened.T @ whitened, noise.log().sum()


def pull_back(model: Model, draw: FeatureDraw, table: TrainingTable, slope: RowSums) -> dict[str, Tensor]:
    """Return the derivatives by all hyperparameters, given those by the sums over rows; takes a second pass.

    They are in natural units, float64 on the CPU.
    """
    values = _followed(model)
    total = {name: torch.zeros_like(value) for name, value in values.items()}
    followed = model.replace(values)
    for rows in row_blocks(table.n_rows, slope.gram.shape[0], table.budget):
        with torch.enable_grad():
            features, noise = _evaluate(followed, draw, table, rows)
        wide, variance, known = features.detach().double(), noise.detach().double(), _known(table, rows)
        # Each row adds (f' G f + f' C b + b' S b) / N + l log N for its features f, and targets and basis b.
        image = wide @ slope.gram
        crossed = known @ slope.cross.T
        quadratic = ((image + crossed) * wide).sum(1) + ((known @ slope.products) * known).sum(1)
        by_features = image.mul_(2).add_(crossed).div_(variance[:, None])
        by_noise = (slope.log_noise - quadratic / variance) / variance
        _add_derivatives(total, values, (features, by_features), (noise, by_noise))
    return {name: value.detach().double().cpu() for name, value in total.items()}


def evaluate_few(model: Model, draw: FeatureDraw, table: TrainingTable) -> Evaluation:
    """Return the likelihood and its gradient from ``H = F F' + N`` of n rows, which have more features F (n, m)."""
    values = _followed(model)
    with torch.enable_grad():
        features, noise = _evaluate(model.replace(values), draw, table, slice(None))
    wide = features.detach().double()
    factor = cholesky(wide @ wide.T + noise.detach().double().diag(), overwrite=True)
    targets, basis = _known(table, slice(None)).split([table.n_targets, table.basis.shape[1]], 1)
    solved = SolvedByFactor.of(targets, basis, factor)
    slope = solved.slope(factor)
    total = {name: torch.zeros_like(value) for name, value in values.items()}
    _add_derivatives(total, values, (features, 2 * slope @ wide), (noise, slope.diagonal()))
    return Evaluation(solved.value, {name: value.detach().double().cpu() for name, value in total.items()})


def _followed(model: Model) -> dict[str, Tensor]:
    """Return the hyperparameters of a model, whose derivatives are asked for."""
    return {name: value.detach().clone().requires_grad_() for name, value in model.parameters().items()}


def _add_derivatives(total: dict[str, Tensor], values: dict[str, Tensor], *outputs: tuple[Tensor, Tensor]) -> None:
    """Add the derivatives by hyperparameters of sums of outputs times their weights."""
    outputs = tuple((output, weight.to(output)) for output, weight in outputs if output.requires_grad)
    of_each, weights = zip(*outputs, strict=True)
    found = torch.autograd.grad(of_each, list(values.values()), weights, allow_unused=True)
    for name, part in zip(values, found, strict=True):
        if part is not None:
            total[name] += part


def _evaluate(model: Model, draw: FeatureDraw, table: TrainingTable, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the features (rows, m) and the noise (rows,) of a block of rows."""
    return model.kernel.features(table.X[rows], draw), _noise(model, table, rows)


def _noise(model: Model, table: TrainingTable, rows: slice) -> Tensor:
    """Return the noise (rows,) of a block of rows."""
    return model.noise_of_rows(rows, table.X[rows])


def _known(table: TrainingTable, rows: slice) -> Tensor:
    """Return targets and mean basis of a block of rows in float64."""
    X = table.X[rows]
    return torch.cat([table.Y[rows], table.mean.basis(X).to(X)], 1).double()
