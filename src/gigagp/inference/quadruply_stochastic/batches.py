"""Where a sampled objective gets the rows of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.estimators.sampling import sample_indices
from gigagp.inference.quadruply_stochastic.problem import WeightProblem


class Batches(Protocol):
    """The rows that the steps of one ascent see."""

    #: rows of a step
    size: int

    def begin(self, coefficients: Tensor, targets: Tensor) -> None:
        """Start from the beginning.

        Parameters
        ----------
        coefficients : Tensor of shape (p, t)
            Of the trend, which the targets of batches are given without.
        targets : Tensor of shape (n, t)
            Of the held rows, without the trend.
        """
        ...

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return the places of the next rows, shape (size,), as `at` takes them."""
        ...

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (r, d) and centred targets (r, t) of rows of the last draw."""
        ...

    def all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over all rows once: their places, as `Model.noise_of_rows` takes them, and their inputs."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return what the next draw depends on, as plain data; the generator is not included."""
        ...

    def restore(self, header: dict[str, Any]) -> None:
        """Take over a snapshot."""
        ...


class HeldBatches:
    """Random rows of a table that is held.

    Parameters
    ----------
    problem : WeightProblem
    """

    def __init__(self, problem: WeightProblem) -> None:
        self._X, self._n_rows = problem.table.X, problem.table.n_rows
        self._replacement = problem.options.replacement
        self._targets = problem.table.Y
        self.size = min(problem.options.sampled_rows, self._n_rows)

    def begin(self, coefficients: Tensor, targets: Tensor) -> None:
        """Take over the centred targets."""
        self._targets = targets

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return indices of random rows."""
        return sample_indices(self._n_rows, self.size, generator, replacement=self._replacement).to(self._X.device)

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and centred targets of rows."""
        return self._X[rows], self._targets[rows]

    def all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Give all rows together."""
        yield torch.arange(self._n_rows, device=self._X.device), self._X

    def snapshot(self) -> dict[str, Any]:
        """Return nothing: the generator decides every draw."""
        return {}

    def restore(self, header: dict[str, Any]) -> None:
        """Take over nothing."""
