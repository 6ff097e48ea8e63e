"""Entries of one kernel on two fixed sets of points, one tile at a time, and their derivatives.

A tree of kernels becomes a tree of `Tiles`. Stationary kernels have closed forms, and sums and products pass weights on
to their parts. Everything else, including most kernels of a user's own, goes through autograd, one tile at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gigagp.kernels import Constant, Kernel, Product, StationaryKernel, Sum, White
from gigagp.kernels.composite import Composite
from gigagp.kernels.distances import FARTHEST, ROUNDING_ERROR, common_offset, squared_differences
from gigagp.kernels.leaf import Leaf


class Buffer:
    """Memory for one tile that is reused."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = torch.empty(0, dtype=dtype, device=device)

    def view(self, n_rows: int, n_columns: int) -> Tensor:
        """Return an uninitialised contiguous tile, which overwrites the previous one."""
        if self._flat.numel() < n_rows * n_columns:
            self._flat = self._flat.new_empty(n_rows * n_columns)
        return self._flat[: n_rows * n_columns].view(n_rows, n_columns)


class Tiles(ABC):
    """Tiles of one kernel: ``factor * evaluate(rows, columns)`` are its entries."""

    def __init__(self, kernel: Kernel, X: Tensor, Z: Tensor) -> None:
        self.kernel = kernel
        self.X = X
        self.Z = Z
        #: `evaluate` leaves this factor out, because scaling the result is cheaper than scaling every entry.
        self.factor = 1.0

    @abstractmethod
    def evaluate(self, rows: slice, columns: slice) -> Tensor:
        """Return a tile. The caller may overwrite it, and the next call does."""

    @abstractmethod
    def accumulate(self, rows: slice, columns: slice, weights: Tensor, multiple: float) -> None:
        """Add ``multiple * sum_ij weights_ij dk(x_i, z_j) / d parameter`` to the gradient; weights stay unchanged."""

    @abstractmethod
    def gradient(self) -> dict[str, Tensor]:
        """Return the accumulated derivatives, float64 on the CPU."""

    @abstractmethod
    def follow_points(self) -> None:
        """Let later calls of `accumulate` add up the derivative in the points Z too."""

    @abstractmethod
    def points_gradient(self) -> Tensor:
        """Return ``sum_ij weights_ij dk(x_i, z_j) / d z_j`` for every j, shape of Z.

        The x_i are constants, also where X is Z.
        """


def tiles_of(kernel: Kernel, X: Tensor, Z: Tensor) -> Tiles:
    """Return the tiles of a bound kernel: by closed forms where its class has them, else by autograd on its `block`.

    A class that derives from another may replace its `block`, so the type has to be the class itself.
    """
    if isinstance(kernel, StationaryKernel) and kernel.has_closed_form():
        return StationaryTiles(kernel, X, Z)
    makers: dict[type[Kernel], Callable[..., Tiles]] = {
        Sum: SumTiles,
        Product: ProductTiles,
        Constant: ConstantTiles,
        White: WhiteTiles,
    }
    return makers.get(type(kernel), AutogradTiles)(kernel, X, Z)


