"""The interface of preconditioners: approximations of a matrix that are cheap to invert, sample from and measure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gigagp.errors import NotPositiveDefiniteError
from gigagp.kernels import Kernel
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators.base import SymmetricMatrix
from gigagp.runtime import memory
from gigagp.settings.fields import Settings
from gigagp.settings.random import standard_normal


class Parts:
    """Parts of a preconditioner that a later build for a similar matrix may take over; each is optional.

    Attributes
    ----------
    pivots : Tensor of shape (k,) or None
        Rows whose columns span the low-rank part. Known pivots avoid the sequential part of a build, also for a whole
        outer optimisation.
    graph : NeighbourGraph or None
        Neighbours of all rows, which serve as long as lengthscales hardly move.
    choice : Choice or None
        What the automatic choice took. It serves as long as hyperparameters hardly move.
    """

    pivots: torch.Tensor | None = None
    graph: NeighbourGraph | None = None
    choice: Choice | None = None


@dataclass(frozen=True)
class Choice:
    """The recipe that a trial chose, the hyperparameters it was for, and the expected cost of a solve in products.

    The cost is infinite if no trial converged; ``noise`` is the mean noise variance.
    """

    recipe: PreconditionerRecipe
    kernel: Kernel
    noise: float
    products: float

    def serves(self, kernel: Kernel, noise: float) -> bool:
        """Whether hyperparameters have moved by less than a factor of two since."""
        old = self.kernel.parameters() | {"": torch.tensor(self.noise)}
        return are_near(old, kernel.parameters() | {"": torch.tensor(noise)}, 2.0)


def are_near(old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], factor: float) -> bool:
    """Whether hyperparameters have the same names and shapes and differ by at most a factor."""
    if {name: value.shape for name, value in old.items()} != {name: value.shape for name, value in new.items()}:
        return False
    differ = [name for name in old if not torch.equal(old[name], new[name])]
    return all(bool(((new[name] / old[name]).log().abs() <= math.log(factor)).all()) for name in differ)


class Preconditioner(Parts, ABC):
    """A positive definite matrix ``P`` that approximates a given one.

    Attributes
    ----------
    n : int
        Number of rows.
    epochs : float
        Cost of building it; one epoch computes every entry of the matrix once.
    jitter : float
        Largest number that had to be added to a diagonal to keep a factor positive definite; usually 0.
    is_lower_bound : bool
        Whether ``P <= H`` up to rounding, so that ``r' P^-1 r >= r' H^-1 r``.
    has_determinant : bool
        Whether P itself is known, and not only the product with its inverse: its determinant, and samples of N(0, P).
    """

    n: int
    epochs: float
    jitter: float = 0.0
    is_lower_bound: bool = False
    has_determinant: bool = True

    @abstractmethod
    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``P^-1 @ vectors`` for vectors of shape (n, s), with their dtype."""

    @abstractmethod
    def transform_normal(self, normal: torch.Tensor) -> torch.Tensor:
        """Return samples of N(0, P), shape (n, s), from standard normal numbers of shape (n + rank, s)."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of columns in the low-rank part."""

    @abstractmethod
    def log_determinant(self) -> float:
        """Return ``log det P``."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line that describes what was built."""

    def sample(self, n_columns: int, generator: torch.Generator) -> torch.Tensor:
        """Return ``n_columns`` independent draws of N(0, P), shape (n, n_columns)."""
        return self.transform_normal(standard_normal(self.n + self.rank, n_columns, generator=generator))

    def lower_bound_apply(self, vectors: torch.Tensor) -> torch.Tensor | None:
        """Return ``P'^-1 @ vectors`` for some ``P' <= H``, or None if no such matrix is available.

        ``r' P'^-1 r / 2`` is then an upper bound on a solution's error in nats.
        """
        return self.apply(vectors) if self.is_lower_bound else None


@dataclass(frozen=True)
class PreconditionerRecipe(Settings, ABC):
    """The settings from which a preconditioner is built for any matrix; it holds no data."""

    @abstractmethod
    def build(
        self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None, *, bound: bool = False
    ) -> Preconditioner:
        """Build the preconditioner of one matrix.

        Parameters
        ----------
        matrix : SymmetricMatrix
        generator : torch.Generator
            Source of random pivots.
        known : Parts or None
            Parts of an earlier build for a similar matrix, such as the `Preconditioner` itself.
        bound : bool
            Whether to keep what `Preconditioner.lower_bound_apply` needs, which takes memory but no kernel entries.
        """


def budget_of(matrix: SymmetricMatrix) -> int:
    """Return the memory budget of a matrix in bytes, or the default one if it has none."""
    given = getattr(matrix, "memory_budget", None)
    return memory.resolve_budget(given, matrix.device)


def factor_with_jitter(matrices: torch.Tensor, scale: float | None = None) -> tuple[torch.Tensor, float]:
    """Return lower Cholesky factors of a batch of shape (m, b, b), and the largest jitter that was needed.

    Jitter is added only to those matrices of the batch that cannot be factored. It starts at 1e-14 of ``scale``. None
    stands for the mean of each matrix's own diagonal and must not be used where that diagonal may be all rounding.
    """
    factors, info = torch.linalg.cholesky_ex(matrices)
    largest = 0.0
    share = 1e-14
    while bool((failed := info != 0).any()):
        lifted = matrices[failed]
        diagonal = lifted.diagonal(dim1=-2, dim2=-1)
        jitter = share * (diagonal.abs().mean(-1) if scale is None else diagonal.new_full((len(lifted),), scale))
        if share > 1e-3 or not bool(torch.isfinite(diagonal).all()):
            msg = "a block of the matrix is not positive definite or has NaN; check the kernel and its hyperparameters."
            raise NotPositiveDefiniteError(msg)
        diagonal.add_(jitter.unsqueeze(-1))
        largest = max(largest, float(jitter.max()))
        again, info_again = torch.linalg.cholesky_ex(lifted)
        factors[failed] = again
        info = info.masked_scatter(failed, info_again)
        share *= 10
    return factors, largest
