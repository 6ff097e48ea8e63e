"""The contract of engines, which multiply with kernel matrices that are never stored whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gigagp.kernels import Kernel

#: The weights A[rows, columns] of a gradient, one tile at a time.
Weights = Callable[[slice, slice], Tensor]


@dataclass(frozen=True)
class LowRankWeights:
    """Weights ``A = left @ right.T``, whose tiles fused engines never form outside of their cache."""

    left: Tensor
    right: Tensor

    def __call__(self, rows: slice, columns: slice) -> Tensor:
        return self.left[rows] @ self.right[columns].T


def weights_of(matrix: Tensor) -> Weights:
    """Return the weights that a whole matrix holds."""
    return lambda rows, columns: matrix[rows, columns]


class Engine(Protocol):
    """Products with kernel matrices and their derivatives.

    All methods take a kernel that is bound to the columns of ``X``. They work in the dtype and on the device of ``X``,
    record no autograd graph, and keep their working memory below ``budget`` bytes, not counting the result.
    """

    @property
    def name(self) -> str:
        """The engine and its method in words, as ``engine_`` of an estimator shows it."""
        ...

    def product(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V``, shape (n, s), without storing K.

        Pass ``X`` itself as Z, shape (m, d), for a symmetric product. Engines then compute each entry once where that
        saves time.
        """
        ...

    def dense(self, kernel: Kernel, X: Tensor, Z: Tensor | None = None, *, budget: int) -> Tensor:
        """Return the whole ``K(X, Z)``, shape (n, m); without ``Z`` the symmetric ``K(X, X)``."""
        ...

    def gradient(
        self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, symmetric: bool, budget: int
    ) -> dict[str, Tensor]:
        """Return ``sum_ij A_ij dk(x_i, z_j) / d parameter`` for every hyperparameter, including fixed ones.

        ``weights(rows, columns)`` returns that tile of A, which the engine does not change. If A is ``symmetric`` and
        ``Z`` is ``X``, engines visit only tiles on and above the diagonal. Derivatives are float64 on the CPU, in
        natural units, and shaped like the hyperparameters.
        """
        ...