class StationaryTiles(Tiles):
    """Closed forms for ``variance * g(p)``, ``p = |e - f|^2`` with points e, f in scaled coordinates.

    The distances of a tile are one matrix product, ``[-2 e, |e|^2, 1] [f, 1, |f|^2]'``, after the points' common offset
    is subtracted. Its rounding error grows with the squared norms. Where it would exceed `ROUNDING_ERROR` (lengthscales
    far below the range of the inputs), or the profile has a kink, float32 tiles are computed in float64, and float64
    tiles input by input.
    """

    def __init__(self, kernel: StationaryKernel, X: Tensor, Z: Tensor) -> None:
        super().__init__(kernel, X, Z)
        self.stationary = kernel
        self.factor = float(kernel.value("variance"))
        left, right = self._points()
        squares = left.square().sum(1), right.square().sum(1)
        largest = float(squares[0].amax() + squares[1].amax()) if len(left) and len(right) else 0.0
        largest *= max(0.5 / kernel.distance_factor, 1.0)  # the steepest slope of a rational quadratic is its exponent
        exact = kernel.kink or largest * torch.finfo(X.dtype).eps > ROUNDING_ERROR[X.dtype]
        #: dtype of distances, and of sums in which squared norms cancel
        self.working = torch.float64 if exact else X.dtype
        #: whether distances are sums of squared differences
        self.direct = kernel.kink or largest * torch.finfo(self.working).eps > ROUNDING_ERROR[self.working]
        ones = torch.ones_like
        self.left = torch.cat([-2 * left, squares[0][:, None], ones(left[:, :1])], dim=1).to(self.working)
        self.right = torch.cat([right, ones(right[:, :1]), squares[1][:, None]], dim=1).to(self.working)
        self.tile = Buffer(self.working, X.device)
        self.converted = Buffer(X.dtype, X.device)
        self.by_variance = torch.zeros((), dtype=torch.float64)
        self.by_alpha = torch.zeros((), dtype=torch.float64)
        self.by_square = torch.zeros(left.shape[1], dtype=torch.float64)
        self.by_point: Tensor | None = None

    def _points(self) -> tuple[Tensor, Tensor]:
        """Return both sets of points in float64, scaled, with their common offset subtracted."""
        root = self.stationary.distance_factor**0.5
        left = self.stationary.scale(self.X.to(torch.float64)) * root
        right = left if self.Z is self.X else self.stationary.scale(self.Z.to(torch.float64)) * root
        centre = common_offset(right)
        return left - centre, right - centre

    def _distances(self, rows: slice, columns: slice) -> Tensor:
        left, right = self.left[rows], self.right[columns]
        p = self.tile.view(left.shape[0], right.shape[0])
        if self.direct:  # left is -2 e
            p.copy_(squared_differences(-0.5 * left[:, :-2], right[:, :-2]))
        else:
            torch.mm(left, right.T, out=p).clamp_(0.0, FARTHEST)
        return p if p.dtype == self.X.dtype else self.converted.view(*p.shape).copy_(p)

    def evaluate(self, rows: slice, columns: slice) -> Tensor:
        return self.stationary.profile_(self._distances(rows, columns))

    def accumulate(self, rows: slice, columns: slice, weights: Tensor, multiple: float) -> None:
        """Add a tile's share of ``sum A g``, ``sum A dg/dalpha`` and ``sum A dg/dp (e_k - f_k)^2`` for every k."""
        g, slope, by_alpha = self.stationary.profile_derivatives_(self._distances(rows, columns))
        self.by_variance += multiple * float(g.mul_(weights).sum())
        if by_alpha is not None:
            self.by_alpha += multiple * float(by_alpha.mul_(weights).sum())
        if self.direct:
            self._accumulate_differences(rows, columns, slope.mul_(weights).to(self.working), multiple)
            return
        # With S = A dg/dp: sum_ij S_ij (e_i - f_j)^2 = rowsums' e^2 + colsums' f^2 - 2 sum_i e_i (S f)_i, which is one
        # matrix product for all lengthscales together; the column of ones in it gives the row sums.
        weighted = slope.mul_(weights).to(self.working)
        left, right = self.left[rows, :-2], self.right[columns]  # left is -2 e
        passed = weighted @ right
        shares = (passed[:, :-2] * left).sum(0)
        shares += passed[:, -2] @ left.square().div_(4)
        shares += weighted.sum(0) @ right[:, :-2].square()
        self.by_square.add_(shares.to(self.by_square), alpha=multiple)
        if self.by_point is not None:  # d/df_j of the same sum: 2 (sum_i S_ij f_j - sum_i S_ij e_i)
            back = weighted.T @ self.left[rows]  # [-2 S'e, ., colsums]
            moved = torch.addcmul(back[:, :-2], right[:, :-2], back[:, -1:], value=2)
            self.by_point[columns] += multiple * moved.to(self.by_point)

    def _accumulate_differences(self, rows: slice, columns: slice, weighted: Tensor, multiple: float) -> None:
        """Add the same, input by input: with points far apart, squared norms would leave only rounding errors."""
        left, right = -0.5 * self.left[rows, :-2], self.right[columns, :-2]
        for k in range(left.shape[1]):
            apart = left[:, None, k] - right[None, :, k]
            moved = weighted * apart
            self.by_square[k] += multiple * float((moved * apart).sum())
            if self.by_point is not None:
                self.by_point[columns, k] -= 2 * multiple * moved.sum(0).to(self.by_point)

    def follow_points(self) -> None:
        self.by_point = torch.zeros(len(self.right), self.right.shape[1] - 2, dtype=torch.float64, device=self.X.device)

    def points_gradient(self) -> Tensor:
        """Return the derivatives in the active columns of Z, and zeros in the others."""
        assert self.by_point is not None, "follow_points comes first"
        root = self.stationary.distance_factor**0.5
        with torch.enable_grad():  # by_point is of scaled coordinates
            points = self.Z.detach().to(torch.float64).requires_grad_()
            return torch.autograd.grad(self.stationary.scale(points) * root, points, self.factor * self.by_point)[0]

    def gradient(self) -> dict[str, Tensor]:
        lengthscale = self.stationary.value("lengthscale").detach()
        # dp / d lengthscale_k = -2 (e_k - f_k)^2 / lengthscale_k
        by_square = self.stationary.by_value(self.by_square)
        found = {"lengthscale": -2 * self.factor * by_square / lengthscale, "variance": self.by_variance.clone()}
        if "alpha" in self.stationary.shapes:
            found["alpha"] = self.factor * self.by_alpha
        return found


