"""The effects of groups beside a Vecchia approximation: a sparse matrix Z of rows by effects, and systems of effects.

The covariance of the rows is ``P^-1 + Z V Z'``: P is the sparse precision that nearest neighbours give the other parts
of the kernel and the noise, and V has the variances of the effects, which are independent. Effects over their standard
deviations, u, have the posterior precision ``M = I + V^1/2 Z'P Z V^1/2``, which has a row for each effect of each level
however many rows there are, so that ``(P^-1 + Z V Z')^-1 = P - P Z V^1/2 M^-1 V^1/2 Z'P``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigagp.kernels import Group, Kernel, Sum
from gigagp.kernels.composite import group_terms, summands
from gigagp.model.estimate import Estimate
from gigagp.neighbours.factor import Factor
from gigagp.operators.base import LinearOperator
from gigagp.products.blocks import ranges
from gigagp.products.dense import cholesky
from gigagp.settings.random import standard_normal
from gigagp.solvers.krylov import Recurrence
from gigagp.solvers.lanczos import log_determinant
from gigagp.solvers.preconditioners.base import Preconditioner

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Effects up to which their precision is a dense matrix with a factor.
MOST_DENSE = 6000
#: Most steps of conjugate gradients, and probes of a log-determinant.
_STEPS, _PROBES = 1000, 16
#: Rows of the sparse matrix of whitened effects at a time.
_ROWS = 2**15


class Parts(NamedTuple):
    """A kernel as groups, which are terms of a sum, and the rest; the numbers are places in the sum."""

    rest: Sum | None  # bound, with the other terms
    rest_places: tuple[int, ...]
    groups: tuple[Group, ...]
    group_names: tuple[str, ...]  # of the groups' variances among the kernel's hyperparameters

    @classmethod
    def of(cls, kernel: Kernel) -> Parts:
        """Return the parts of a bound kernel."""
        parts, groups = summands(kernel), group_terms(kernel)
        rest = {place: part for place, part in enumerate(parts) if place not in groups}
        names = [f"{place}.variance" if isinstance(kernel, Sum) else "variance" for place in groups]
        return cls(Sum(*rest.values()) if rest else None, tuple(rest), tuple(groups.values()), tuple(names))

    def named(self, by_rest: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what the hyperparameters of the rest have, under the names of the whole kernel."""
        found = {}
        for name, value in by_rest.items():
            place, dot, own = name.partition(".")
            found[f"{self.rest_places[int(place)]}.{own}" if dot and place.isdecimal() else name] = value
        return found


