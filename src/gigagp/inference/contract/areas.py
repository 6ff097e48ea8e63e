"""Training rows that are averages of the function over areas, from their points and shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.inference.contract.rows_posterior import ROWS
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Kernel
from gigagp.model.means import Mean
from gigagp.operators import AveragedMatrix, Averages
from gigagp.operators.averages import is_stored
from gigagp.products import cross_covariance
from gigagp.products.blocks import ranges
from gigagp.settings.schema import Field, check_tensors, not_negative

#: Points of the areas whose covariances with new points are computed at once.
_POINTS = 2048
#: Relative step of the differences by hyperparameters: half of the digits of float64 remain.
_STEP = 1e-7
#: How far the shares of an area in a file may be from one in sum.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class AreaTable(TrainingTable):
    """Averages of the function over areas; ``X`` are the centroids, which say where the rows are.

    The covariance of the rows is ``A K A'``, for the covariance K of the points and the map A of `Averages`.
    """

    has_points = False

    areas: Averages = field(kw_only=True)

    @classmethod
    def of(cls, areas: Averages, Y: Tensor, mean: Mean, budget: int) -> AreaTable:
        """Return the table of areas with targets (n, 1)."""
        return cls(areas.average(areas.points), Y, mean, budget, areas=areas)

    @property
    def points(self) -> Tensor:
        return self.areas.points

    def average(self, values: Tensor) -> Tensor:
        return self.areas.average(values)

    def spread(self, vectors: Tensor) -> Tensor:
        return self.areas.spread(vectors)

    def matrix(self, kernel: Kernel, noise_variance: float | Tensor) -> AveragedMatrix:
        return AveragedMatrix(kernel, self.areas, noise_variance, self.budget)

    def solve_matrix(self, kernel: Kernel, noise_variance: float | Tensor) -> AveragedMatrix:
        return AveragedMatrix(kernel, self.areas, noise_variance, self.budget, "auto")

    def entries_of(self, products: float, kernel: Kernel | None = None) -> float:
        entries = float(len(self.points)) ** 2
        if is_stored(self.n_rows, self.points.dtype, self.budget):
            return entries + products * float(self.n_rows) ** 2
        return products * entries

    def cross_covariance(self, kernel: Kernel, X: Tensor) -> Tensor:
        found = X.new_zeros(self.n_rows, len(X))
        for some in ranges(len(self.points), _POINTS):
            block = cross_covariance(kernel, X, self.points[some], budget=self.budget)
            found = found.index_add(0, self.areas.area[some], self.areas.shares[some, None] * block.T)
        return found.T

    def covariance(self, kernel: Kernel) -> Tensor:
        return self.matrix(kernel, 0.0).to_dense()

    def derivative_products(self, kernel: Kernel, vectors: Tensor) -> dict[str, Tensor]:
        """Return ``(dH/dtheta) @ vectors`` by differences: closed forms would store the covariance of all points.

        They serve as a metric of learning, for which seven digits are plenty.
        """
        products, fixed = {}, kernel.fixed_parameters()
        before = self.matrix(kernel, 0.0) @ vectors
        for name, value in kernel.parameters().items():
            if name in fixed:
                continue
            each = []
            for place, number in enumerate(value.reshape(-1).tolist()):
                step = _STEP * abs(number) or _STEP
                moved = value.clone()
                moved.view(-1)[place] += step
                each.append((self.matrix(kernel.replace({name: moved}), 0.0) @ vectors - before) / step)
            products[name] = torch.stack(each)
        return products

    def require_finite(self) -> AreaTable:
        """Return the table; raise `InvalidInputError` as for a table of the points."""
        TrainingTable(self.points, self.Y, self.mean, self.budget).require_finite()
        return self

    def on_cpu(self) -> AreaTable:
        return replace(self, X=self.X.cpu(), Y=self.Y.cpu(), areas=self.areas.cpu())

    def appended(self, X: Tensor, Y: Tensor) -> AreaTable:
        """Return the table with values at further points, each as its own area."""
        both = torch.cat([self.X, X.to(self.X)]), torch.cat([self.Y, Y.to(self.Y)])
        return replace(self, X=both[0], Y=both[1], areas=self.areas.appended(X)).require_finite()

    def take_rows(self, rows: Tensor) -> AreaTable:
        return replace(self, X=self.X[rows], Y=self.Y[rows], areas=self.areas.take(rows))

    def state(self) -> dict[str, Tensor]:
        areas = self.areas
        return {"points": areas.points, "area": areas.area, "shares": areas.shares, "Y": self.Y}

    def notes(self) -> dict[str, str]:
        counts = self.areas.counts()
        of_each = f"{int(counts.min()):,} to {int(counts.max()):,} points each, {len(self.points):,} in all"
        return {"areas": f"the rows are averages over {of_each}; the noise is that of an average"}


_AREAS = {
    "Y": Field("n t", "real"),
    "points": Field("q d", "real"),
    "area": Field("q", "int64", not_negative),
    "shares": Field("q", "real", not_negative),
}


#: Names of tensors of rows, of either kind.
ROW_NAMES = frozenset({*ROWS, *_AREAS})


def row_fields(tensors: Mapping[str, Tensor]) -> Mapping[str, Field]:
    """Return the fields of the tensors that are rows, in the state of a posterior that may have others too."""
    return _AREAS if "points" in tensors else ROWS


def restored(
    tensors: Mapping[str, Tensor],
    saved: Saved,
    others: Mapping[str, Field] = MappingProxyType({}),
    *,
    mixed: bool = False,
) -> TrainingTable:
    """Return the table of a model file (`TrainingTable.state`), after a check of its tensors and of the others.

    ``mixed`` is that of a table of values at points.
    """
    check_tensors(tensors, {**row_fields(tensors), **others}, saved.sizes)
    if "points" not in tensors:
        return TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget, mixed)
    area, shares, n_areas = tensors["area"], tensors["shares"], len(tensors["Y"])
    follow = bool((area.diff() >= 0).all()) and area.unique_consecutive().tolist() == list(range(n_areas))
    if not follow:
        raise ModelFileError(f"its tensor 'area' must have the numbers from 0 to {n_areas - 1} in ascending order.")
    totals = shares.new_zeros(n_areas).index_add(0, area, shares)
    if not bool(((totals - 1).abs() < _ROUNDING).all()):
        raise ModelFileError("its tensor 'shares' must sum to one in each area.")
    areas = Averages(tensors["points"], area, shares, n_areas)
    return AreaTable.of(areas, tensors["Y"], saved.model.mean, saved.budget)
