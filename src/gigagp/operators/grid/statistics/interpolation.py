"""Interpolation weights in one dimension: cubic convolution and linear, as polynomials of the offset in a cell.

A row at ``t`` between nodes ``j`` and ``j + 1`` has ``offset = t - j - 1/2`` in [-1/2, 1/2]. It is measured from the
middle of the cell because its powers stay small there. Each weight is a polynomial of the offset, so the product of two
weights is a polynomial of twice the degree. Sums of powers over the rows of a cell therefore determine ``W'W``
(`gigagp.operators.grid.statistics.moments`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError


@dataclass(frozen=True)
class Interpolation:
    """A local interpolation scheme on a regular grid.

    In one dimension a stencil has ``width`` nodes, 4 (cubic) or 2 (linear), which is ``2 r`` in Yadav et al. (2021);
    ``before`` of them lie below the lower node of the row's cell. ``coefficients`` has one polynomial for each node of
    the stencil, in ascending powers of the offset.
    """

    name: str
    width: int
    before: int
    coefficients: tuple[tuple[float, ...], ...]

    @property
    def degree(self) -> int:
        """Degree of the weights."""
        return self.width - 1

    @property
    def reach(self) -> int:
        """Largest distance in nodes, in one dimension, between two nodes that share a row."""
        return self.width - 1

    @property
    def n_moments(self) -> int:
        """Number of powers of an offset in products of two weights: degrees 0 to twice that of a weight."""
        return 2 * self.degree + 1

    def weights(self, offset: Tensor) -> Tensor:
        """Return the weights, shape (*offset.shape, width); differentiable in the offset."""
        columns = offset.new_tensor(self.coefficients)
        value = columns[:, -1].expand(*offset.shape, self.width)
        for power in range(self.degree - 1, -1, -1):  # Horner's rule
            value = value * offset.unsqueeze(-1) + columns[:, power]
        return value

    def products(self) -> Tensor:
        """Return the polynomials of products of two weights, shape (width, width, n_moments), float64."""
        single = torch.tensor(self.coefficients, dtype=torch.float64)
        found = torch.zeros(self.width, self.width, self.n_moments, dtype=torch.float64)
        for i in range(self.width):
            for k in range(self.width):
                found[:, :, i + k] += single[:, i, None] * single[None, :, k]
        return found


#: Keys (1981), "Cubic convolution interpolation for digital image processing", with a = -1/2, expanded about the
#: middle of the cell; https://doi.org/10.1109/TASSP.1981.1163711. The coefficients are dyadic, so the weights at a node
#: are exactly 0 and 1.
CUBIC = Interpolation(
    "cubic",
    4,
    1,
    (
        (-1 / 16, 1 / 8, 1 / 4, -1 / 2),
        (9 / 16, -11 / 8, -1 / 4, 3 / 2),
        (9 / 16, 11 / 8, -1 / 4, -3 / 2),
        (-1 / 16, -1 / 8, 1 / 4, 1 / 2),
    ),
)
LINEAR = Interpolation("linear", 2, 0, ((1 / 2, -1.0), (1 / 2, 1.0)))


def interpolation_named(name: str) -> Interpolation:
    """Return the scheme of this name; raise `InvalidInputError` if there is none."""
    for scheme in (CUBIC, LINEAR):
        if scheme.name == name:
            return scheme
    raise InvalidInputError(f'interpolation of RegularGrid must be "cubic" or "linear"; got {name!r}.')