class Effects:
    """The matrix Z for the levels of some rows: each row has one effect, and its slopes, of each group.

    ``places`` and ``lines``, shape (n, r), have the numbers of the effects of each row and their factors. Levels that
    are not among those of the rows have no place.
    """

    def __init__(self, groups: Sequence[Group], X: Tensor) -> None:
        self.groups = tuple(groups)
        self.levels: list[Tensor] = []  # of each group: its levels in ascending order, (levels, columns)
        places, lines, start = [], [], 0
        self._starts = []
        for group in self.groups:
            levels, index = torch.unique(group.levels(X), dim=0, return_inverse=True)
            own = group.lines(X).double()
            places.append(start + index[:, None] + len(levels) * torch.arange(own.shape[1], device=X.device))
            lines.append(own)
            self.levels.append(levels)
            self._starts.append(start)
            start += len(levels) * own.shape[1]
        self.places, self.lines, self.count = torch.cat(places, 1), torch.cat(lines, 1), start
        self.n = len(X)

    def of(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return places and lines of new rows, (m, r); the place is -1 where the level is none of the rows'."""
        places, lines = [], []
        for group, levels, start in zip(self.groups, self.levels, self._starts, strict=True):
            wanted, own = group.levels(X), group.lines(X).double()
            both, index = torch.unique(torch.cat([levels, wanted]), dim=0, return_inverse=True)
            known = torch.full((len(both),), -1, device=X.device)
            known[index[: len(levels)]] = torch.arange(len(levels), device=X.device)
            found = known[index[len(levels) :]][:, None]
            place = start + found + len(levels) * torch.arange(own.shape[1], device=X.device)
            places.append(torch.where(found < 0, -1, place))
            lines.append(own)
        return torch.cat(places, 1), torch.cat(lines, 1)

    def roots(self, groups: Sequence[Group]) -> Tensor:
        """Return the standard deviation of every effect, shape (count,)."""
        pairs = zip(groups, self.levels, strict=True)
        found = [group.value("variance").double().sqrt().repeat_interleave(len(own)) for group, own in pairs]
        return torch.cat(found).to(self.places.device)

    def spans(self) -> list[list[slice]]:
        """Return for each group the places of its effects, and then those of each of its slopes."""
        found = []
        for group, levels, start in zip(self.groups, self.levels, self._starts, strict=True):
            q = len(levels)
            found.append([slice(start + q * k, start + q * (k + 1)) for k in range(1 + len(group.slope_columns))])
        return found

    def times(self, effects: Tensor) -> Tensor:
        """Return ``Z b`` for effects (count, s), shape (n, s)."""
        return combined(self.places, self.lines, effects)

    def transposed(self, vectors: Tensor) -> Tensor:
        """Return ``Z' v`` for vectors (n, s), shape (count, s)."""
        out = vectors.new_zeros(self.count, vectors.shape[1])
        for place, line in zip(self.places.T, self.lines.T, strict=True):
            out.index_add_(0, place, line[:, None] * vectors)
        return out

    def squares(self, weights: Tensor) -> Tensor:
        """Return the diagonal of ``Z' W Z`` for a diagonal W (n,), shape (count,)."""
        out = weights.new_zeros(self.count)
        for place, line in zip(self.places.T, self.lines.T, strict=True):
            out.index_add_(0, place, line.square() * weights)
        return out


def combined(places: Tensor, lines: Tensor, effects: Tensor) -> Tensor:
    """Return the sums of the effects (count, s) at places (m, r) times lines (m, r); effects without a place are 0."""
    out = effects.new_zeros(len(places), effects.shape[1])
    for place, line in zip(places.T, lines.T, strict=True):
        known = place >= 0
        out += torch.where(known, line, 0.0)[:, None] * effects[place.clamp_min(0)]
    return out


class EffectSystem(LinearOperator):
    """The posterior precision M of the effects over their standard deviations, its solutions, draws and determinant.

    ``roots``, shape (count,), are the standard deviations. Up to `MOST_DENSE` effects M is a dense matrix, which is
    sparse before. Beyond, conjugate gradients solve with it, preconditioned by its diagonal.
    """

    def __init__(self, effects: Effects, factor: Factor, roots: Tensor, dense: bool | None = None) -> None:
        self.effects, self.factor, self.roots = effects, factor, roots
        self.n, self.dtype, self.device = effects.count, torch.float64, roots.device
        self.is_dense = effects.count <= MOST_DENSE if dense is None else dense
        self._root: Tensor | None = None

    def amplified(self, factor: Factor, roots: Tensor) -> EffectSystem:
        """Return the system of the same effects where all covariances are multiplied, whose precision is the same."""
        made = EffectSystem(self.effects, factor, roots, self.is_dense)
        made._root = self._root
        return made

    def times(self, scaled: Tensor) -> Tensor:
        """Return ``Z V^1/2 u``, shape (n, s)."""
        return self.effects.times(self.roots[:, None] * scaled)

    def transposed(self, vectors: Tensor) -> Tensor:
        """Return ``V^1/2 Z' v``, shape (count, s)."""
        return self.roots[:, None] * self.effects.transposed(vectors)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return vectors + self.transposed(self.factor.apply(self.times(vectors)))

    @property
    def root(self) -> Tensor:
        """The lower Cholesky factor of M, shape (count, count)."""
        if self._root is None:
            found = torch.eye(self.n, dtype=torch.float64)
            for rows in ranges(self.effects.n, _ROWS):
                whitened = self.whitened(rows)
                found += torch.from_numpy((whitened.T @ whitened).toarray())
            self._root = cholesky(found, "the precision of the effects of groups").to(self.device)
        return self._root

    def whitened(self, rows: slice) -> csr_matrix:
        """Return ``D^-1/2 (I - B) Z V^1/2`` of some rows as a sparse matrix, (rows, count)."""
        from scipy.sparse import csr_matrix

        factor, effects = self.factor, self.effects
        near, weights = factor.neighbours[rows].long().clamp_min(0), factor.weights[rows]
        places, lines = effects.places, self.roots[effects.places] * effects.lines
        columns = torch.cat([places[rows], places[near].flatten(1)], 1)
        values = torch.cat([lines[rows], (-weights[:, :, None] * lines[near]).flatten(1)], 1)
        values = values / factor.variance[rows].sqrt()[:, None]
        starts = np.arange(len(columns) + 1) * columns.shape[1]
        cells = values.flatten().cpu().numpy(), columns.flatten().cpu().numpy(), starts
        found = csr_matrix(cells, shape=(len(columns), self.n))
        found.sum_duplicates()
        return found

    def solve(self, right: Tensor, tolerance: float) -> Tensor:
        """Return ``M^-1 right``, shape (count, s), to a relative error of about ``tolerance`` in the norm of M."""
        if self.is_dense:
            return torch.cholesky_solve(right, self.root)
        run = Recurrence(self, torch.zeros_like(right), right.clone(), self._diagonal().apply)
        return run.run(tolerance, _STEPS)

    def draws(self, count: int, generator: torch.Generator, tolerance: float) -> Tensor:
        """Return draws of N(0, M^-1), shape (effects, count)."""
        normal = standard_normal(self.n, count, generator=generator).to(self.roots)
        if self.is_dense:
            return torch.linalg.solve_triangular(self.root.T, normal, upper=True)
        of_rows = standard_normal(self.effects.n, count, generator=generator).to(self.roots)
        right = normal + self.transposed(self.factor.transposed(of_rows / self.factor.variance.sqrt()[:, None]))
        return self.solve(right, tolerance)

    def log_determinant(self) -> Estimate:
        """Return ``log det M``, exact where it is dense."""
        if self.is_dense:
            return Estimate(2 * float(self.root.diagonal().log().sum()), 0.0)
        return log_determinant(self, self._diagonal(), _PROBES, generator=torch.Generator().manual_seed(6))

    def _diagonal(self) -> _Diagonal:
        """Return about the diagonal of M: correlations of neighbouring rows are left out."""
        variance, own = self.factor.variance, self.factor.variance.reciprocal()
        for index, weight in zip(self.factor.neighbours.T, self.factor.weights.T, strict=True):
            own = own.index_add(0, index.clamp_min(0).long(), weight.square() / variance)
        return _Diagonal(1 + self.roots.square() * self.effects.squares(own))


class _Diagonal(Preconditioner):
    """A positive diagonal, shape (n,)."""

    rank = 0
    epochs = 0.0

    def __init__(self, diagonal: Tensor) -> None:
        self._diagonal, self.n = diagonal, len(diagonal)

    def apply(self, vectors: Tensor) -> Tensor:
        return vectors / self._diagonal[:, None]

    def transform_normal(self, normal: Tensor) -> Tensor:
        return self._diagonal.sqrt()[:, None] * normal.to(self._diagonal)

    def log_determinant(self) -> float:
        return float(self._diagonal.log().sum())

    def describe(self) -> str:
        return "diagonal"
