"""Noise probes on the grid: random vectors with the covariance ``W'W``."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from gigagp.errors import GigaGPWarning, warn
from gigagp.operators.grid.statistics import GridStatistics, StencilGram, SumGram
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.products.dense import eigh
from gigagp.settings.random import standard_normal

#: Degree of the polynomial for draws beyond the collected probes. The error of a draw's standard deviation at a node is
#: below 1 % of that at the node with the most rows nearby.
_DEGREE = 60
#: Number of rounding errors, of the largest diagonal entry nearby, below which a row of ``W'W`` counts as zero. Entries
#: are sums of terms that cancel, so a node that rows hardly reach has entries, and negative diagonals, as large as the
#: rounding errors nearby. Scaled to unit size they would be eigenvalues as low as -1, where the polynomial is 1e45.
#: With this floor they stay above -1e-4, where it is below 2 (for up to four inputs, with 2,401 entries in a row).
_ROUNDINGS = 5e7
#: Largest number of rows per node, times the ratio of kernel variance to noise variance, at which the polynomial is
#: accurate enough. The error is up to 20 % of a standard deviation at 10^7 (uneven rows, compared with a solve for each
#: point), and within chance at 10^6.
_MOST_INFORMATION = 1e6


def noise_probes(statistics: GridStatistics, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return ``W'z`` for independent vectors z with unit variance at the rows, shape (m, n_columns).

    The probes that the pass over the rows has collected come first; any further columns are draws of ``N(0, W'W)``.
    """
    kept = statistics.probes[:, :n_columns]
    missing = n_columns - kept.shape[1]
    return kept if missing == 0 else torch.cat([kept, draw_from_gram(statistics.gram, missing, generator)], 1)


def fresh_noise(
    statistics: GridStatistics, n_columns: int, generator: torch.Generator, *, information: float, dense: bool
) -> Tensor:
    """Return new draws of ``N(0, W'W)``, shape (m, n_columns), independent of the collected probes.

    Draws from a root of ``W'W`` (``dense``) are exact. Others warn (`GigaGPWarning`) where there are so many rows per
    node, for this ratio of kernel variance to noise variance (``information``), that they are not accurate enough.
    """
    gram = statistics.gram
    if isinstance(gram, RowsGram):
        return gram.draw(n_columns, generator)
    if dense:
        values, vectors = eigh(gram.dense())
        root = vectors * values.clamp_min(0).sqrt()  # negative eigenvalues are rounding errors
        return root @ standard_normal(gram.n, n_columns, generator=generator)
    if float(gram.diagonal().max()) * information > _MOST_INFORMATION:
        msg = (
            "New posterior samples on this grid can be too rough: the noise variance is very small for so many rows "
            "per node. Samples that the fit stores are exact: raise n_samples of inference.Grid and fit again."
        )
        warn(msg, GigaGPWarning)
    return draw_from_gram(gram, n_columns, generator)


def draw_from_gram(gram: StencilGram | SumGram | RowsGram, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return draws of ``N(0, W'W)``, shape (m, n_columns), up to the error of a polynomial of degree 60.

    ``W'W = D^1/2 A D^1/2`` with the norm of A at most 1. The root of A is a Chebyshev series in A, so that nothing is
    factored (Hale, Higham and Trefethen 2008 give better rational approximations, which need solves).
    """
    if isinstance(gram, RowsGram):
        return gram.draw(n_columns, generator)
    # By Gershgorin's theorem, row sums of |W'W| bound its eigenvalues.
    if isinstance(gram, SumGram):  # the nodes of every grid are near those of the others
        sizes, busiest = gram.values.abs().sum(1), gram.diagonal().abs().max()
    else:
        sizes, busiest = StencilGram(gram.grid, gram.values.abs()).row_sums(), _busiest_near(gram)
    rounding = _ROUNDINGS * torch.finfo(torch.float64).eps * busiest
    scale = torch.where(sizes > 0, (sizes + rounding).sqrt(), 0.0)
    inverse = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1.0), 0.0)[:, None]
    # Series on [0, 1] in terms of 2 A - 1: sqrt((1 + cos(angle)) / 2) = cos(angle / 2) for angles in [0, pi].
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


def _busiest_near(gram: StencilGram) -> Tensor:
    """Return the largest diagonal entry among the nodes that share rows with each node, shape (m,)."""
    reach = gram.grid.scheme.reach
    largest = gram.diagonal().abs().reshape(gram.grid.shape)
    for axis in range(largest.ndim):
        lines = largest.movedim(axis, -1)
        pooled = max_pool1d(lines.reshape(-1, 1, lines.shape[-1]), 2 * reach + 1, stride=1, padding=reach)
        largest = pooled.reshape(lines.shape).movedim(-1, axis)
    return largest.reshape(-1)
