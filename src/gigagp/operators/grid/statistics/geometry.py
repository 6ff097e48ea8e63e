"""Regular grids in one to four dimensions, and interpolation between their nodes and points."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, InvalidInputError, MemoryBudgetError, warn
from gigagp.operators.grid.statistics.arguments import (
    MAX_INPUTS,
    check_inputs,
    checked_bounds,
    node_bytes,
    numbers,
    outside_error,
)
from gigagp.operators.grid.statistics.interpolation import Interpolation, interpolation_named
from gigagp.products.blocks import ranges

#: Number of cells between the data and each end of a grid. A cubic stencil needs one; the other lets new rows lie a
#: little outside of the old ones.
MARGIN = 2
#: How far a point may lie outside of the accepted region, as a share of a cell; only rounding puts it there. Its
#: weights are the same polynomials and still sum to one. The same number is in products/native/grid.h.
EDGE = 1e-6
#: Number of elements of a block of stencils (indices, weights and gathered values).
_BLOCK = 2**22


@dataclass(frozen=True)
class RegularGrid:
    """Equally spaced nodes in each of one to four dimensions, and interpolation between them.

    Nodes are numbered in C order, the last input fastest. A point is accepted if its whole stencil lies on the grid, so
    every row of the weights ``W`` sums to one.

    When to use: `RegularGrid.around` and `RegularGrid.automatic` place a grid over data with the margins it needs. The
    constructor is for grids whose nodes are given, such as a lattice that the data lie on.

    Parameters
    ----------
    lower : tuple of float
        Coordinates of the first node, one per input.
    spacing : tuple of float
        Distance between neighbouring nodes along each input, in the units of the input.
    shape : tuple of int
        Number of nodes along each input: at least 4 (cubic) or 2 (linear).
    interpolation : {"cubic", "linear"}
        Cubic convolution (Keys 1981; exact for polynomials up to degree 2) or linear.

    Raises
    ------
    InvalidInputError
        If a number is out of range, or there are more than four inputs.
    """

    lower: tuple[float, ...]
    spacing: tuple[float, ...]
    shape: tuple[int, ...]
    interpolation: str = "cubic"

    def __post_init__(self) -> None:
        scheme = interpolation_named(self.interpolation)
        for name, kind in (("lower", float), ("spacing", float), ("shape", int)):
            values = numbers(getattr(self, name), name)
            if kind is int and any(value != int(value) for value in values):
                raise InvalidInputError(f"shape of RegularGrid must hold whole numbers; got {values}.")
            object.__setattr__(self, name, tuple(kind(value) for value in values))
        d = len(self.shape)
        check_inputs(d)
        if not len(self.lower) == len(self.spacing) == d:
            raise InvalidInputError(
                "lower, spacing and shape of RegularGrid must have one number for each input; got "
                f"{len(self.lower)}, {len(self.spacing)} and {d}."
            )
        if min(self.spacing) <= 0:
            raise InvalidInputError(f"spacing of RegularGrid must be positive; got {self.spacing}.")
        if min(self.shape) < scheme.width:
            raise InvalidInputError(
                f"shape of RegularGrid must have at least {scheme.width} nodes for each input with {scheme.name} "
                f"interpolation; got {self.shape}."
            )
        # The nodes must differ by enough that an offset within a cell has digits.
        for axis, (low, high, step) in enumerate(zip(self.lower, self.upper, self.spacing, strict=True)):
            if step < 1e-9 * max(abs(low), abs(high)):
                raise InvalidInputError(
                    f"spacing of RegularGrid in input {axis} is {step!r}, too small beside coordinates of about "
                    f"{max(abs(low), abs(high))!r} to be told apart in float64. Subtract an offset from this input."
                )

    # Shape ------------------------------------------------------------------------------------------------------------

    @property
    def scheme(self) -> Interpolation:
        """The interpolation in one dimension."""
        return interpolation_named(self.interpolation)

    @property
    def n_inputs(self) -> int:
        """Number of inputs d."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of nodes m."""
        return math.prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Difference between the numbers of neighbouring nodes along each input."""
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(self.n_inputs))

    @property
    def upper(self) -> tuple[float, ...]:
        """The last node."""
        return tuple(
            low + step * (count - 1) for low, step, count in zip(self.lower, self.spacing, self.shape, strict=True)
        )

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of accepted cells along each input: those whose whole stencil lies on the grid."""
        return tuple(count - self.scheme.reach for count in self.shape)

    @property
    def cell_strides(self) -> tuple[int, ...]:
        """Difference between the numbers of neighbouring cells along each input.

        Cells are numbered in C order, but the input with most nodes is the slowest. Threads work on stretches of the
        slowest input that share no node, and so there can be as many of these as possible.
        """
        longest = self.shape.index(max(self.shape))
        order = [longest, *(axis for axis in range(self.n_inputs) if axis != longest)]
        strides, step = [0] * self.n_inputs, 1
        for axis in reversed(order):
            strides[axis], step = step, step * self.cells[axis]
        return tuple(strides)

    @property
    def accepted(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower and upper corner of the closed region in which points are accepted."""
        inside = self.scheme.before
        low = tuple(low + inside * step for low, step in zip(self.lower, self.spacing, strict=True))
        high = tuple(high - inside * step for high, step in zip(self.upper, self.spacing, strict=True))
        return low, high

    def axis(self, k: int) -> Tensor:
        """Return the coordinates of the nodes along input ``k``, shape (shape[k],), float64."""
        return self.lower[k] + self.spacing[k] * torch.arange(self.shape[k], dtype=torch.float64)

    def nodes(self) -> Tensor:
        """Return the coordinates of all nodes, shape (m, d), float64."""
        return torch.cartesian_prod(*(self.axis(k) for k in range(self.n_inputs))).reshape(self.size, self.n_inputs)

    # Points -----------------------------------------------------------------------------------------------------------

    def positions(self, X: Tensor) -> Tensor:
        """Return points in units of the spacing from the first node, shape (n, d); other methods start from these."""
        return (X - X.new_tensor(self.lower)) / X.new_tensor(self.spacing)

    def covers(self, X: Tensor) -> Tensor:
        """Return which points are accepted, shape (n,), boolean. NaN is not accepted."""
        position = self.positions(self._points(X))
        inside = self.scheme.before - EDGE
        return ((position >= inside) & (position <= position.new_tensor(self.shape) - 1 - inside)).all(1)

    def located(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return where points lie.

        Returns
        -------
        first : Tensor of shape (n, d)
            First node of each point's stencil, int64.
        offset : Tensor of shape (n, d)
            Offset from the middle of the point's cell, in units of the spacing; differentiable in ``X``.

        Raises
        ------
        InvalidInputError
            If a point is not accepted, naming the first.
        """
        X = self._points(X)
        covered = self.covers(X)
        if not bool(covered.all()):
            raise self.refusal(X, covered)
        position, inside = self.positions(X), self.scheme.before
        # The last accepted point belongs to the last cell.
        last = position.new_tensor(self.cells) - 1 + inside
        start = torch.minimum(position.detach().floor(), last).clamp(min=inside)
        return start.long() - inside, position - start - 0.5

    def stencil(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes of each point and their weights.

        Parameters
        ----------
        X : Tensor of shape (n, d)

        Returns
        -------
        indices : Tensor of shape (n, q)
            int64, ascending; q is 4^d (cubic) or 2^d (linear).
        weights : Tensor of shape (n, q)
            Rows sum to one; differentiable in ``X``. Derivatives of cubic weights are continuous across cells.

        Raises
        ------
        InvalidInputError
            If a point is not accepted.
        """
        first, offset = self.located(X)
        one = self.scheme.weights(offset)  # (n, d, width)
        step = torch.arange(self.scheme.width)
        indices, weights = torch.zeros(len(X), 1, dtype=torch.long), one.new_ones(len(X), 1)
        for axis, stride in enumerate(self.strides):
            indices = (indices.unsqueeze(2) + ((first[:, axis, None] + step) * stride).unsqueeze(1)).flatten(1)
            weights = (weights.unsqueeze(2) * one[:, axis].unsqueeze(1)).flatten(1)
        return indices, weights

    def interpolate(self, X: Tensor, values: Tensor) -> Tensor:
        """Return ``W @ values``: the function with these values on the nodes, evaluated at points.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        values : Tensor of shape (m, s)

        Returns
        -------
        Tensor of shape (n, s)
            Differentiable in both. Costs 4^d multiplications for each point and column (cubic), done in blocks.
        """
        self._check_nodes(values, self.size, "values")
        parts = []
        for rows in self._blocks(len(X), values.shape[1]):
            indices, weights = self.stencil(X[rows])
            # Weighted sums of gathered rows, without forming the gathered rows.
            parts.append(
                torch.nn.functional.embedding_bag(
                    indices, values, per_sample_weights=weights.to(values.dtype), mode="sum"
                )
            )
        return torch.cat(parts) if parts else values.new_zeros(0, values.shape[1])

    def scatter(self, X: Tensor, values: Tensor) -> Tensor:
        """Return ``W' @ values``, shape (m, s), for values (n, s) at the points."""
        self._check_nodes(values, len(X), "values")
        out = values.new_zeros(self.size, values.shape[1])
        for rows in self._blocks(len(X), values.shape[1]):
            indices, weights = self.stencil(X[rows])
            out.index_add_(0, indices.flatten(), (weights.unsqueeze(2) * values[rows].unsqueeze(1)).flatten(0, 1))
        return out

    def matrix(self, X: Tensor) -> Tensor:
        """Return ``W`` as a sparse CSR tensor of shape (n, m), which stores n 4^d entries, zeros included."""
        indices, weights = self.stencil(X)
        rows = torch.arange(len(X) + 1) * indices.shape[1]
        with warnings.catch_warnings():  # "support is in beta state"
            warnings.filterwarnings("ignore", message="Sparse CSR", category=UserWarning)
            return torch.sparse_csr_tensor(
                rows, indices.flatten(), weights.flatten(), (len(X), self.size), check_invariants=False
            )

    # Making one -------------------------------------------------------------------------------------------------------

    @classmethod
    def around(
        cls, lower: Sequence[float], upper: Sequence[float], shape: Sequence[int] | int, interpolation: str = "cubic"
    ) -> RegularGrid:
        """Return the grid of this shape over data between two corners, with two cells to spare on each side.

        Parameters
        ----------
        lower, upper : sequence of float
            Smallest and largest value of each input.
        shape : sequence of int, or int
            Number of nodes along each input, margins included: at least 6.
        interpolation : {"cubic", "linear"}

        Raises
        ------
        InvalidInputError
            If an input is constant (``lower == upper``), a number is not finite, or the shape is too small.

        Warns
        -----
        GigaGPWarning
            If there are four inputs, with the cost of a node and a row.
        """
        low, high = checked_bounds(lower, upper)
        check_inputs(len(low))
        counts = [int(shape)] * len(low) if isinstance(shape, (int, np.integer)) else numbers(shape, "shape")
        if len(counts) != len(low):
            msg = f"shape of RegularGrid.around must have {len(low)} numbers, one for each input; got {len(counts)}."
            raise InvalidInputError(msg)
        if min(counts) < 2 * MARGIN + 2:
            raise InvalidInputError(
                f"shape of RegularGrid.around must be at least {2 * MARGIN + 2} for each input ({MARGIN} cells of "
                f"margin on each side); got {tuple(counts)}."
            )
        if len(low) == MAX_INPUTS:
            message = (
                f"A grid over {MAX_INPUTS} inputs takes {node_bytes(MAX_INPUTS, interpolation):,} bytes a node while "
                "rows are added, and many times the work of three inputs a row. Another inference may be faster."
            )
            warn(message, GigaGPWarning)
        # Margins are a share of the range, not of the coordinate: that would move a negative end inwards.
        spacing = [(b - a) / (count - 1 - 2 * MARGIN) for a, b, count in zip(low, high, counts, strict=True)]
        first = [a - MARGIN * step for a, step in zip(low, spacing, strict=True)]
        return cls(tuple(first), tuple(spacing), tuple(int(count) for count in counts), interpolation)

    @classmethod
    def automatic(
        cls,
        lower: Sequence[float],
        upper: Sequence[float],
        lengthscales: Sequence[float],
        budget: int,
        interpolation: str = "cubic",
        *,
        nodes_per_lengthscale: float = 4.0,
        warns: bool = True,
    ) -> RegularGrid:
        """Return a grid that is fine enough for a kernel, or as fine as the memory budget allows.

        Parameters
        ----------
        lower, upper : sequence of float
            Smallest and largest value of each input.
        lengthscales : sequence of float
            The kernel's lengthscale for each input, in the input's units; the shortest if there are several.
        budget : int
            Bytes for the statistics of the data (`RegularGrid.statistics_bytes`).
        interpolation : {"cubic", "linear"}
        nodes_per_lengthscale : float
            The error of the mean is below 5 %, at a noise variance of 1 % of the signal's, with 2 for the squared
            exponential, 3 for Matern-5/2 and 4 for Matern-3/2. Less noise needs a finer grid.
        warns : bool, default True

        Raises
        ------
        MemoryBudgetError
            If the coarsest grid does not fit.
        InvalidInputError
            If an input is constant or a number is out of range.

        Warns
        -----
        GigaGPWarning
            If the budget makes the cells larger than a lengthscale, which then count as noise, or with four inputs.
        """
        low, high = checked_bounds(lower, upper)
        check_inputs(len(low))
        scales = numbers(lengthscales, "lengthscales")
        if len(scales) != len(low) or min(scales) <= 0 or not nodes_per_lengthscale > 0:
            raise InvalidInputError(
                f"lengthscales of RegularGrid.automatic must be {len(low)} positive numbers and nodes_per_lengthscale "
                f"positive; got {tuple(scales)} and {nodes_per_lengthscale!r}."
            )

        def shape(density: float) -> list[int]:
            spans = [(b - a) / scale * density for a, b, scale in zip(low, high, scales, strict=True)]
            # The cut at 1e9 nodes, more than any memory holds, keeps the numbers finite.
            return [1 + 2 * MARGIN + max(1, math.ceil(min(span, 1e9) - 1e-9)) for span in spans]

        def needed(density: float) -> int:
            counts = shape(density)
            return math.prod(counts) * node_bytes(len(counts), interpolation)

        density = float(nodes_per_lengthscale)
        if needed(density) > budget:
            if needed(0.0) > budget:
                raise MemoryBudgetError(
                    f"The coarsest grid over {len(low)} inputs needs {needed(0.0):,} bytes, but the memory budget is "
                    f"{budget:,}. Raise the budget, use fewer inputs, or another inference."
                )
            fits, too_fine = 0.0, density
            for _ in range(60):  # bisection for the largest density that fits
                middle = (fits + too_fine) / 2
                fits, too_fine = (middle, too_fine) if needed(middle) <= budget else (fits, middle)
            density = fits
        grid = cls.around(low, high, shape(density), interpolation)
        k = max(range(len(scales)), key=lambda axis: grid.spacing[axis] / scales[axis])
        if warns and grid.spacing[k] > scales[k] * (1 + 1e-9):
            message = (
                f"The grid's cells are larger than the lengthscale in input {k} ({grid.spacing[k]:.3g} against "
                f"{scales[k]:.3g}) because the memory budget of {budget:,} bytes allows {grid.size:,} nodes: the grid "
                "cannot see this kernel. Raise the budget, or expect what it misses to count as noise."
            )
            warn(message, GigaGPWarning)
        return grid

    def moved(self, shift: Sequence[float], scale: Sequence[float]) -> RegularGrid:
        """Return the grid with the same nodes for inputs ``(x - shift) / scale``; one shift and one scale per input."""
        lower = tuple((a - b) / c for a, b, c in zip(self.lower, shift, scale, strict=True))
        return replace(self, lower=lower, spacing=tuple(a / b for a, b in zip(self.spacing, scale, strict=True)))

    @property
    def statistics_bytes(self) -> int:
        """Bytes that statistics on this grid can take while they are collected, for one target and no probes."""
        return self.size * node_bytes(self.n_inputs, self.interpolation)

    def extended(self, functions: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the values of functions of points at the nodes, shape (m, p)."""
        return functions(self.nodes())

    def to_dict(self) -> dict[str, Any]:
        """Return the grid as plain data."""
        return {
            "lower": list(self.lower),
            "spacing": list(self.spacing),
            "shape": list(self.shape),
            "interpolation": self.interpolation,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RegularGrid:
        """Return the grid that `to_dict` described."""
        return cls(tuple(data["lower"]), tuple(data["spacing"]), tuple(data["shape"]), data["interpolation"])

    # Inside -----------------------------------------------------------------------------------------------------------

    def _points(self, X: Tensor) -> Tensor:
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            raise InvalidInputError(f"X of RegularGrid must have shape (n, {self.n_inputs}); got {tuple(X.shape)}.")
        return X if X.dtype == torch.float64 else X.double()

    def refusal(
        self, X: Tensor, covered: Tensor, first_row: int = 0, names: Sequence[str] | None = None
    ) -> InvalidInputError:
        """Return the error for points that are not all accepted, by `arguments.outside_error`."""
        return outside_error(X, covered, *self.accepted, first_row, names)

    def _check_nodes(self, values: Tensor, rows: int, name: str) -> None:
        if values.ndim != 2 or len(values) != rows:
            raise InvalidInputError(f"{name} of RegularGrid must have shape ({rows}, s); got {tuple(values.shape)}.")

    def _blocks(self, n: int, columns: int) -> Iterator[slice]:
        return ranges(n, max(1, _BLOCK // (self.scheme.width**self.n_inputs * (3 + columns))))
