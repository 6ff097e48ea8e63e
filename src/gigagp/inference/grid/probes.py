"""Noise as the grid sees it: random vectors with the covariance ``W'W``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.grids import GridStatistics, StencilGram
from gigagp.random import standard_normal

#: Degree of the polynomial for draws that the pass over the rows did not make. The error of a draw's standard deviation
#: at a node is below a percent of that of the busiest node near.
_DEGREE = 60


def noise_probes(statistics: GridStatistics, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return ``W'z`` for independent unit-variance vectors z of the rows, shape (m, n_columns).

    Those that the pass over the rows collected, and beyond them draws of ``N(0, W'W)`` from the matrix itself.
    """
    kept = statistics.probes[:, :n_columns]
    missing = n_columns - kept.shape[1]
    return kept if missing == 0 else torch.cat([kept, draw_from_gram(statistics.gram, missing, generator)], 1)


def draw_from_gram(gram: StencilGram, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return draws of ``N(0, W'W)``, shape (m, n_columns), up to the error of a polynomial of degree 60.

    ``W'W = D^1/2 A D^1/2`` with A near the identity in size, and the root of A is a Chebyshev series in A, so that
    nothing is factored (Hale, Higham and Trefethen 2008 have better rational ones, which need solves).
    """
    # rows of |W'W| bound its eigenvalues by Gershgorin's theorem
    sizes = StencilGram(gram.grid, gram.values.abs()).row_sums()
    scale = sizes.clamp_min(0).sqrt()
    inverse = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1.0), 0.0)[:, None]
    # on [0, 1], in terms of 2 A - 1: sqrt((1 + cos(angle)) / 2) = cos(angle / 2) for the angle in [0, pi]
    coefficients = [4 / math.pi * (-1) ** (k + 1) / (4 * k * k - 1) for k in range(_DEGREE + 1)]
    coefficients[0] /= 2
    previous = standard_normal(gram.n, n_columns, generator=generator)

    def shifted(vectors: Tensor) -> Tensor:
        return 2 * inverse * (gram @ (inverse * vectors)) - vectors

    current = shifted(previous)
    total = coefficients[0] * previous + coefficients[1] * current
    for coefficient in coefficients[2:]:
        previous, current = current, 2 * shifted(current) - previous
        total.add_(current, alpha=coefficient)
    return total * scale[:, None]
