"""The preconditioner of panels: the eigen-decomposition of the complete panel, corrected at its gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.operators.base import SymmetricMatrix
from gigagp.operators.kernel_matrix import KernelMatrix
from gigagp.products import PanelTiles
from gigagp.products.dense import cholesky, eigh
from gigagp.runtime.memory import require
from gigagp.settings.fields import CountOrZero
from gigagp.settings.random import standard_normal
from gigagp.solvers.preconditioners.base import (
    Parts,
    Preconditioner,
    PreconditionerRecipe,
    budget_of,
    factor_with_jitter,
)

#: Gaps up to which their matrix is factorised: 6,000 take about as long as the eigenvectors of 2,000 entities.
_MOST_GAPS = 6000
#: Entities up to which a build takes no longer than some products with all cells.
_MOST_ENTITIES = 5000
#: Steps of the power iteration that bounds the correction at the gaps, and the share by which it may be too low.
_POWER_STEPS, _SAFETY = 12, 1.2
#: Largest share of the budget that blocks of the gaps of entities take.
_BLOCK_SHARE = 8
#: Right-hand sides of a usual solve, which share the cost of an epoch.
_COLUMNS = 16
#: Least noise of the preconditioner as a share of the mean variance of the rows.
_LEAST_NOISE = 10 * torch.finfo(torch.float64).eps
#: Rounds that fit one noise for each entity times one for each time.
_ROUNDS = 20


@dataclass(frozen=True)
class Spectrum:
    """A complete panel, a sum of Kronecker products ``S (x) T`` plus noise ``a (x) b``, by eigenvectors of the factors.

    With ``A = diag(a)`` and ``B = diag(b)`` it is ``R (L + 1 + F F') R'`` for ``R = A^1/2 U (x) B^1/2 V`` and a table L
    of eigenvalues. F has the parts of entities alone and of times alone. Of one other product L is exact; of several it
    is the diagonal in eigenvectors of the factors' weighted sums.

    Attributes
    ----------
    left, right : Tensor of shape (N, N) and (T, T)
        ``A^-1/2 U`` and ``B^-1/2 V``.
    values : Tensor of shape (N, T)
        L + 1.
    of_entities, of_times : Tensor of shape (N,) and (T,)
        The noise a and b.
    alone : Alone
        F.
    core : Tensor of shape (k, k)
        The Cholesky factor of ``1 + F' (L + 1)^-1 F`` for the k columns of F.
    """

    left: Tensor
    right: Tensor
    values: Tensor
    of_entities: Tensor
    of_times: Tensor
    alone: Alone
    core: Tensor

    @classmethod
    def of(cls, pairs: list[tuple[Tensor, Tensor]], of_entities: Tensor, of_times: Tensor) -> Spectrum:
        """Return the spectrum of a sum of Kronecker products of factors, float64, plus noise.

        A factor that is the same number everywhere is a matrix of one row and one column.
        """
        entities, times = (one.new_zeros(len(one), len(one)) for one in (of_entities, of_times))
        by_both, S_alone, T_alone = [], entities.clone(), times.clone()
        for S, T in pairs:
            if len(T) == 1:
                S_alone += T * S
            elif len(S) == 1:
                T_alone += S * T
            else:
                by_both.append((S, T))
                entities += T.diagonal().mean() * S
                times += S.diagonal().mean() * T
        left, right = _vectors(entities, of_entities), _vectors(times, of_times)
        values = of_entities.new_ones(len(left), len(right))
        for S, T in by_both:
            values += (_quadratic(left, S)[:, None] * _quadratic(right, T)).clamp_min(0.0)
        alone = Alone.of(left, right, S_alone, T_alone)
        core = cholesky(alone.gram(1 / values), "the parts of entities and times alone", overwrite=True)
        return cls(left, right, values, of_entities, of_times, alone, core)

    def solve(self, grid: Tensor) -> Tensor:
        """Return the inverse of the complete panel times tables, shape (N, T, s)."""
        return self.from_basis(self.divide(self.to_basis(grid)))

    def divide(self, grid: Tensor) -> Tensor:
        """Return ``(L + 1 + F F')^-1 R`` of tables R in the basis, shape (N, T, s), in their memory."""
        found = grid.div_(self.values[:, :, None])
        if len(self.core):
            shared = torch.cholesky_solve(self.alone.project(found), self.core)
            found -= self.alone.expand(shared).div_(self.values[:, :, None])
        return found

    def to_basis(self, grid: Tensor) -> Tensor:
        """Return ``(A^-1/2 U)' R (B^-1/2 V)`` of tables R, shape (N, T, s)."""
        return _times(self.left.T, self.right.T, grid)

    def from_basis(self, grid: Tensor) -> Tensor:
        """Return ``(A^-1/2 U) R (B^-1/2 V)'`` of tables R, shape (N, T, s)."""
        return _times(self.left, self.right, grid)

    def roots(self) -> Tensor:
        """Return ``C^-1 diag(L', R')`` for the roots of the parts alone and the core's factor C, (k, N + T)."""
        parts = torch.block_diag(self.alone.L, self.alone.R).mT
        return torch.linalg.solve_triangular(self.core, parts, upper=False) if len(self.core) else parts

    def log_determinant(self) -> float:
        """Return that of the complete panel."""
        n_entities, n_times = self.values.shape
        of_noise = n_times * self.of_entities.log().sum() + n_entities * self.of_times.log().sum()
        return float(self.values.log().sum() + 2 * self.core.diagonal().log().sum() + of_noise)

    @property
    def n_normal(self) -> int:
        """Standard normal numbers of a draw."""
        return self.values.numel() + len(self.core)

    def sample(self, normal: Tensor) -> Tensor:
        """Return draws of the complete panel with its noise from normal numbers (`n_normal`, s), shape (N, T, s)."""
        of_cells, of_alone = normal.split([self.values.numel(), len(self.core)])
        grid = self.values.sqrt()[:, :, None] * of_cells.view(*self.values.shape, -1) + self.alone.expand(of_alone)
        return self.from_basis(grid) * (self.of_entities[:, None] * self.of_times)[:, :, None]


@dataclass(frozen=True)
class Alone:
    """F, of which ``F F'`` is the part of entities alone and that of times alone, in the basis of a `Spectrum`.

    A column is ``L[:, j] (x) v`` for an entity, or ``w (x) R[:, j]`` for a time.

    Attributes
    ----------
    L, R : Tensor of shape (N, N or 0) and (T, T or 0)
        Roots of both parts.
    w, v : Tensor of shape (N,) and (T,)
        Ones, in the basis.
    S_root, T_root : Tensor of shape (N, N or 0) and (T, T or 0)
        The roots, lower triangular, outside of the basis.
    """

    L: Tensor
    R: Tensor
    w: Tensor
    v: Tensor
    S_root: Tensor
    T_root: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor, S: Tensor, T: Tensor) -> Alone:
        """Return the parts with the covariances S and T, of which either may be zero."""
        S_root, T_root = _root(S), _root(T)
        return cls(left.T @ S_root, right.T @ T_root, left.sum(0), right.sum(0), S_root, T_root)

    def gram(self, weights: Tensor) -> Tensor:
        """Return ``1 + F' diag(weights) F`` for weights (N, T)."""
        found = torch.eye(self.L.shape[1] + self.R.shape[1], dtype=weights.dtype, device=weights.device)
        k = self.L.shape[1]
        found[:k, :k] += (self.L * (weights @ self.v.square())[:, None]).T @ self.L
        found[k:, k:] += (self.R * (self.w.square() @ weights)[:, None]).T @ self.R
        found[k:, :k] = self.R.T @ (weights * self.w[:, None] * self.v).T @ self.L
        found[:k, k:] = found[k:, :k].T
        return found

    def project(self, grid: Tensor) -> Tensor:
        """Return ``F'`` times tables (N, T, s), shape (k, s)."""
        of_entities, of_times = torch.einsum("nts,t->ns", grid, self.v), torch.einsum("nts,n->ts", grid, self.w)
        return torch.cat([self.L.T @ of_entities, self.R.T @ of_times])

    def expand(self, vectors: Tensor) -> Tensor:
        """Return ``F`` times vectors (k, s) as tables, shape (N, T, s)."""
        of_entities, of_times = vectors.split([self.L.shape[1], self.R.shape[1]])
        return (self.L @ of_entities)[:, None] * self.v[:, None] + self.w[:, None, None] * (self.R @ of_times)

    def at(self, spectrum: Spectrum, entity: Tensor, time: Tensor) -> Tensor:
        """Return the rows of ``R^-T (L + 1)^-1 F`` at cells of a complete panel, shape (m, k)."""
        inverse = 1 / spectrum.values
        of_entities = spectrum.left[entity] * (inverse @ (spectrum.right * self.v).T).T[time]
        of_times = spectrum.right[time] * (spectrum.left @ (inverse * self.w[:, None]))[entity]
        return torch.cat([of_entities @ self.L, of_times @ self.R], 1)


def _root(matrix: Tensor) -> Tensor:
    """Return a root of a covariance matrix, with no columns if it is zero."""
    if not bool(matrix.diagonal().any()):
        return matrix[:, :0]
    (factor,), _ = factor_with_jitter(matrix[None])
    return factor


def _vectors(matrix: Tensor, noise: Tensor) -> Tensor:
    """Return ``D^-1/2 U`` for the eigenvectors U of ``D^-1/2 M D^-1/2``."""
    scale = noise.rsqrt()
    return scale[:, None] * eigh(scale[:, None] * matrix * scale)[1]


def _quadratic(vectors: Tensor, matrix: Tensor) -> Tensor:
    return (vectors * (matrix @ vectors)).sum(0)


def _times(left: Tensor, right: Tensor, grid: Tensor) -> Tensor:
    """Return ``left R right'`` of tables R, shape (N, T, s)."""
    return torch.matmul(right, _left_product(left, grid))


def _left_product(left: Tensor, grid: Tensor) -> Tensor:
    """Return ``left R`` of tables R, shape (N, T, s)."""
    return (left @ grid.flatten(1)).view(len(left), *grid.shape[1:])


class CompletePanelFactor(Preconditioner):
    """``Q_oo - Q_om B Q_mo`` as the inverse of ``H``, where Q is the inverse of the complete panel's matrix.

    The inverse of H is this with ``B = Q_mm^-1``, for the observed cells o and the gaps m (the inverse of a Schur
    complement). B is that where there are few gaps. Otherwise it is a share of the inverses of the blocks of Q_mm for
    each entity, or of its diagonal where these would be large: a share with which B is at most ``Q_mm^-1``, so that the
    whole is positive definite. Several rows in a cell count as their weighted mean, which is exact.
    """

    def __init__(self, matrix: KernelMatrix, panel: PanelTiles, most_gaps: int) -> None:
        self.n, self._dtype, self._cells = matrix.n, matrix.dtype, panel.known
        budget = budget_of(matrix)
        n_entities, n_times = shape = self._cells.shape
        require(32 * (n_entities**2 + n_times**2), budget, f"Eigenvectors of {n_entities:,} entities", "Use Vecchia().")
        given = matrix.noise().double()
        noise = given.clamp_min(_LEAST_NOISE * float(matrix.diagonal().double().mean()))
        self.jitter = float((noise - given).max())
        self._noise, precision = noise[:, None], self._cells.spread(noise.reciprocal()[:, None])[:, :, 0]
        observed = precision > 0
        of_cells = torch.where(observed, 1 / precision, torch.nan)
        of_entities, of_times = _noise_of_factors(of_cells)
        every = panel.factors(matrix.kernel)
        pairs = [panel.dense_factors(factors, factors.merged(self._cells), budget) for factors in every]
        self.spectrum = Spectrum.of(pairs, of_entities, of_times)
        place = self._cells.entity * n_times + self._cells.time
        self._is_repeated = len(place) > int(observed.sum())
        self._weights = (of_cells.flatten()[place] / noise)[:, None]  # of a row in the mean of its cell
        self._log_noise = float(noise.log().sum() - of_cells[observed].log().sum())
        self._gaps = torch.nonzero(~observed.flatten())[:, 0]
        self._with_gaps, entity = torch.unique(self._gaps // n_times, return_inverse=True)
        self._places = entity * n_times + self._gaps % n_times  # in a table of the entities with gaps alone
        self._of_gaps = _gaps_of(self.spectrum, self._gaps, shape, most_gaps, budget)
        self.has_determinant = self._of_gaps.is_exact
        build = 10.0 * (n_entities**3 + n_times**3) + len(self.spectrum.core) ** 3 + self._of_gaps.operations
        self.epochs = in_epochs(build, panel)

    @property
    def rank(self) -> int:
        return self.spectrum.n_normal

    def apply(self, vectors: Tensor) -> Tensor:
        wide = vectors.double()
        grid, whole = self._cells.spread(self._weights * wide), self.spectrum
        solved = whole.divide(whole.to_basis(grid))
        if len(self._gaps):  # only entities with gaps take part in the correction
            own = torch.matmul(whole.right, _left_product(whole.left[self._with_gaps], solved))
            filled = torch.zeros_like(own)
            filled.view(-1, own.shape[2])[self._places] = self._of_gaps.solve(own.view(-1, own.shape[2])[self._places])
            found = torch.matmul(whole.right.T, _left_product(whole.left[self._with_gaps].T, filled))
            solved -= whole.divide(found)
        result = self._weights * self._cells.pick(whole.from_basis(solved))
        if self._is_repeated:
            result += (wide - self._cells.pick(grid)) / self._noise
        return result.to(vectors.dtype)

    def transform_normal(self, normal: Tensor) -> Tensor:
        """Return samples of N(0, P); P is known where the gaps are solved for exactly."""
        of_rows, of_cells = normal.double().split([self.n, self.spectrum.n_normal])
        noise = of_rows * self._noise.sqrt()
        grid = self.spectrum.sample(of_cells) - self._cells.spread(self._weights * noise)
        return (self._cells.pick(grid) + noise).to(self._dtype)

    def log_determinant(self) -> float:
        return self.spectrum.log_determinant() + self._of_gaps.log_determinant() + self._log_noise

    def lower_bound_apply(self, vectors: Tensor) -> Tensor | None:
        """Return the product with the inverse of the noise, which is at most H; None without noise."""
        return vectors / self._noise.to(vectors) if bool((self._noise > 0).all()) else None

    def describe(self) -> str:
        n_entities, n_times = self._cells.shape
        return f"the complete panel of {n_entities:,} by {n_times:,} cells, {self._of_gaps.describe(len(self._gaps))}"


def _noise_of_factors(of_cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and b, with which ``a (x) b`` is nearest to the noise of cells (NaN: not observed), in logarithms."""
    logs, seen = of_cells.log().nan_to_num(0.0), ~of_cells.isnan()
    by_entities, by_times = logs.new_zeros(len(logs)), logs.new_zeros(logs.shape[1])
    rows, columns = seen.sum(1).clamp_min(1), seen.sum(0).clamp_min(1)
    for _ in range(_ROUNDS):
        by_entities = ((logs - by_times) * seen).sum(1) / rows
        by_times = ((logs - by_entities[:, None]) * seen).sum(0) / columns
    return by_entities.exp(), by_times.exp()


# The gaps ---------------------------------------------------------------------------------------------------------


class _Gaps:
    """No gaps."""

    is_exact = True
    operations = 0.0

    def solve(self, vectors: Tensor) -> Tensor:
        """Return B times vectors, (m, s)."""
        return vectors

    def log_determinant(self) -> float:
        """Return ``log det Q_mm``."""
        return 0.0

    def describe(self, count: int) -> str:
        return "without gaps"


class _FactorisedGaps(_Gaps):
    """Few gaps: ``B = Q_mm^-1``."""

    def __init__(self, spectrum: Spectrum, gaps: Tensor, n_times: int) -> None:
        m, n_entities = len(gaps), len(spectrum.left)
        self._factor = cholesky(_inverse_at(spectrum, gaps, n_times), "the precision of the gaps", overwrite=True)
        self.operations = float(m) ** 2 * (n_entities + len(spectrum.core) + m / 3)

    def solve(self, vectors: Tensor) -> Tensor:
        return torch.cholesky_solve(vectors, self._factor)

    def log_determinant(self) -> float:
        return 2 * float(self._factor.diagonal().log().sum())

    def describe(self, count: int) -> str:
        return f"with {count:,} gaps solved for"


class _BlocksOfGaps(_Gaps):
    """Many gaps: a share of the inverse of the blocks of Q_mm of each entity, or of its diagonal."""

    is_exact = False

    def __init__(self, spectrum: Spectrum, gaps: Tensor, shape: tuple[int, int], budget: int) -> None:
        n_entities, n_times = shape
        self._gaps, self._shape = gaps, shape
        # of each entity by eigenvectors of the times, without F, which would make them smaller
        precision = spectrum.left.square() @ (1 / spectrum.values)
        right = spectrum.right
        missing = torch.zeros(n_entities * n_times, dtype=torch.bool)
        missing[gaps] = True
        missing = missing.view(shape)
        size = int(missing.sum(1).max())
        self._by_entity = _BLOCK_SHARE * 16 * size**2 * n_entities <= budget
        if self._by_entity:
            order = missing.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :size]
            held = missing.gather(1, order)
            self._order = order
            rows = right[order] * held[:, :, None]  # (N, size, T)
            blocks = (rows * precision[:, None, :]) @ rows.mT
            blocks.diagonal(dim1=1, dim2=2).add_((~held).double())
            self._inverses = torch.linalg.inv(blocks) * held[:, :, None] * held[:, None, :]
        else:
            self._inverse = 1 / (precision @ right.square().T)[missing]
        self._share = 1.0
        self._share = 1 / (_SAFETY * self._largest(spectrum))
        self.operations = 4.0 * _POWER_STEPS * n_entities * n_times * (n_entities + n_times)

    def _largest(self, spectrum: Spectrum) -> float:
        """Return the largest eigenvalue of ``B Q_mm`` from Rayleigh quotients of a power iteration."""
        n_entities, n_times = self._shape
        vector, largest = standard_normal(len(self._gaps), 2, generator=torch.Generator().manual_seed(0)), 1.0
        for _ in range(_POWER_STEPS):
            solved = self.solve(vector)
            grid = vector.new_zeros(n_entities * n_times, 2)
            grid[self._gaps] = solved
            image = spectrum.solve(grid.view(n_entities, n_times, 2)).view(-1, 2)[self._gaps]
            largest = max(largest, float(((solved * image).sum(0) / (solved * vector).sum(0)).max()))
            vector = image / image.norm(dim=0)
        return largest

    def solve(self, vectors: Tensor) -> Tensor:
        if not self._by_entity:
            return self._share * self._inverse[:, None] * vectors
        n_entities, n_times = self._shape
        grid = vectors.new_zeros(n_entities * n_times, vectors.shape[1])
        grid[self._gaps] = vectors
        index = self._order[:, :, None].expand(-1, -1, vectors.shape[1])
        solved = self._inverses @ grid.view(n_entities, n_times, -1).gather(1, index)
        out = torch.zeros_like(grid).view(n_entities, n_times, -1).scatter_(1, index, solved)
        return self._share * out.view(-1, vectors.shape[1])[self._gaps]

    def log_determinant(self) -> float:
        return math.nan

    def describe(self, count: int) -> str:
        return f"with {count:,} gaps by {'entities' if self._by_entity else 'themselves'}"


def _gaps_of(spectrum: Spectrum, gaps: Tensor, shape: tuple[int, int], most: int, budget: int) -> _Gaps:
    if not len(gaps):
        return _Gaps()
    if len(gaps) <= most and 24 * len(gaps) ** 2 <= budget:
        return _FactorisedGaps(spectrum, gaps, shape[1])
    return _BlocksOfGaps(spectrum, gaps, shape, budget)


def _inverse_at(spectrum: Spectrum, gaps: Tensor, n_times: int) -> Tensor:
    """Return the inverse of the complete panel at the gaps, (m, m), by pairs of times."""
    entity, time = gaps // n_times, gaps % n_times
    found = spectrum.left.new_empty(len(gaps), len(gaps))
    at = [torch.nonzero(time == one)[:, 0] for one in range(n_times)]
    held = [one for one in range(n_times) if len(at[one])]
    weights = (1 / spectrum.values).T.contiguous()  # (T, N)
    rows = {one: spectrum.left[entity[at[one]]] for one in held}
    for place, one in enumerate(held):
        others = held[: place + 1]
        scales = (spectrum.right[one] * spectrum.right[others]) @ weights
        for scale, other in zip(scales, others, strict=True):
            few, many = (one, other) if len(at[one]) <= len(at[other]) else (other, one)
            block = (rows[few] * scale) @ rows[many].T
            found[at[few][:, None], at[many][None, :]] = block
            found[at[many][:, None], at[few][None, :]] = block.T
    if len(spectrum.core):
        root = torch.linalg.solve_triangular(spectrum.core, spectrum.alone.at(spectrum, entity, time).mT, upper=False)
        found.addmm_(root.mT, root, alpha=-1)
    return found


def in_epochs(operations: float, panel: PanelTiles) -> float:
    """Return the operations of a build in epochs of a usual solve."""
    return operations / (2.0 * _COLUMNS * max(panel.known.operations, 1))


def require_panel(matrix: SymmetricMatrix, owner: PreconditionerRecipe) -> tuple[KernelMatrix, PanelTiles]:
    """Return the matrix of a panel's rows and the panel, or refuse other rows in the name of a recipe."""
    panel = matrix.panel if isinstance(matrix, KernelMatrix) else None
    if not isinstance(matrix, KernelMatrix) or panel is None:
        raise InvalidInputError(
            f"{type(owner).__name__} is a preconditioner of the rows of a panel, with a kernel whose parts depend on "
            f"entities or on times alone; got {type(matrix).__name__} of {matrix.n:,} other rows. Use Vecchia()."
        )
    return matrix, panel


def is_exact(panel: PanelTiles, kernel: Kernel) -> bool:
    """Whether a `Spectrum` is exact for a kernel: at most one of its products depends on entities and on times."""
    merged = (factors.merged(panel.known).shape for factors in panel.factors(kernel))
    return sum(1 not in shape for shape in merged) <= 1


def suits_panel(matrix: KernelMatrix, budget: int) -> bool:
    """Whether rows are a panel whose eigenvectors and gaps are quick to factorise within a budget.

    With more gaps, neighbours take fewer iterations: 24 and 36 in place of 44 and 132 for noise of 0.1 and 0.01 of the
    variance (`benchmarks/panel_preconditioners.py`, a third of 250 by 40 cells missing at random).
    """
    panel = matrix.panel
    if panel is None:
        return False
    n_entities, n_times = panel.known.shape
    observed = torch.unique(panel.known.entity * n_times + panel.known.time)
    n_gaps = n_entities * n_times - len(observed)
    n_alone = n_entities + n_times
    needed = 48 * (n_entities**2 + n_times**2) + 24 * n_gaps**2 + 24 * n_alone * (n_alone + n_gaps)
    return needed <= budget and n_gaps <= _MOST_GAPS and max(n_entities, n_times) <= _MOST_ENTITIES


@dataclass(frozen=True)
class CompletePanel(PreconditionerRecipe):
    """The inverse of the complete panel by eigenvectors of its entities and of its times, corrected at the gaps.

    When to use: for panels of up to a few thousand entities and times (`docs/iterative.md` says what a panel is). Up to
    6,000 gaps it is the inverse of H where the kernel is one product, to which parts of entities alone and of times
    alone may be added, and the noise is one number, or a number for each entity times one for each time. A build takes
    ``10 (N^3 + T^3)`` operations for N entities and T times.

    Parameters
    ----------
    most_gaps : int, default 6000
        Gaps up to which their own matrix, m x m, is factorised.
    """

    most_gaps: CountOrZero = _MOST_GAPS

    def build(
        self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None, *, bound: bool = False
    ) -> CompletePanelFactor:
        """Build for a `gigagp.operators.KernelMatrix` of a panel; see `PreconditionerRecipe.build`."""
        return CompletePanelFactor(*require_panel(matrix, self), self.most_gaps)