class ConstantTiles(Tiles):
    """Tiles of ones."""

    def __init__(self, kernel: Constant, X: Tensor, Z: Tensor) -> None:
        super().__init__(kernel, X, Z)
        self.factor = float(kernel.value("variance"))
        self.tile = Buffer(X.dtype, X.device)
        self.by_variance = torch.zeros((), dtype=torch.float64)

    def evaluate(self, rows: slice, columns: slice) -> Tensor:
        return self.tile.view(self.X[rows].shape[0], self.Z[columns].shape[0]).fill_(1)

    def accumulate(self, rows: slice, columns: slice, weights: Tensor, multiple: float) -> None:
        self.by_variance += multiple * float(weights.sum())

    def gradient(self) -> dict[str, Tensor]:
        return {"variance": self.by_variance.clone()}

    def follow_points(self) -> None:
        """Do nothing: a constant does not depend on the points."""

    def points_gradient(self) -> Tensor:
        return torch.zeros(self.Z.shape, dtype=torch.float64, device=self.Z.device)


class WhiteTiles(ConstantTiles):
    """Tiles of zeros: white noise is only on the diagonal of K(X, X), where the operator adds it."""

    def __init__(self, kernel: White, X: Tensor, Z: Tensor) -> None:
        super().__init__(kernel, X, Z)  # type: ignore[arg-type]

    def evaluate(self, rows: slice, columns: slice) -> Tensor:
        return super().evaluate(rows, columns).zero_()

    def accumulate(self, rows: slice, columns: slice, weights: Tensor, multiple: float) -> None:
        """Add nothing."""


