"""The twelve rows that the golden values of computation-aware inference were computed on (NumPy, float64)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.inference.computation_aware import ComputationAwarePosterior, Evidence
from gigagp.inference.computation_aware.actions import Actions, BlockActions
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Kernel, Matern
from gigagp.model.means import Mean, ZeroMean
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix

ROWS = torch.arange(12, dtype=torch.float64)[:, None] / 11
TARGETS = torch.sin(2 * math.pi * ROWS[:, 0]) + 0.5 * torch.cos(5 * math.pi * ROWS[:, 0])
KERNEL = Matern(1.5, 0.3, 1.0).bind(1)
NOISE = 0.1
NEW = torch.tensor([[0.37], [0.5], [1.5]], dtype=torch.float64)
VALUES = torch.tensor([1, 1, 1, 1, 1, 2, 3, 4, 4, 3, 2, 1], dtype=torch.float64)
BOUNDS = (0, 4, 8, 12)


def blocks() -> BlockActions:
    return BlockActions(VALUES, BOUNDS)


def evidence_of(
    actions: Actions,
    X: Tensor = ROWS,
    Y: Tensor = TARGETS[:, None],
    *,
    kernel: Kernel = KERNEL,
    noise: float | Tensor = NOISE,
    loss: str = "elbo",
    mean: Mean | None = None,
    product: Tensor | None = None,
    storage: str = "tiles",
) -> Evidence:
    """Condition on actions; ``noise`` is one number or one for each row."""
    mean = ZeroMean() if mean is None else mean
    kernel = kernel.bind(X.shape[1])
    model = Model(kernel, mean, torch.as_tensor(noise, dtype=torch.float64))
    each = model.noise_variance.expand(len(X))
    matrix = KernelMatrix(kernel, X, each.to(X.dtype), storage=storage)  # type: ignore[arg-type]
    return Evidence(model, TrainingTable(X, Y, mean, 2**30), actions, loss, each, matrix, product)  # type: ignore[arg-type]


def posterior_of(actions: Actions, *arguments: Tensor, **options: object) -> ComputationAwarePosterior:
    """Return the posterior given actions; arguments as for `evidence_of`."""
    found = evidence_of(actions, *arguments, **options)  # type: ignore[arg-type]
    noise = found.noise - found.model.kernel.white(found.table.X).double()  # the posterior adds it itself
    return ComputationAwarePosterior(found.model, found.table, actions, found.factor, found.conditioned(), noise)
