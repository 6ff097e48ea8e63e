"""The preconditioner of panels with many gaps: the curve of each entity conditioned on curves of earlier entities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.kernels import Constant, Group
from gigagp.operators.base import SymmetricMatrix
from gigagp.operators.kernel_matrix import KernelMatrix
from gigagp.products import PanelTiles
from gigagp.runtime import memory
from gigagp.settings.fields import Count
from gigagp.solvers.preconditioners.base import (
    Parts,
    Preconditioner,
    PreconditionerRecipe,
    budget_of,
    factor_with_jitter,
)
from gigagp.solvers.preconditioners.complete_panel import in_epochs, require_panel

#: Seed of the order of the entities.
_SEED = 0
#: Earlier curves that a curve is given, and mean rows of an entity up to which they are quick to factorise.
_NEIGHBOURS, _MOST_ROWS = 8, 100


@dataclass(frozen=True)
class _Block:
    """The rows of an entity, given those of its neighbours: ``W v`` is standard normal for v of N(0, P)."""

    rows: Tensor  # (b,)
    given: Tensor  # (m,)
    own: Tensor  # C^-1 for the Cholesky factor C of the conditional covariance, (b, b)
    others: Tensor  # -C^-1 A for the regression A on the given rows, (b, m)


class CurvesFactor(Preconditioner):
    """``P^-1 = W' W``, with a block of rows of W for each entity: its rows whitened given those of its neighbours."""

    def __init__(self, matrix: KernelMatrix, panel: PanelTiles, n_neighbours: int) -> None:
        self.n, self._dtype = matrix.n, matrix.dtype
        self._noise, cells = matrix.noise().double(), panel.known
        budget, n_entities = budget_of(matrix), cells.shape[0]
        memory.require(
            _bytes(matrix, panel, n_neighbours),
            budget,
            f"{n_neighbours} neighbours of each of {n_entities:,} curves",
            "Give Curves a smaller n_neighbors.",
        )
        pairs, shared = [], torch.zeros(n_entities, n_entities, dtype=torch.float64, device=matrix.device)
        for factors in panel.factors(matrix.kernel):
            merged = factors.merged(cells)
            S, T = panel.dense_factors(factors, merged, budget)
            pairs.append((S.expand(n_entities, n_entities), T, merged.time))
            shared += S * T.diagonal().mean()
        order = torch.randperm(n_entities, generator=torch.Generator().manual_seed(_SEED))
        nearest = _nearest_earlier(shared.cpu(), order, n_neighbours)
        rows = cells.entity.argsort(stable=True).split(torch.bincount(cells.entity, minlength=n_entities).tolist())
        self._blocks, self.jitter, operations = [], 0.0, 0.0
        for entity, neighbours in zip(order.tolist(), nearest, strict=True):
            own = rows[entity]
            given = torch.cat([own[:0], *(rows[one] for one in neighbours)])
            every = torch.cat([given, own])
            entities, covariance = cells.entity[every], torch.diag(self._noise[every])
            for S, T, time in pairs:
                covariance += S[entities[:, None], entities] * T[time[every][:, None], time[every]]
            (factor,), jitter = factor_with_jitter(covariance[None])
            self.jitter = max(self.jitter, jitter)
            m, identity = len(given), torch.eye(len(own), dtype=torch.float64, device=own.device)
            inverse = torch.linalg.solve_triangular(factor[m:, m:], identity, upper=False)
            others = -torch.linalg.solve_triangular(factor[:m, :m], inverse @ factor[m:, :m], upper=False, left=False)
            self._blocks.append(_Block(own, given, inverse, others))
            operations += len(every) ** 3 / 3 + 2.0 * len(own) * m**2
        self.epochs = in_epochs(operations, panel)
        self._description = f"the curves of {n_entities:,} entities, each given those of {n_neighbours} others"

    @property
    def rank(self) -> int:
        return 0

    def apply(self, vectors: Tensor) -> Tensor:
        wide = vectors.double()
        out = torch.zeros_like(wide)
        for block in self._blocks:
            white = block.own @ wide[block.rows] + block.others @ wide[block.given]
            out.index_add_(0, block.rows, block.own.T @ white)
            out.index_add_(0, block.given, block.others.T @ white)
        return out.to(vectors.dtype)

    def transform_normal(self, normal: Tensor) -> Tensor:
        wide = normal.double()
        out = torch.zeros_like(wide)
        for block in self._blocks:
            right = wide[block.rows] - block.others @ out[block.given]
            out[block.rows] = torch.linalg.solve_triangular(block.own, right, upper=False)
        return out.to(self._dtype)

    def log_determinant(self) -> float:
        return -2 * math.fsum(float(block.own.diagonal().log().sum()) for block in self._blocks)

    def lower_bound_apply(self, vectors: Tensor) -> Tensor | None:
        """Return the product with the inverse of the noise, which is at most H; None without noise."""
        return vectors / self._noise[:, None].to(vectors) if bool((self._noise > 0).all()) else None

    def describe(self) -> str:
        return self._description


