"""Kernels without a distance: constant, linear and white."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from gigagp.indexed_random import IndexedDraws
from gigagp.kernels.leaf import BoundsLike, Hyperparameter, Leaf, ParameterLike
from gigagp.random import standard_normal


class Constant(Leaf):
    """Constant covariance: ``k = variance``, the prior of an unknown offset.

    Parameters
    ----------
    variance : float, optional
        Default 1.
    fixed : sequence of str or bool
        ``("variance",)`` or True: not to be learned.
    bounds : mapping of str to (lower, upper), optional
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": False}
    has_spectrum: ClassVar[bool] = True

    variance = Hyperparameter("Variance, a single number; None if not settled.")

    def __init__(
        self, variance: ParameterLike = None, *, fixed: Sequence[str] | bool = (), bounds: BoundsLike = None
    ) -> None:
        super().__init__({"variance": variance}, fixed=fixed, bounds=bounds)

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        """Return the variance for every pair."""
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0], Z.shape[0])

    def diagonal(self, X: Tensor) -> Tensor:
        """Return the variance for every row."""
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return nothing: a constant has no randomness."""
        return {}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        """Return nothing: a constant has no randomness."""
        return {}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the root of the variance."""
        return self.value("variance", X).sqrt(), None


class Linear(Leaf):
    """Linear covariance: ``k = sum_k variance_k x_k z_k``, the prior of unknown slopes through the origin.

    Add a `Constant` for an unknown offset.

    Parameters
    ----------
    variance : float or array-like, optional
        Prior variance of the slopes, one for all or one for each active input. Default 1.
    ard, columns, fixed, bounds
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": True}
    has_spectrum: ClassVar[bool] = True

    variance = Hyperparameter("Variances of the slopes; None if not settled.")

    def __init__(
        self,
        variance: ParameterLike = None,
        *,
        ard: bool = True,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        super().__init__({"variance": variance}, ard=ard, columns=columns, fixed=fixed, bounds=bounds)

    def scale(self, X: Tensor) -> Tensor:
        """Return the active inputs times the prior standard deviations of their slopes."""
        return self.active(X) * self.value("variance", X).sqrt()

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        """Return the dense covariance; see `Kernel.block`."""
        kernel = self.bind(X.shape[1])
        return kernel.scale(X) @ kernel.scale(Z).T

    def diagonal(self, X: Tensor) -> Tensor:
        """Return k(x, x) for every row."""
        return self.bind(X.shape[1]).scale(X).square().sum(1)

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return random slopes; they serve in products, where the kernel itself has no exact features."""
        return {"normal": standard_normal(n_frequencies, self.n_active, generator=generator)}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        """Return the same by index."""
        return {"normal": numbers.normal(self.n_active)}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the values of random linear functions."""
        return self.scale(X) @ draw["normal"].to(dtype=X.dtype, device=X.device).T, None


class White(Leaf):
    """White noise as a kernel: ``variance`` between a row and itself, 0 otherwise, also for equal rows.

    Models have a noise variance anyway; this is for noise that multiplies something, as in ``White() * Linear()``.

    Parameters
    ----------
    variance : float, optional
        Default 1.
    fixed : sequence of str or bool
        ``("variance",)`` or True: not to be learned.
    bounds : mapping of str to (lower, upper), optional
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": False}
    has_spectrum: ClassVar[bool] = True
    is_white: ClassVar[bool] = True

    variance = Hyperparameter("Variance, a single number; None if not settled.")

    def __init__(
        self, variance: ParameterLike = None, *, fixed: Sequence[str] | bool = (), bounds: BoundsLike = None
    ) -> None:
        super().__init__({"variance": variance}, fixed=fixed, bounds=bounds)

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        """Return zeros: white noise is no function of two points."""
        return X.new_zeros(()).expand(X.shape[0], Z.shape[0])

    def diagonal(self, X: Tensor) -> Tensor:
        """Return zeros."""
        return X.new_zeros(()).expand(X.shape[0])

    def white(self, X: Tensor) -> Tensor:
        """Return the variance for every row."""
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])
