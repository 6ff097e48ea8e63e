"""Partial Cholesky factors of the smooth part ``K = H - noise``, computed column by column or in blocks of columns.

The columns are chosen in one of three ways:

- *greedy*: the row with the largest remaining diagonal (Harbrecht et al. 2012), the choice of the papers;
- *random*: rows drawn in proportion to the remaining diagonal, by the blocked rejection sampler of
  Epperly, Tropp & Webber (2024, "Embrace rejection", Alg. 2.2), whose pivots have the same law as
  one-at-a-time RPCholesky (Chen, Epperly, Tropp & Webber 2023) at the speed of matrix products;
- *given*: a fixed list of rows, from an earlier build or drawn uniformly.

All computations are in float64 for any dtype of the matrix, because ``K - L L'`` squares the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.operators.base import SymmetricMatrix


@dataclass(frozen=True)
class PartialCholesky:
    """``K ~= columns @ columns.T``; in the order of the pivots, the rows of the columns form a lower triangle.

    ``residual`` is the diagonal that is left, never negative. ``epochs`` counts the kernel entries read, in units of
    n^2.
    """

    columns: torch.Tensor
    pivots: torch.Tensor
    residual: torch.Tensor
    epochs: float

    @property
    def rank(self) -> int:
        """Number of columns; smaller than requested if the matrix has a lower rank."""
        return self.columns.shape[1]


class _GrowingFactor:
    """A partial factor that is extended by blocks of candidates and rejects those that add nothing new."""

    def __init__(self, matrix: SymmetricMatrix, rank: int) -> None:
        self.matrix = matrix
        self.rank = min(rank, matrix.n)
        self.noise = matrix.noise().to(torch.float64)
        self.residual = (matrix.diagonal().to(torch.float64) - self.noise).clamp_min_(0)
        # A remaining diagonal below this is rounding: its column would be rounding amplified by 1 / sqrt(floor).
        self.floor = 100 * torch.finfo(matrix.dtype).eps * float(self.residual.max())
        self.columns = torch.zeros(matrix.n, self.rank, dtype=torch.float64, device=matrix.device)
        self.pivots: list[int] = []
        self.entries = 0
        self._drop_settled()

    @property
    def missing(self) -> int:
        return self.rank - len(self.pivots)

    @property
    def exhausted(self) -> bool:
        return self.missing == 0 or not bool((self.residual > 0).any())

    def take(self, candidates: torch.Tensor, thresholds: torch.Tensor | None = None) -> int:
        """Append the columns of the accepted candidates, and return their number.

        A candidate is accepted if its remaining diagonal, given all candidates accepted before it, exceeds its entry of
        ``thresholds`` (None: the level of rounding).
        """
        local = self._remaining(candidates)
        accepted, triangle = _eliminate(local.cpu(), thresholds, self.floor, self.missing)
        if not accepted:
            self.residual[candidates] = 0.0  # what seemed to remain is rounding: never propose these rows again
            return 0
        chosen = candidates[torch.tensor(accepted, device=candidates.device)]
        triangle = triangle.to(self.columns.device)
        start, stop = len(self.pivots), len(self.pivots) + len(accepted)
        new = self._kernel_columns(chosen)
        if start:
            new.addmm_(self.columns[:, :start], self.columns[chosen, :start].T, alpha=-1)
        new = torch.linalg.solve_triangular(triangle.T, new, upper=True, left=False)
        # The rows of the pivots are known exactly; anything else above the triangle is rounding of the product.
        new[chosen] = triangle
        if start:
            new[torch.tensor(self.pivots, device=new.device)] = 0.0
        self.columns[:, start:stop] = new
        self.pivots.extend(chosen.tolist())
        self.residual -= new.square().sum(1)
        self.residual[chosen] = 0.0
        self._drop_settled()
        return len(accepted)

    def finish(self) -> PartialCholesky:
        rank = len(self.pivots)
        columns = self.columns if rank == self.rank else self.columns[:, :rank].clone()
        pivots = torch.tensor(self.pivots, dtype=torch.long, device=self.columns.device)
        return PartialCholesky(columns, pivots, self.residual, self.entries / self.matrix.n**2)

    def _drop_settled(self) -> None:
        self.residual[self.residual <= self.floor] = 0.0

    def _kernel_columns(self, chosen: torch.Tensor) -> torch.Tensor:
        columns = self.matrix.block(slice(None), chosen).to(torch.float64, copy=True)
        columns[chosen, torch.arange(len(chosen), device=chosen.device)] -= self.noise[chosen]
        self.entries += columns.numel()
        return columns

    def _remaining(self, candidates: torch.Tensor) -> torch.Tensor:
        """Return ``(K - L L')[candidates, candidates]``; the candidates must be distinct."""
        local = self.matrix.block(candidates, candidates).to(torch.float64, copy=True)
        local.diagonal().sub_(self.noise[candidates])
        self.entries += local.numel()
        rows = self.columns[candidates, : len(self.pivots)]
        return local.addmm_(rows, rows.T, alpha=-1)


def _eliminate(
    local: torch.Tensor, thresholds: torch.Tensor | None, floor: float, limit: int
) -> tuple[list[int], torch.Tensor]:
    """Factor a small matrix in the given order, skipping rows whose pivot is too small.

    Returns the kept rows and the Cholesky factor of the matrix restricted to them.
    """
    if thresholds is None and len(local) <= limit:
        factor, info = torch.linalg.cholesky_ex(local)
        if int(info) == 0 and float(factor.diagonal().square().min()) > floor:
            return list(range(len(local))), factor
    kept: list[int] = []
    columns = torch.zeros_like(local)
    least = [floor] * len(local) if thresholds is None else thresholds.clamp_min(floor).tolist()
    for row, smallest in enumerate(least):
        pivot = float(local[row, row])
        if pivot <= smallest:
            continue
        column = local[:, row] / pivot**0.5
        local.addr_(column, column, alpha=-1)
        columns[:, len(kept)] = column
        kept.append(row)
        if len(kept) == limit:
            break
    return kept, columns[kept, : len(kept)].tril()


def greedy(matrix: SymmetricMatrix, rank: int) -> PartialCholesky:
    """Choose the row with the largest remaining diagonal at each step, on the *updated* diagonal."""
    factor = _GrowingFactor(matrix, rank)
    while not factor.exhausted:
        factor.take(factor.residual.argmax().unsqueeze(0))
    return factor.finish()


def given(matrix: SymmetricMatrix, rank: int, pivots: torch.Tensor, *, block: int) -> PartialCholesky:
    """Use the listed rows in their order, and skip those that add nothing new."""
    factor = _GrowingFactor(matrix, rank)
    _take_all(factor, pivots, block)
    return factor.finish()


def random(
    matrix: SymmetricMatrix,
    rank: int,
    generator: torch.Generator,
    *,
    block: int | None = None,
    pivots: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    enough: float = 0.0,
) -> PartialCholesky:
    """Draw rows in proportion to the remaining diagonal, after those in ``pivots`` (rows of an earlier build).

    With ``weights`` of shape (n,), rows are drawn in proportion to their weight times their remaining diagonal. These
    are the pivots of ``D^1/2 K D^1/2`` with the weights on the diagonal of D, but the factor is still that of K. The
    result has fewer than ``rank`` columns if the remaining weighted trace falls to ``enough`` per column.
    """
    factor = _GrowingFactor(matrix, rank)
    # A tenth of the rank is as good as drawing one at a time, within one iteration of conjugate gradients.
    block = min(block or max(factor.rank // 10, 1), factor.rank)
    if pivots is not None:
        _take_all(factor, pivots, block)
    while not factor.exhausted:
        before = factor.residual if weights is None else factor.residual * weights
        cumulative = before.cumsum(0)
        if float(cumulative[-1]) <= enough * len(factor.pivots):
            break
        draws = torch.rand(block, generator=generator, dtype=torch.float64).to(before.device) * cumulative[-1]
        proposals = torch.searchsorted(cumulative, draws, right=True).clamp_max_(matrix.n - 1)
        proposals = torch.tensor(list(dict.fromkeys(proposals.tolist())), device=before.device)  # drop repeats
        # Epperly et al. 2024, Alg. 2.1: accept with probability (remaining diagonal now) / (when proposed).
        chances = torch.rand(len(proposals), generator=generator, dtype=torch.float64)
        factor.take(proposals, chances * factor.residual[proposals].cpu())
    return factor.finish()


def _take_all(factor: _GrowingFactor, pivots: torch.Tensor, block: int) -> None:
    pivots = pivots[pivots < factor.matrix.n].to(factor.columns.device)
    for part in pivots.split(max(block, 1)):
        if factor.exhausted:
            break
        factor.take(part)