def _nearest_earlier(covariance: Tensor, order: Tensor, count: int) -> list[list[int]]:
    """Return for each entity of an order the earlier ones that correlate most with it, the first ones first."""
    scales = covariance.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    correlation = (scales[:, None] * covariance * scales)[order][:, order]
    found: list[list[int]] = []
    for place in range(len(order)):
        best = correlation[place, :place].topk(min(count, place)).indices
        found.append(order[best.sort().values].tolist())
    return found


def _bytes(matrix: KernelMatrix, panel: PanelTiles, n_neighbours: int) -> int:
    """Return the memory of a build: the blocks, and matrices of the entities."""
    n_entities = panel.known.shape[0]
    return round(16 * matrix.n**2 / n_entities * (1 + n_neighbours)) + 32 * n_entities**2


def suits_curves(matrix: KernelMatrix, budget: int) -> bool:
    """Whether rows are a panel of many short curves, whose kernel tells which of them are alike."""
    if matrix.panel is None:
        return False
    n_entities, rows = matrix.panel.known.shape[0], matrix.n / matrix.panel.known.shape[0]
    leaves = (leaf for factors in matrix.panel.factors(matrix.kernel) for leaf in factors.entities.leaves())
    are_alike = any(not isinstance(leaf, Constant | Group) for leaf in leaves)
    fits = _bytes(matrix, matrix.panel, _NEIGHBOURS) <= budget
    return fits and are_alike and n_entities > 2 * _NEIGHBOURS and rows <= _MOST_ROWS


@dataclass(frozen=True)
class Curves(PreconditionerRecipe):
    """Each entity of a panel, with all its rows, conditioned on all rows of the nearest earlier entities.

    When to use: for panels of many entities whose curves are short and of which many cells are missing, such as
    learning curves that were stopped early, where `CompletePanel` has too many gaps to correct. Neighbours that are
    whole curves tell what single cells do not: how the curve at hand differs from others. A build takes
    ``N (m T)^3 / 3`` operations for N entities, T times and m neighbours.

    Parameters
    ----------
    n_neighbors : int, default 8
        Earlier entities that an entity is conditioned on.

    References
    ----------
    Vecchia 1988, Estimation and model identification for continuous spatial processes,
    doi:10.1111/j.2517-6161.1988.tb01729.x; in blocks: Katzfuss and Guinness 2021, A general framework for Vecchia
    approximations of Gaussian processes, arXiv:1708.06302.
    """

    n_neighbors: Count = _NEIGHBOURS

    def build(
        self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None, *, bound: bool = False
    ) -> CurvesFactor:
        """Build for a `gigagp.operators.KernelMatrix` of a panel; see `PreconditionerRecipe.build`."""
        return CurvesFactor(*require_panel(matrix, self), self.n_neighbors)
