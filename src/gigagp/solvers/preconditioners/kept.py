"""A preconditioner that was built for another matrix."""

from __future__ import annotations

import torch

from gigagp.solvers.preconditioners.base import Preconditioner, Reuse


class Kept(Preconditioner):
    """A preconditioner of a matrix with other hyperparameters, which costs nothing and bounds no error.

    Parameters
    ----------
    built : Preconditioner
    """

    def __init__(self, built: Preconditioner) -> None:
        self._built = built
        self.n, self.jitter, self.choice = built.n, built.jitter, built.choice
        self.epochs = 0.0

    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``P^-1 @ vectors``."""
        return self._built.apply(vectors)

    def transform_normal(self, normal: torch.Tensor) -> torch.Tensor:
        """Return samples of N(0, P); see `Preconditioner.transform_normal`."""
        return self._built.transform_normal(normal)

    @property
    def rank(self) -> int:
        """Number of columns in the low-rank part."""
        return self._built.rank

    def log_determinant(self) -> float:
        """Return ``log det P``."""
        return self._built.log_determinant()

    def describe(self) -> str:
        """Return one line that describes what was built."""
        return f"{self._built.describe()}, kept from other hyperparameters"

    def reuse(self) -> Reuse:
        """Return the parts that the next build may reuse."""
        return self._built.reuse()
