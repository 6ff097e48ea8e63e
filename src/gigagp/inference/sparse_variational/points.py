"""Covariances with inducing points: their factor, the whitened features of rows, and derivatives through both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gigagp.errors import NotPositiveDefiniteError
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Kernel
from gigagp.model.model import NOISE, Model
from gigagp.products.tiles import Tiles, tiles_of
from gigagp.runtime import interruption
from gigagp.runtime.memory import require
from gigagp.runtime.run import current_run

#: Number of m x m float64 arrays alive at once, and of further ones while processes add theirs.
_SQUARES, _SHARED_SQUARES = 10, 16
#: Numbers alive at once for each entry of a block: covariances, features, derivatives and the tiles behind them.
_COPIES = 8
#: Largest number of entries of a block of rows, which is enough for matrix products at full speed.
_CPU_ENTRIES, _GPU_ENTRIES = 2**21, 2**25
_ALL = slice(None)


def require_points(n_inducing: int, table: TrainingTable, batch_size: int = 1) -> None:
    """Raise `MemoryBudgetError` if the inducing points do not fit, before anything is allocated.

    The estimate assumes blocks of a single row for passes over all rows; a minibatch is not divided.
    """
    needed = 8 * (_squares() * n_inducing**2 + _COPIES * n_inducing * batch_size)
    remedy = "Use a smaller n_inducing or batch_size of SparseVariational, or raise memory_budget."
    require(needed, table.budget, f"Inference with {n_inducing:,} inducing points", remedy)


def _squares() -> int:
    return _SQUARES if current_run().processes is None else _SQUARES + _SHARED_SQUARES


def row_blocks(within: slice, n_inducing: int, budget: int, device: torch.device) -> Iterator[slice]:
    """Iterate over slices of some rows whose covariances fit into the budget that the square arrays leave."""
    left = budget - 8 * _squares() * n_inducing**2
    entries = min(_CPU_ENTRIES if device.type == "cpu" else _GPU_ENTRIES, left // (8 * _COPIES))
    rows = max(1, entries // n_inducing)
    for first in range(within.start, within.stop, rows):
        interruption.check()
        yield slice(first, min(first + rows, within.stop))


class InducingPoints:
    """Inducing points Z at one model, with the factor ``K(Z, Z) + jitter = L L'``. Computations are in float64.

    The argument ``jitter`` is a share of the mean prior variance at the points.
    """

    def __init__(self, kernel: Kernel, points: Tensor, jitter: float) -> None:
        self.kernel, self.points, self.share = kernel, points, jitter
        with torch.no_grad():
            tiles = tiles_of(kernel, points, points)
            covariance = tiles.evaluate(_ALL, _ALL).mul_(tiles.factor)
            #: variance of the noise of the inducing values
            self.jitter = jitter * float(kernel.diagonal(points).mean())
            covariance.diagonal().add_(self.jitter)
            self.factor, info = torch.linalg.cholesky_ex(covariance)
        if int(info) != 0 or not bool(torch.isfinite(self.factor.diagonal()).all()):
            raise NotPositiveDefiniteError(
                f"the covariance of the {len(points)} inducing points is not positive definite (pivot {int(info)}). "
                "Raise jitter of SparseVariational, or use a smaller n_inducing."
            )

    @property
    def count(self) -> int:
        """Number of inducing points, m."""
        return len(self.points)

    def tiles(self, X: Tensor) -> Tiles:
        """Return the tiles that evaluate and differentiate ``K(X, Z)``."""
        return tiles_of(self.kernel, X.double(), self.points)

    @torch.no_grad()
    def covariances(self, tiles: Tiles) -> Tensor:
        """Return ``K(X, Z)``, shape (rows, m); the next call on the same tiles overwrites it."""
        return tiles.evaluate(_ALL, _ALL).mul_(tiles.factor)

    def whiten(self, covariances: Tensor) -> Tensor:
        """Return the features ``K(X, Z) L^-T``, whose weights have a standard normal prior."""
        return torch.linalg.solve_triangular(self.factor.T, covariances, upper=True, left=False)

    def features(self, X: Tensor) -> Tensor:
        """Return the features of rows, shape (rows, m); ``F F'`` is the Nystrom covariance."""
        return self.whiten(self.covariances(self.tiles(X)))

    def unwhiten(self, weights: Tensor) -> Tensor:
        """Return ``L^-T weights``, the weights of covariances for given ``weights`` of features."""
        return torch.linalg.solve_triangular(self.factor.T, weights, upper=True)


