"""Initial inducing points, chosen among the distinct training rows."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from gigagp.solvers.preconditioners import pivoting

#: Number of candidate rows per inducing point, and smallest number of candidate rows.
_ROWS_PER_POINT, _LEAST_ROWS = 20, 10_000
#: Memory of the greedy choice per row and point: a float64 column, and the same again while it grows.
_BYTES_PER_ENTRY = 32


def choose_points(rule: str, model: Model, table: TrainingTable, count: int, generator: torch.Generator) -> Tensor:
    """Return up to ``count`` distinct training rows.

    Parameters
    ----------
    rule : {"greedy", "kmeans++", "random"}
        See `gigagp.inference.SparseVariational`.
    model : Model
        Model whose kernel measures distances and variances.
    table : TrainingTable
        Training rows in the model's units.
    count : int
        Largest number of points.
    generator : torch.Generator
        Source of random rows.

    Returns
    -------
    Tensor of shape (m, d)
        Points in float64; fewer than ``count`` if the table does not have as many distinct rows.
    """
    n = table.n_rows
    affordable = max(table.budget // (_BYTES_PER_ENTRY * count), count)
    wanted = min(max(_ROWS_PER_POINT * count, _LEAST_ROWS), affordable)
    looked_at = torch.randperm(n, generator=generator)[:wanted]
    X = _distinct(table.X[looked_at.to(table.X.device)].double())
    if len(X) < count and len(looked_at) < n:
        X = _distinct(table.X.double())
    # `_distinct` sorts the rows, so shuffle them again
    X = X[torch.randperm(len(X), generator=generator).to(X.device)]
    count = min(count, len(X))
    if rule == "random" or count == len(X):
        return X[:count].clone()
    matrix = KernelMatrix(model.kernel, X, memory_budget=table.budget, storage="tiles")
    chosen = _spread(matrix.coordinates(), count, generator) if rule == "kmeans++" else _greedy(matrix, count)
    return X[chosen].clone()


def _distinct(X: Tensor) -> Tensor:
    return torch.unique(X, dim=0)


def _greedy(matrix: KernelMatrix, count: int) -> Tensor:
    """Return the rows of largest variance given the previous ones (Burt et al. 2020, section 4.2).

    If no variance above rounding is left, the first of the remaining rows follow: they matter once lengthscales shrink.
    """
    chosen = pivoting.greedy(matrix, count).pivots
    others = torch.ones(matrix.n, dtype=torch.bool, device=chosen.device)
    others[chosen] = False
    return torch.cat([chosen, others.nonzero()[: count - len(chosen), 0]])


def _spread(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return rows drawn in proportion to their squared distance from earlier ones (Arthur and Vassilvitskii 2007)."""
    chosen = [int(torch.randint(len(points), (), generator=generator))]
    nearest = torch.full_like(points[:, 0], torch.inf)
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
        nearest[chosen[-1]] = 0.0
        cumulative = nearest.cumsum(0)
        if not float(cumulative[-1]) > 0:  # for the kernel, all remaining rows coincide with chosen ones
            rest = torch.ones(len(points), dtype=torch.bool)
            rest[chosen] = False
            chosen.extend(rest.nonzero()[: count - len(chosen), 0].tolist())
            break
        draw = torch.rand((), generator=generator, dtype=torch.float64).to(cumulative) * cumulative[-1]
        chosen.append(min(int(torch.searchsorted(cumulative, draw, right=True)), len(points) - 1))
    return torch.tensor(chosen, device=points.device)