class AutogradTiles(Tiles):
    """Any kernel, through its own `block`, with its own derivatives or those of autograd on each tile."""

    def __init__(self, kernel: Kernel, X: Tensor, Z: Tensor) -> None:
        super().__init__(kernel, X, Z)
        self.values = {name: value.detach().clone() for name, value in kernel.parameters().items()}
        self.sums = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.by_point: Tensor | None = None

    def _inputs(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        left = self.X[rows]
        return left, left if self.Z is self.X and rows == columns else self.Z[columns]

    def evaluate(self, rows: slice, columns: slice) -> Tensor:
        return self.kernel.block(*self._inputs(rows, columns)).contiguous()

    def accumulate(self, rows: slice, columns: slice, weights: Tensor, multiple: float) -> None:
        """Add the vector-Jacobian product of the tile."""
        left, right = self._inputs(rows, columns)
        if self.by_point is None and isinstance(self.kernel, Leaf):
            closed = self.kernel.derivatives(left, right)
            if closed is not None:
                for name, one in closed.items():
                    sums = (one.flatten(1) @ weights.flatten().to(one)).to(self.sums[name])
                    self.sums[name].add_(sums.reshape(self.sums[name].shape), alpha=multiple)
                return
        with torch.enable_grad():
            values = {name: value.clone().requires_grad_() for name, value in self.values.items()}
            if self.by_point is not None:
                right = right.detach().clone().requires_grad_()
            block = self.kernel.replace(values).block(left, right)
            if not block.requires_grad:
                return
            wanted = [*values.values(), *([right] if self.by_point is not None else [])]
            found = torch.autograd.grad(block, wanted, weights, allow_unused=True)
        for name, value in zip(values, found, strict=False):
            if value is not None:
                self.sums[name].add_(value, alpha=multiple)
        if self.by_point is not None and found[-1] is not None:
            self.by_point[columns] += multiple * found[-1]

    def follow_points(self) -> None:
        self.by_point = torch.zeros(self.Z.shape, dtype=torch.float64, device=self.Z.device)

    def points_gradient(self) -> Tensor:
        assert self.by_point is not None, "follow_points comes first"
        return self.by_point.clone()

    def gradient(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.sums.items()}


class _CompositeTiles(Tiles):
    def __init__(self, kernel: Composite, X: Tensor, Z: Tensor) -> None:
        super().__init__(kernel, X, Z)
        self.parts = [tiles_of(part, X, Z) for part in kernel.parts]

    def gradient(self) -> dict[str, Tensor]:
        return {
            f"{position}.{name}": value
            for position, part in enumerate(self.parts)
            for name, value in part.gradient().items()
        }

    def follow_points(self) -> None:
        for part in self.parts:
            part.follow_points()

    def points_gradient(self) -> Tensor:
        """Return the sum over the parts, which `accumulate` has given their weights."""
        return torch.stack([part.points_gradient() for part in self.parts]).sum(0)


class SumTiles(_CompositeTiles):
    """Tiles of a sum: every part gets the weights."""

    def evaluate(self, rows: slice, columns: slice) -> Tensor:
        parts = [part for part in self.parts if not isinstance(part, WhiteTiles)] or self.parts[:1]
        total = parts[0].evaluate(rows, columns).mul_(parts[0].factor)
        for part in parts[1:]:
            total.add_(part.evaluate(rows, columns), alpha=part.factor)
        return total

    def accumulate(self, rows: slice, columns: slice, weights: Tensor, multiple: float) -> None:
        for part in self.parts:
            part.accumulate(rows, columns, weights, multiple)


class ProductTiles(_CompositeTiles):
    """Tiles of a product: every part gets the weights times the other parts."""

    def __init__(self, kernel: Product, X: Tensor, Z: Tensor) -> None:
        super().__init__(kernel, X, Z)
        for part in self.parts:
            self.factor *= part.factor

    def evaluate(self, rows: slice, columns: slice) -> Tensor:
        total = self.parts[0].evaluate(rows, columns)
        for part in self.parts[1:]:
            total.mul_(part.evaluate(rows, columns))
        return total

    def accumulate(self, rows: slice, columns: slice, weights: Tensor, multiple: float) -> None:
        """Pass the weights on, times the other parts, which are computed again for each part."""
        for part in self.parts:
            passed, rest = weights.clone(), multiple
            for other in self.parts:
                if other is not part:
                    passed.mul_(other.evaluate(rows, columns))
                    rest *= other.factor
            part.accumulate(rows, columns, passed, rest)
