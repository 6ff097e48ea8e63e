"""Rows of every kind for the tests of Vecchia inference, and its objective and posterior at a given model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from gigagp.estimators import checkpoint
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.laplace import LaplaceObjective
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.kernels import Kernel
from gigagp.model.likelihoods import Likelihood
from gigagp.model.means import Mean, ZeroMean
from gigagp.model.model import Model
from gigagp.optimization.space import ParameterSpace
from helpers import points

#: Points between the rows, far from them, and in the clump.
NEW = torch.cat([points(15, 2, seed=2), torch.tensor([[9.0, -9.0], [2.0, 2.0]], dtype=torch.float64)])


def clumps(n: int) -> Tensor:
    return torch.cat([points(n - n // 3, 2), 1e-2 * points(n // 3, 2, seed=1) + 2.0])


def gaps(n: int) -> Tensor:
    X = points(n, 2)
    return X + 6.0 * (X[:, :1] > 0)


def duplicates(n: int) -> Tensor:
    return points(n // 2, 2).repeat(2, 1)


TABLES = {"Gaussian": lambda n: points(n, 2), "clumps": clumps, "gaps": gaps, "duplicates": duplicates}
tables = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())


def model_of(kernel: Kernel, noise: float | Tensor, mean: Mean | None = None) -> Model:
    return Model(kernel, mean or ZeroMean(), torch.as_tensor(noise, dtype=torch.float64))


def objective_of(
    X: Tensor,
    Y: Tensor,
    likelihood: Likelihood | None = None,
    *,
    neighbours: int = 8,
    more: int = 20,
    rows: int = 10**6,
    mean: Mean | None = None,
    **options: Any,
) -> Any:
    """Return the objective of a likelihood, None for Gaussian noise, with ``more`` neighbours of a point.

    ``rows`` is the number of learning rows.
    """
    table = TrainingTable(X, Y, mean or ZeroMean(), 2**30)
    if likelihood is None:
        return VecchiaObjective(table, neighbours, more, rows, **options)
    return LaplaceObjective(table, likelihood, neighbours, more, rows, **options)


def gradients(objective: Any, model: Model, step: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return the gradient by logarithms of all hyperparameters, and central differences of the value."""
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    found = space.pull_back(objective.evaluate(model).gradient, vector)
    slopes = torch.zeros_like(vector)
    for k in range(len(vector)):
        move = torch.zeros_like(vector)
        move[k] = step
        high, low = (objective.evaluate(space.decode(vector + sign * move)).value for sign in (1, -1))
        slopes[k] = (high - low) / (2 * step)
    return found, slopes


@contextmanager
def killed_at_write(count: int) -> Iterator[None]:
    """Kill a fit after so many writes of its checkpoint, of which there is one for each step."""
    write, written = checkpoint.Checkpoint.write, []

    class Killed(BaseException):
        pass

    def killing(self: checkpoint.Checkpoint) -> bool:
        found = write(self)
        written.append(1)
        if len(written) == count:
            raise Killed
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "INTERVAL", 0.0)
        patch.setattr(checkpoint.Checkpoint, "write", killing)
        with pytest.raises(Killed):
            yield