class PointsGradient:
    """Accumulate the derivative by every hyperparameter and, on request, by every inducing point."""

    def __init__(self, model: Model, points: InducingPoints, *, learn_points: bool) -> None:
        self.model, self.points, self.learn_points = model, points, learn_points
        self.total = {name: torch.zeros_like(value) for name, value in model.parameters().items()}
        self.by_points = torch.zeros_like(points.points)

    def sums(self) -> list[Tensor]:
        """Return the accumulated sums, one tensor for each hyperparameter and one for the points."""
        return [*self.total.values(), self.by_points]

    def add_sums(self, found: list[Tensor]) -> None:
        """Add the sums of another one with the same model and points."""
        for mine, theirs in zip(self.sums(), found, strict=True):
            mine += theirs

    def _add(self, found: dict[str, Tensor]) -> None:
        for name, value in found.items():
            self.total[name] += value

    def add_covariances(self, tiles: Tiles, weights: Tensor) -> None:
        """Add ``sum_ij weights_ij dK(X, Z)_ij``."""
        with torch.no_grad():
            if self.learn_points:
                tiles.follow_points()
            tiles.accumulate(_ALL, _ALL, weights, 1.0)
            self._add(tiles.gradient())
            if self.learn_points:
                self.by_points += tiles.points_gradient()

    def add_features(self, products: Tensor) -> None:
        """Add the derivative through the factor, given ``G' F`` with features F and their derivative G.

        This is the reverse of ``F = K(X, Z) L^-T`` and of the Cholesky factorisation (Murray 2016, arXiv:1602.07527,
        eq. 10). The derivative by K(Z, Z) is ``-L^-T S L^-1 / 2``; S is symmetric with the lower triangle of ``G' F``.
        """
        points = self.points
        mirrored = products.tril() + products.tril(-1).T
        half = torch.linalg.solve_triangular(points.factor.T, mirrored, upper=True)
        weights = torch.linalg.solve_triangular(points.factor, half, upper=False, left=False).mul_(-0.5)
        tiles = tiles_of(points.kernel, points.points, points.points)
        if self.learn_points:
            tiles.follow_points()
        with torch.no_grad():
            tiles.accumulate(_ALL, _ALL, weights, 1.0)
        self._add(tiles.gradient())
        if self.learn_points:  # every point occurs on both sides
            self.by_points += 2 * tiles.points_gradient()
        jitter = points.share * weights.trace() / points.count
        self.add_diagonal(points.points, jitter.expand(points.count), moves=self.learn_points)

    def add_diagonal(self, X: Tensor, weights: Tensor, *, moves: bool = False) -> None:
        """Add ``sum_i weights_i dk(x_i, x_i)``; with ``moves``, also by the rows, which are the inducing points."""
        self._differentiate(lambda kernel, rows: kernel.diagonal(rows), X, weights, moves=moves)

    def add_noise(self, X: Tensor, weights: Tensor) -> None:
        """Add ``sum_i weights_i d noise_i``, for the noise variance and the kernel's white terms."""
        if NOISE in self.total:
            self.total[NOISE] += weights.sum().cpu()
        if self.model.kernel.has_white:
            self._differentiate(lambda kernel, rows: kernel.white(rows), X, weights)

    def _differentiate(
        self, function: Callable[[Kernel, Tensor], Tensor], X: Tensor, weights: Tensor, *, moves: bool = False
    ) -> None:
        kernel = self.model.kernel
        with torch.enable_grad():
            values = {name: value.detach().clone().requires_grad_() for name, value in kernel.parameters().items()}
            rows = X.double().detach()
            rows = rows.clone().requires_grad_() if moves else rows
            output = function(kernel.replace(values), rows)
            if not output.requires_grad:
                return
            wanted = [*values.values(), *([rows] if moves else [])]
            found = torch.autograd.grad(output, wanted, weights.to(output), allow_unused=True)
        self._add({name: one for name, one in zip(values, found, strict=False) if one is not None})
        if moves and found[-1] is not None:
            self.by_points += found[-1]

    def result(self) -> dict[str, Tensor]:
        """Return the derivatives in natural units, float64 on the CPU; the points' are ``"inducing_points"``."""
        total = {name: value.double().cpu() for name, value in self.total.items()}
        return total | ({"inducing_points": self.by_points.cpu()} if self.learn_points else {})
