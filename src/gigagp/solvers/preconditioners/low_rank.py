"""The preconditioner ``P = L L' + noise``, and recipes that differ only in how the columns of ``L`` are chosen."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from gigagp.operators.base import SymmetricMatrix
from gigagp.products.dense import subtract_product, tall_product
from gigagp.settings.fields import Count
from gigagp.solvers.preconditioners import pivoting
from gigagp.solvers.preconditioners.base import Parts, Preconditioner, PreconditionerRecipe, factor_with_jitter

Columns = pivoting.PartialCholesky


class LowRankPlusNoise(Preconditioner):
    """``P = L L' + D`` applied by the Woodbury identity, where ``D`` is the noise of each row.

    An application takes two matrix products (4 n k operations per column) and no triangular solve. Everything is
    float64 for float32 matrices too: on smooth vectors ``P^-1`` is a small difference of large numbers.

    Parameters
    ----------
    factor : PartialCholesky
        The columns of L.
    noise : Tensor of shape (n,)
        Noise variance of each row; float64, positive.
    dtype : torch.dtype
        Dtype of the matrix, and of samples of N(0, P).
    name : str
        How the columns were chosen, for `describe`.
    jitter : float
        Largest number that was added to the noise to keep it off zero.
    """

    def __init__(
        self, factor: pivoting.PartialCholesky, noise: torch.Tensor, dtype: torch.dtype, name: str, jitter: float = 0.0
    ) -> None:
        self.n = len(noise)
        self.epochs = factor.epochs
        self.name = name
        self.pivots = factor.pivots
        self._noise, self._dtype = noise, dtype
        self._inverse_noise = noise.reciprocal().unsqueeze(1)
        scaled = factor.columns / noise.unsqueeze(1)
        capacitance = factor.columns.T @ scaled
        capacitance.diagonal().add_(1.0)
        (self._capacitance_factor,), extra = factor_with_jitter(capacitance.unsqueeze(0))
        self._wing = torch.linalg.solve_triangular(self._capacitance_factor.T, scaled, upper=True, left=False)
        self.jitter = max(jitter, extra)
        self.is_lower_bound = jitter == 0

    @classmethod
    def of(cls, matrix: SymmetricMatrix, factor: pivoting.PartialCholesky, name: str) -> LowRankPlusNoise:
        """Return the preconditioner from columns of a matrix, with its noise raised where it is lost in rounding.

        A row without noise gets the mean of the diagonal that the columns leave. A value close to zero would make the
        preconditioner worse than none.
        """
        noise = matrix.noise().to(torch.float64)
        floor = 10 * torch.finfo(matrix.dtype).eps * float(matrix.diagonal().to(torch.float64).mean())
        lifted = torch.where(noise >= floor, noise, max(floor, float(factor.residual.mean())))
        return cls(factor, lifted, matrix.dtype, name, float((lifted - noise).max()))

    @property
    def rank(self) -> int:
        return self._wing.shape[1]

    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        wide = vectors.to(torch.float64)
        result = self._inverse_noise * wide
        return subtract_product(result, self._wing, tall_product(self._wing.T, wide)).to(vectors.dtype)

    def transform_normal(self, normal: torch.Tensor) -> torch.Tensor:
        normal = normal.to(self._wing.device)
        low_rank = self._wing @ (self._capacitance_factor.T @ normal[self.n :])  # D^-1 L z
        noise = self._noise.unsqueeze(1)
        return (noise * low_rank + noise.sqrt() * normal[: self.n]).to(self._dtype)

    def log_determinant(self) -> float:
        return float(self._noise.log().sum() + 2 * self._capacitance_factor.diagonal().log().sum())

    def describe(self) -> str:
        return f"{self.rank} {self.name} columns plus noise" + jitter_note(self.jitter)


def jitter_note(jitter: float) -> str:
    """Return a note about the jitter that was needed, or an empty string."""
    return f" (jitter {jitter:.1e})" if jitter else ""


def beside_columns(own: str, rank: int, jitter: float) -> str:
    """Return the description of a preconditioner with its own part beside randomly pivoted columns, if any."""
    return (f"{rank} randomly pivoted columns plus {own}" if rank else own) + jitter_note(jitter)


class LowRankRecipe(PreconditionerRecipe):
    """Base of recipes that differ only in the choice of columns."""

    #: Word for the columns in `LowRankPlusNoise.describe`.
    _name = ""

    @abstractmethod
    def factor(self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None) -> Columns:
        """Return the columns alone, without the noise."""

    def build(
        self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None, *, bound: bool = False
    ) -> LowRankPlusNoise:
        """Build for one matrix; see `PreconditionerRecipe.build`. ``bound`` has no effect."""
        return LowRankPlusNoise.of(matrix, self.factor(matrix, generator, known), self._name)


@dataclass(frozen=True)
class PivotedCholesky(LowRankRecipe):
    """Greedy pivoted Cholesky plus noise: the preconditioner of the papers.

    It is kept for comparison. The greedy choice picks isolated rows first; a random choice of the same rank saves 1.4
    to 2.7 times as many iterations. Prefer `TwoLevel` or `RandomlyPivotedCholesky`.

    Parameters
    ----------
    rank : int, default 100
        Number of columns; fewer are used if the matrix has a lower rank.

    References
    ----------
    Harbrecht, Peters & Schneider (2012), doi:10.1016/j.apnum.2011.10.001; Gardner et al. (2018), arXiv:1809.11165.
    """

    rank: Count = 100
    _name = "greedily pivoted"

    def factor(self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None) -> Columns:
        """Return the columns alone; they are always chosen anew, so that the choice stays greedy."""
        return pivoting.greedy(matrix, self.rank)


@dataclass(frozen=True)
class RandomlyPivotedCholesky(LowRankRecipe):
    """Randomly pivoted Cholesky plus noise.

    Parameters
    ----------
    rank : int, default 300
        Number of columns.
    block : int or None
        Number of columns proposed together; None: a tenth of the rank. It affects the speed but not the law of the
        pivots.

    References
    ----------
    Chen, Epperly, Tropp & Webber (2023), arXiv:2207.06503; Epperly, Tropp & Webber (2024), arXiv:2410.03969.
    """

    rank: Count = 300
    block: Count | None = None
    _name = "randomly pivoted"

    def factor(self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None) -> Columns:
        """Return the columns alone; pivots of an earlier build are used first."""
        pivots = None if known is None else known.pivots
        return pivoting.random(matrix, self.rank, generator, block=self.block, pivots=pivots)


@dataclass(frozen=True)
class Nystrom(LowRankRecipe):
    """Nystrom approximation from columns drawn uniformly, plus noise.

    It is almost as good as `RandomlyPivotedCholesky` if the rows are spread evenly, and all its columns are known in
    advance.

    Parameters
    ----------
    rank : int, default 300
        Number of columns.

    References
    ----------
    Williams & Seeger (2001), "Using the Nystrom method to speed up kernel machines".
    """

    rank: Count = 300
    _name = "uniformly drawn"

    def factor(self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None) -> Columns:
        """Return the columns alone; pivots of an earlier build are reused."""
        if known is None or known.pivots is None:
            pivots = torch.randperm(matrix.n, generator=generator)[: self.rank]
        else:
            pivots = known.pivots
        return pivoting.given(matrix, self.rank, pivots, block=max(self.rank // 4, 1))
