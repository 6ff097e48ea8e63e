"""Functions of many inputs that are sums of functions of a few: one grid for each set of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics.arguments import outside_error
from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.products.blocks import ranges

#: Number of elements of a block of stencils.
_BLOCK = 2**22


@dataclass(frozen=True)
class GridSum:
    """Several regular grids, each over some of the inputs, whose interpolants are added.

    A vector of values has those of the first grid first. The weights of a point are the weights on all grids side by
    side, so that every method means the same as for a single `RegularGrid`.

    When to use: for additive kernels of more than three inputs; `gigagp.inference.Grid` makes it.

    Parameters
    ----------
    grids : tuple of RegularGrid
        Of the same interpolation.
    columns : tuple of tuple of int
        Inputs of each grid.

    Raises
    ------
    InvalidInputError
        If the numbers of inputs do not agree, or an input has no grid.
    """

    grids: tuple[RegularGrid, ...]
    columns: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        used = {column for columns in self.columns for column in columns}
        fits = len(self.grids) == len(self.columns) and all(
            grid.n_inputs == len(set(columns)) for grid, columns in zip(self.grids, self.columns, strict=True)
        )
        if not fits or used != set(range(len(used))) or len({grid.interpolation for grid in self.grids}) != 1:
            raise InvalidInputError(
                "GridSum needs grids of one interpolation and the inputs of each, which together are 0, 1, ...; got "
                f"{len(self.grids)} grids for {self.columns}."
            )

    # Shape ------------------------------------------------------------------------------------------------------------

    @property
    def n_inputs(self) -> int:
        """Number of inputs d."""
        return 1 + max(column for columns in self.columns for column in columns)

    @property
    def size(self) -> int:
        """Number of nodes m of all grids."""
        return sum(grid.size for grid in self.grids)

    @property
    def interpolation(self) -> str:
        """Name of the interpolation scheme."""
        return self.grids[0].interpolation

    @property
    def places(self) -> list[slice]:
        """Where the values of each grid are in a vector."""
        ends = [0]
        for grid in self.grids:
            ends.append(ends[-1] + grid.size)
        return [slice(a, b) for a, b in pairwise(ends)]

    @property
    def owners(self) -> list[tuple[int, int]]:
        """For each input, the first grid that has it and its place among that grid's inputs."""
        return [
            next((k, columns.index(one)) for k, columns in enumerate(self.columns) if one in columns)
            for one in range(self.n_inputs)
        ]

    @property
    def lower(self) -> tuple[float, ...]:
        """First node along each input, of the first grid that has it."""
        return tuple(self.grids[k].lower[place] for k, place in self.owners)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distance of neighbouring nodes along each input, of the first grid that has it."""
        return tuple(self.grids[k].spacing[place] for k, place in self.owners)

    @property
    def accepted(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower and upper corner of the closed region in which points are accepted."""
        low, high = [-torch.inf] * self.n_inputs, [torch.inf] * self.n_inputs
        for grid, columns in zip(self.grids, self.columns, strict=True):
            for column, a, b in zip(columns, *grid.accepted, strict=True):
                low[column], high[column] = max(low[column], a), min(high[column], b)
        return tuple(low), tuple(high)

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of cells of all grids together, as one number."""
        return (sum(torch.Size(grid.cells).numel() for grid in self.grids),)

    @property
    def statistics_bytes(self) -> int:
        """Bytes of statistics while they are collected: a dense ``W'W`` and its sum with another."""
        return 16 * self.size**2

    def extended(self, functions: Callable[[Tensor], Tensor]) -> Tensor:
        """Return values on the nodes of functions that are sums of functions of one input each, shape (m, p).

        The functions take points (k, d) and return values (k, p), such as the basis of a mean.
        """
        origin = torch.zeros(1, self.n_inputs, dtype=torch.float64)
        at_origin, parts = functions(origin), []
        seen: set[int] = set()
        for grid, columns in zip(self.grids, self.columns, strict=True):
            points, nodes = origin.repeat(grid.size, 1), grid.nodes()
            for place, column in enumerate(columns):
                if column not in seen:  # an earlier grid has the function of this input
                    points[:, column] = nodes[:, place]
            parts.append(functions(points) - (at_origin if seen else 0.0))
            seen |= set(columns)
        return torch.cat(parts)

    # Points -----------------------------------------------------------------------------------------------------------

    def covers(self, X: Tensor) -> Tensor:
        """Return which points are accepted by all grids, shape (n,)."""
        parts = [grid.covers(X[:, list(columns)]) for grid, columns in zip(self.grids, self.columns, strict=True)]
        return torch.stack(parts).all(0)

    def refusal(
        self, X: Tensor, covered: Tensor, first_row: int = 0, names: Sequence[str] | None = None
    ) -> InvalidInputError:
        """Return the error for points that are not all accepted."""
        return outside_error(X, covered, *self.accepted, first_row, names)

    def stencil(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes of each point on all grids and their weights; see `RegularGrid.stencil`."""
        covered = self.covers(X)
        if not bool(covered.all()):
            raise self.refusal(X, covered)
        indices, weights = [], []
        for grid, columns, place in zip(self.grids, self.columns, self.places, strict=True):
            own, weight = grid.stencil(X[:, list(columns)])
            indices.append(own + place.start)
            weights.append(weight)
        return torch.cat(indices, 1), torch.cat(weights, 1)

    def interpolate(self, X: Tensor, values: Tensor) -> Tensor:
        """Return ``W @ values``: the sum of the interpolants, shape (n, s); see `RegularGrid.interpolate`."""
        parts = zip(self.grids, self.columns, self.places, strict=True)
        return sum(  # type: ignore[return-value]
            grid.interpolate(X[:, list(columns)], values[place]) for grid, columns, place in parts
        )

    def scatter(self, X: Tensor, values: Tensor) -> Tensor:
        """Return ``W' @ values``, shape (m, s), for values (n, s) at the points."""
        parts = zip(self.grids, self.columns, strict=True)
        return torch.cat([grid.scatter(X[:, list(columns)], values) for grid, columns in parts])

    def blocks(self, n: int) -> list[slice]:
        """Return slices of n points whose products of weights fit a block."""
        width = sum(grid.scheme.width**grid.n_inputs for grid in self.grids)
        return list(ranges(n, max(1, _BLOCK // width**2)))

    # Changing ---------------------------------------------------------------------------------------------------------

    def moved(self, shift: Sequence[float], scale: Sequence[float]) -> GridSum:
        """Return the grids with the same nodes for inputs ``(x - shift) / scale``."""
        grids = tuple(
            grid.moved([shift[k] for k in columns], [scale[k] for k in columns])
            for grid, columns in zip(self.grids, self.columns, strict=True)
        )
        return GridSum(grids, self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Return the grids as plain data."""
        parts = zip(self.grids, self.columns, strict=True)
        return {"sum": [grid.to_dict() | {"columns": list(columns)} for grid, columns in parts]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GridSum:
        """Return the grids that `to_dict` described."""
        parts = data["sum"]
        return cls(tuple(RegularGrid.from_dict(one) for one in parts), tuple(tuple(one["columns"]) for one in parts))


def shape_in_words(grid: RegularGrid | GridSum) -> str:
    """Return the number of nodes along each input, such as "40 x 30", of each grid."""
    grids = grid.grids if isinstance(grid, GridSum) else (grid,)
    return " + ".join(" x ".join(map(str, one.shape)) for one in grids)


def grid_from_dict(data: dict[str, Any]) -> RegularGrid | GridSum:
    """Return the grid that ``to_dict`` described, of either kind."""
    return GridSum.from_dict(data) if "sum" in data else RegularGrid.from_dict(data)
